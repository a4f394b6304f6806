package ipam_test

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// population notes who was given what, from many callers.
type population struct {
	mu   sync.Mutex
	pods []*ipam.Allocation
	has  map[string]bool
}

// add notes a pod's addresses, and tells one that somebody has already.
func (p *population) add(t *testing.T, a *ipam.Allocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods = append(p.pods, a)
	for _, x := range addresses(a) {
		if p.has[x] {
			t.Errorf("%s was given twice", x)
		}
		if p.has == nil {
			p.has = map[string]bool{}
		}
		p.has[x] = true
	}
}

// check tells of an address that somebody of the population has still.
func (p *population) check(t *testing.T, a *ipam.Allocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range addresses(a) {
		if p.has[x] {
			t.Errorf("%s was given while its pod lives", x)
		}
	}
}

// remove notes, before the addresses are freed, that they may be given again.
func (p *population) remove(a *ipam.Allocation) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, x := range addresses(a) {
		delete(p.has, x)
	}
}

func TestB36RecreateOfAllPodsInAFullSubnet(t *testing.T) {
	const n = 1000
	s := subnet(t, "s", "10.0.3.234-10.0.3.254", "10.0.0.0/22") // 1021 addresses, 21 of them excluded
	recreate := map[string]func(*testing.T, []*ipam.Ledger, *population) *population{
		"all deleted, then all created": func(t *testing.T, ls []*ipam.Ledger, old *population) *population {
			each(100, n, func(i int) { free(t, ls[0], old.pods[i]) })
			return create(t, ls[1], s, n)
		},
		"one by one": func(t *testing.T, ls []*ipam.Ledger, old *population) *population {
			return replaceEach(t, ls[0], ls[0], s, old)
		},
		"one by one, through another replica": func(t *testing.T, ls []*ipam.Ledger, old *population) *population {
			return replaceEach(t, ls[0], ls[1], s, old)
		},
	}
	for name, again := range recreate {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			ls := []*ipam.Ledger{newLedger(t, store, "a"), newLedger(t, store, "b")}
			pods := create(t, ls[0], s, n)
			for range 2 {
				if fig := ls[0].Figures(s, ipam.IPv4); fig.Leased != n || fig.Free.Sign() != 0 {
					t.Fatalf("%d leased, %s free, want %d and none", fig.Leased, fig.Free, n)
				}
				mustRefuse[*ipam.ExhaustedError](t, second(take(t, ls[0], s, ask{})))
				pods = again(t, ls, pods)
				if len(pods.pods) != n {
					t.Fatalf("%d of %d pods were served again", len(pods.pods), n)
				}
				refresh(t, ls[0])
				checkAccounts(t, ls[0], s)
			}
			each(100, n, func(i int) { free(t, ls[0], pods.pods[i]) })
			if left := held(ls[0]); len(left) != 0 {
				t.Errorf("%d are left over, like %s", len(left), left[0])
			}
		})
	}
}

// replaceEach frees the pods' addresses and takes another for each, twenty at once.
func replaceEach(t *testing.T, frees, takes *ipam.Ledger, s *ipam.Subnet, old *population) *population {
	now := &population{}
	each(20, len(old.pods), func(i int) {
		old.remove(old.pods[i])
		free(t, frees, old.pods[i])
		a, err := take(t, takes, s, ask{})
		if err != nil {
			t.Errorf("pod %d: %v", i, err)
			return
		}
		old.check(t, a)
		now.add(t, a)
	})
	return now
}

// create takes n addresses, a hundred at once.
func create(t *testing.T, l *ipam.Ledger, s *ipam.Subnet, n int) *population {
	p := &population{}
	each(100, n, func(i int) {
		if a, err := take(t, l, s, ask{}); err != nil {
			t.Errorf("pod %d: %v", i, err)
		} else {
			p.add(t, a)
		}
	})
	return p
}

func TestB102ManyInterfacesAtOnce(t *testing.T) {
	const pods, nics, latency = 128, 16, 2 * time.Millisecond
	for name, replicas := range map[string]int{"one replica": 1, "three replicas": 3} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New()
				store.SetFault(func(memstore.Call) memstore.Fault { return memstore.Fault{Delay: latency} })
				s := subnet(t, "s", "", "10.0.0.0/16")
				var ls []*ipam.Ledger
				for i := range replicas {
					ls = append(ls, watching(t, store, fmt.Sprint("r", i)))
				}
				got, took := &population{}, make([]time.Duration, pods)
				var wg sync.WaitGroup
				for i := range pods {
					wg.Go(func() {
						r := ipam.Request{Claim: newClaim(t), Owner: ipam.PodOwner("default")}
						for n := range nics {
							r.Interfaces = append(r.Interfaces, nic(s, fmt.Sprintf("net%d.default.ovn", n), ""))
						}
						start := time.Now()
						a, err := ls[i%replicas].Take(t.Context(), r)
						took[i] = time.Since(start)
						if err != nil {
							t.Errorf("pod %d: %v", i, err)
							return
						}
						got.add(t, a)
					})
				}
				wg.Wait()
				if len(got.has) != pods*nics {
					t.Fatalf("%d addresses were given, want %d", len(got.has), pods*nics)
				}
				// Time in here passes only while somebody waits for the store, so it counts the round trips in a row.
				slices.Sort(took)
				p99 := took[pods*99/100]
				calls := 0
				for _, n := range store.Calls() {
					calls += n
				}
				writes := store.Calls()[memstore.Write]
				t.Logf("%d pods with %d interfaces: %.2f writes and %.2f calls of the store per pod; p99 %s, at %s a call",
					pods, nics, float64(writes)/pods, float64(calls)/pods, p99, latency)
				if calls > pods*nics/4 {
					t.Errorf("%d calls of the store for %d interfaces: they don't share them", calls, pods*nics)
				}
				if deep := p99 / latency; deep > 32 {
					t.Errorf("p99 waits for %d round trips in a row", deep)
				}
			})
		})
	}
}

// spent tells how many bytes do allocates, and how many are still in use afterwards.
func spent(do func()) (allocated, kept int64) {
	var before, after, settled runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	runtime.GC()
	runtime.ReadMemStats(&settled)
	return int64(after.TotalAlloc - before.TotalAlloc), int64(settled.HeapAlloc) - int64(before.HeapAlloc)
}

func TestBigSubnetsAreNotWalked(t *testing.T) {
	const takes = 500
	run := func(t *testing.T, exclude string, cidr ...string) (allocated, kept int64) {
		l := newLedger(t, memstore.New(), "a")
		got := &population{}
		var s *ipam.Subnet
		allocated, kept = spent(func() {
			s = subnet(t, "s", exclude, cidr...)
			for range takes {
				got.add(t, mustTake(t, l, s, ask{}))
			}
			for _, f := range s.Families() {
				l.Figures(s, f)
			}
		})
		checkAccounts(t, l, s)
		runtime.KeepAlive(got)
		return allocated, kept
	}
	baseAllocated, baseKept := run(t, "", "10.0.0.0/22")
	baseAllocated6, baseKept6 := run(t, "", "fd00::/118")
	for name, c := range map[string]struct {
		exclude, cidr           string
		baseAllocated, baseKept int64
		asked                   string
	}{
		"IPv4 /12":               {"", "10.0.0.0/12", baseAllocated, baseKept, "10.15.255.254"},
		"IPv4 /12, half of it":   {"10.0.0.0-10.7.255.255", "10.0.0.0/12", baseAllocated, baseKept, "10.0.0.9"},
		"IPv4 /8":                {"", "10.0.0.0/8", baseAllocated, baseKept, "10.255.255.254"},
		"IPv6 /64":               {"", "2001:db8::/64", baseAllocated6, baseKept6, "2001:db8::ffff:ffff:ffff:ffff"},
		"IPv6 /48":               {"", "2001:db8::/48", baseAllocated6, baseKept6, "2001:db8:0:ff:ffff:ffff:ffff:ffff"},
		"IPv6 /64, some of them": {"2001:db8::-2001:db8::7fff:ffff", "2001:db8::/64", baseAllocated6, baseKept6, "2001:db8::9"},
	} {
		t.Run(name, func(t *testing.T) {
			allocated, kept := run(t, c.exclude, c.cidr)
			t.Logf("%d takes allocate %d kB and keep %d kB; in a small subnet %d kB and %d kB", takes, allocated>>10, kept>>10, c.baseAllocated>>10, c.baseKept>>10)
			if allocated > 2*c.baseAllocated || kept > 2*c.baseKept+1<<20 {
				t.Errorf("%d takes allocate %d bytes and keep %d; in a small subnet %d and %d", takes, allocated, kept, c.baseAllocated, c.baseKept)
			}
			l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", c.exclude, c.cidr)
			asked := mustTake(t, l, s, ask{addrs: []string{c.asked}})
			if got := addresses(asked); got[0] != c.asked {
				t.Errorf("asked for %s, got %v", c.asked, got)
			}
		})
	}
}

func TestIPv6IsPickedFromItsBeginning(t *testing.T) {
	l := newLedger(t, memstore.New(), "a")
	s := subnet(t, "s", "2001:db8::-2001:db8::ffff:fffc", "2001:db8::/64")
	_, got := takeAll(t, l, s, ipam.IPv6, "")
	slices.Sort(got)
	if d := cmp.Diff([]string{"2001:db8::ffff:fffd", "2001:db8::ffff:fffe", "2001:db8::ffff:ffff"}, got); d != "" {
		t.Errorf("handed out unasked:\n%s", d)
	}
	mustTake(t, l, s, ask{addrs: []string{"2001:db8::1:0:0"}})
}

// leased builds the blocks of n leases from a subnet's beginning, or as many as there are when so many addresses of
// each block are left free.
func leased(tb testing.TB, s *ipam.Subnet, n, leaveFree int) []*ipam.Block {
	tb.Helper()
	p, _ := s.Prefix(ipam.IPv4)
	a := p.Addr().Next().Next() // the network, and the gateway
	var bs []*ipam.Block
	for i := 0; i < n && p.Contains(a.Next()); {
		name := ipam.BlockName(s.Name(), a)
		first, _ := a.Prefix(26)
		b := &ipam.Block{Name: name, Subnet: s.Name(), SubnetUID: s.UID(), First: first.Addr(), Version: ipam.FormatVersion, ResourceVersion: fmt.Sprint(len(bs) + 1), UID: "uid-" + name}
		for ; i < n && p.Contains(a.Next()) && ipam.BlockName(s.Name(), a) == name; a = a.Next() {
			if len(b.Leases)+leaveFree >= ipam.BlockSize {
				continue
			}
			b.Revision++
			b.Leases = append(b.Leases, &ipam.Lease{Address: a, MAC: ipam.DerivedMAC(a), Claim: newClaim(tb), Generation: b.Revision, Owner: ipam.PodOwner("default"),
				Provider: "ovn", PodUID: fmt.Sprintf("%08x-0000-4000-8000-000000000000", i), PodName: fmt.Sprintf("web-7d9c5b6f8-%05d", i)})
			i++
		}
		bs = append(bs, b)
	}
	return bs
}

func TestHundredThousandLeases(t *testing.T) {
	const leases, takes = 100_000, 1000
	s := subnet(t, "s", "", "10.0.0.0/14")
	blocks := leased(t, s, leases, 0)
	fillStore := func(store *memstore.Store) {
		for _, b := range blocks {
			fresh := *b
			fresh.ResourceVersion, fresh.UID = "", ""
			if _, err := store.Write(t.Context(), &fresh); err != nil {
				t.Fatal(err)
			}
		}
	}
	run := func(t *testing.T, store *memstore.Store) (perTake int64, l *ipam.Ledger) {
		l = newLedger(t, store, "a")
		refresh(t, l)
		mustTake(t, l, s, ask{})
		perTake, _ = spent(func() {
			for range takes {
				mustTake(t, l, s, ask{})
			}
		})
		return perTake / takes, l
	}
	empty, _ := run(t, memstore.New())
	store := memstore.New()
	fillStore(store)
	full, l := run(t, store)
	t.Logf("a take allocates %d bytes with %d leases, %d with none", full, leases, empty)
	if full > 2*empty {
		t.Errorf("a take allocates %d bytes with %d leases, %d with none", full, leases, empty)
	}
	got := &population{}
	for _, h := range l.Leases() {
		got.add(t, &ipam.Allocation{Interfaces: []ipam.Assignment{{Leases: []ipam.Held{h}}}})
	}
	if want := leases + takes + 1; len(got.has) != want || l.Figures(s, ipam.IPv4).Leased != want {
		t.Errorf("%d addresses are leased, and the figures say %d, want %d", len(got.has), l.Figures(s, ipam.IPv4).Leased, want)
	}
	checkAccounts(t, l, s)
}
