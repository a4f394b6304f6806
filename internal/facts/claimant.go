package facts

import (
	"encoding/json"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/topology"
)

// Running tells that a pod's network is in use, so that it can't be given another address.
func Running(p *corev1.Pod) bool {
	if p.Status.PodIP != "" || lifecycle.Started(p) {
		return true
	}
	for k, v := range p.Annotations {
		if _, suffix, ok := network.SplitKey(k); ok && suffix == network.SuffixRouted && v == "true" {
			return true
		}
	}
	return false
}

// Unfenced tells that a pod has addresses on networks that other CNIs plug in, by what it carries or by its leases: taking
// its ports off the switches keeps nobody off those.
func Unfenced(p *corev1.Pod, leases []ipam.Held) bool {
	for _, c := range network.Carried(p.Annotations) {
		if len(c.Addresses) > 0 && !topology.HasPort(c.Provider) && network.Given(p.Annotations, c.Provider) {
			return true
		}
	}
	return slices.ContainsFunc(leases, func(l ipam.Held) bool {
		return l.Address.IsValid() && !topology.HasPort(l.Provider) && (l.PodUID == "" || l.PodUID == string(p.UID))
	})
}

// ControllerUID is that of the pod's controller, where it is the owner of the pod's leases. A virtual machine's pods have
// its instances for controllers.
func ControllerUID(p *corev1.Pod, o ipam.Owner) string {
	if !o.Sticky() || o.Kind == network.KindVM {
		return ""
	}
	ref := metav1.GetControllerOf(p)
	if ref == nil {
		return ""
	}
	return string(ref.UID)
}

// Claimant reads what a pod says of its leases. Those that have ended and gave everything back, and those on the host's
// network, say nothing.
func Claimant(p *corev1.Pod, o ipam.Owner) (lifecycle.Claimant, bool) {
	ended := lifecycle.Ended(p)
	if p.Spec.HostNetwork || ended && !Pod(p).Finalized {
		return lifecycle.Claimant{}, false
	}
	claim, claimed := network.ClaimOf(p.Annotations)
	c := lifecycle.Claimant{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Identity: network.Identity(network.PodOf(p), o),
		Created: p.CreationTimestamp.Time, Claim: claim, Owner: o, OwnerUID: ControllerUID(p, o), Running: Running(p),
		Leaving: ended || p.DeletionTimestamp != nil}
	requested := requestedOf(p)
	for _, n := range network.Carried(p.Annotations) {
		if claimed && network.Given(p.Annotations, n.Provider) {
			asked := requested[n.Provider]
			c.Holdings = append(c.Holdings, lifecycle.Holding{Provider: n.Provider, Subnet: n.Subnet, Addresses: n.Addresses, MAC: n.MAC,
				Requested: asked[network.SuffixAddress] != "", RequestedMAC: asked[network.SuffixMAC] != ""})
		}
	}
	return c, true
}

// requestedOf reads what the pod's user asked for, by network. What can't be read counts as nothing.
func requestedOf(p *corev1.Pod) map[string]map[string]string {
	var out map[string]map[string]string
	if err := json.Unmarshal([]byte(p.Annotations[network.RequestedKey]), &out); err != nil {
		return nil
	}
	return out
}
