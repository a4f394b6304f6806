package ipam_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// watching is a ledger that is fed by the store's watch until the test ends. It runs in a bubble.
func watching(t *testing.T, store *memstore.Store, replica string) *ipam.Ledger {
	l := newLedger(t, store, replica)
	go func() {
		if err := store.Watch(t.Context(), l); err != nil {
			t.Error(err)
		}
	}()
	synctest.Wait()
	return l
}

// fill takes one address as asked, then all that are left, and gives the first.
func fill(t *testing.T, a *ipam.Ledger, s *ipam.Subnet, first ask) *ipam.Allocation {
	pod := mustTake(t, a, s, first)
	takeAll(t, a, s, ipam.IPv4, "")
	return pod
}

func TestFreedBehindAStaleWatch(t *testing.T) {
	vip := ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: "v"}
	web0 := statefulPod("web-0")
	static := ask{addrs: []string{"10.0.0.9"}}
	for name, c := range map[string]struct{ holder, asker ask }{
		"at random":          {static, ask{}},
		"at random, in pool": {ask{pool: "p"}, ask{pool: "p"}},
		"static":             {static, static},
		"static, as owner":   {static, ask{addrs: static.addrs, owner: web0}},
		"by list":            {static, ask{list: [][]string{{"10.0.0.2"}, {"10.0.0.9"}, {"10.0.0.3"}}}},
		"static, own MAC":    {ask{addrs: static.addrs, mac: "02:00:00:00:00:01"}, ask{addrs: static.addrs, mac: "02:00:00:00:00:01"}},
		"by reservation":     {ask{addrs: static.addrs, under: vip}, ask{addrs: static.addrs, under: vip}},
		"of an owner":        {ask{addrs: static.addrs, owner: web0}, ask{}},
		"of the same owner":  {ask{addrs: static.addrs, owner: web0}, ask{owner: web0}},
		"planned anew":       {static, ask{claim: newClaim(t)}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				spec := ipam.SubnetSpec{Name: "s", Prefixes: prefixes("10.0.0.0/28"), Gateways: addrs("10.0.0.1")}
				if c.holder.pool != "" {
					spec.Pools = []ipam.Pool{{Name: "p", Set: set(t, "10.0.0.9")}}
				}
				s := build(t, spec)
				a, b := watching(t, store, "a"), watching(t, store, "b")
				if c.holder.under != (ipam.Owner{}) {
					nine := ipam.Lease{Address: addrs("10.0.0.9")[0], Claim: newClaim(t), Owner: vip, Requested: true}
					if err := a.Restore(t.Context(), s, nine); err != nil {
						t.Fatal(err)
					}
				}
				pod := fill(t, a, s, c.holder)
				synctest.Wait()
				store.PauseWatch()
				free(t, a, pod)
				if !cmp.Equal(addresses(pod), []string{"10.0.0.9"}) || len(b.ByClaim(pod.Claim)) == 0 {
					t.Fatalf("%v was freed, and b's cache has %v of it", addresses(pod), b.ByClaim(pod.Claim))
				}
				got, err := take(t, b, s, c.asker)
				if err != nil {
					t.Fatalf("10.0.0.9 is free: %v", err)
				}
				if !cmp.Equal(addresses(got), addresses(pod)) {
					t.Errorf("got %v, and only 10.0.0.9 was free", addresses(got))
				}
				// Now a's watch is the one that lags.
				if _, err := take(t, a, s, ask{}); err == nil {
					t.Error("a gave an address of a full subnet")
				}
				mustRefuse[*ipam.HeldError](t, second(take(t, a, s, static)))
			})
		})
	}
}

func TestFreedInAnotherCandidateBehindAStaleWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		one, two := subnet(t, "one", "", "10.1.0.0/29"), subnet(t, "two", "", "10.2.0.0/29")
		a, b := watching(t, store, "a"), watching(t, store, "b")
		takeAll(t, a, one, ipam.IPv4, "")
		pods, _ := takeAll(t, a, two, ipam.IPv4, "")
		synctest.Wait()
		store.PauseWatch()
		r := request(t, one, ask{})
		r.Interfaces[0].Candidates = append(r.Interfaces[0].Candidates, ipam.Source{Subnet: two})
		for _, pod := range pods {
			free(t, a, pod)
			r.Claim = newClaim(t)
			got, err := b.Take(t.Context(), r)
			if err != nil {
				t.Fatalf("%v is free: %v", addresses(pod), err)
			}
			if !cmp.Equal(addresses(got), addresses(pod)) {
				t.Errorf("got %v, want %v", addresses(got), addresses(pod))
			}
		}
		before := store.Calls()[memstore.List]
		mustRefuse[*ipam.ExhaustedError](t, second(b.Take(t.Context(), r)))
		if n := store.Calls()[memstore.List] - before; n < 1 {
			t.Error("refused without a live read")
		}
	})
}

func TestTakenBehindAStaleWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		s := subnet(t, "s", "", "10.0.0.0/24", "fd00::/120")
		a, b := watching(t, store, "a"), watching(t, store, "b")
		synctest.Wait()
		resume := store.PauseWatch()
		got := map[string]bool{}
		for i := range 253 {
			for _, x := range addresses(mustTake(t, []*ipam.Ledger{a, b}[i%2], s, ask{})) {
				if got[x] {
					t.Fatalf("%s was given twice", x)
				}
				got[x] = true
			}
		}
		for _, l := range []*ipam.Ledger{a, b} {
			if e := refused[*ipam.ExhaustedError](t, second(take(t, l, s, ask{}))); e.Family != ipam.IPv4 || e.Figures.Leased != 253 {
				t.Errorf("refused with %v", e)
			}
		}
		// Late news changes nothing.
		want := held(a)
		resume()
		synctest.Wait()
		for _, l := range []*ipam.Ledger{a, b} {
			if d := cmp.Diff(want, held(l)); d != "" {
				t.Errorf("replica %s, after the news:\n%s", l.Replica, d)
			}
			checkAccounts(t, l, s)
		}
	})
}
