package ipam_test

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/berth-net/berth/pkg/ipam"
)

// judge tells what an interface may be given, by what the register says before.
type judge struct {
	register
	plots map[string]*plot
	claim ipam.Claim // of the leases that the owner has already, or of the request
	owner ipam.Owner
	// exact tells that the ledger knew everything, so that the order of its choice is settled.
	exact bool
}

// allows tells whether a lease that the interface has will do.
func allows(p *plot, c ipam.Source, ir ipam.InterfaceRequest, a netip.Addr) bool {
	if !p.usable(a) {
		return false
	}
	if len(ir.Choices) == 0 {
		return c.Pool == "" || p.pool(a) == c.Pool
	}
	for _, choice := range ir.Choices {
		same := slices.ContainsFunc(choice, func(b netip.Addr) bool { return ipam.FamilyOf(a) == ipam.FamilyOf(b) })
		if !same || slices.Contains(choice, a) {
			return true
		}
	}
	return false
}

// kept gives the leases of a family that the interface has and may keep.
func (j judge) kept(ir ipam.InterfaceRequest, c ipam.Source, f ipam.Family) []netip.Addr {
	p := j.plots[c.Subnet.Name()]
	var as []netip.Addr
	for s, x := range j.leases {
		if s.in == p.name && s.addr.IsValid() && x.Claim == j.claim && x.Provider == ir.Provider && ipam.FamilyOf(s.addr) == f && allows(p, c, ir, s.addr) {
			as = append(as, s.addr)
		}
	}
	return as
}

func (j judge) holds(ir ipam.InterfaceRequest, c ipam.Source) bool {
	return len(j.kept(ir, c, ipam.IPv4))+len(j.kept(ir, c, ipam.IPv6)) > 0
}

// order gives the candidates in the order in which they are tried.
func (j judge) order(ir ipam.InterfaceRequest) []ipam.Source {
	cs := slices.Clone(ir.Candidates)
	slices.SortStableFunc(cs, func(a, b ipam.Source) int {
		switch x, y := j.holds(ir, a), j.holds(ir, b); {
		case x == y:
			return 0
		case x:
			return -1
		}
		return 1
	})
	return cs
}

func choicesOf(ir ipam.InterfaceRequest) [][]netip.Addr {
	if len(ir.Choices) == 0 {
		return [][]netip.Addr{nil}
	}
	return ir.Choices
}

func in(choice []netip.Addr, f ipam.Family) netip.Addr {
	for _, a := range choice {
		if ipam.FamilyOf(a) == f {
			return a
		}
	}
	return netip.Addr{}
}

func familiesOf(p *plot, ir ipam.InterfaceRequest) []ipam.Family {
	if len(ir.Families) > 0 {
		return ir.Families
	}
	return p.families()
}

// mine tells that the interface has the address or the MAC already.
func (j judge) mine(ir ipam.InterfaceRequest, x ipam.Lease) bool {
	return x.Claim == j.claim && x.Provider == ir.Provider
}

// grantable tells whether a choice can be had from a source.
func (j judge) grantable(ir ipam.InterfaceRequest, c ipam.Source, choice []netip.Addr) bool {
	p := j.plots[c.Subnet.Name()]
	for _, a := range choice {
		if o, ok := p.reserved[a]; !p.usable(a) || ok && o != ir.Reservation {
			return false
		}
	}
	for _, f := range familiesOf(p, ir) {
		if len(p.addresses(f)) == 0 {
			return false
		}
		if a := in(choice, f); a.IsValid() {
			x, leased := j.leases[spot{in: p.name, addr: a}]
			if leased && !j.mine(ir, x) && (ir.Reservation == (ipam.Owner{}) || x.Owner != ir.Reservation) {
				return false
			}
			continue
		}
		if c.Pool != "" && !p.hasPool(c.Pool, f) {
			return false
		}
		if fresh, old := j.open(p, c.Pool, f); len(fresh)+len(old) == 0 && len(j.kept(ir, c, f)) == 0 {
			return false
		}
	}
	return j.grantsMAC(ir, p, in(choice, ipam.IPv4))
}

func (j judge) grantsMAC(ir ipam.InterfaceRequest, p *plot, v4 netip.Addr) bool {
	m := ir.MAC
	if m == (ipam.MAC{}) || ir.NoMAC || m.Derived() && v4.IsValid() && m == ipam.DerivedMAC(v4) {
		return true
	}
	if m.Derived() {
		for _, x := range j.leases {
			if j.mine(ir, x) && x.Address.Is4() && x.MAC == m {
				return true
			}
		}
		return false
	}
	x, leased := j.leases[spot{in: p.l2(), mac: m}]
	return !leased || j.mine(ir, x)
}

// can tells whether anything that the interface asks for can be had.
func (j judge) can(ir ipam.InterfaceRequest) bool {
	return slices.ContainsFunc(ir.Candidates, func(c ipam.Source) bool {
		return slices.ContainsFunc(choicesOf(ir), func(choice []netip.Addr) bool { return j.grantable(ir, c, choice) })
	})
}

// given tells what is wrong with what an interface was given.
func (j judge) given(ir ipam.InterfaceRequest, as ipam.Assignment) error {
	var why error
	for _, c := range j.order(ir) {
		for _, choice := range choicesOf(ir) {
			if c.Subnet == as.Subnet {
				err := j.givenFrom(ir, as, c, choice)
				if err == nil {
					return j.givenMAC(ir, as)
				}
				why = err
			}
			// A choice whose address the interface has already comes before the others.
			if j.exact && j.grantable(ir, c, choice) && !slices.ContainsFunc(ir.Choices, func(o []netip.Addr) bool { return j.owned(ir, c, o) }) {
				return fmt.Errorf("%v from %s/%s could be had and was passed over (%w)", choice, c.Subnet.Name(), c.Pool, why)
			}
		}
	}
	return fmt.Errorf("nothing that was asked for: %w", why)
}

func (j judge) owned(ir ipam.InterfaceRequest, c ipam.Source, choice []netip.Addr) bool {
	return slices.ContainsFunc(choice, func(a netip.Addr) bool {
		x, leased := j.leases[spot{in: c.Subnet.Name(), addr: a}]
		return leased && j.mine(ir, x)
	})
}

func (j judge) givenFrom(ir ipam.InterfaceRequest, as ipam.Assignment, c ipam.Source, choice []netip.Addr) error {
	p := j.plots[c.Subnet.Name()]
	fs := familiesOf(p, ir)
	if len(as.Leases) != len(fs) {
		return fmt.Errorf("%d leases for %v", len(as.Leases), fs)
	}
	for i, f := range fs {
		h := as.Leases[i]
		before, leased := j.leases[spot{in: p.name, addr: h.Address}]
		mine := leased && j.mine(ir, before)
		asked, due := in(choice, f), j.due(p, c.Pool, f, j.owner)
		kept := j.kept(ir, c, f)
		switch {
		case h.Subnet != p.name || ipam.FamilyOf(h.Address) != f || h.Claim != j.claim || h.Provider != ir.Provider || h.Owner != j.owner:
			return fmt.Errorf("lease %+v is not the interface's", h)
		case asked.IsValid() && h.Address != asked:
			return fmt.Errorf("%s in place of %s", h.Address, asked)
		case !mine && h.Requested != asked.IsValid():
			return fmt.Errorf("%s says that it was asked for: %t", h.Address, h.Requested)
		case mine && (asked.IsValid() || slices.Contains(kept, h.Address)):
		case !p.usable(h.Address) || j.pastReservation(ir, p, h.Address):
			return fmt.Errorf("%s may not be had", h.Address)
		case leased && (!asked.IsValid() || ir.Reservation == (ipam.Owner{}) || before.Owner != ir.Reservation):
			return fmt.Errorf("%s is that of %+v", h.Address, before)
		case asked.IsValid():
		case p.withheld(h.Address) || p.pool(h.Address) != c.Pool:
			return fmt.Errorf("%s was not asked for", h.Address)
		case len(kept) > 0:
			return fmt.Errorf("%s is new although there is %v", h.Address, kept)
		case j.exact && !slices.Contains(due, h.Address):
			return fmt.Errorf("%s in place of %v, which were not used for longer", h.Address, due)
		}
	}
	return nil
}

func (j judge) pastReservation(ir ipam.InterfaceRequest, p *plot, a netip.Addr) bool {
	o, ok := p.reserved[a]
	return ok && o != ir.Reservation
}

func (j judge) givenMAC(ir ipam.InterfaceRequest, as ipam.Assignment) error {
	if ir.NoMAC {
		if as.MAC != (ipam.MAC{}) {
			return fmt.Errorf("MAC %s for an interface without", as.MAC)
		}
		return nil
	}
	if as.MAC == (ipam.MAC{}) || ir.MAC != (ipam.MAC{}) && as.MAC != ir.MAC {
		return fmt.Errorf("MAC %s, asked for was %s", as.MAC, ir.MAC)
	}
	for _, h := range as.Leases {
		beside := h.MAC == (ipam.MAC{}) && h.Address.Is6() && len(as.Leases) > 1 // the IPv4 address's lease says it
		if h.MAC != as.MAC && !beside {
			return fmt.Errorf("%s has MAC %s, the interface %s", h.Address, h.MAC, as.MAC)
		}
	}
	return nil
}
