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
	// Networks is the value of NetworksKey that this was planned by; empty when the pod names no attachments.
	Networks string
	// Dropped are warnings: what was passed over, and why.
	Dropped []string
}

// Interface is one network of the pod.
type Interface struct {
	// Provider is the prefix of the network's annotations.
	Provider string
	// IPAMOnly: another CNI plugs the interface in and makes its MAC; it only gets its addresses from here.
	IPAMOnly bool
	// Candidates to take from, in order. All of them can be used.
	Candidates []Candidate
	// Families wanted; empty means all that the subnet has.
	Families []ipam.Family
	// Choices are the addresses that are asked for: the first of them that can be had is given.
	Choices [][]netip.Addr
	// Reservation is what the choices are reserved for: a Vip, or an IP object; the zero value: nothing.
	Reservation ipam.Owner
	// MAC that is asked for.
	MAC ipam.MAC
	// NICType that is asked for.
	NICType string
	// VM is the virtual machine's name, where its address is kept.
	VM string
}

// Candidate is a subnet to take from, or one of its pools.
type Candidate struct {
	Subnet
	// Pool is a pool's name; empty: what belongs to none.
	Pool string
}

func (i Interface) candidate(name string) Subnet {
	for _, c := range i.Candidates {
		if c.Object != nil && c.Object.Name == name {
			return c.Subnet
		}
	}
	return Subnet{}
}

// Request asks the ledger for what is planned. existing tells that claim may hold leases already.
func (p Planned) Request(claim ipam.Claim, existing bool) ipam.Request {
	r := ipam.Request{Claim: claim, Existing: existing, Owner: p.Owner}
	for _, i := range p.Interfaces {
		ir := ipam.InterfaceRequest{Provider: i.Provider, Families: i.Families, Choices: i.Choices, Reservation: i.Reservation, MAC: i.MAC,
			NoMAC: i.IPAMOnly}
		for _, c := range i.Candidates {
			ir.Candidates = append(ir.Candidates, ipam.Source{Subnet: c.Set, Pool: c.Pool})
		}
		r.Interfaces = append(r.Interfaces, ir)
	}
	return r
}

// Plan works out what a pod is to get. What it carries beside a claim counts as ours and not as asked for: a caller who
// knows that the claim is another pod's hands the pod over Stripped. All that is wrong is told at once.
func Plan(p Pod, ns Namespace, cat Catalog, cfg Config) (Planned, field.ErrorList) {
	out := Planned{Owner: OwnerOf(p, cfg), Networks: namedNetworks(p.Annotations)}
	pl := &planner{pod: p, ns: ns, cat: cat, cfg: cfg, out: &out}
	pl.readRequested()
	nets := pl.networks()
	pl.validate(nets)
	requested := map[string]map[string]string{}
	for _, n := range nets {
		i := pl.plan(n)
		out.Interfaces = append(out.Interfaces, i)
		if asked := requestedOf(n.own); len(asked) > 0 {
			requested[n.provider] = asked
		}
	}
	pl.checkNames(nets)
	if len(pl.errs) > 0 {
		return out, pl.errs
	}
	out.Requested = requestedValue(requested)
	return out, nil
}
