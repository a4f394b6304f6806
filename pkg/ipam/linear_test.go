package ipam_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// long tells that the tests may take their time.
func long() bool { return os.Getenv("BERTH_LONG") != "" }

// firstSeed is the seed of a test's first run: BERTH_SEED, or another one each time.
func firstSeed(t *testing.T) uint64 {
	t.Helper()
	if s := os.Getenv("BERTH_SEED"); s != "" {
		n, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatalf("BERTH_SEED: %v", err)
		}
		return n
	}
	return rand.Uint64() >> 32
}

// What a call of a history asked for.
type verb string

const (
	takeOne verb = "take"
	takeAny verb = "take any"
	freeOne verb = "free"
	// A take that failed by a fault of the system: it may have held something for a while, until its caller has seen
	// that nothing is left. One operation is its beginning, the other its end.
	maybeTake verb = "maybe take"
	maybeFree verb = "maybe free"
)

// asked is the input of an operation. Addresses are the last byte of the real ones; -1 is any.
type asked struct {
	verb verb
	addr int
	id   int // of the take
}

// answered is the output: the address that was given, or the refusal.
type answered struct {
	addr      int // -1: none
	holder    int // of a refusal that names one: its take
	exhausted bool
}

// world is the state of the sequential specification: who holds which address.
type world struct {
	held  [tiny]int
	begun [16]uint64 // the takes of unknown outcome that have begun and not ended
}

// tiny is how many addresses a tiny subnet can have.
const tiny = 32

// specification gives what a ledger of these addresses may do, one call after the other.
func specification(usable []int) porcupine.NondeterministicModel {
	return porcupine.NondeterministicModel{
		Init:  func() []any { return []any{world{}} },
		Equal: func(a, b any) bool { return a == b },
		Step: func(state, input, output any) []any {
			return next(usable, state.(world), input.(asked), output.(answered))
		},
		DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
	}
}

func next(usable []int, w world, in asked, out answered) []any {
	switch in.verb {
	case takeOne, takeAny:
		return take1(usable, w, in, out)
	case freeOne:
		if w.held[in.addr] != in.id {
			return nil
		}
		w.held[in.addr] = 0
		return []any{w}
	case maybeTake:
		w.begun[in.id/64] |= 1 << (in.id % 64)
		all := []any{w}
		for _, a := range usable {
			if w.held[a] == 0 && (in.addr < 0 || in.addr == a) {
				took := w
				took.held[a] = in.id
				all = append(all, took)
			}
		}
		return all
	case maybeFree:
		if w.begun[in.id/64]&(1<<(in.id%64)) == 0 {
			return nil
		}
		w.begun[in.id/64] &^= 1 << (in.id % 64)
		for a, id := range w.held {
			if id == in.id {
				w.held[a] = 0
			}
		}
		return []any{w}
	}
	return nil
}

func take1(usable []int, w world, in asked, out answered) []any {
	switch {
	case out.exhausted:
		for _, a := range usable {
			if w.held[a] == 0 {
				return nil
			}
		}
		return []any{w}
	case out.holder != 0:
		if w.held[in.addr] != out.holder {
			return nil
		}
		return []any{w}
	case w.held[out.addr] != 0 || in.addr >= 0 && in.addr != out.addr:
		return nil
	}
	w.held[out.addr] = in.id
	return []any{w}
}

// byAddress parts a history in which each operation is about one address.
func byAddress(history []porcupine.Operation) [][]porcupine.Operation {
	parts := make([][]porcupine.Operation, tiny)
	for _, o := range history {
		a := o.Input.(asked).addr
		parts[a] = append(parts[a], o)
	}
	return parts
}

// scribe writes a history down.
type scribe struct {
	tick   atomic.Int64
	mu     sync.Mutex
	ops    []porcupine.Operation
	takes  map[ipam.Claim]int
	faults map[string]int
}

func (s *scribe) note(client int, called int64, in asked, out answered) {
	returned := s.tick.Add(1)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops = append(s.ops, porcupine.Operation{ClientId: client, Input: in, Call: called, Output: out, Return: returned})
}

// begin numbers a take by its claim.
func (s *scribe) begin(c ipam.Claim) (id int, called int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.takes[c] = len(s.takes) + 1
	return s.takes[c], s.tick.Add(1)
}

func (s *scribe) take(c ipam.Claim) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id, ok := s.takes[c]; ok {
		return id
	}
	return -1
}

// client is one caller of a ledger, who holds what it was given until it frees it.
type client struct {
	t      *testing.T
	number int
	ledger *ipam.Ledger
	subnet *ipam.Subnet
	usable []int
	random *rand.Rand
	scribe *scribe
	anyOf  bool // takes what it did not ask for, too
	mine   []lent
}

type lent struct {
	id   int
	held ipam.Held
}

func (c *client) run(steps int) {
	for range steps {
		if len(c.mine) > 0 && c.random.IntN(5) < 2 {
			c.free()
		} else {
			c.take()
		}
	}
}

func (c *client) free() {
	i := c.random.IntN(len(c.mine))
	x := c.mine[i]
	c.mine = append(c.mine[:i], c.mine[i+1:]...)
	called := c.scribe.tick.Add(1)
	// A release names the lease as it was, so it may be sent until it is answered.
	for c.ledger.Free(c.t.Context(), x.held.Ref()) != nil {
		time.Sleep(time.Millisecond)
	}
	c.scribe.note(c.number, called, asked{freeOne, last(x.held.Address), x.id}, answered{addr: -1})
}

func (c *client) take() {
	claim, err := ipam.NewClaim(c.ledger.Random)
	if err != nil {
		c.t.Error(err)
		return
	}
	in := asked{verb: takeOne, addr: c.usable[c.random.IntN(len(c.usable))]}
	ir := ipam.InterfaceRequest{Provider: "ovn", Candidates: []ipam.Source{{Subnet: c.subnet}}}
	if c.anyOf && c.random.IntN(2) == 0 {
		in.verb, in.addr = takeAny, -1
	} else {
		p, _ := c.subnet.Prefix(c.subnet.Families()[0])
		ir.Choices = [][]netip.Addr{{nth(p.Addr(), in.addr)}}
	}
	var called int64
	in.id, called = c.scribe.begin(claim)
	got, err := c.ledger.Take(c.t.Context(), ipam.Request{Claim: claim, Owner: ipam.PodOwner("default"), Interfaces: []ipam.InterfaceRequest{ir}})
	var held *ipam.HeldError
	var full *ipam.ExhaustedError
	switch {
	case err == nil:
		h := got.Interfaces[0].Leases[0]
		c.scribe.note(c.number, called, in, answered{addr: last(h.Address)})
		c.mine = append(c.mine, lent{in.id, h})
	case errors.As(err, &held):
		c.scribe.note(c.number, called, in, answered{addr: -1, holder: c.scribe.take(held.Holder.Claim)})
	case errors.As(err, &full):
		c.scribe.note(c.number, called, in, answered{addr: -1, exhausted: true})
	default:
		c.settle(claim)
		c.scribe.note(c.number, called, asked{maybeTake, in.addr, in.id}, answered{})
		c.scribe.note(c.number+1000, called, asked{maybeFree, in.addr, in.id}, answered{})
	}
}

// settle gives back whatever a claim may have, as a sweep does.
func (c *client) settle(claim ipam.Claim) {
	for {
		err := c.ledger.Refresh(c.t.Context())
		var refs []ipam.Ref
		for _, h := range c.ledger.ByClaim(claim) {
			refs = append(refs, h.Ref())
		}
		if err == nil && len(refs) == 0 {
			return
		}
		if len(refs) > 0 {
			_ = c.ledger.Free(c.t.Context(), refs...)
		}
		time.Sleep(time.Millisecond)
	}
}

func last(a netip.Addr) int {
	b := a.AsSlice()
	return int(b[len(b)-1])
}

func nth(a netip.Addr, n int) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] += byte(n)
	x, _ := netip.AddrFromSlice(b)
	return x
}

var errInjected = errors.New("injected")

// trouble makes a store misbehave at random, seldom enough that most calls succeed.
func trouble(seed uint64, count func(string)) func(memstore.Call) memstore.Fault {
	r := rand.New(rand.NewPCG(seed, 1))
	var mu sync.Mutex
	return func(c memstore.Call) memstore.Fault {
		mu.Lock()
		defer mu.Unlock()
		f := memstore.Fault{Delay: time.Duration(r.IntN(3000)) * time.Microsecond}
		switch n := r.IntN(100); {
		case c.Verb != memstore.Write:
			if n < 3 {
				count("failed read")
				f.Err = errInjected
			}
		case n < 8:
			count("conflict")
			f.Err = ipam.ErrConflict
		case n < 16:
			count("lost answer")
			f.LoseAnswer = true
		case n < 22:
			count("lost write")
			f.Err = errInjected
		}
		return f
	}
}

// trial is a kind of history.
type trial struct {
	cidr    string
	anyOf   bool
	clients int
	steps   int
	// wrap may spoil the store.
	wrap func(*testing.T, *memstore.Store) ipam.Store
}

// history is what came of a trial.
type history struct {
	ops    []porcupine.Operation
	usable []int
	mine   []lent       // what the clients hold in the end
	stored []ipam.Lease // what the store holds in the end, MACs aside
}

// record runs three ledgers over one store, and clients of each.
func (tr trial) record(t *testing.T, seed uint64) history {
	t.Helper()
	var out history
	sub := subnet(t, "s", "", tr.cidr)
	p := netip.MustParsePrefix(tr.cidr)
	var usable []int
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		if sub.Check(a, ipam.Owner{}) == nil {
			usable = append(usable, last(a))
		}
	}
	s := &scribe{takes: map[ipam.Claim]int{}, faults: map[string]int{}}
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		store.SetFault(trouble(seed, func(kind string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.faults[kind]++
		}))
		ctx, stop := context.WithCancel(t.Context())
		var watches, running sync.WaitGroup
		var ledgers []*ipam.Ledger
		var clients []*client
		for _, name := range []string{"a", "b", "c"} {
			l := newLedger(t, tr.wrap(t, store), name)
			ledgers = append(ledgers, l)
			watches.Go(func() { _ = store.Watch(ctx, l) })
		}
		watches.Go(func() { delayWatch(ctx, store, seed) })
		for i := range tr.clients {
			c := &client{t: t, number: i, ledger: ledgers[i%3], subnet: sub, usable: usable, scribe: s, anyOf: tr.anyOf,
				random: rand.New(rand.NewPCG(seed, uint64(i)+2))}
			clients = append(clients, c)
			running.Go(func() { c.run(tr.steps) })
		}
		running.Wait()
		stop()
		watches.Wait()
		time.Sleep(time.Minute) // for what is still under way
		store.SetFault(nil)
		out.stored = addressesIn(t, store)
		for _, c := range clients {
			out.mine = append(out.mine, c.mine...)
		}
	})
	t.Logf("seed %d: %d operations, faults %v", seed, len(s.ops), s.faults)
	out.ops, out.usable = s.ops, usable
	return out
}

func addressesIn(t *testing.T, store ipam.Store) (ls []ipam.Lease) {
	bs, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		for _, x := range b.Leases {
			if x.Address.IsValid() {
				ls = append(ls, *x)
			}
		}
	}
	return ls
}

// lost gives what a client was given and the store does not hold.
func (h history) lost() []lent {
	return slices.DeleteFunc(slices.Clone(h.mine), func(m lent) bool {
		return slices.ContainsFunc(h.stored, func(x ipam.Lease) bool {
			return x.Address == m.held.Address && x.Claim == m.held.Claim && x.Generation == m.held.Generation
		})
	})
}

// delayWatch holds the watches back again and again.
func delayWatch(ctx context.Context, store *memstore.Store, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	for ctx.Err() == nil {
		resume := store.PauseWatch()
		time.Sleep(time.Duration(r.IntN(30)) * time.Millisecond)
		resume()
		time.Sleep(time.Duration(r.IntN(10)) * time.Millisecond)
	}
}

func honest(_ *testing.T, s *memstore.Store) ipam.Store { return s }

// TestLinearizable holds that several replicas over one store are as one ledger that serves one call after the other:
// no address is given twice, a refusal names who held the address at some moment of the call, and 'exhausted' is said
// only when at some moment none was free.
func TestLinearizable(t *testing.T) {
	rounds := 4
	if long() {
		rounds = 200
	}
	for name, tr := range map[string]trial{
		"asked for, IPv4":         {cidr: "10.0.0.0/29", clients: 12, steps: 25},
		"asked for, IPv6":         {cidr: "fd00::/125", clients: 12, steps: 15},
		"any, IPv4":               {cidr: "10.0.0.0/29", anyOf: true, clients: 6, steps: 12},
		"any, IPv6":               {cidr: "fd00::/125", anyOf: true, clients: 6, steps: 10},
		"any, IPv4, next to none": {cidr: "10.0.0.0/30", anyOf: true, clients: 6, steps: 12},
		"any, IPv6, next to none": {cidr: "fd00::/126", anyOf: true, clients: 6, steps: 10},
	} {
		t.Run(name, func(t *testing.T) {
			tr.wrap = honest
			first := firstSeed(t)
			for i := range rounds {
				seed := first + uint64(i)
				h := tr.record(t, seed)
				if r := tr.check(h); r != porcupine.Ok {
					t.Fatalf("seed %d: the history of %d operations is %s:\n%s", seed, len(h.ops), r, told(h.ops))
				}
				if lost := h.lost(); len(lost) > 0 || len(h.stored) != len(h.mine) {
					t.Fatalf("seed %d: lost are %+v; held are %+v, stored %+v", seed, lost, h.mine, h.stored)
				}
			}
		})
	}
}

func (tr trial) check(h history) porcupine.CheckResult {
	spec := specification(h.usable)
	if !tr.anyOf { // then no operation is about more than one address
		spec.Partition = byAddress
	}
	return porcupine.CheckOperationsTimeout(spec.ToModel(), h.ops, 20*time.Second)
}

// told lists a history for people, in the order of the calls.
func told(ops []porcupine.Operation) string {
	slices.SortFunc(ops, func(a, b porcupine.Operation) int { return cmp.Compare(a.Call, b.Call) })
	var b strings.Builder
	for _, o := range ops {
		fmt.Fprintf(&b, "%4d..%4d client %d: %+v -> %+v\n", o.Call, o.Return, o.ClientId, o.Input, o.Output)
	}
	return b.String()
}
