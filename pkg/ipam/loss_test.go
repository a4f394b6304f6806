package ipam_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// mustClose tells that nothing is taken, for the subnet is closed, and that this is no refusal.
func mustClose(t *testing.T, err error) {
	t.Helper()
	if closed := (*ipam.ClosedError)(nil); !errors.As(err, &closed) {
		t.Fatalf("%v, want a closed subnet", err)
	}
	if _, refused := ipam.AsRefusal(err); refused {
		t.Fatalf("%v is told as the asker's fault", err)
	}
}

// wipe deletes all blocks of a store by other hands than the ledger's.
func wipe(t *testing.T, store *memstore.Store) {
	t.Helper()
	bs, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range bs {
		if err := store.Delete(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
}

// Blocks with leases are deleted. Whether a ledger learns it by its watch, by a live read or by a write of its own, it
// gives nothing from then on until it is reopened.
func TestLossCloses(t *testing.T) {
	for name, notice := range map[string]func(*testing.T, *ipam.Ledger, *ipam.Subnet){
		"by the watch": func(_ *testing.T, _ *ipam.Ledger, _ *ipam.Subnet) { synctest.Wait() },
		"by a read":    func(t *testing.T, l *ipam.Ledger, _ *ipam.Subnet) { refresh(t, l) },
		"by a write":   func(*testing.T, *ipam.Ledger, *ipam.Subnet) {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				l, s, other := watching(t, store, "a"), subnet(t, "s", "", "10.0.0.0/26"), subnet(t, "t", "", "10.1.0.0/24")
				kept := mustTake(t, l, s, ask{})
				if name != "by the watch" {
					defer store.PauseWatch()()
				}
				wipe(t, store)
				notice(t, l, s)
				for range 2 {
					_, err := take(t, l, s, ask{})
					mustClose(t, err)
				}
				if bs, err := store.List(t.Context(), "s"); err != nil || len(bs) > 0 {
					t.Errorf("%v, blocks %v", err, bs)
				}
				mustTake(t, l, other, ask{})
				lost := kept.Interfaces[0].Leases[0].Lease
				if err := l.Restore(t.Context(), s, lost); err != nil {
					t.Fatal(err)
				}
				l.Reopen("s", ipam.Loss{})
				_, err := take(t, l, s, ask{})
				mustClose(t, err)
				l.Reopen("s", l.ClosedHere()["s"])
				if got := addresses(mustTake(t, l, s, ask{})); got[0] == lost.Address.String() {
					t.Errorf("%v was given twice", got)
				}
			})
		})
	}
}

// An older state of a block is put in the place of the newer one.
func TestOlderBackupCloses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		l, s := watching(t, store, "a"), subnet(t, "s", "", "10.0.0.0/26")
		mustTake(t, l, s, ask{})
		backup, err := store.List(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		mustTake(t, l, s, ask{})
		now, err := store.Get(t.Context(), backup[0].Name)
		if err != nil {
			t.Fatal(err)
		}
		backup[0].ResourceVersion = now.ResourceVersion
		if _, err := store.Write(t.Context(), backup[0]); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		_, err = take(t, l, s, ask{})
		mustClose(t, err)
	})
}

// rewound is a store that was put back as a whole: its resourceVersions are lower than they were.
type rewound struct {
	*memstore.Store
	by int
}

func (r *rewound) back(b *ipam.Block) *ipam.Block {
	v, err := strconv.Atoi(b.ResourceVersion)
	if err != nil {
		return b
	}
	b.ResourceVersion = strconv.Itoa(v - r.by)
	return b
}

func (r *rewound) Get(ctx context.Context, name string) (*ipam.Block, error) {
	b, err := r.Store.Get(ctx, name)
	if err != nil {
		return nil, err
	}
	return r.back(b), nil
}

func (r *rewound) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	bs, err := r.Store.List(ctx, subnets...)
	for i := range bs {
		bs[i] = r.back(bs[i])
	}
	return bs, err
}

func (r *rewound) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	if r.by > 0 { // it knows nothing of the versions that it has given since
		return nil, ipam.ErrConflict
	}
	return r.Store.Write(ctx, b)
}

func TestStoreThatWentBackCloses(t *testing.T) {
	store := &rewound{Store: memstore.New()}
	l, s := newLedger(t, store, "a"), subnet(t, "s", "", "10.0.0.0/26")
	for range 3 {
		mustTake(t, l, s, ask{})
	}
	store.by = 2
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	_, err := l.Take(ctx, request(t, s, ask{}))
	mustClose(t, err)

	store.by = 0
	fresh := newLedger(t, store, "b")
	mustTake(t, fresh, s, ask{})
	store.by = 2
	refresh(t, fresh)
	_, err = take(t, fresh, s, ask{})
	mustClose(t, err)
}

// A ledger that hears late that leases were given back is open again as soon as it has heard it.
func TestLateNewsOpensAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b, s := watching(t, store, "a"), watching(t, store, "b"), subnet(t, "s", "", "10.0.0.0/26")
		pod := mustTake(t, a, s, ask{mac: "02:00:00:00:00:01"})
		synctest.Wait()
		resume := store.PauseWatch()
		free(t, a, pod)
		time.Sleep(2 * time.Minute)
		if n, err := a.Prune(t.Context()); err != nil || n != 2 {
			t.Fatalf("%d blocks were deleted: %v", n, err)
		}
		refresh(t, b)
		_, err := take(t, b, s, ask{})
		mustClose(t, err)
		resume()
		synctest.Wait()
		if d := cmp.Diff(map[string]ipam.Loss{}, b.ClosedHere()); d != "" {
			t.Errorf("closed (-want +got):\n%s", d)
		}
		mustTake(t, b, s, ask{})
	})
}

// What is closed by its mark gives nothing; others serve in its place where nothing speaks against it.
func TestClosedByMark(t *testing.T) {
	l := newLedger(t, memstore.New(), "a")
	shut := build(t, ipam.SubnetSpec{Name: "s", Prefixes: prefixes("10.0.0.0/30"), Gateways: addrs("10.0.0.1"), Closed: "lost"})
	tiny := subnet(t, "t", "", "10.1.0.0/30")
	of := func(o ipam.Owner, ss ...*ipam.Subnet) ipam.Request {
		r := request(t, ss[0], ask{owner: o})
		r.Interfaces[0].Candidates = nil
		for _, s := range ss {
			r.Interfaces[0].Candidates = append(r.Interfaces[0].Candidates, ipam.Source{Subnet: s})
		}
		return r
	}
	_, err := take(t, l, shut, ask{})
	mustClose(t, err)
	_, err = l.Take(t.Context(), of(statefulPod("web-0"), shut, tiny))
	mustClose(t, err)
	a, err := l.Take(t.Context(), of(ipam.Owner{}, shut, tiny))
	if err != nil || !slices.Equal(addresses(a), []string{"10.1.0.2"}) {
		t.Fatalf("%v: %v", a, err)
	}
	_, err = l.Take(t.Context(), of(ipam.Owner{}, shut, tiny))
	mustClose(t, err)
	_, err = l.Preview(t.Context(), of(ipam.Owner{}, shut))
	mustClose(t, err)
	if n := l.Stats().Writes; n != 1 {
		t.Errorf("%d writes, want 1", n)
	}
}

// Whoever watches hears of a loss once.
func TestLossIsTold(t *testing.T) {
	var told []string
	store := memstore.New()
	o := newLedger(t, store, "a").Options
	o.Lost = func(subnet, _ string) { told = append(told, subnet) }
	l, err := ipam.New(o)
	if err != nil {
		t.Fatal(err)
	}
	s := subnet(t, "s", "", "10.0.0.0/26")
	mustTake(t, l, s, ask{})
	wipe(t, store)
	for range 3 {
		refresh(t, l)
	}
	_, err = take(t, l, s, ask{})
	mustClose(t, err)
	if d := cmp.Diff([]string{"s"}, told); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
}
