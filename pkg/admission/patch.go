package admission

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/network"
)

// operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

const annotationsPath = "/metadata/annotations"

// annotationPath is where an annotation stands.
func annotationPath(key string) string {
	return annotationsPath + "/" + escape(key)
}

func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// patchAnnotations turns what there is into what is wanted, each key by itself, so that what others add stays. The
// parent is made when it is absent or null, and only then.
func patchAnnotations(have, want map[string]string) []operation {
	var ops []operation
	if have == nil && len(want) > 0 {
		ops = append(ops, operation{"add", annotationsPath, map[string]string{}})
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		old, ok := have[k]
		switch {
		case !ok:
			ops = append(ops, operation{"add", annotationPath(k), want[k]})
		case old != want[k]:
			ops = append(ops, operation{"replace", annotationPath(k), want[k]})
		}
	}
	for _, k := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[k]; !ok {
			ops = append(ops, operation{Op: "remove", Path: annotationPath(k)})
		}
	}
	return ops
}

// patchFinalizers adds our finalizer behind those of others.
func patchFinalizers(have []string) []operation {
	switch {
	case slices.Contains(have, network.Finalizer):
		return nil
	case have == nil:
		return []operation{{"add", "/metadata/finalizers", []string{network.Finalizer}}}
	}
	return []operation{{"add", "/metadata/finalizers/-", network.Finalizer}}
}

// patchGates adds our scheduling gate behind those of others.
func patchGates(have []string) []operation {
	gate := map[string]string{"name": network.AddressGate}
	switch {
	case slices.Contains(have, network.AddressGate):
		return nil
	case have == nil:
		return []operation{{"add", "/spec/schedulingGates", []any{gate}}}
	}
	return []operation{{"add", "/spec/schedulingGates/-", gate}}
}

// patchNodeSelector adds what the pod's nodes must have. What the pod says itself stays.
func patchNodeSelector(have, want map[string]string) []operation {
	var ops []operation
	if have == nil && len(want) > 0 {
		ops = append(ops, operation{"add", "/spec/nodeSelector", map[string]string{}})
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if _, ok := have[k]; !ok {
			ops = append(ops, operation{"add", "/spec/nodeSelector/" + escape(k), want[k]})
		}
	}
	return ops
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
