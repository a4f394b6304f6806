package network

import (
	"cmp"
	"maps"
	"slices"
	"strconv"

	"github.com/berth-net/berth/pkg/ipam"
)

// Annotations are what a pod carries of its allocation: the networks' values by the contract, the claim, what was asked
// for, and what attachments were named. Admission, late allocation and the plugging of networks into pods that run all
// write these and nothing else; that a network is allocated and routed is said later, by who wires it.
func Annotations(p Planned, a *ipam.Allocation, cat Catalog, cfg Config) map[string]string {
	out := map[string]string{ClaimKey: string(a.Claim)}
	if p.Requested != "" {
		out[RequestedKey] = p.Requested
	}
	if p.Networks != "" {
		out[PluggedKey] = p.Networks
	}
	for i, as := range a.Interfaces {
		var planned Interface
		if i < len(p.Interfaces) {
			planned = p.Interfaces[i]
		}
		subnet := planned.candidate(as.Subnet.Name())
		if subnet.Object == nil {
			subnet = cat.Subnets[as.Subnet.Name()]
		}
		set := func(suffix, value string) {
			if value != "" {
				out[Key(as.Provider, suffix)] = value
			}
		}
		set(SuffixAddress, join(as.Addresses()))
		set(SuffixMAC, as.MAC.String())
		set(SuffixCIDR, subnet.CIDR)
		set(SuffixGateway, subnet.Gateway)
		if planned.IPAMOnly { // there is no switch
			continue
		}
		set(SuffixSubnet, as.Subnet.Name())
		set(SuffixNICType, cmp.Or(planned.NICType, cfg.PodNICType))
		set(SuffixVM, planned.VM)
		maps.Copy(out, topologyAnnotations(as.Provider, subnet, cat, cfg))
	}
	return out
}

// topologyAnnotations tell of the router and the VLAN behind the subnet.
func topologyAnnotations(provider string, s Subnet, cat Catalog, cfg Config) map[string]string {
	out := map[string]string{}
	if s.Object == nil {
		return out
	}
	spec := s.Object.Spec
	router := spec.Vpc
	if router == "" {
		router = cfg.ClusterRouter
	}
	if router != "" && (spec.Vlan == "" || spec.LogicalGateway || spec.U2OInterconnection) {
		out[Key(provider, SuffixRouter)] = router
	}
	if v := cat.Vlans[spec.Vlan]; spec.Vlan != "" && v != nil {
		out[Key(provider, SuffixVlanID)] = strconv.Itoa(v.Spec.ID)
		out[Key(provider, SuffixProviderNetwork)] = v.Spec.Provider
	}
	return out
}

// Strip gives the annotations without what Output names, and the keys that went, sorted: what is left of a copy of
// another pod's manifest.
func Strip(annotations map[string]string) (kept map[string]string, dropped []string) {
	kept = make(map[string]string, len(annotations))
	for k, v := range annotations {
		if Output(k) {
			dropped = append(dropped, k)
			continue
		}
		kept[k] = v
	}
	slices.Sort(dropped)
	return kept, dropped
}
