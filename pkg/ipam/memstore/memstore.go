// Package memstore keeps an ipam ledger's blocks in memory, and can misbehave on purpose.
//
// Invariant: a write takes effect exactly when the block is at the resourceVersion that it names, whatever fault is
// injected; every effect is told to each observer once and in order.
package memstore

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
)

// ErrLostAnswer is the answer to a write whose real answer was lost on purpose.
var ErrLostAnswer = errors.New("answer was lost: read the block to learn the outcome")

// Verb is a call of the store.
type Verb string

// The verbs.
const (
	Get    Verb = "get"
	List   Verb = "list"
	Write  Verb = "write"
	Delete Verb = "delete"
)

// Call is a call that a fault hook is asked about. Block is the block's name; empty for List.
type Call struct {
	Verb  Verb
	Block string
}

// Fault is what happens to a call. The zero value is no fault.
type Fault struct {
	// Delay is waited before the call takes effect.
	Delay time.Duration
	// Err is answered, and the call takes no effect: ipam.ErrConflict, or anything else.
	Err error
	// LoseAnswer lets the call take effect and answers ErrLostAnswer.
	LoseAnswer bool
}

// Store is an ipam.Store. The zero value is empty and ready.
type Store struct {
	mu       sync.Mutex
	version  uint64
	blocks   map[string]*ipam.Block
	fault    func(Call) Fault
	watchers map[int]*watcher
	next     int
	paused   bool
	calls    map[Verb]int
}

// event is a block that was written, or the name of one that was deleted.
type event struct {
	block         *ipam.Block
	name, version string
}

type watcher struct {
	pending []event
	wake    chan struct{}
}

// New returns an empty store.
func New() *Store { return &Store{} }

// SetFault has hook asked about every call from now on; nil ends it. The hook must not call the store.
func (s *Store) SetFault(hook func(Call) Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = hook
}

// Calls counts the calls since the store was made.
func (s *Store) Calls() map[Verb]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.calls)
}

// enter counts the call and applies what its fault says comes first. lose tells to lose the answer.
func (s *Store) enter(ctx context.Context, c Call) (lose bool, err error) {
	s.mu.Lock()
	if s.calls == nil {
		s.calls = map[Verb]int{}
	}
	s.calls[c.Verb]++
	hook := s.fault
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, err
	}
	if hook == nil {
		return false, nil
	}
	f := hook(c)
	if f.Delay > 0 {
		t := time.NewTimer(f.Delay)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return f.LoseAnswer, f.Err
}

// Get reads a block.
func (s *Store) Get(ctx context.Context, name string) (*ipam.Block, error) {
	lose, err := s.enter(ctx, Call{Get, name})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.blocks[name]
	switch {
	case lose:
		return nil, ErrLostAnswer
	case b == nil:
		return nil, ipam.ErrNotFound
	}
	return clone(b), nil
}

// List reads the blocks of the named subnets, or all, in the order of their names.
func (s *Store) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	lose, err := s.enter(ctx, Call{Verb: List})
	if err != nil {
		return nil, err
	}
	if lose {
		return nil, ErrLostAnswer
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.list(subnets), nil
}

// ListOwner reads those of the blocks of the named subnets in which the owner has a lease.
func (s *Store) ListOwner(ctx context.Context, owner ipam.Owner, subnets ...string) ([]*ipam.Block, error) {
	all, err := s.List(ctx, subnets...)
	return slices.DeleteFunc(all, func(b *ipam.Block) bool {
		return !slices.ContainsFunc(b.Leases, func(l *ipam.Lease) bool { return l.Owner == owner })
	}), err
}

func (s *Store) list(subnets []string) []*ipam.Block {
	var bs []*ipam.Block
	for _, name := range slices.Sorted(maps.Keys(s.blocks)) {
		if b := s.blocks[name]; len(subnets) == 0 || slices.Contains(subnets, b.Subnet) {
			bs = append(bs, clone(b))
		}
	}
	return bs
}

// Write creates or replaces a block.
func (s *Store) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	lose, err := s.enter(ctx, Call{Write, b.Name})
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.blocks[b.Name]
	if !matches(old, b) {
		return nil, ipam.ErrConflict
	}
	stored := clone(b)
	stored.ResourceVersion = s.tick()
	if old == nil {
		stored.UID = "uid-" + stored.ResourceVersion
	} else {
		stored.UID = old.UID
	}
	if s.blocks == nil {
		s.blocks = map[string]*ipam.Block{}
	}
	s.blocks[b.Name] = stored
	s.tell(event{block: stored, name: b.Name, version: stored.ResourceVersion})
	if lose {
		return nil, ErrLostAnswer
	}
	return clone(stored), nil
}

// Delete removes a block.
func (s *Store) Delete(ctx context.Context, b *ipam.Block) error {
	lose, err := s.enter(ctx, Call{Delete, b.Name})
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if old := s.blocks[b.Name]; old == nil || !matches(old, b) {
		return ipam.ErrConflict
	}
	delete(s.blocks, b.Name)
	s.tell(event{name: b.Name, version: s.tick()})
	if lose {
		return ErrLostAnswer
	}
	return nil
}

// matches tells that what is stored is what b was made from.
func matches(old, b *ipam.Block) bool {
	if old == nil {
		return b.ResourceVersion == ""
	}
	return old.ResourceVersion == b.ResourceVersion && (b.UID == "" || b.UID == old.UID)
}

func (s *Store) tick() string {
	s.version++
	return strconv.FormatUint(s.version, 10)
}

func (s *Store) tell(e event) {
	for _, w := range s.watchers {
		w.pending = append(w.pending, e)
	}
	s.rouse()
}

func (s *Store) rouse() {
	for _, w := range s.watchers {
		select {
		case w.wake <- struct{}{}:
		default:
		}
	}
}

// PauseWatch holds back what watches tell until the returned function is called.
func (s *Store) PauseWatch() (resume func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.paused = false
		s.rouse()
	}
}

// Watch tells o all blocks, then every change, until ctx ends; then it returns nil.
func (s *Store) Watch(ctx context.Context, o ipam.Observer) error {
	w := &watcher{wake: make(chan struct{}, 1)}
	s.mu.Lock()
	id := s.next
	s.next++
	if s.watchers == nil {
		s.watchers = map[int]*watcher{}
	}
	s.watchers[id] = w
	all, version := s.list(nil), strconv.FormatUint(s.version, 10)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watchers, id)
	}()
	o.Replace(all, version)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		for _, e := range s.take(w) {
			if e.block == nil {
				o.Forget(e.name, e.version)
			} else {
				o.Observe(clone(e.block))
			}
		}
	}
}

func (s *Store) take(w *watcher) []event {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.paused {
		return nil
	}
	es := w.pending
	w.pending = nil
	return es
}

func clone(b *ipam.Block) *ipam.Block {
	c := *b
	c.Leases = slices.Clone(b.Leases) // a lease is never changed
	c.Freed = slices.Clone(b.Freed)
	c.Unknown = maps.Clone(b.Unknown)
	return &c
}
