package report

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// The answers to who has an address in a subnet.
const (
	// WhoLeased: somebody has a lease of it.
	WhoLeased = "leased"
	// WhoReserved: it is kept for somebody who has no lease of it yet.
	WhoReserved = "reserved"
	// WhoGateway: it is the subnet's gateway.
	WhoGateway = "gateway"
	// WhoFree: nobody has it.
	WhoFree = "free"
	// WhoUnusable: it is the subnet's own, and nobody ever gets it: its network or broadcast address.
	WhoUnusable = "unusable"
)

// Holder is one answer.
type Holder struct {
	Subnet string `json:"subnet"`
	// State is one of the answers above.
	State string `json:"state"`
	// Who has it, for people.
	Who string `json:"who,omitempty"`
	// Lease is set when there is one.
	Lease *Lease `json:"lease,omitempty"`
	// Freed is when it was freed last, FormerOwner who had it, where that is remembered.
	Freed       *time.Time `json:"freed,omitempty"`
	FormerOwner string     `json:"formerOwner,omitempty"`
}

// Who answers who has an address or a MAC.
type Who struct {
	Head
	Asked string   `json:"asked"`
	Items []Holder `json:"items"`
}

// Found tells whether somebody has it.
func (w *Who) Found() bool {
	return slices.ContainsFunc(w.Items, func(h Holder) bool { return h.State != WhoFree && h.State != WhoUnusable })
}

// WhoHasAddress looks in the leases and in all subnets that have the address.
func WhoHasAddress(a netip.Addr, cat network.Catalog, l *ipam.Ledger, blocks []*ipam.Block) *Who {
	a = a.Unmap()
	out := &Who{Head: head("Who"), Asked: a.String(), Items: []Holder{}}
	leased := map[string]bool{}
	for _, h := range l.Leases() {
		if h.Address == a {
			leased[h.Subnet] = true
			out.Items = append(out.Items, leaseHolder(h))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cat.Subnets)) {
		s := cat.Subnets[name]
		if s.Set == nil || leased[name] {
			continue
		}
		if p, ok := s.Set.Prefix(ipam.FamilyOf(a)); ok && p.Contains(a) {
			out.Items = append(out.Items, unleased(a, s, blocks))
		}
	}
	return out
}

// WhoHasMAC looks in the leases, and among the MACs of IP objects that are no pod's.
func WhoHasMAC(m ipam.MAC, cat network.Catalog, l *ipam.Ledger) *Who {
	out := &Who{Head: head("Who"), Asked: m.String(), Items: []Holder{}}
	for _, h := range l.Leases() {
		if h.MAC == m {
			out.Items = append(out.Items, leaseHolder(h))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(cat.Reservations)) {
		if r := cat.Reservations[name]; r.MAC == m {
			out.Items = append(out.Items, Holder{Subnet: r.Subnet, State: WhoReserved, Who: "IP object " + name})
		}
	}
	return out
}

func leaseHolder(h ipam.Held) Holder {
	row := LeaseOf(h)
	return Holder{Subnet: h.Subnet, State: WhoLeased, Who: people(h), Lease: &row}
}

// people says who has a lease.
func people(h ipam.Held) string {
	o := h.Owner
	switch {
	case o.Reserves():
		return o.Kind + " " + o.Name
	case h.PodName != "":
		return fmt.Sprintf("pod %s/%s", o.Namespace, h.PodName)
	case o.Sticky():
		return fmt.Sprintf("%s %s/%s, without a pod", o.Kind, o.Namespace, o.Name)
	}
	return fmt.Sprintf("a pod of namespace %s that is not bound to it yet", o.Namespace)
}

// unleased says what an address is that nobody has a lease of.
func unleased(a netip.Addr, s network.Subnet, blocks []*ipam.Block) Holder {
	h := Holder{Subnet: s.Object.Name, State: WhoFree}
	var gateway *ipam.GatewayError
	var reserved *ipam.ReservedError
	switch err := s.Set.Check(a, ipam.Owner{}); {
	case errors.As(err, &gateway):
		h.State, h.Who = WhoGateway, "gateway of subnet "+h.Subnet
		return h
	case errors.As(err, &reserved):
		h.State, h.Who = WhoReserved, reserved.For.Kind+" "+reserved.For.Name
		return h
	case err != nil:
		h.State = WhoUnusable
		return h
	}
	name := ipam.BlockName(h.Subnet, a)
	for _, b := range blocks {
		if b.Name != name {
			continue
		}
		for _, f := range b.Freed {
			if f.Address == a {
				at := time.Unix(f.At, 0).UTC()
				h.Freed = &at
				if f.Owner != (ipam.Owner{}) {
					h.FormerOwner = f.Owner.String()
				}
			}
		}
	}
	return h
}

func (w *Who) table(out *writer) {
	if len(w.Items) == 0 {
		out.text("Nobody has %s, and no subnet has it.", w.Asked)
		return
	}
	cells := []string{"SUBNET", "STATE", "WHO", "MAC", "FREED"}
	if out.wide {
		cells = append(cells, "OWNER", "POD UID", "CLAIM", "FORMER OWNER")
	}
	out.row(cells...)
	for _, h := range w.Items {
		l := Lease{}
		if h.Lease != nil {
			l = *h.Lease
		}
		freed := out.age(h.Freed)
		if freed != "" {
			freed += " ago"
		}
		cells := []string{h.Subnet, h.State, h.Who, l.MAC, freed}
		if out.wide {
			cells = append(cells, l.Owner, l.PodUID, l.Claim, h.FormerOwner)
		}
		out.row(cells...)
	}
}
