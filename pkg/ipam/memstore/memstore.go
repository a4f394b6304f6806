// Package memstore keeps blocks in memory: for tests and for measuring the ledger without an API server.
//
// Invariant: a write is a compare-and-swap on ResourceVersion, exactly as an API server's, and observers hear of
// writes in their order.
package memstore

import (
	"context"
	"slices"
	"strconv"
	"sync"

	"github.com/berth-net/berth/pkg/ipam"
)

// Fault says what becomes of one call.
type Fault struct {
	// Before fails the call before anything happens.
	Before error
	// After fails the call after the write: its answer is lost.
	After error
}

// Store is an ipam.Store in memory. It is safe for concurrent use.
type Store struct {
	// Intercept, when set before first use, is asked before each call; verb is get, list, write or delete.
	Intercept func(ctx context.Context, verb, block string) Fault

	mu        sync.Mutex
	version   uint64
	blocks    map[string]ipam.Block
	observers []ipam.Observer
	paused    bool
	held      []func(ipam.Observer)
	calls     map[string]int
}

// New makes an empty store.
func New() *Store { return &Store{blocks: map[string]ipam.Block{}, calls: map[string]int{}} }

func (s *Store) fault(ctx context.Context, verb, block string) Fault {
	if err := context.Cause(ctx); err != nil {
		return Fault{Before: err}
	}
	if s.Intercept == nil {
		return Fault{}
	}
	return s.Intercept(ctx, verb, block)
}

func copyOf(b ipam.Block) *ipam.Block {
	b.Leases = slices.Clone(b.Leases)
	b.Freed = slices.Clone(b.Freed)
	return &b
}

// Get reads a block.
func (s *Store) Get(ctx context.Context, name string) (*ipam.Block, error) {
	f := s.fault(ctx, "get", name)
	if f.Before != nil {
		return nil, f.Before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["get"]++
	b, ok := s.blocks[name]
	if !ok {
		return nil, ipam.ErrNotFound
	}
	return copyOf(b), f.After
}

// List reads all blocks of the named subnets; none named means all there are.
func (s *Store) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	f := s.fault(ctx, "list", "")
	if f.Before != nil {
		return nil, f.Before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["list"]++
	var bs []*ipam.Block
	for _, b := range s.blocks {
		if len(subnets) == 0 || slices.Contains(subnets, b.Subnet) {
			bs = append(bs, copyOf(b))
		}
	}
	return bs, f.After
}

// Write creates or replaces a block by compare-and-swap.
func (s *Store) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	f := s.fault(ctx, "write", b.Name)
	if f.Before != nil {
		return nil, f.Before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["write"]++
	if have, ok := s.blocks[b.Name]; ok != (b.ResourceVersion != "") || ok && have.ResourceVersion != b.ResourceVersion {
		return nil, ipam.ErrConflict
	}
	stored := copyOf(*b)
	s.version++
	stored.ResourceVersion = strconv.FormatUint(s.version, 10)
	if stored.UID == "" {
		stored.UID = "uid-" + stored.ResourceVersion
	}
	s.blocks[b.Name] = *stored
	s.tell(func(o ipam.Observer) { o.Observe(copyOf(*stored)) })
	if f.After != nil {
		return nil, f.After
	}
	return copyOf(*stored), nil
}

// Delete removes a block at its ResourceVersion.
func (s *Store) Delete(ctx context.Context, b *ipam.Block) error {
	f := s.fault(ctx, "delete", b.Name)
	if f.Before != nil {
		return f.Before
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls["delete"]++
	if have, ok := s.blocks[b.Name]; !ok || have.ResourceVersion != b.ResourceVersion {
		return ipam.ErrConflict
	}
	delete(s.blocks, b.Name)
	s.version++
	v := strconv.FormatUint(s.version, 10)
	s.tell(func(o ipam.Observer) { o.Forget(b.Name, v) })
	return f.After
}

// tell tells the observers, or keeps it until the watch resumes. s.mu is held.
func (s *Store) tell(news func(ipam.Observer)) {
	if s.paused {
		s.held = append(s.held, news)
		return
	}
	for _, o := range s.observers {
		news(o)
	}
}

// Watch tells o all blocks that there are, and every change from then on.
func (s *Store) Watch(o ipam.Observer) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var bs []*ipam.Block
	for _, b := range s.blocks {
		bs = append(bs, copyOf(b))
	}
	o.Replace(bs, strconv.FormatUint(s.version, 10))
	s.observers = append(s.observers, o)
}

// PauseWatch holds back news until ResumeWatch.
func (s *Store) PauseWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = true
}

// ResumeWatch tells what was held back.
func (s *Store) ResumeWatch() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paused = false
	for _, news := range s.held {
		s.tell(news)
	}
	s.held = nil
}

// Calls counts the calls that reached the store, by verb.
func (s *Store) Calls(verb string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[verb]
}
