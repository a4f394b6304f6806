package ipam_test

import (
	"fmt"
	"maps"
	"math/big"
	"net/netip"
	"slices"

	"go4.org/netipx"

	"github.com/berth-net/berth/pkg/ipam"
)

// The reference model: subnets as lists of addresses, the ledger as one map. It is slow, and plain enough to be
// believed.

// plot is a subnet.
type plot struct {
	name, domain string
	prefixes     []netip.Prefix
	gateways     map[netip.Addr]bool
	excluded     map[netip.Addr]bool
	reserved     map[netip.Addr]ipam.Owner
	pools        []plotPool
	all          map[netip.Prefix][]netip.Addr // addresses that were listed before
}

type plotPool struct {
	name string
	has  map[netip.Addr]bool
}

func (p *plot) l2() string {
	if p.domain == "" {
		return p.name
	}
	return p.domain
}

// subnet makes the allocator's view of it.
func (p *plot) subnet() (*ipam.Subnet, error) {
	spec := ipam.SubnetSpec{Name: p.name, UID: "uid-" + p.name, Domain: p.domain, Prefixes: p.prefixes, Reserved: maps.Clone(p.reserved)}
	for g := range p.gateways {
		spec.Gateways = append(spec.Gateways, g)
	}
	var err error
	if spec.Exclude, err = setOf(p.excluded); err != nil {
		return nil, err
	}
	for _, x := range p.pools {
		set, err := setOf(x.has)
		if err != nil {
			return nil, err
		}
		spec.Pools = append(spec.Pools, ipam.Pool{Name: x.name, Set: set})
	}
	return ipam.NewSubnet(spec)
}

func setOf(as map[netip.Addr]bool) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for a := range as {
		b.Add(a)
	}
	return b.IPSet()
}

// addresses of a family, all of them.
func (p *plot) addresses(f ipam.Family) []netip.Addr {
	for _, x := range p.prefixes {
		if ipam.FamilyOf(x.Addr()) != f {
			continue
		}
		if p.all[x] == nil {
			for a := x.Addr(); x.Contains(a); a = a.Next() {
				p.all[x] = append(p.all[x], a)
			}
		}
		return p.all[x]
	}
	return nil
}

func (p *plot) families() []ipam.Family {
	var fs []ipam.Family
	for _, f := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
		if len(p.addresses(f)) > 0 {
			fs = append(fs, f)
		}
	}
	return fs
}

// usable tells that an address may be leased at all.
func (p *plot) usable(a netip.Addr) bool {
	if p.gateways[a] {
		return false
	}
	for _, x := range p.prefixes {
		if !x.Contains(a) {
			continue
		}
		as := p.addresses(ipam.FamilyOf(a))
		return len(as) == 2 || a != as[0] && !(a.Is4() && a == as[len(as)-1])
	}
	return false
}

// withheld tells that an address is not handed out unasked.
func (p *plot) withheld(a netip.Addr) bool {
	_, reserved := p.reserved[a]
	return p.excluded[a] || reserved
}

// pool that an address belongs to; empty: none.
func (p *plot) pool(a netip.Addr) string {
	for _, x := range p.pools {
		if x.has[a] {
			return x.name
		}
	}
	return ""
}

func (p *plot) hasPool(name string, f ipam.Family) bool {
	return slices.ContainsFunc(p.addresses(f), func(a netip.Addr) bool { return p.usable(a) && p.pool(a) == name })
}

// spot is where a lease stands: an address in a subnet, or a MAC in an L2 domain.
type spot struct {
	in   string
	addr netip.Addr
	mac  ipam.MAC
}

func spotOf(in string, x ipam.Lease) spot {
	if x.Address.IsValid() {
		return spot{in: in, addr: x.Address}
	}
	return spot{in: in, mac: x.MAC}
}

// register is the ledger: who has what, and when what is free was freed.
type register struct {
	leases map[spot]ipam.Lease
	freed  map[spot]ipam.Freed
}

func newRegister() register {
	return register{leases: map[spot]ipam.Lease{}, freed: map[spot]ipam.Freed{}}
}

// read gives what a store's blocks say.
func read(blocks []*ipam.Block) (register, error) {
	r := newRegister()
	for _, b := range blocks {
		for _, x := range b.Leases {
			s := spotOf(b.Subnet, *x)
			if _, ok := r.leases[s]; ok {
				return r, fmt.Errorf("%v is leased twice", s)
			}
			if x.Address.IsValid() && ipam.BlockName(b.Subnet, x.Address) != b.Name {
				return r, fmt.Errorf("%v stands in block %s", s, b.Name)
			}
			r.leases[s] = *x
		}
		for _, f := range b.Freed {
			s := spot{in: b.Subnet, addr: f.Address}
			if _, ok := r.leases[s]; ok {
				return r, fmt.Errorf("%v is leased and free", s)
			}
			r.freed[s] = f
		}
	}
	return r, nil
}

func (r register) put(in string, x ipam.Lease) {
	s := spotOf(in, x)
	r.leases[s] = x
	delete(r.freed, s)
}

// drop frees what stands at s.
func (r register) drop(s spot, at int64) {
	x := r.leases[s]
	delete(r.leases, s)
	switch {
	case x.Under != nil:
		r.leases[s] = ipam.Lease{Address: x.Address, Owner: *x.Under, Requested: true}
	case x.Address.IsValid():
		f := ipam.Freed{Address: x.Address, At: at}
		if x.Owner.Sticky() {
			f.Owner = x.Owner
		}
		r.freed[s] = f
	}
}

// of gives the leases of a claim, in an order that does not change.
func (r register) of(c ipam.Claim) []spot {
	var ss []spot
	for s, x := range r.leases {
		if x.Claim == c {
			ss = append(ss, s)
		}
	}
	slices.SortFunc(ss, func(a, b spot) int { return slices.Compare([]byte(fmt.Sprint(a)), []byte(fmt.Sprint(b))) })
	return ss
}

// claimOf gives the claim of a sticky owner's leases.
func (r register) claimOf(o ipam.Owner) (ipam.Claim, bool) {
	for _, x := range r.leases {
		if o.Sticky() && x.Owner == o {
			return x.Claim, true
		}
	}
	return "", false
}

// open gives what may be handed out unasked from a part of a subnet now: fresh was never used, old was.
func (r register) open(p *plot, pool string, f ipam.Family) (fresh, old []netip.Addr) {
	for _, a := range p.addresses(f) {
		s := spot{in: p.name, addr: a}
		if _, leased := r.leases[s]; leased || !p.usable(a) || p.withheld(a) || p.pool(a) != pool {
			continue
		}
		if _, used := r.freed[s]; used {
			old = append(old, a)
		} else {
			fresh = append(fresh, a)
		}
	}
	return fresh, old
}

// due gives the addresses of which one has to be handed out next to an owner.
func (r register) due(p *plot, pool string, f ipam.Family, o ipam.Owner) []netip.Addr {
	fresh, old := r.open(p, pool, f)
	if o.Sticky() {
		var own []netip.Addr
		for _, a := range old {
			x := r.freed[spot{in: p.name, addr: a}]
			if x.Owner != o {
				continue
			}
			if len(own) > 0 && x.At > r.freed[spot{in: p.name, addr: own[0]}].At {
				own = nil
			}
			if len(own) == 0 || x.At == r.freed[spot{in: p.name, addr: own[0]}].At {
				own = append(own, a)
			}
		}
		if len(own) > 0 {
			return own
		}
	}
	if len(fresh) > 0 || len(old) == 0 {
		return fresh
	}
	oldest := old[0]
	for _, a := range old { // in the order of addresses
		if r.freed[spot{in: p.name, addr: a}].At < r.freed[spot{in: p.name, addr: oldest}].At {
			oldest = a
		}
	}
	return []netip.Addr{oldest}
}

// figures of the addresses that part has.
func (r register) figures(p *plot, f ipam.Family, now int64, part func(netip.Addr) bool) ipam.Figures {
	var size, leased, resting, excluded int64
	for _, a := range p.addresses(f) {
		if !p.usable(a) || !part(a) {
			continue
		}
		size++
		s := spot{in: p.name, addr: a}
		x, used := r.freed[s]
		switch _, ok := r.leases[s]; {
		case ok:
			leased++
		case p.withheld(a):
			excluded++
		case used && now-x.At < 60:
			resting++
		}
	}
	return ipam.Figures{Size: big.NewInt(size), Leased: int(leased), Resting: int(resting), Excluded: big.NewInt(excluded),
		Free: big.NewInt(size - leased - excluded)}
}

// prune forgets what a ledger forgets of blocks that hold nothing and whose addresses have rested.
func (r register) prune(now int64) {
	busy := map[string]bool{}
	for s := range r.leases {
		if s.addr.IsValid() {
			busy[ipam.BlockName(s.in, s.addr)] = true
		}
	}
	for s, f := range r.freed {
		if now-f.At < 60 {
			busy[ipam.BlockName(s.in, s.addr)] = true
		}
	}
	maps.DeleteFunc(r.freed, func(s spot, _ ipam.Freed) bool { return !busy[ipam.BlockName(s.in, s.addr)] })
}

// macs tells what is wrong with the MACs of an L2 domain: two interfaces with one MAC, or a MAC that nothing keeps.
func (r register) macs(plots []*plot) error {
	type iface struct {
		claim    ipam.Claim
		provider string
	}
	for _, p := range plots {
		has := map[ipam.MAC]iface{}
		for _, q := range plots {
			if q.l2() != p.l2() {
				continue
			}
			for s, x := range r.leases {
				if s.in != q.name || !s.addr.IsValid() || x.MAC == (ipam.MAC{}) {
					continue
				}
				i := iface{x.Claim, x.Provider}
				if j, ok := has[x.MAC]; ok && i != j {
					return fmt.Errorf("MAC %s is that of %v and of %v in %s", x.MAC, i, j, p.l2())
				}
				has[x.MAC] = i
				m := r.leases[spot{in: q.l2(), mac: x.MAC}]
				if !x.MAC.Derived() && (m.Claim != x.Claim || m.Provider != x.Provider) {
					return fmt.Errorf("MAC %s of %v is kept by %+v", x.MAC, i, m)
				}
			}
		}
	}
	return nil
}
