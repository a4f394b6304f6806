package ipam_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

const stockAge = 5 * time.Second

// shop takes leases from a stock, in a bubble.
type shop struct {
	*testing.T
	store  *memstore.Store
	stock  *ipam.Stock
	subnet *ipam.Subnet
	// ahead is how far the clock that stamps requests is before the shop's own.
	ahead time.Duration
	// stop ends the stock, done tells that it has ended, close waits for it.
	stop  func()
	done  chan struct{}
	close func()
}

// inShop runs a test with a stock of a subnet.
func inShop(t *testing.T, cidrs []string, test func(*shop)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &shop{T: t, store: memstore.New(), subnet: subnet(t, "s", "", cidrs...)}
		w.stock = ipam.NewStock(watching(t, w.store, "a"), stockAge)
		ctx, cancel := context.WithCancel(t.Context())
		w.stop, w.done = cancel, make(chan struct{})
		go func() {
			defer close(w.done)
			if err := w.stock.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		w.close = func() { cancel(); <-w.done; synctest.Wait() }
		test(w)
		w.close()
		time.Sleep(time.Second) // the last retries of what nobody waits for
	})
}

func (w *shop) request(a ask) ipam.Request {
	w.Helper()
	r := request(w.T, w.subnet, a)
	r.Moment = time.Now().Add(w.ahead).Truncate(time.Second)
	return r
}

func (w *shop) take() *ipam.Allocation {
	w.Helper()
	a, err := w.stock.Take(w.Context(), w.request(ask{}))
	if err != nil {
		w.Fatal(err)
	}
	return a
}

// settle waits until what is taken ahead is there.
func (*shop) settle() {
	time.Sleep(20 * time.Millisecond) // the writes wait for each other, but no longer
	synctest.Wait()
}

// warm takes until the stock is full, and gives what was taken.
func (w *shop) warm() []*ipam.Allocation {
	w.Helper()
	out := []*ipam.Allocation{w.take(), w.take(), w.take()}
	w.settle()
	if n := len(w.stock.Leases()) - w.leases(out); n == 0 {
		w.Fatal("nothing was taken ahead")
	}
	return out
}

func (*shop) leases(as []*ipam.Allocation) (n int) {
	for _, a := range as {
		for _, i := range a.Interfaces {
			n += len(i.Leases)
		}
	}
	return n
}

// served tells how many requests were served from the stock so far.
func (w *shop) served() int64 { return w.stock.StockStats().Served }

// halt lets no write through until it is called.
func (w *shop) halt() (release func()) {
	gate := make(chan struct{})
	w.store.SetFault(func(c memstore.Call) memstore.Fault {
		if c.Verb == memstore.Write {
			<-gate
		}
		return memstore.Fault{}
	})
	return func() { close(gate) }
}

func TestStockAnswersWithoutAWrite(t *testing.T) {
	for name, cidrs := range map[string][]string{"IPv4": {"10.0.0.0/16"}, "IPv6": {"fd00::/64"}, "both": {"10.0.0.0/16", "fd00::/64"}} {
		t.Run(name, func(t *testing.T) {
			inShop(t, cidrs, func(w *shop) {
				seen := w.warm()
				release := w.halt()
				seen = append(seen, w.take(), w.take())
				release()
				var all []string
				for _, a := range seen {
					all = append(all, addresses(a)...)
					if got := w.stock.ByClaim(a.Claim); len(got) < len(cidrs) || got[0].PodUID != "" {
						w.Errorf("claim %s has %v", a.Claim, got)
					}
				}
				slices.Sort(all)
				if n := len(slices.Compact(all)); n != 5*len(cidrs) {
					w.Errorf("%d addresses for 5 pods: %v", n, all)
				}
				if w.served() != 2 {
					w.Errorf("%d were served", w.served())
				}
			})
		})
	}
}

// TestStockIsGivenBack leaves a stock alone: after a while the ledger is as if nothing had been taken ahead.
func TestStockIsGivenBack(t *testing.T) {
	for name, cidrs := range map[string][]string{"IPv6": {"fd00::/64"}, "both": {"10.0.0.0/16", "fd00::/64"}} {
		t.Run(name, func(t *testing.T) {
			inShop(t, cidrs, func(w *shop) {
				mine := w.warm()
				time.Sleep(2 * time.Second) // nobody asks
				synctest.Wait()
				for _, a := range mine {
					if err := w.stock.Free(w.Context(), refs(w.stock.Ledger, a)...); err != nil {
						w.Fatal(err)
					}
				}
				if left := held(w.stock.Ledger); len(left) > 0 {
					w.Errorf("left: %v", left)
				}
				for _, b := range w.stock.Blocks() {
					for _, f := range b.Freed {
						if !slices.ContainsFunc(mine, func(a *ipam.Allocation) bool { return slices.Contains(addresses(a), f.Address.String()) }) {
							w.Errorf("%s counts as used", f.Address)
						}
					}
				}
			})
		})
	}
}

func TestStockEndsEmpty(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		mine := w.warm()
		w.close()
		if n := len(w.stock.Leases()); n != len(mine) {
			w.Errorf("%d leases, want %d", n, len(mine))
		}
	})
}

// TestStockEndsWhileItTakes holds that what is being taken when the stock ends is awaited: the process ends with it.
func TestStockEndsWhileItTakes(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		mine := []*ipam.Allocation{w.take(), w.take(), w.take()}
		release := w.halt()
		w.settle()
		w.stop()
		synctest.Wait()
		select {
		case <-w.done:
			w.Error("it ended before what it was taking was given back")
		default:
		}
		release()
		w.close()
		if n := len(w.stock.Leases()); n != len(mine) {
			w.Errorf("%d leases, want %d", n, len(mine))
		}
	})
}

// TestStockOfAnIdleNamespace has one namespace ask on and on, and another no more: the other's leases go back as if it were
// alone.
func TestStockOfAnIdleNamespace(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		mine := w.warm()
		for range 60 {
			if _, err := w.stock.Take(w.Context(), w.request(ask{owner: ipam.PodOwner("busy")})); err != nil {
				w.Fatal(err)
			}
			time.Sleep(50 * time.Millisecond)
		}
		left := slices.DeleteFunc(w.stock.Leases(), func(h ipam.Held) bool { return h.Owner.Namespace == "busy" })
		if len(left) != len(mine) {
			w.Errorf("%d leases of the namespace that asked %d times, three seconds ago", len(left), len(mine))
		}
	})
}

// TestStockDelaysNobody has somebody ask who meets the leases that are taken ahead while these wait for each other.
func TestStockDelaysNobody(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16", "fd00::/64"}, func(w *shop) {
		w.take()
		w.take()
		w.take()
		synctest.Wait()
		began, writes := time.Now(), w.store.Calls()[memstore.Write]
		if _, err := w.stock.Take(w.Context(), w.request(ask{owner: ipam.PodOwner("other")})); err != nil {
			w.Fatal(err)
		}
		if waited := time.Since(began); waited > 0 {
			w.Errorf("it waited for %s", waited)
		}
		if n := w.store.Calls()[memstore.Write] - writes; n != 2 {
			w.Errorf("%d writes for both families, and what joined them", n)
		}
	})
}

// TestStockOfASubnetReadAnew has the subnet's object change in what does not count here, as its status does.
func TestStockOfASubnetReadAnew(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		w.warm()
		w.subnet = subnet(w.T, "s", "", "10.0.0.0/16")
		w.take()
		if w.served() != 1 {
			w.Errorf("%d were served, want 1", w.served())
		}
	})
}

// TestStockOfASuspendedProcess stamps requests with a clock that went on while the process's own stood still.
func TestStockOfASuspendedProcess(t *testing.T) {
	for name, c := range map[string]struct {
		passed time.Duration
		served int64
	}{
		"not suspended": {0, 1},
		"young":         {stockAge - time.Second, 1},
		"too old":       {stockAge + time.Second, 0},
		"very old":      {time.Hour, 0},
		"back":          {-2 * time.Second, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
				w.warm()
				w.ahead = c.passed
				w.take()
				if w.served() != c.served {
					w.Errorf("%d were served, want %d", w.served(), c.served)
				}
			})
		})
	}
}

// TestStockThatIsNotTheRightOne changes the world between the taking ahead and the request.
func TestStockThatIsNotTheRightOne(t *testing.T) {
	for name, change := range map[string]func(*shop){
		"freed elsewhere": func(w *shop) {
			other := watching(w.T, w.store, "b")
			for _, h := range other.Leases() {
				if err := other.Free(w.Context(), h.Ref()); err != nil {
					w.Fatal(err)
				}
			}
		},
		"bound": func(w *shop) {
			for _, h := range w.stock.Leases() {
				if _, err := w.stock.Bind(w.Context(), "uid", "pod", h.Ref()); err != nil {
					w.Fatal(err)
				}
			}
		},
		"subnet edited":     func(w *shop) { w.subnet = subnet(w.T, "s", "10.0.0.2-10.0.0.200", "10.0.0.0/16") },
		"another namespace": func(*shop) {},
		"asked for":         func(*shop) {},
	} {
		t.Run(name, func(t *testing.T) {
			inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
				w.warm()
				before := map[ipam.Claim]bool{}
				for _, h := range w.stock.Leases() {
					before[h.Claim] = true
				}
				change(w)
				synctest.Wait()
				r := w.request(map[string]ask{"another namespace": {owner: ipam.PodOwner("other")}, "asked for": {addrs: []string{"10.0.99.99"}}}[name])
				a, err := w.stock.Take(w.Context(), r)
				if err != nil {
					w.Fatal(err)
				}
				if before[a.Claim] || w.served() > 0 {
					w.Errorf("%v was given from the stock", addresses(a))
				}
			})
		})
	}
}

func TestStockOfAClosedSubnet(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		w.warm()
		w.stock.Close("s", "leases were lost")
		_, err := w.stock.Take(w.Context(), w.request(ask{}))
		_ = refused[*ipam.ClosedError](t, err)
	})
}

// TestStockRefusesNobody empties subnets through a stock: each address goes to somebody, once, and the stock of a subnet
// that fills up goes back by itself.
func TestStockRefusesNobody(t *testing.T) {
	for name, c := range map[string]struct {
		cidr  string
		size  int
		stock bool
	}{"/28": {"10.0.0.0/28", 13, false}, "/26": {"10.0.0.0/26", 61, false}, "/24": {"10.0.0.0/24", 253, true}, "/22": {"10.0.0.0/22", 1021, true}} {
		t.Run(name, func(t *testing.T) {
			inShop(t, []string{c.cidr}, func(w *shop) {
				seen := map[string]bool{}
				for range c.size {
					for _, a := range addresses(w.take()) {
						if seen[a] {
							w.Errorf("%s twice", a)
						}
						seen[a] = true
					}
					w.settle()
				}
				_, err := w.stock.Take(w.Context(), w.request(ask{}))
				mustRefuse[*ipam.ExhaustedError](t, err)
				if (w.served() > 0) != c.stock {
					w.Errorf("%d were served", w.served())
				}
				checkAccounts(t, w.stock.Ledger, w.subnet)
			})
		})
	}
}

// TestStockOfARefusedRequest has somebody ask for an address that the stock holds.
func TestStockOfARefusedRequest(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		mine := w.warm()
		for _, h := range w.stock.Leases() {
			if slices.ContainsFunc(mine, func(a *ipam.Allocation) bool { return a.Claim == h.Claim }) {
				continue
			}
			a, err := w.stock.Take(w.Context(), w.request(ask{addrs: []string{h.Address.String()}}))
			if err != nil {
				w.Fatal(err)
			}
			if diff := cmp.Diff([]string{h.Address.String()}, addresses(a)); diff != "" {
				w.Error(diff)
			}
			return
		}
	})
}

// TestStockKeepsToItsShare has many namespaces ask at once: of a small subnet the stock has little.
func TestStockKeepsToItsShare(t *testing.T) {
	inShop(t, []string{"10.0.0.0/24"}, func(w *shop) {
		const namespaces = 10
		for range 3 {
			for i := range namespaces {
				r := w.request(ask{owner: ipam.PodOwner(string(rune('a' + i)))})
				if _, err := w.stock.Take(w.Context(), r); err != nil {
					w.Fatal(err)
				}
			}
		}
		writes := w.stock.Stats().Writes
		w.settle()
		if n := len(w.stock.Leases()) - 3*namespaces; n < 1 || n > 4 {
			w.Errorf("%d leases ahead", n)
		}
		if again := w.stock.Stats().Writes - writes; again > 4 {
			w.Errorf("%d writes while nobody asked", again)
		}
	})
}

// TestStockUnderMany has many ask at the same moment.
func TestStockUnderMany(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16", "fd00::/64"}, func(w *shop) {
		var mu sync.Mutex
		var wg sync.WaitGroup
		claims, as := map[ipam.Claim]bool{}, map[string]bool{}
		for range 20 {
			wg.Go(func() {
				for range 20 {
					a, err := w.stock.Take(w.Context(), w.request(ask{}))
					if err != nil {
						w.Error(err)
						return
					}
					mu.Lock()
					for _, x := range addresses(a) {
						if as[x] || claims[a.Claim] {
							w.Errorf("%s or %s twice", x, a.Claim)
						}
						as[x] = true
					}
					claims[a.Claim] = true
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		w.close()
		if n := len(w.stock.Leases()); n != 800 {
			w.Errorf("%d leases for 400 pods", n)
		}
	})
}

// TestStockWhoseWritesFail is no worse than none.
func TestStockWhoseWritesFail(t *testing.T) {
	inShop(t, []string{"10.0.0.0/16"}, func(w *shop) {
		w.take()
		w.take()
		w.take()
		w.store.SetFault(func(c memstore.Call) memstore.Fault {
			if c.Verb == memstore.Write {
				return memstore.Fault{Err: context.DeadlineExceeded}
			}
			return memstore.Fault{}
		})
		calls := w.store.Calls()[memstore.Write]
		synctest.Wait()
		time.Sleep(time.Second)
		if n := w.store.Calls()[memstore.Write] - calls; n > 20 {
			w.Errorf("%d writes were tried in a second", n)
		}
		w.store.SetFault(nil)
		w.take()
	})
}
