package ipam

import (
	"encoding/hex"
	"maps"
	"math/bits"
	"net/netip"
	"slices"

	"go4.org/netipx"
)

// Family is an IP family.
type Family uint8

// The families, in the order in which Kube-OVN writes them.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// String is "IPv4" or "IPv6".
func (f Family) String() string {
	if f == IPv6 {
		return "IPv6"
	}
	return "IPv4"
}

// FamilyOf gives the family of a.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// BlockSize is how many addresses one block has: a v4 /26, a v6 /122.
const BlockSize = 64

// randomBits bounds the part of an IPv6 subnet from which addresses are picked unasked: its first 2^32.
const randomBits = 32

// Subnet is what the allocator knows of a subnet: sets of addresses. It is immutable: an edit makes another.
type Subnet struct {
	name, uid, domain string
	closed            string
	prefixes          []netip.Prefix
	gateways          map[netip.Addr]bool
	reserved          map[netip.Addr]Owner
	usable            *netipx.IPSet // may be had when asked for
	held              *netipx.IPSet // of those, never handed out unasked
	free              *region       // what belongs to no pool
	pools             map[string]*region
}

// region is a part of a subnet from which addresses are handed out unasked: a pool, or what belongs to none.
type region struct {
	all    *netipx.IPSet
	random [2]*netipx.IPSet
}

// same tells that both have the same addresses.
func (r *region) same(o *region) bool {
	return r.all.Equal(o.all) && r.random[0].Equal(o.random[0]) && r.random[1].Equal(o.random[1])
}

func (r *region) of(f Family) *netipx.IPSet {
	if f == IPv6 {
		return r.random[1]
	}
	return r.random[0]
}

// Pool is a named part of a subnet, whose addresses are handed out unasked to those only who name the pool.
type Pool struct {
	Name string
	// Set may reach beyond the subnet, and into other pools: an address belongs to the first pool that has it.
	Set *netipx.IPSet
}

// SubnetSpec describes a subnet to NewSubnet.
type SubnetSpec struct {
	Name, UID string
	// Domain is the L2 domain in which MACs are unique; empty means the subnet itself.
	Domain string
	// Prefixes are the CIDRs, at most one per family; none in a subnet of MACs alone.
	Prefixes []netip.Prefix
	// Gateways are never handed out.
	Gateways []netip.Addr
	// Exclude is never handed out unasked. It may be nil.
	Exclude *netipx.IPSet
	// Pools of the subnet.
	Pools []Pool
	// Reserved addresses are somebody's who is no pod: they are had by a request that names that owner only.
	Reserved map[netip.Addr]Owner
	// Closed says why nothing is to be given now, for leases may have been lost; empty: it is open.
	Closed string
}

// NewSubnet works out the sets of a subnet. The network and the IPv4 broadcast address are never handed out, save in
// a /31 and a /127, which have neither (RFC 3021, RFC 6164).
func NewSubnet(spec SubnetSpec) (*Subnet, error) {
	s := &Subnet{name: spec.Name, uid: spec.UID, domain: spec.Domain, gateways: map[netip.Addr]bool{}, reserved: spec.Reserved, closed: spec.Closed,
		pools: make(map[string]*region, len(spec.Pools))}
	if s.domain == "" {
		s.domain = s.name
	}
	var usable netipx.IPSetBuilder
	for _, p := range spec.Prefixes {
		p = p.Masked()
		s.prefixes = append(s.prefixes, p)
		usable.AddPrefix(p)
		if p.Addr().BitLen()-p.Bits() > 1 {
			usable.Remove(p.Addr())
			if p.Addr().Is4() {
				usable.Remove(netipx.PrefixLastIP(p))
			}
		}
	}
	for _, g := range spec.Gateways {
		g = g.Unmap()
		s.gateways[g] = true
		usable.Remove(g)
	}
	var err error
	if s.usable, err = usable.IPSet(); err != nil {
		return nil, err
	}
	if err := s.hold(spec); err != nil {
		return nil, err
	}
	return s, s.divide(spec.Pools)
}

// hold works out what is not handed out unasked.
func (s *Subnet) hold(spec SubnetSpec) (err error) {
	var b netipx.IPSetBuilder
	if spec.Exclude != nil {
		b.AddSet(spec.Exclude)
	}
	for a := range spec.Reserved {
		b.Add(a)
	}
	b.Intersect(s.usable)
	s.held, err = b.IPSet()
	return err
}

// divide works out the subnet's regions.
func (s *Subnet) divide(pools []Pool) error {
	var rest netipx.IPSetBuilder
	rest.AddSet(s.usable)
	for _, p := range pools {
		left, err := rest.IPSet()
		if err != nil {
			return err
		}
		var b netipx.IPSetBuilder
		b.AddSet(p.Set)
		b.Intersect(left)
		r, err := s.regionOf(&b, true)
		if err != nil {
			return err
		}
		s.pools[p.Name] = r
		rest.RemoveSet(p.Set)
	}
	r, err := s.regionOf(&rest, false)
	s.free = r
	return err
}

// regionOf makes a region. Of what belongs to no pool, only an IPv6 subnet's beginning is handed out unasked: nobody
// needs more, and the rest can't be walked.
func (s *Subnet) regionOf(b *netipx.IPSetBuilder, pool bool) (*region, error) {
	all, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	r := &region{all: all}
	for i, f := range []Family{IPv4, IPv6} {
		var b netipx.IPSetBuilder
		if p, ok := s.Prefix(f); ok {
			if host := p.Addr().BitLen() - p.Bits(); host > randomBits && !pool {
				p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen()-randomBits)
			}
			b.AddPrefix(p)
		}
		b.Intersect(all)
		b.RemoveSet(s.held)
		if r.random[i], err = b.IPSet(); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// region gives the named pool, or for the empty name what belongs to none; nil when there is no such pool.
func (s *Subnet) region(pool string) *region {
	if pool == "" {
		return s.free
	}
	return s.pools[pool]
}

// same tells that nothing that counts here was edited between the two: of one object there are many, for its status changes
// with every pod.
func (s *Subnet) same(o *Subnet) bool {
	return s == o || s.name == o.name && s.uid == o.uid && s.domain == o.domain && s.closed == o.closed && slices.Equal(s.prefixes, o.prefixes) &&
		maps.Equal(s.gateways, o.gateways) && maps.Equal(s.reserved, o.reserved) && s.usable.Equal(o.usable) && s.held.Equal(o.held) &&
		s.free.same(o.free) && maps.EqualFunc(s.pools, o.pools, (*region).same)
}

// Name of the subnet.
func (s *Subnet) Name() string { return s.name }

// Domain is the L2 domain in which its MACs are unique.
func (s *Subnet) Domain() string { return s.domain }

// UID of the Subnet object.
func (s *Subnet) UID() string { return s.uid }

// Prefix gives the subnet's CIDR of a family.
func (s *Subnet) Prefix(f Family) (netip.Prefix, bool) {
	for _, p := range s.prefixes {
		if FamilyOf(p.Addr()) == f {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// Families of the subnet, IPv4 first.
func (s *Subnet) Families() []Family {
	var fs []Family
	for _, f := range []Family{IPv4, IPv6} {
		if _, ok := s.Prefix(f); ok {
			fs = append(fs, f)
		}
	}
	return fs
}

// HasPool tells whether the subnet has a pool of that name with addresses of the family.
func (s *Subnet) HasPool(pool string, f Family) bool {
	r := s.pools[pool]
	if r == nil {
		return false
	}
	for _, x := range r.all.Ranges() {
		if FamilyOf(x.From()) == f {
			return true
		}
	}
	return false
}

// InPool tells whether an address belongs to a pool.
func (s *Subnet) InPool(pool string, a netip.Addr) bool {
	r := s.region(pool)
	return r != nil && r.all.Contains(a)
}

// Check tells why a can't be asked for in this subnet by a pod that may use what is reserved for an owner (the zero
// value: none): a *NotInSubnetError, a *GatewayError, a *ReservedError, or nil.
func (s *Subnet) Check(a netip.Addr, reservation Owner) error {
	switch {
	case s.gateways[a]:
		return &GatewayError{Subnet: s.name, Address: a}
	case !s.usable.Contains(a):
		return &NotInSubnetError{Subnet: s.name, Address: a, Prefixes: s.prefixes}
	}
	if o, ok := s.reserved[a]; ok && o != reservation {
		return &ReservedError{Subnet: s.name, Address: a, For: o}
	}
	return nil
}

// mask has a bit for each address of the block at first that may be handed out unasked.
func (r *region) mask(first netip.Addr) uint64 {
	set := r.of(FamilyOf(first))
	last := addOffset(first, BlockSize-1)
	whole := netipx.IPRangeFrom(first, last)
	switch {
	case set.ContainsRange(whole):
		return ^uint64(0)
	case !set.OverlapsRange(whole):
		return 0
	}
	var m uint64
	a := first
	for i := range BlockSize {
		if set.Contains(a) {
			m |= 1 << i
		}
		a = a.Next()
	}
	return m
}

// blockFirst gives the first address of the block that a belongs to. Blocks are aligned in the address space, so
// that it never depends on the subnet's CIDR.
func blockFirst(a netip.Addr) netip.Addr {
	p, _ := a.Prefix(a.BitLen() - bits.TrailingZeros(BlockSize))
	return p.Addr()
}

// BlockName names the block of subnet that a belongs to: the subnet and the first address in hexadecimal.
func BlockName(subnet string, a netip.Addr) string {
	return subnet + "-" + hex.EncodeToString(blockFirst(a).AsSlice())
}

func addOffset(a netip.Addr, n uint8) netip.Addr {
	b := a.As16()
	b[15] |= n // a is aligned to 64
	if a.Is4() {
		return netip.AddrFrom4([4]byte(b[12:]))
	}
	return netip.AddrFrom16(b)
}

func offsetIn(a netip.Addr) uint8 {
	b := a.As16()
	return b[15] & (BlockSize - 1)
}
