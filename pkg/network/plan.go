package network

import (
	"net/netip"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
)

// Planned is what a pod is to get.
type Planned struct {
	Owner      ipam.Owner
	Interfaces []Interface
	// Requested is the value of RequestedKey; empty when nothing was asked for.
	Requested string
	// Dropped are warnings: what was passed over, and why.
	Dropped []string
}

// Interface is one network of the pod.
type Interface struct {
	Provider string
	// Candidates to take from, in order. All of them can be used.
	Candidates []Subnet
	// Families wanted; empty means all that the subnet has.
	Families []ipam.Family
	// Addresses that are asked for.
	Addresses []netip.Addr
	// MAC that is asked for.
	MAC ipam.MAC
	// NICType that is asked for.
	NICType string
}

func (i Interface) candidate(name string) Subnet {
	for _, s := range i.Candidates {
		if s.Object != nil && s.Object.Name == name {
			return s
		}
	}
	return Subnet{}
}

// Request asks the ledger for what is planned. existing tells that claim may hold leases already.
func (p Planned) Request(claim ipam.Claim, existing bool) ipam.Request {
	r := ipam.Request{Claim: claim, Existing: existing, Owner: p.Owner}
	for _, i := range p.Interfaces {
		ir := ipam.InterfaceRequest{Provider: i.Provider, Families: i.Families, MAC: i.MAC}
		if len(i.Addresses) > 0 {
			ir.Choices = [][]netip.Addr{i.Addresses}
		}
		for _, s := range i.Candidates {
			ir.Candidates = append(ir.Candidates, ipam.Source{Subnet: s.Set})
		}
		r.Interfaces = append(r.Interfaces, ir)
	}
	return r
}

// Plan works out what a pod is to get. What it carries beside a claim counts as ours and not as asked for: a caller who
// knows that the claim is another pod's hands the pod over Stripped. All that is wrong is told at once.
func Plan(p Pod, ns Namespace, cat Catalog, cfg Config) (Planned, field.ErrorList) {
	out := Planned{Owner: OwnerOf(p)}
	pl := &planner{pod: p, ns: ns, cat: cat, cfg: cfg, out: &out}
	asked := pl.asked()
	i := pl.parse(asked)
	pl.candidates(&i, asked[SuffixSubnet])
	out.Interfaces = []Interface{i}
	if len(pl.errs) > 0 {
		return out, pl.errs
	}
	out.Requested = requestedValue(i, asked[SuffixSubnet])
	return out, nil
}
