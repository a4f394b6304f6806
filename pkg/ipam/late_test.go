package ipam_test

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// tardy says of some writes that they failed, and lets them take effect later, if they still can.
type tardy struct {
	*memstore.Store
	ctx  context.Context
	mu   *sync.Mutex
	rand *rand.Rand
	late *int
}

func (s tardy) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	s.mu.Lock()
	late, delay := s.rand.IntN(12) == 0, time.Duration(s.rand.IntN(20))*time.Millisecond
	if late {
		*s.late++
	}
	s.mu.Unlock()
	if !late {
		return s.Store.Write(ctx, b)
	}
	go func() {
		time.Sleep(delay)
		_, _ = s.Store.Write(s.ctx, b) // it conflicts with whatever came first
	}()
	return nil, errInjected
}

// TestLateWrites holds that a write which takes effect after it was given up gives nothing twice, and takes nothing
// from anybody. What it leaves is at most one lease a write, that no answer names.
func TestLateWrites(t *testing.T) {
	rounds := 4
	if long() {
		rounds = 200
	}
	for name, tr := range map[string]trial{
		"IPv4": {cidr: "10.0.0.0/27", anyOf: true, clients: 9, steps: 20},
		"IPv6": {cidr: "fd00::/123", anyOf: true, clients: 9, steps: 15},
	} {
		t.Run(name, func(t *testing.T) {
			first := firstSeed(t)
			for i := range rounds {
				seed, late := first+uint64(i), 0
				random, mu := rand.New(rand.NewPCG(seed, 99)), &sync.Mutex{}
				tr.wrap = func(t *testing.T, s *memstore.Store) ipam.Store {
					return tardy{s, context.WithoutCancel(t.Context()), mu, random, &late}
				}
				h := tr.record(t, seed)
				h.ops = given(h.ops)
				once := trial{} // each operation that is left is about one address
				if r := once.check(h); r != porcupine.Ok {
					t.Fatalf("seed %d: the history of %d operations is %s:\n%s", seed, len(h.ops), r, told(h.ops))
				}
				if lost := h.lost(); len(lost) > 0 || late == 0 || len(h.stored) > len(h.mine)+late {
					t.Fatalf("seed %d: lost are %+v; held are %+v, stored %+v after %d late writes", seed, lost, h.mine, h.stored, late)
				}
			}
		})
	}
}

// given gives the takes that succeeded, as if each had asked for its address, and the releases.
func given(ops []porcupine.Operation) (out []porcupine.Operation) {
	for _, o := range ops {
		in, answer := o.Input.(asked), o.Output.(answered)
		switch {
		case in.verb == freeOne:
			out = append(out, o)
		case (in.verb == takeOne || in.verb == takeAny) && answer.addr >= 0:
			o.Input = asked{takeOne, answer.addr, in.id}
			out = append(out, o)
		}
	}
	return out
}

// careless writes whatever the resourceVersion.
type careless struct{ *memstore.Store }

func (s careless) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	c := *b
	c.ResourceVersion, c.UID = "", ""
	if now, err := s.Get(ctx, b.Name); err == nil {
		c.ResourceVersion, c.UID = now.ResourceVersion, now.UID
	}
	return s.Store.Write(ctx, &c)
}

// TestLinearizabilityIsLostWithoutCompareAndSwap holds that the check can fail.
func TestLinearizabilityIsLostWithoutCompareAndSwap(t *testing.T) {
	for name, tr := range map[string]trial{
		"asked for": {cidr: "10.0.0.0/29", clients: 12, steps: 15},
		"any":       {cidr: "10.0.0.0/29", anyOf: true, clients: 6, steps: 8},
	} {
		t.Run(name, func(t *testing.T) {
			tr.wrap = func(_ *testing.T, s *memstore.Store) ipam.Store { return careless{s} }
			first := firstSeed(t)
			for i := range 20 {
				if tr.check(tr.record(t, first+uint64(i))) == porcupine.Illegal {
					return
				}
			}
			t.Errorf("no history from seed %d on shows that the store does not compare", first)
		})
	}
}
