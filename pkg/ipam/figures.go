package ipam

import (
	"math/big"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
)

// Figures counts addresses of one family, of a subnet or of a part of it. Size = Free + Leased + Excluded at every
// moment.
type Figures struct {
	// Size is how many addresses may be leased at all: no network, broadcast or gateway.
	Size *big.Int
	// Leased counts leases, those of excluded and reserved addresses too.
	Leased int
	// Resting counts those of Free that were freed a short while ago.
	Resting int
	// Excluded counts addresses that are excluded or reserved and that nobody has.
	Excluded *big.Int
	// Free is what is left.
	Free *big.Int
}

// Size is how many addresses of a family may be leased at all.
func (s *Subnet) Size(f Family) *big.Int { return count(s.usable, f) }

// Sets gives the addresses that may be leased at all, and those of them that are never handed out unasked.
func (s *Subnet) Sets() (usable, held *netipx.IPSet) { return s.usable, s.held }

// Blocks gives all blocks, as the cache knows them, in the order of their names. They are shared and never change: who
// wants to count at leisure observes them into a ledger of its own.
func (l *Ledger) Blocks() []*Block {
	l.mu.Lock()
	out := make([]*Block, 0, len(l.known))
	for _, e := range l.known {
		if e.block != nil {
			out = append(out, e.block)
		}
	}
	l.mu.Unlock()
	slices.SortFunc(out, func(a, b *Block) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// Figures counts the addresses of a subnet, as the cache knows them.
func (l *Ledger) Figures(s *Subnet, f Family) Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.figures(s, s.usable, f)
}

// PoolFigures counts the addresses of a source, as the cache knows them: of a pool, or of what belongs to none.
func (l *Ledger) PoolFigures(src Source, f Family) Figures {
	l.mu.Lock()
	defer l.mu.Unlock()
	set := &netipx.IPSet{}
	if r := src.Subnet.region(src.Pool); r != nil {
		set = r.all
	}
	return l.figures(src.Subnet, set, f)
}

// figures counts the addresses of a part of a subnet. l.mu is held.
func (l *Ledger) figures(s *Subnet, part *netipx.IPSet, f Family) Figures {
	fig := Figures{Size: count(part, f)}
	excluded := count(s.held, f)
	if part != s.usable {
		excluded = count(intersection(part, s.held), f)
	}
	now := l.Clock.Now().Unix()
	for e := range l.bySub[s.name] {
		if e.block == nil || e.block.MACs() || FamilyOf(e.block.First) != f {
			continue
		}
		for _, x := range e.block.Leases {
			if !part.Contains(x.Address) {
				continue
			}
			fig.Leased++
			if s.held.Contains(x.Address) {
				excluded.Sub(excluded, big.NewInt(1))
			}
		}
		for _, x := range e.block.Freed {
			if now-x.At < int64(l.Rest/time.Second) && part.Contains(x.Address) && !s.held.Contains(x.Address) {
				fig.Resting++
			}
		}
	}
	fig.Excluded = excluded
	fig.Free = new(big.Int).Sub(fig.Size, fig.Excluded)
	fig.Free.Sub(fig.Free, big.NewInt(int64(fig.Leased)))
	return fig
}

func intersection(a, b *netipx.IPSet) *netipx.IPSet {
	var x netipx.IPSetBuilder
	x.AddSet(a)
	x.Intersect(b)
	set, err := x.IPSet()
	if err != nil { // a builder fails on invalid ranges only, and sets have none
		return &netipx.IPSet{}
	}
	return set
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
