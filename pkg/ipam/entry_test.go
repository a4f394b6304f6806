package ipam

import (
	"context"
	"crypto/rand"
	"net/netip"
	"testing"
	"time"

	"k8s.io/utils/clock"
)

// slowStore answers reads of single blocks when it is told to, and keeps what is written.
type slowStore struct {
	Store
	reading, answer chan struct{}
	written         chan *Block
}

func (s slowStore) Get(context.Context, string) (*Block, error) {
	select {
	case s.reading <- struct{}{}:
	default:
	}
	<-s.answer
	return nil, ErrNotFound
}

func (s slowStore) List(context.Context, ...string) ([]*Block, error) { return nil, nil }

func (s slowStore) ListOwner(context.Context, Owner, ...string) ([]*Block, error) { return nil, nil }

func (s slowStore) Write(_ context.Context, b *Block) (*Block, error) {
	stored := b.clone()
	stored.ResourceVersion = "1"
	s.written <- b
	return stored, nil
}

// A take that meets the queue of a block which only a release of nothing has named writes a whole block.
func TestTakeBehindAReleaseOfNothing(t *testing.T) {
	store := slowStore{reading: make(chan struct{}, 1), answer: make(chan struct{}), written: make(chan *Block, 4)}
	l, err := New(Options{Store: store, Replica: "r", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSubnet(SubnetSpec{Name: "s", UID: "u", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}})
	if err != nil {
		t.Fatal(err)
	}
	a := netip.MustParseAddr("10.0.0.5")
	name := BlockName("s", a)
	go func() { _ = l.Free(t.Context(), Ref{Block: name, Address: a, Claim: "x", Generation: 1}) }()
	<-store.reading
	taken := make(chan error, 1)
	go func() {
		_, err := l.Take(t.Context(), Request{Claim: "00000000000000000000000000000000", Owner: PodOwner("n"),
			Interfaces: []InterfaceRequest{{Provider: "ovn", Candidates: []Source{{Subnet: s}}, Choices: [][]netip.Addr{{a}}}}})
		taken <- err
	}()
	for queued := 0; queued == 0; time.Sleep(time.Millisecond) { // until the take stands behind the release
		l.mu.Lock()
		queued = len(l.known[name].queue)
		l.mu.Unlock()
	}
	close(store.answer)
	if err := <-taken; err != nil {
		t.Fatal(err)
	}
	if b := <-store.written; b.Subnet != "s" || b.SubnetUID != "u" || b.First != blockFirst(a) || len(b.Leases) != 1 {
		t.Errorf("written: subnet %q of %q, first %v, %d leases", b.Subnet, b.SubnetUID, b.First, len(b.Leases))
	}
}
