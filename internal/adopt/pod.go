// Package adopt plans how a cluster's addresses go from Kube-OVN's controller to the ledger, and back.
//
// Invariant: plans are values made of values. Nothing that a pod already says of its network changes: plans only add what
// is missing, or take away what was added. Whatever doesn't fit is a problem by its object, and no lease is planned for it.
package adopt

import (
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/topology"
)

// Pod is a pod with the addresses that somebody else gave it.
type Pod struct {
	*corev1.Pod
	Owner ipam.Owner
	// Identity is the name of its ports and records.
	Identity string
	Networks []network.CarriedInterface
}

// PodOf reads a pod. Networks whose annotations name no subnet have the one of their provider that has their addresses.
func PodOf(p *corev1.Pod, cat network.Catalog, cfg network.Config) Pod {
	owner := network.OwnerOf(network.PodOf(p), cfg)
	out := Pod{Pod: p, Owner: owner, Identity: network.Identity(network.PodOf(p), owner), Networks: network.Carried(p.Annotations)}
	for i := range out.Networks {
		if n := &out.Networks[i]; n.Subnet == "" {
			n.Subnet = cat.SubnetOf(*n)
		}
	}
	return out
}

// Subnets are those of its networks.
func (p Pod) Subnets() []string {
	var out []string
	for _, n := range p.Networks {
		if n.Subnet != "" && len(n.Addresses) > 0 && !slices.Contains(out, n.Subnet) {
			out = append(out, n.Subnet)
		}
	}
	return out
}

// Unfit tells all reasons why the addresses that the pod runs on can't be leased, whoever has them; none: they can.
func (p Pod) Unfit(cat network.Catalog, serves func(network.Subnet) bool) []string {
	ips := p.statusIPs()
	var out []string
	found := false
	for _, n := range p.Networks {
		if len(n.Addresses) > 0 {
			found = true
			out = append(out, p.unfit(n, ips, cat, serves)...)
		}
	}
	if !found {
		out = append(out, "its annotations say none")
	}
	return out
}

func (p Pod) unfit(n network.CarriedInterface, ips []netip.Addr, cat network.Catalog, serves func(network.Subnet) bool) []string {
	subnet := cat.Subnets[n.Subnet]
	allocated := p.Annotations[network.Key(n.Provider, network.SuffixAllocated)] == "true"
	runs := func(a netip.Addr) bool { return slices.Contains(n.Addresses, a) }
	switch {
	case !network.Given(p.Annotations, n.Provider):
		return []string{fmt.Sprintf("what its annotations say of network %s was asked for, and not given", n.Provider)}
	case subnet.Set == nil:
		return []string{fmt.Sprintf("its subnet %q is not there", n.Subnet)}
	case !serves(subnet):
		return []string{fmt.Sprintf("subnet %s is not served here", n.Subnet)}
	case n.Provider == network.DefaultProvider && len(ips) > 0 && !slices.ContainsFunc(ips, runs):
		return []string{fmt.Sprintf("it runs on %v, and its annotations say %v", ips, n.Addresses)}
	case len(ips) == 0 && !allocated:
		return []string{"nothing tells on which address it runs"}
	}
	var out []string
	for _, a := range n.Addresses {
		if err := subnet.Set.Check(a, p.LentTo(n, a, cat)); err != nil {
			out = append(out, err.Error())
		}
	}
	return out
}

// statusIPs are the addresses on which kubelet says that it runs.
func (p Pod) statusIPs() []netip.Addr {
	var ips []netip.Addr
	for _, ip := range p.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			ips = append(ips, a.Unmap())
		}
	}
	if a, err := netip.ParseAddr(p.Status.PodIP); err == nil && len(ips) == 0 {
		ips = append(ips, a.Unmap())
	}
	return ips
}

// Rival tells who else has a lease of one of its addresses; empty: nobody.
func (p Pod) Rival(cat network.Catalog, lookup func(subnet string, a netip.Addr) (ipam.Held, bool)) string {
	for _, n := range p.Networks {
		for _, a := range n.Addresses {
			if h, leased := lookup(n.Subnet, a); leased && h.Owner != p.LentTo(n, a, cat) && (!p.Owner.Sticky() || h.Owner != p.Owner) {
				return fmt.Sprintf("%s is leased to %s", a, h.Owner)
			}
		}
	}
	return ""
}

// LentTo is the IP object of the pod's own network, when the address is kept by that.
func (p Pod) LentTo(n network.CarriedInterface, a netip.Addr, cat network.Catalog) ipam.Owner {
	if o := cat.Reserved[n.Subnet][a]; o.Kind == ipam.KindIP && o.Name == network.PortName(p.Identity, p.Namespace, n.Provider) {
		return o
	}
	return ipam.Owner{}
}

// Request asks for the very addresses that the pod uses, under a claim.
func (p Pod) Request(claim ipam.Claim, cat network.Catalog) ipam.Request {
	r := ipam.Request{Claim: claim, Existing: true, Owner: p.Owner}
	for _, n := range p.Networks {
		subnet, ok := cat.Subnets[n.Subnet]
		if !ok || subnet.Set == nil || len(n.Addresses) == 0 {
			continue
		}
		i := ipam.InterfaceRequest{Provider: n.Provider, Candidates: []ipam.Source{{Subnet: subnet.Set}}, Choices: [][]netip.Addr{n.Addresses}, MAC: n.MAC,
			NoMAC: !topology.IsOVN(subnet.Provider())}
		for _, a := range n.Addresses {
			i.Families = append(i.Families, ipam.FamilyOf(a))
			i.Reservation = p.LentTo(n, a, cat)
		}
		r.Interfaces = append(r.Interfaces, i)
	}
	return r
}
