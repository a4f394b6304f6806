package ipam

import (
	"encoding/json"
	"math"
	"math/bits"
	"net/netip"
	"slices"
	"strings"
)

// FormatVersion is the version of blocks that this program writes.
const FormatVersion = 1

// Unreadable is the version that a Store gives a block which it can't read: like one of a newer version it is neither
// written nor deleted, and has nothing to give.
const Unreadable = math.MaxInt32

// Block holds the leases of 64 consecutive addresses of one subnet, or one bucket of MACs of an L2 domain. A block
// that is in the ledger's cache is never changed: writers work on a clone.
type Block struct {
	Name string
	// Subnet is the subnet's name, or the L2 domain's for a bucket of MACs.
	Subnet, SubnetUID string
	// First address; the zero value for a bucket of MACs.
	First   netip.Addr
	Version int
	// Revision counts the changes of leases.
	Revision int64
	// Leases sorted by address (by MAC in a bucket).
	Leases []*Lease
	// Freed sorted by address, only of addresses that are free.
	Freed []Freed
	// ResourceVersion and UID of the stored object; empty when it is not stored.
	ResourceVersion, UID string
	// Unknown holds fields of a newer version.
	Unknown map[string]json.RawMessage
	// stride is how far one change moves Revision; zero means 1. It is random, so that nobody takes another's write for its
	// own that was lost.
	stride int64
	// leased has a bit for each of Leases, rested one for each of Freed, as last counted: see bits.
	leased, rested uint64
	// shared tells that Freed is another block's too.
	shared bool
	// Kept is the store's own, and goes back to it with the next write.
	Kept any
}

// MACs tells that the block is a bucket of MACs.
func (b *Block) MACs() bool { return !b.First.IsValid() }

// clone gives a copy with room for as many leases as there are addresses, in one piece: it is made for each write.
func (b *Block) clone() *Block {
	var c struct {
		Block
		room [BlockSize]*Lease
	}
	c.Block = *b
	c.Leases = append(c.room[:0], b.Leases...)
	c.shared = true
	c.count()
	return &c.Block
}

func (b *Block) search(a netip.Addr, m MAC) (int, bool) {
	if b.MACs() {
		return slices.BinarySearchFunc(b.Leases, m, func(l *Lease, m MAC) int { return strings.Compare(string(l.MAC[:]), string(m[:])) })
	}
	if leased, _ := b.bits(); b.covers(a) {
		return rank(leased, a)
	}
	return slices.BinarySearchFunc(b.Leases, a, func(l *Lease, a netip.Addr) int { return l.Address.Compare(a) })
}

// covers tells that a is one of the block's addresses.
func (b *Block) covers(a netip.Addr) bool {
	return a.BitLen() == b.First.BitLen() && blockFirst(a) == b.First
}

// forget removes what is remembered of a free address.
func (b *Block) forget(i int) {
	if b.shared {
		b.Freed, b.shared = slices.Concat(b.Freed[:i], b.Freed[i+1:]), false
	} else {
		b.Freed = slices.Delete(b.Freed, i, i+1)
	}
}

// rank gives the place of a among the addresses that have a bit, and tells whether it is one of them.
func rank(set uint64, a netip.Addr) (int, bool) {
	bit := uint64(1) << offsetIn(a)
	return bits.OnesCount64(set & (bit - 1)), set&bit != 0
}

// find gives the lease of an address (of a MAC in a bucket), or nil.
func (b *Block) find(a netip.Addr, m MAC) *Lease {
	if i, ok := b.search(a, m); ok {
		return b.Leases[i]
	}
	return nil
}

// put stores l, which gets the block's next revision as its generation, and returns it.
func (b *Block) put(l Lease) *Lease {
	b.Revision += max(b.stride, 1)
	l.Generation = b.Revision
	i, ok := b.search(l.Address, l.MAC)
	if ok {
		b.Leases[i] = &l
	} else {
		j, was := b.searchFreed(l.Address)
		b.Leases = slices.Insert(b.Leases, i, &l)
		if was {
			b.forget(j)
		}
		b.mark(l.Address, true, false)
	}
	return &l
}

// drop removes the lease, and remembers f of its address; an f without moment means that nobody ever used it.
func (b *Block) drop(l *Lease, f Freed) {
	i, ok := b.search(l.Address, l.MAC)
	if !ok {
		return
	}
	b.Revision += max(b.stride, 1)
	b.Leases = slices.Delete(b.Leases, i, i+1)
	b.mark(l.Address, false, false)
	if f.At == 0 || b.MACs() {
		return
	}
	j, _ := b.searchFreed(f.Address)
	if b.shared {
		b.Freed, b.shared = slices.Clone(b.Freed), false
	}
	b.Freed = slices.Insert(b.Freed, j, f)
	b.mark(f.Address, false, true)
}

func (b *Block) searchFreed(a netip.Addr) (int, bool) {
	if b.MACs() {
		return 0, false
	}
	if _, rested := b.bits(); b.covers(a) {
		return rank(rested, a)
	}
	return slices.BinarySearchFunc(b.Freed, a, func(f Freed, a netip.Addr) int { return f.Address.Compare(a) })
}

// freed is what is remembered of a free address.
func (b *Block) freed(a netip.Addr) Freed {
	if i, ok := b.searchFreed(a); ok {
		return b.Freed[i]
	}
	return Freed{}
}

// at gives the lease that r names, or a *StaleError.
func (b *Block) at(r Ref) (*Lease, error) {
	l := b.find(r.Address, r.MAC)
	if l == nil || l.Claim != r.Claim || l.Generation != r.Generation {
		return nil, &StaleError{Ref: r, Now: l}
	}
	return l, nil
}

// mark notes what became of an address.
func (b *Block) mark(a netip.Addr, leased, rested bool) {
	if b.MACs() || !b.covers(a) {
		return
	}
	bit := uint64(1) << offsetIn(a)
	b.leased, b.rested = b.leased&^bit, b.rested&^bit
	if leased {
		b.leased |= bit
	}
	if rested {
		b.rested |= bit
	}
}

// bits has a bit for each leased address, and one for each that is free and was used before. What was counted holds
// as long as it is as many: a block comes from its store uncounted, and within it only put and drop exchange leases.
func (b *Block) bits() (leased, rested uint64) {
	if b.MACs() {
		return 0, 0
	}
	if bits.OnesCount64(b.leased) == len(b.Leases) && bits.OnesCount64(b.rested) == len(b.Freed) {
		return b.leased, b.rested
	}
	for _, l := range b.Leases {
		leased |= 1 << offsetIn(l.Address)
	}
	for _, f := range b.Freed {
		rested |= 1 << offsetIn(f.Address)
	}
	return leased, rested
}

// count keeps what bits gives. Nobody else may have the block yet.
func (b *Block) count() {
	if leased, rested := b.bits(); !b.MACs() && (leased != b.leased || rested != b.rested) {
		b.leased, b.rested = leased, rested
	}
}
