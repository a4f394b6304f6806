package ipam

import (
	"context"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// Options of a Ledger. All fields are needed unless said otherwise.
type Options struct {
	Store Store
	// Replica names this process among those that write the same blocks, so that they spread out.
	Replica string
	// Clock stamps freed addresses and paces retries.
	Clock clock.Clock
	// Random is a cryptographically strong source of claims.
	Random io.Reader
	// Rest is how long a freed address rests while others are free. Zero means 60 s.
	Rest time.Duration
	// Timeout bounds one call of the Store. Zero means 10 s.
	Timeout time.Duration
	// Linger is how long the first change of a block waits for others to share its write; while many do, all wait 25 times as
	// long. Zero: not at all.
	Linger time.Duration
	// Metrics may be nil.
	Metrics Metrics
	// Freed hears of every lease that is gone, whoever freed it. It must return at once and not call the ledger. It may be
	// nil.
	Freed func(Held)
	// Lost hears that leases of a subnet (or of an L2 domain) have gone that nobody gave back: from then on nothing is taken
	// there, until Reopen. It must return at once and not call the ledger. It may be nil.
	Lost func(subnet, reason string)
}

// Metrics receives what a ledger counts.
type Metrics interface {
	// Committed tells of one write that stored ops operations.
	Committed(ops int)
	// Conflicted tells of a write that met a change by somebody else.
	Conflicted()
}

// Stats counts what a ledger has written since it was made.
type Stats struct{ Writes, Operations, Conflicts int64 }

// Ledger is the set of all blocks: a cache of the Store, and the only way to change it. It is safe for concurrent
// use and an Observer of its Store's watch.
type Ledger struct {
	Options
	mu     sync.Mutex
	known  map[string]*entry
	bySub  map[string]map[*entry]bool
	spaces map[string]*space
	claims map[Claim][]leaseAt
	owners map[Owner][]leaseAt
	// formerly tells when sticky owners freed the addresses that they had last.
	formerly map[Owner]map[leaseKey]int64
	// takes counts the times that a block was seen to have fewer addresses to give unasked.
	takes   uint64
	pending pending
	reads   map[string]*reads // that are under way, by the subnets
	stats   Stats
	// lost tells why subnets, and L2 domains, are closed here.
	lost map[string]*loss
}

// leaseKey is where a lease stands.
type leaseKey struct {
	e    *entry
	addr addrOrMAC
}

// leaseAt is a lease and where it stands. Few share a claim or an owner: a list of them takes a tenth of a map.
type leaseAt struct {
	leaseKey
	lease *Lease
}

// entry is one block's place in the cache, and the queue of its committer.
type entry struct {
	name     string
	template Block   // what a block made here would be
	block    *Block  // as last known; nil when there is none
	cells    []*cell // its places in the random choice; none while its subnet was never asked for
	queue    []*op
	running  bool
	linger   time.Duration // how long its committer lets others join; 0 while it doesn't wait
	hurry    chan struct{} // ends that
	shared   int           // changes that its last write of ours stored
	wrote    time.Time     // when that was
	touched  time.Time     // when the block was last seen to change
}

// New makes a ledger that knows nothing yet: feed it by its Store's watch.
func New(o Options) (*Ledger, error) {
	switch {
	case o.Store == nil || o.Clock == nil || o.Random == nil:
		return nil, errors.New("a ledger needs a store, a clock and a source of randomness")
	case o.Replica == "":
		return nil, errors.New("a ledger needs the name of its replica")
	}
	if o.Rest == 0 {
		o.Rest = time.Minute
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Second
	}
	return &Ledger{Options: o, known: map[string]*entry{}, bySub: map[string]map[*entry]bool{}, spaces: map[string]*space{},
		claims: map[Claim][]leaseAt{}, owners: map[Owner][]leaseAt{},
		formerly: map[Owner]map[leaseKey]int64{}, pending: pending{}, reads: map[string]*reads{}, lost: map[string]*loss{}}, nil
}

// entryOf gives the entry of a block, made when missing. l.mu is held.
func (l *Ledger) entryOf(template Block) *entry {
	e := l.known[template.Name]
	if e == nil {
		e = &entry{name: template.Name, template: template}
		l.known[e.name] = e
		l.enter(e)
	}
	if e.template.Subnet == "" && template.Subnet != "" { // it was named by a ref alone
		delete(l.bySub[""], e)
		e.template = template
		l.enter(e)
	}
	if template.SubnetUID != "" {
		e.template.SubnetUID = template.SubnetUID
	}
	return e
}

// enter files e under its subnet.
func (l *Ledger) enter(e *entry) {
	sub := e.template.Subnet
	if l.bySub[sub] == nil {
		l.bySub[sub] = map[*entry]bool{}
	}
	l.bySub[sub][e] = true
	if s := l.spaces[sub]; s != nil {
		s.adopt(e)
	}
}

// install makes b (nil: none) what is known of e and corrects the indexes. l.mu is held.
func (l *Ledger) install(e *entry, b *Block) {
	if b != nil {
		b.count()
	}
	l.compareWith(e, b)
	old := e.block
	e.block = b
	e.touched = l.Clock.Now()
	if b != nil && e.template.Subnet != b.Subnet { // it was named by a ref alone
		delete(l.bySub[e.template.Subnet], e)
		e.template = Block{Name: b.Name, Subnet: b.Subnet, SubnetUID: b.SubnetUID, First: b.First}
		l.enter(e)
	}
	var was, is []*Lease
	if old != nil {
		was = old.Leases
	}
	if b != nil {
		is = b.Leases
	}
	// A write changes few leases of a block: what is the same at both ends is passed over.
	for len(was) > 0 && len(is) > 0 && was[0] == is[0] {
		was, is = was[1:], is[1:]
	}
	for len(was) > 0 && len(is) > 0 && was[len(was)-1] == is[len(is)-1] {
		was, is = was[:len(was)-1], is[:len(is)-1]
	}
	for _, x := range was {
		y := findIn(b, x)
		if y != x {
			l.unindex(e, x)
			l.unsight(e, x, y)
		}
		if y == nil && l.Freed != nil {
			l.Freed(Held{Block: e.name, Subnet: e.template.Subnet, Lease: *x})
		}
	}
	for _, x := range is {
		if y := findIn(old, x); y != x {
			l.index(e, x)
			l.sight(e, x)
		}
	}
	l.indexFreed(e, old, b)
	for _, c := range e.cells {
		was := c.free()
		if c.recount(); c.free() < was {
			l.takes++
			c.shelf.taken = l.takes
		}
	}
	if b == nil && !e.running && len(e.queue) == 0 {
		delete(l.known, e.name)
		delete(l.bySub[e.template.Subnet], e)
		for _, c := range e.cells {
			c.leave()
		}
		e.cells = nil
	}
}

func findIn(b *Block, x *Lease) *Lease {
	if b == nil {
		return nil
	}
	return b.find(x.Address, x.MAC)
}

func (l *Ledger) index(e *entry, x *Lease) {
	at := leaseAt{leaseKey{e, keyOf(x)}, x}
	file(l.claims, x.Claim, at)
	if x.Owner.Sticky() {
		file(l.owners, x.Owner, at)
	}
}

// file puts a lease into a list, in the place of what stood there before.
func file[K comparable](lists map[K][]leaseAt, k K, at leaseAt) {
	list := lists[k]
	if i := slices.IndexFunc(list, func(x leaseAt) bool { return x.leaseKey == at.leaseKey }); i >= 0 {
		list[i] = at
		return
	}
	lists[k] = append(list, at)
}

// indexFreed corrects what is known of sticky owners' former addresses in e.
func (l *Ledger) indexFreed(e *entry, old, b *Block) {
	if old != nil {
		for _, f := range old.Freed {
			if k := (leaseKey{e, addrOrMAC{addr: f.Address}}); f.Owner != (Owner{}) {
				if delete(l.formerly[f.Owner], k); len(l.formerly[f.Owner]) == 0 {
					delete(l.formerly, f.Owner)
				}
			}
		}
	}
	if b == nil {
		return
	}
	for _, f := range b.Freed {
		if f.Owner != (Owner{}) {
			if l.formerly[f.Owner] == nil {
				l.formerly[f.Owner] = map[leaseKey]int64{}
			}
			l.formerly[f.Owner][leaseKey{e, addrOrMAC{addr: f.Address}}] = f.At
		}
	}
}

func (l *Ledger) unindex(e *entry, x *Lease) {
	at := leaseAt{leaseKey{e, keyOf(x)}, x}
	unfile(l.claims, x.Claim, at)
	unfile(l.owners, x.Owner, at)
}

// unfile takes a lease out of a list, unless another stands there by now.
func unfile[K comparable](lists map[K][]leaseAt, k K, at leaseAt) {
	list := lists[k]
	i := slices.Index(list, at)
	if i < 0 {
		return
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(lists, k)
	} else {
		lists[k] = list
	}
}

// newer tells that resourceVersion a is later than b.
func newer(a, b string) bool {
	x, errX := strconv.ParseUint(a, 10, 64)
	y, errY := strconv.ParseUint(b, 10, 64)
	if errX != nil || errY != nil {
		return a != b
	}
	return x > y
}

// ByClaim gives the leases held under a claim, as the cache knows them.
func (l *Ledger) ByClaim(c Claim) []Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return heldOf(l.claims[c])
}

// ByOwner gives the leases of a sticky owner, as the cache knows them.
func (l *Ledger) ByOwner(o Owner) []Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	return heldOf(l.owners[o])
}

// Lookup gives the lease of an address of a subnet, as the cache knows it.
func (l *Ledger) Lookup(subnet string, a netip.Addr) (Held, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.known[BlockName(subnet, a)]
	if e == nil || e.block == nil {
		return Held{}, false
	}
	x := e.block.find(a, MAC{})
	if x == nil {
		return Held{}, false
	}
	return Held{Block: e.name, Subnet: subnet, Lease: *x}, true
}

// Leases gives all leases, as the cache knows them.
func (l *Ledger) Leases() []Held {
	l.mu.Lock()
	defer l.mu.Unlock()
	var hs []Held
	for _, e := range l.known {
		if e.block != nil {
			for _, x := range e.block.Leases {
				hs = append(hs, Held{Block: e.name, Subnet: e.block.Subnet, Lease: *x})
			}
		}
	}
	sortHeld(hs)
	return hs
}

// Stats counts the writes.
func (l *Ledger) Stats() Stats {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.stats
}

// Prune deletes blocks that hold no lease, whose addresses have rested, and that were left alone for as long, and tells
// how many. So what was given back and is remembered nowhere rests too, and who is late to hear of it does not take the
// block's end for a loss. It goes on past blocks that can't be deleted, and returns what stood in the way.
func (l *Ledger) Prune(ctx context.Context) (int, error) {
	l.mu.Lock()
	now := l.Clock.Now().Unix()
	var empty []*Block
	for _, e := range l.known {
		if e.block != nil && len(e.block.Leases) == 0 && e.block.Version <= FormatVersion && rested(e.block, now, l.Rest) &&
			l.Clock.Since(e.touched) >= l.Rest {
			empty = append(empty, e.block)
		}
	}
	l.mu.Unlock()
	n := 0
	var errs []error
	for _, b := range empty {
		err := l.Store.Delete(ctx, b)
		switch {
		case err == nil:
			n++
			l.Forget(b.Name, b.ResourceVersion)
		case !errors.Is(err, ErrConflict):
			errs = append(errs, err)
		}
	}
	return n, errors.Join(errs...)
}

func rested(b *Block, now int64, rest time.Duration) bool {
	for _, f := range b.Freed {
		if now-f.At < int64(rest/time.Second) {
			return false
		}
	}
	return true
}
