package ipam

import (
	"encoding/hex"
	"math/big"
	"math/bits"
	"net/netip"

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
	prefixes          []netip.Prefix
	gateways          map[netip.Addr]bool
	usable            *netipx.IPSet // may be had when asked for
	random            [2]*netipx.IPSet
	exclude           *netipx.IPSet
}

// SubnetSpec describes a subnet to NewSubnet.
type SubnetSpec struct {
	Name, UID string
	// Domain is the L2 domain in which MACs are unique; empty means the subnet itself.
	Domain string
	// Prefixes are the CIDRs, at most one per family.
	Prefixes []netip.Prefix
	// Gateways are never handed out.
	Gateways []netip.Addr
	// Exclude is never handed out unasked. It may be nil.
	Exclude *netipx.IPSet
}

// NewSubnet works out the sets of a subnet. The network and the IPv4 broadcast address are never handed out, save in
// a /31 and a /127, which have neither (RFC 3021, RFC 6164).
func NewSubnet(spec SubnetSpec) (*Subnet, error) {
	s := &Subnet{name: spec.Name, uid: spec.UID, domain: spec.Domain, gateways: map[netip.Addr]bool{}, exclude: spec.Exclude}
	if s.domain == "" {
		s.domain = s.name
	}
	if s.exclude == nil {
		s.exclude = &netipx.IPSet{}
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
	for i, f := range []Family{IPv4, IPv6} {
		if s.random[i], err = s.randomSet(f); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func (s *Subnet) randomSet(f Family) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	p, ok := s.Prefix(f)
	if !ok {
		return b.IPSet()
	}
	if host := p.Addr().BitLen() - p.Bits(); host > randomBits {
		p = netip.PrefixFrom(p.Addr(), p.Addr().BitLen()-randomBits)
	}
	b.AddPrefix(p)
	b.Intersect(s.usable)
	b.RemoveSet(s.exclude)
	return b.IPSet()
}

// Name of the subnet.
func (s *Subnet) Name() string { return s.name }

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

// Check tells why a can't be asked for in this subnet: a *NotInSubnetError, a *GatewayError, or nil.
func (s *Subnet) Check(a netip.Addr) error {
	switch {
	case s.gateways[a]:
		return &GatewayError{Subnet: s.name, Address: a}
	case !s.usable.Contains(a):
		return &NotInSubnetError{Subnet: s.name, Address: a, Prefixes: s.prefixes}
	}
	return nil
}

func (s *Subnet) randomOf(f Family) *netipx.IPSet {
	if f == IPv6 {
		return s.random[1]
	}
	return s.random[0]
}

// mask has a bit for each address of the block at first that may be handed out unasked.
func (s *Subnet) mask(first netip.Addr) uint64 {
	set := s.randomOf(FamilyOf(first))
	last := addOffset(first, BlockSize-1)
	if set.ContainsRange(netipx.IPRangeFrom(first, last)) {
		return ^uint64(0)
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

// Figures counts a subnet's addresses of one family. Size = Free + Leased + Excluded at every moment.
type Figures struct {
	// Size is how many addresses may be leased at all: no network, broadcast or gateway.
	Size *big.Int
	// Leased counts leases, those of excluded addresses too.
	Leased int
	// Resting counts those of Free that were freed a short while ago.
	Resting int
	// Excluded counts addresses that are not handed out unasked and that nobody has.
	Excluded *big.Int
	// Free is what is left.
	Free *big.Int
}

// count is the number of addresses in set of family f.
func count(set *netipx.IPSet, f Family) *big.Int {
	n := new(big.Int)
	for _, r := range set.Ranges() {
		if FamilyOf(r.From()) != f {
			continue
		}
		from, to := r.From().As16(), r.To().As16()
		d := new(big.Int).Sub(new(big.Int).SetBytes(to[:]), new(big.Int).SetBytes(from[:]))
		n.Add(n, d.Add(d, big.NewInt(1)))
	}
	return n
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
	b := a.AsSlice()
	b[len(b)-1] |= n // a is aligned to 64
	r, _ := netip.AddrFromSlice(b)
	return r
}

func offsetIn(a netip.Addr) uint8 {
	b := a.AsSlice()
	return b[len(b)-1] & (BlockSize - 1)
}
