package ipam

import (
	"hash/fnv"
	"math/bits"
	"net/netip"
	"time"

	"go4.org/netipx"
)

// window is how many blocks that nobody uses yet are weighed against each other: replicas that start on one subnet
// at once so open different blocks, and yet the blocks in use stay close together.
const window = 16

// A block that was just written is left alone for as long as settled, where there is another: the worker binds what was
// taken from it, and two writers on one block get in each other's way. So a replica has up to opened blocks in turn; what
// comes while one is being written joins it.
const (
	settled = 100 * time.Millisecond
	opened  = 4
)

// space finds an address that nobody asked for in a subnet. Blocks with addresses that were never used come first,
// this replica's own before others'; then the address that was freed longest ago. Guarded by Ledger.mu.
type space struct {
	subnet *Subnet
	score  func(block string) uint64
	shelfs map[string]*[2]shelf // by pool, and by family
}

// shelf holds the blocks of one region and family.
type shelf struct {
	region *region
	last   *cell  // that was chosen last
	size   int    // how many addresses may be handed out unasked, as far as an int goes
	used   int    // how many of them can't be now
	taken  uint64 // Ledger.takes when it last had fewer addresses to give
	fresh  cells  // by preference
	rested cells  // by the moment of the oldest release
	virgin virgins
}

// cell is a block on a shelf. A block that reaches into several regions has one on each.
type cell struct {
	e            *entry
	shelf        *shelf
	first        netip.Addr
	mask         uint64 // addresses of the region that may be handed out unasked
	uid          string // of the Subnet
	mine         bool
	score        uint64
	inflight     int // takes that are under way
	fresh, older int // free addresses: never used, used before
	oldest       int64
	at           [2]int // index in the heaps
}

func (c *cell) freshLeft() int { return c.fresh - c.inflight }
func (c *cell) free() int      { return c.fresh + c.older }
func (c *cell) left() int      { return c.free() - c.inflight }

// spaceOf gives the space of s, made anew when the subnet was edited. l.mu is held.
func (l *Ledger) spaceOf(s *Subnet) *space {
	sp := l.spaces[s.name]
	if sp != nil && sp.subnet.same(s) {
		sp.subnet = s
		return sp
	}
	sp = &space{subnet: s, score: l.score, shelfs: map[string]*[2]shelf{"": newShelfs(s.free)}}
	for name, r := range s.pools {
		sp.shelfs[name] = newShelfs(r)
	}
	l.spaces[s.name] = sp
	for e := range l.bySub[s.name] {
		e.cells = nil
		sp.adopt(e)
	}
	for _, shelfs := range sp.shelfs { // what was taken from the subnet as it was before is not known
		for i := range shelfs {
			shelfs[i].taken = l.takes
		}
	}
	return sp
}

func newShelfs(r *region) *[2]shelf {
	var out [2]shelf
	for i, f := range []Family{IPv4, IPv6} {
		out[i] = shelf{region: r, size: int(count(r.random[i], f).Int64()), fresh: cells{slot: 0, keyOf: freshFirst},
			rested: cells{slot: 1, keyOf: oldestFirst}, virgin: virgins{ranges: r.random[i].Ranges()}}
	}
	return &out
}

func index(f Family) int {
	if f == IPv6 {
		return 1
	}
	return 0
}

// adopt gives e its cells.
func (sp *space) adopt(e *entry) {
	first := e.template.First
	if !first.IsValid() || len(e.cells) > 0 {
		return
	}
	score := sp.score(e.name)
	for _, shelfs := range sp.shelfs {
		sh := &shelfs[index(FamilyOf(first))]
		mask := sh.region.mask(first)
		if mask == 0 {
			continue
		}
		// A quarter of the blocks that are in use already is this replica's own.
		c := &cell{e: e, shelf: sh, first: first, mask: mask, uid: sp.subnet.uid, score: score, mine: score>>62 == 0}
		c.count()
		sh.used += c.used()
		sh.fresh.push(c)
		sh.rested.push(c)
		e.cells = append(e.cells, c)
	}
}

// on gives e's cell on a shelf, or nil.
func (e *entry) on(sh *shelf) *cell {
	for _, c := range e.cells {
		if c.shelf == sh {
			return c
		}
	}
	return nil
}

func (c *cell) count() {
	b := c.e.block
	if b == nil {
		c.fresh, c.older = bits.OnesCount64(c.mask), 0
		return
	}
	// A block of a former Subnet of this name has nothing to give while it holds leases.
	if b.SubnetUID != c.uid && len(b.Leases) > 0 || b.Version > FormatVersion {
		c.fresh, c.older = 0, 0
		return
	}
	used, rested := b.bits()
	c.fresh = bits.OnesCount64(c.mask &^ used &^ rested)
	c.older = bits.OnesCount64(c.mask & rested)
	c.oldest = 0
	for _, f := range b.Freed {
		if c.mask&(1<<offsetIn(f.Address)) != 0 && (c.oldest == 0 || f.At < c.oldest) {
			c.oldest = f.At
		}
	}
}

func (c *cell) recount() {
	c.shelf.used -= c.used()
	c.count()
	c.shelf.used += c.used()
	c.fix()
}

// used counts the addresses that can't be handed out.
func (c *cell) used() int { return bits.OnesCount64(c.mask) - c.free() }

func (c *cell) fix() {
	c.shelf.fresh.fix(c)
	c.shelf.rested.fix(c)
}

// leave takes the cell of a block that does not exist off its shelf: it is as good as never used.
func (c *cell) leave() {
	c.shelf.used -= c.used()
	c.shelf.fresh.remove(c)
	c.shelf.rested.remove(c)
	c.shelf.virgin.back = append(c.shelf.virgin.back, c.first)
}

// shelfOf gives the shelf of a source, or nil. l.mu is held.
func (l *Ledger) shelfOf(src Source, f Family) *shelf {
	shelfs := l.spaceOf(src.Subnet).shelfs[src.Pool]
	if shelfs == nil {
		return nil
	}
	return &shelfs[index(f)]
}

// room is how many addresses of a source can be handed out unasked, and how many there are. l.mu is held.
func (l *Ledger) room(src Source, f Family) (free, size int) {
	sh := l.shelfOf(src, f)
	if sh == nil {
		return 0, 0
	}
	return sh.size - sh.used, sh.size
}

// takenSince tells that addresses of a source were taken after the ledger's count of takes was asOf. l.mu is held.
func (l *Ledger) takenSince(src Source, f Family, asOf uint64) bool {
	sh := l.shelfOf(src, f)
	return sh != nil && sh.taken > asOf
}

// pick chooses the block that the next unasked address of a source comes from, or nil when none is free. freshOnly
// tells that the address must be one that was never used. When takes that are under way may leave nothing, it is one
// of their blocks, whose committer knows what becomes of them. l.mu is held.
func (l *Ledger) pick(src Source, f Family) (c *cell, freshOnly bool) {
	s, sh := src.Subnet, l.shelfOf(src, f)
	if sh == nil {
		return nil, false
	}
	if c := sh.last; c != nil && c.mine && c.e.running && c.freshLeft() > 0 && c.e.on(sh) == c {
		return c, true
	}
	top := sh.fresh.top()
	mine := top != nil && top.freshLeft() > 0 && top.mine
	if mine && (l.Clock.Since(top.e.touched) >= settled || sh.fresh.own(0, opened) >= opened) {
		sh.last = top
		return top, true
	}
	if first, ok := sh.virgin.next(func(a netip.Addr) uint64 { return l.score(BlockName(s.name, a)) }, func(a netip.Addr) bool {
		e := l.known[BlockName(s.name, a)]
		return e != nil && len(e.cells) > 0 // else it was named by a ref alone, and comes on no shelf by itself
	}); ok {
		if c := l.entryOf(Block{Name: BlockName(s.name, first), Subnet: s.name, SubnetUID: s.uid, First: first}).on(sh); c != nil {
			c.mine = true
			c.fix()
			sh.last = c
			return c, true
		}
	}
	if mine || top != nil && top.freshLeft() > 0 {
		return top, true
	}
	if old := sh.rested.top(); old != nil && old.free() > 0 {
		return old, false
	}
	return nil, false
}

// score ranks blocks differently in every replica.
func (l *Ledger) score(name string) uint64 {
	h := fnv.New64a()
	h.Write([]byte(l.Replica))
	h.Write([]byte{0})
	h.Write([]byte(name))
	return mix(h.Sum64())
}

// virgins walks the blocks of a set of ranges without listing them: a /12 has 16,384 of them, an IPv6 subnet 2^26.
type virgins struct {
	ranges []netipx.IPRange
	last   netip.Addr // block that was walked last; a block with several ranges is walked once
	seen   []netip.Addr
	back   []netip.Addr
}

// next gives the best of the next blocks that are not known.
func (v *virgins) next(score func(netip.Addr) uint64, known func(netip.Addr) bool) (netip.Addr, bool) {
	for {
		for len(v.seen) < window {
			a, ok := v.advance()
			if !ok {
				break
			}
			if !known(a) {
				v.seen = append(v.seen, a)
			}
		}
		if len(v.seen) == 0 {
			return netip.Addr{}, false
		}
		best := 0
		for i := range v.seen {
			if score(v.seen[i]) < score(v.seen[best]) {
				best = i
			}
		}
		a := v.seen[best]
		v.seen = append(v.seen[:best], v.seen[best+1:]...)
		if !known(a) {
			return a, true
		}
	}
}

func (v *virgins) advance() (netip.Addr, bool) {
	for len(v.ranges) > 0 {
		a := blockFirst(v.ranges[0].From())
		if v.last.IsValid() && v.last.Compare(a) >= 0 {
			a = addOffset(v.last, BlockSize-1).Next() // invalid at the end of the address space
		}
		if !a.IsValid() || a.Compare(v.ranges[0].To()) > 0 {
			v.ranges = v.ranges[1:]
			continue
		}
		v.last = a
		return a, true
	}
	if n := len(v.back); n > 0 {
		a := v.back[n-1]
		v.back = v.back[:n-1]
		return a, true
	}
	return netip.Addr{}, false
}
