package ipam

import (
	"math/big"

	"go4.org/netipx"
)

// Usage is which addresses of one family, of a subnet or of a part of it, are in use and which are left. Excluded
// addresses count for neither, whoever has them.
type Usage struct {
	Using, Available *netipx.IPSet
}

// Counts are the numbers of addresses in use and left.
func (u Usage) Counts() (using, available *big.Int) {
	using, available = new(big.Int), new(big.Int)
	for _, f := range []Family{IPv4, IPv6} {
		using.Add(using, count(u.Using, f))
		available.Add(available, count(u.Available, f))
	}
	return using, available
}

// Usage tells which addresses of a subnet are in use, as the cache knows them.
func (l *Ledger) Usage(s *Subnet, f Family) (Usage, error) {
	return l.usage(s, s.usable, f)
}

// PoolUsage is Usage of a source: of a pool, or of what belongs to none.
func (l *Ledger) PoolUsage(src Source, f Family) (Usage, error) {
	if r := src.Subnet.region(src.Pool); r != nil {
		return l.usage(src.Subnet, r.all, f)
	}
	return Usage{Using: &netipx.IPSet{}, Available: &netipx.IPSet{}}, nil
}

func (l *Ledger) usage(s *Subnet, part *netipx.IPSet, f Family) (Usage, error) {
	var using, left netipx.IPSetBuilder
	if p, ok := s.Prefix(f); ok {
		left.AddPrefix(p)
	}
	left.Intersect(part)
	left.RemoveSet(s.held)
	l.mu.Lock()
	for e := range l.bySub[s.name] {
		if e.block == nil || e.block.MACs() || FamilyOf(e.block.First) != f {
			continue
		}
		for _, x := range e.block.Leases {
			left.Remove(x.Address)
			if _, reserved := s.reserved[x.Address]; part.Contains(x.Address) && (reserved || !s.held.Contains(x.Address)) {
				using.Add(x.Address)
			}
		}
	}
	l.mu.Unlock()
	var u Usage
	var err error
	if u.Using, err = using.IPSet(); err != nil {
		return u, err
	}
	u.Available, err = left.IPSet()
	return u, err
}
