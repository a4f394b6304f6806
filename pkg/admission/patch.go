package admission

import (
	"maps"
	"slices"

	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/pkg/network"
)

// patchFinalizers adds our finalizer behind those of others.
func patchFinalizers(have []string) []jsonpatch.Operation {
	if slices.Contains(have, network.Finalizer) {
		return nil
	}
	return []jsonpatch.Operation{jsonpatch.Append(jsonpatch.Finalizers, have != nil, network.Finalizer)}
}

// patchGates adds our scheduling gate behind those of others.
func patchGates(have []string) []jsonpatch.Operation {
	if slices.Contains(have, network.AddressGate) {
		return nil
	}
	return []jsonpatch.Operation{jsonpatch.Append(jsonpatch.SchedulingGates, have != nil, map[string]string{"name": network.AddressGate})}
}

// wanted are the pod's annotations with ours: those of the default network are all ours, and nothing is allocated or
// routed in a pod that is only being created.
func wanted(have, ours map[string]string) map[string]string {
	out := make(map[string]string, len(have)+len(ours))
	for k, v := range have {
		provider, _, _ := network.SplitKey(k)
		if k == network.RequestedKey || network.Progress(k) || network.Output(k) && provider == network.DefaultProvider {
			continue
		}
		out[k] = v
	}
	maps.Copy(out, ours)
	return out
}
