package network

import (
	"fmt"
	"maps"
	"slices"

	"github.com/berth-net/berth/pkg/ipam"
)

// ReadyLabel is on the nodes on which a ProviderNetwork is ready, with the value "true".
func ReadyLabel(providerNetwork string) string {
	return providerNetwork + ".provider-network.kubernetes.io/ready"
}

// underlay is the ProviderNetwork that a subnet stands on; empty in an overlay.
func underlay(s Subnet, cat Catalog) string {
	if s.Object == nil || s.Object.Spec.Vlan == "" {
		return ""
	}
	if v := cat.Vlans[s.Object.Spec.Vlan]; v != nil {
		return v.Spec.Provider
	}
	return ""
}

// NodeSelector gives the labels of the nodes that can plug the pod's networks in: it is ANDed with all that the pod
// itself asks of nodes, every term of its affinity included.
func NodeSelector(a *ipam.Allocation, cat Catalog) map[string]string {
	out := map[string]string{}
	for _, as := range a.Interfaces {
		if p := underlay(cat.Subnets[as.Subnet.Name()], cat); p != "" {
			out[ReadyLabel(p)] = "true"
		}
	}
	return out
}

// Contradicts names what the pod itself asks of nodes against a selector; empty: nothing.
func Contradicts(p Pod, selector map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(selector)) {
		if v, ok := p.NodeSelector[k]; ok && v != selector[k] {
			return fmt.Sprintf("spec.nodeSelector has %s=%s, and the pod's network is plugged in only where it is %s", k, v, selector[k])
		}
	}
	return ""
}

// reachable tells why a subnet can't be plugged in on the node that the pod names; a node that isn't known yet is no
// reason.
func (pl *planner) reachable(s Subnet) error {
	p := underlay(s, pl.cat)
	labels, known := pl.cat.Nodes[pl.pod.NodeName]
	if p == "" || pl.pod.NodeName == "" || !known || labels[ReadyLabel(p)] == "true" {
		return nil
	}
	return fmt.Errorf("subnet %q is on the ProviderNetwork %q, which is not ready on node %s: name another node or subnet", s.Object.Name, p, pl.pod.NodeName)
}
