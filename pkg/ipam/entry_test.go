package ipam

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"testing"
	"time"

	"go4.org/netipx"
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

// stalled is a ledger that is busy with a block of a subnet which only a release of nothing has named.
type stalled struct {
	*Ledger
	store  slowStore
	subnet *Subnet
	addr   netip.Addr
}

func stall(t *testing.T) stalled {
	t.Helper()
	store := slowStore{reading: make(chan struct{}, 1), answer: make(chan struct{}), written: make(chan *Block, 4)}
	l, err := New(Options{Store: store, Replica: "r", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSubnet(SubnetSpec{Name: "s", UID: "u", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/28")}})
	if err != nil {
		t.Fatal(err)
	}
	x := stalled{l, store, s, netip.MustParseAddr("10.0.0.5")}
	go func() { _ = l.Free(t.Context(), Ref{Block: x.block(), Address: x.addr, Claim: "x", Generation: 1}) }()
	<-store.reading
	return x
}

func (x stalled) block() string { return BlockName("s", x.addr) }

// take begins a take, and gives where its end is told.
func (x stalled) take(ctx context.Context, choices ...netip.Addr) <-chan error {
	ir := InterfaceRequest{Provider: "ovn", Candidates: []Source{{Subnet: x.subnet}}}
	if len(choices) > 0 {
		ir.Choices = [][]netip.Addr{choices}
	}
	ended := make(chan error, 1)
	go func() {
		_, err := x.Take(ctx, Request{Claim: "00000000000000000000000000000000", Owner: PodOwner("n"), Interfaces: []InterfaceRequest{ir}})
		ended <- err
	}()
	return ended
}

// queued waits until so many stand behind the release.
func (x stalled) queued(t *testing.T, n int, ended <-chan error) {
	t.Helper()
	for {
		x.mu.Lock()
		now := len(x.known[x.block()].queue)
		x.mu.Unlock()
		if now == n {
			return
		}
		select {
		case err := <-ended:
			t.Fatalf("it ended with %v", err)
		case <-time.After(time.Millisecond):
		}
	}
}

// A take that meets the queue of a block which only a release of nothing has named writes a whole block.
func TestTakeBehindAReleaseOfNothing(t *testing.T) {
	for name, asks := range map[string]bool{"asked for": true, "any": false} {
		t.Run(name, func(t *testing.T) {
			x := stall(t)
			var choices []netip.Addr
			if asks {
				choices = []netip.Addr{x.addr}
			}
			taken := x.take(t.Context(), choices...)
			x.queued(t, 1, taken)
			close(x.store.answer)
			if err := <-taken; err != nil {
				t.Fatal(err)
			}
			if b := <-x.store.written; b.Subnet != "s" || b.SubnetUID != "u" || b.First != blockFirst(x.addr) || len(b.Leases) != 1 {
				t.Errorf("written: subnet %q of %q, first %v, %d leases", b.Subnet, b.SubnetUID, b.First, len(b.Leases))
			}
		})
	}
}

// Of callers who left a queue before anything was made of them, nothing is kept: a block may not be writable for hours.
func TestQueueForgetsWhoLeft(t *testing.T) {
	x := stall(t)
	ctx, cancel := context.WithCancel(t.Context())
	first, second := x.take(ctx, x.addr), x.take(ctx, x.addr)
	x.queued(t, 2, nil)
	stays := x.take(t.Context(), x.addr)
	x.queued(t, 3, stays)
	cancel()
	for _, ended := range []<-chan error{first, second} {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("who left was told %v", err)
		}
	}
	x.queued(t, 1, stays)
	close(x.store.answer)
	if err := <-stays; err != nil {
		t.Error(err)
	}
}

// Whatever is previewed, the cache does not grow.
func TestPreviewIsForgotten(t *testing.T) {
	l, err := New(Options{Store: slowStore{}, Replica: "r", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewSubnet(SubnetSpec{Name: "s", UID: "u", Prefixes: []netip.Prefix{netip.MustParsePrefix("fd00::/64")}})
	if err != nil {
		t.Fatal(err)
	}
	for i := range byte(50) {
		a := netip.AddrFrom16([16]byte{0: 0xfd, 14: i, 15: 1})
		_, err := l.Preview(t.Context(), Request{Owner: PodOwner("n"),
			Interfaces: []InterfaceRequest{{Provider: "ovn", Candidates: []Source{{Subnet: s}}, Choices: [][]netip.Addr{{a}}}}})
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.known); n > 0 {
		t.Errorf("%d blocks are known, and none exists", n)
	}
}

// A block that exclusions part into many ranges is opened once, also at the end of the address space.
func TestBlocksAreWalkedOnce(t *testing.T) {
	for name, cidr := range map[string]string{"IPv4": "10.0.0.0/24", "IPv6": "fd00::/120", "last IPv4": "255.255.255.0/24",
		"last IPv6": "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ff00/120"} {
		t.Run(name, func(t *testing.T) {
			p := netip.MustParsePrefix(cidr)
			var even netipx.IPSetBuilder
			for a := p.Addr(); a.IsValid() && p.Contains(a); a = a.Next() {
				if offsetIn(a)%2 == 0 {
					even.Add(a)
				}
			}
			exclude, err := even.IPSet()
			if err != nil {
				t.Fatal(err)
			}
			s, err := NewSubnet(SubnetSpec{Name: "s", UID: "u", Prefixes: []netip.Prefix{p}, Exclude: exclude})
			if err != nil {
				t.Fatal(err)
			}
			v := virgins{ranges: s.free.of(FamilyOf(p.Addr())).Ranges()}
			seen := map[netip.Addr]int{}
			for a, ok := v.advance(); ok; a, ok = v.advance() {
				seen[a]++
			}
			if len(seen) != 4 {
				t.Errorf("%d blocks", len(seen))
			}
			for a, n := range seen {
				if n != 1 || a != blockFirst(a) || !p.Contains(a) {
					t.Errorf("%s was opened %d times", a, n)
				}
			}
		})
	}
}
