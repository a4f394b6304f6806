package ipam_test

import (
	"crypto/rand"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// router is the owner of a subnet's router port.
func router(subnet string) ipam.Owner {
	return ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindSubnet, Name: subnet}
}

// leaseRouterMAC leases m as the MAC of the router port of s.
func leaseRouterMAC(t *testing.T, store ipam.Store, s *ipam.Subnet, m ipam.MAC) {
	t.Helper()
	err := newLedger(t, store, "worker").Restore(t.Context(), s, ipam.Lease{MAC: m, Claim: newClaim(t), Owner: router(s.Name()), Requested: true})
	if err != nil {
		t.Fatal(err)
	}
}

// loaded draws what is in first for the first MAC, and at random afterwards.
type loaded struct {
	mu    sync.Mutex
	first []byte
}

func (r *loaded) Read(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(p) == len(r.first) {
		n := copy(p, r.first)
		r.first = nil
		return n, nil
	}
	return io.ReadFull(rand.Reader, p)
}

func TestB14RouterMACIsNeverGiven(t *testing.T) {
	t.Run("asked for", func(t *testing.T) {
		store, s := memstore.New(), subnet(t, "s", "", "10.0.0.0/24")
		leaseRouterMAC(t, store, s, mac(t, "02:00:00:00:00:01"))
		l := newLedger(t, store, "a") // knows nothing of it
		e := refused[*ipam.MACHeldError](t, second(take(t, l, s, ask{mac: "02:00:00:00:00:01"})))
		if e.Holder.Owner != router("s") || !strings.Contains(e.Error(), "Subnet s") {
			t.Errorf("refused with %v", e)
		}
		if left := l.Figures(s, ipam.IPv4).Leased; left != 0 {
			t.Errorf("the refused request holds %d addresses", left)
		}
	})
	one := netip.MustParseAddr("fd00::1")
	for name, a := range map[string]ask{"hashed, asked-for address": {addrs: []string{"fd00::1"}}, "hashed, any address": {}} {
		t.Run(name, func(t *testing.T) {
			store, s := memstore.New(), subnet(t, "s", "", "fd00::/127")
			leaseRouterMAC(t, store, s, ipam.HashedMAC(one, 0))
			leaseRouterMAC(t, store, s, ipam.HashedMAC(one, 1))
			l := newLedger(t, store, "a")
			got := mustTake(t, l, s, a).Interfaces[0]
			if want := ipam.HashedMAC(one, 2); got.MAC != want || got.Leases[0].MAC != want {
				t.Errorf("MAC %s, in the lease %s, want %s", got.MAC, got.Leases[0].MAC, want)
			}
			hs := l.ByClaim(got.Leases[0].Claim)
			if len(hs) != 2 || hs[0].MAC != hs[1].MAC {
				t.Errorf("held: %v", hs)
			}
		})
	}
	t.Run("drawn", func(t *testing.T) {
		store, s := memstore.New(), build(t, ipam.SubnetSpec{Name: "s"})
		m := mac(t, "0e:11:22:33:44:55")
		leaseRouterMAC(t, store, s, m)
		l, err := ipam.New(ipam.Options{Store: store, Replica: "a", Clock: clock.RealClock{}, Random: &loaded{first: m[1:]}})
		if err != nil {
			t.Fatal(err)
		}
		if got := mustTake(t, l, s, ask{}).Interfaces[0].MAC; got == m || got == (ipam.MAC{}) {
			t.Errorf("got MAC %s, and the router has %s", got, m)
		}
	})
}

func TestB15MACsAreUniqueInTheDomain(t *testing.T) {
	store := memstore.New()
	vlan := func(name, domain string, cidr ...string) *ipam.Subnet {
		return build(t, ipam.SubnetSpec{Name: name, Domain: domain, Prefixes: prefixes(cidr...)})
	}
	one, two, elsewhere := vlan("one", "vlan7", "10.1.0.0/24", "fd01::/64"), vlan("two", "vlan7", "10.2.0.0/24", "fd02::/64"), vlan("x", "vlan8", "10.3.0.0/24")
	a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
	mustTake(t, a, one, ask{mac: "AA:BB:cc:00:00:01"})
	for _, spelling := range []string{"aa:bb:cc:00:00:01", "AA:BB:CC:00:00:01", "aa-bb-cc-00-00-01", "AABB.CC00.0001"} {
		for _, s := range []*ipam.Subnet{one, two} {
			if e := refused[*ipam.MACHeldError](t, second(take(t, b, s, ask{mac: spelling}))); e.Domain != "vlan7" || e.MAC.String() != "aa:bb:cc:00:00:01" {
				t.Errorf("%s in %s: refused with %v", spelling, s.Name(), e)
			}
		}
	}
	mustTake(t, b, elsewhere, ask{mac: "aa:bb:cc:00:00:01"})
	// What is hashed in one subnet can't be had in the other.
	six := []ipam.Family{ipam.IPv6}
	hashed := mustTake(t, a, one, ask{families: six}).Interfaces[0].MAC
	mustRefuse[*ipam.MACHeldError](t, second(take(t, b, two, ask{mac: hashed.String()})))
	// What is derived can't either, unless the pod has its address.
	derived := mustTake(t, a, one, ask{addrs: []string{"10.1.0.9"}}).Interfaces[0].MAC
	mustRefuse[*ipam.MACReservedError](t, second(take(t, b, two, ask{mac: derived.String()})))
	if got := mustTake(t, b, two, ask{addrs: []string{"10.2.0.9"}, mac: "0A:58:0A:02:00:09"}).Interfaces[0].MAC; got.String() != "0a:58:0a:02:00:09" {
		t.Errorf("the MAC of its own address was asked for, got %s", got)
	}
	// A MAC that was hashed moves on to its next salt when somebody in the other subnet has it.
	taken := ipam.HashedMAC(netip.MustParseAddr("fd02::77"), 0)
	mustTake(t, a, one, ask{mac: taken.String()})
	if got := mustTake(t, b, two, ask{addrs: []string{"fd02::77"}, families: six}).Interfaces[0].MAC; got != ipam.HashedMAC(netip.MustParseAddr("fd02::77"), 1) {
		t.Errorf("got MAC %s, and another pod has %s", got, taken)
	}
}

// Whose network gives MACs alone has the same one when it is planned anew, and when its owner comes back.
func TestMACAloneIsKept(t *testing.T) {
	for name, again := range map[string]func(*ipam.Allocation) ask{
		"planned anew": func(a *ipam.Allocation) ask { return ask{claim: a.Claim} },
		"came back":    func(*ipam.Allocation) ask { return ask{owner: statefulPod("web-0")} },
	} {
		t.Run(name, func(t *testing.T) {
			l, s := newLedger(t, memstore.New(), "a"), build(t, ipam.SubnetSpec{Name: "s"})
			first := mustTake(t, l, s, ask{owner: again(&ipam.Allocation{}).owner})
			want := first.Interfaces[0].MAC
			preview, err := l.Preview(t.Context(), request(t, s, again(first)))
			if err != nil || preview.Interfaces[0].MAC != want {
				t.Errorf("the preview is %+v (%v), want MAC %s", preview, err, want)
			}
			back := mustTake(t, l, s, again(first))
			if got := back.Interfaces[0].MAC; got != want || back.Claim != first.Claim {
				t.Errorf("MAC %s under %s, want %s under %s", got, back.Claim, want, first.Claim)
			}
			if hs := l.Leases(); len(hs) != 1 || hs[0].MAC != want {
				t.Errorf("held: %+v", hs)
			}
		})
	}
}

// A release of a MAC that was decided before its owner came back is void, like that of an address.
func TestReleaseOfAMACThatIsUsedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		cidr        string
		first, back ask
	}{
		"asked for each time": {"10.0.0.0/24", ask{mac: "02:00:00:00:00:01"}, ask{mac: "02:00:00:00:00:01"}},
		"asked for once":      {"10.0.0.0/24", ask{mac: "02:00:00:00:00:01"}, ask{}},
		"hashed":              {"fd00::/120", ask{}, ask{}},
		"alone":               {"", ask{}, ask{}},
	} {
		t.Run(name, func(t *testing.T) {
			l, s := newLedger(t, memstore.New(), "a"), build(t, ipam.SubnetSpec{Name: "s"})
			if c.cidr != "" {
				s = subnet(t, "s", "", c.cidr)
			}
			c.first.owner, c.back.owner = statefulPod("web-0"), statefulPod("web-0")
			decided := refs(l, mustTake(t, l, s, c.first))
			if back := mustTake(t, l, s, c.back); back.Interfaces[0].MAC == (ipam.MAC{}) {
				t.Error("it came back without MAC")
			}
			before := held(l)
			if err := l.Free(t.Context(), decided...); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(before, held(l)); d != "" {
				t.Errorf("a release of before took something:\n%s", d)
			}
		})
	}
}

// A MAC that was lost to somebody else is not used beside it.
func TestMACThatIsAnothersByNow(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24")
	owner := statefulPod("web-0")
	first := mustTake(t, l, s, ask{owner: owner, mac: "02:00:00:00:00:01"})
	for _, h := range l.ByClaim(first.Claim) {
		if !h.Address.IsValid() {
			if err := l.Free(t.Context(), h.Ref()); err != nil {
				t.Fatal(err)
			}
		}
	}
	mustTake(t, l, s, ask{mac: "02:00:00:00:00:01"})
	back := mustTake(t, l, s, ask{owner: owner}).Interfaces[0]
	if want := ipam.DerivedMAC(back.Addresses()[0]); back.MAC != want || back.Leases[0].MAC != want {
		t.Errorf("MAC %s, in the lease %s, want %s", back.MAC, back.Leases[0].MAC, want)
	}
}

func TestManyAskedForMACs(t *testing.T) {
	const n = 20_000
	store, s := memstore.New(), subnet(t, "s", "", "10.0.0.0/16")
	l := newLedger(t, store, "a")
	text := func(i int) string { return fmt.Sprintf("02:00:00:%02x:%02x:%02x", i>>16, i>>8&0xff, i&0xff) }
	each(100, n, func(i int) {
		if got, err := take(t, l, s, ask{mac: text(i)}); err != nil || got.Interfaces[0].MAC.String() != text(i) {
			t.Errorf("asked for %s: %v, %v", text(i), got, err)
		}
	})
	other := newLedger(t, store, "b")
	refresh(t, other)
	buckets, macs := map[string]int{}, map[ipam.MAC]bool{}
	for _, h := range other.Leases() {
		if !h.Address.IsValid() {
			buckets[h.Block]++
			macs[h.MAC] = true
		}
	}
	if len(macs) != n {
		t.Errorf("%d MACs are leased, want %d", len(macs), n)
	}
	// Objects stay small: the buckets fill evenly.
	for name, got := range buckets {
		if got > 2*n/256 {
			t.Errorf("bucket %s holds %d of %d MACs", name, got, n)
		}
	}
	if len(buckets) != 256 {
		t.Errorf("%d buckets", len(buckets))
	}
	for i := 0; i < n; i += n / 100 {
		mustRefuse[*ipam.MACHeldError](t, second(take(t, other, s, ask{mac: strings.ToUpper(text(i))})))
	}
	if got := other.Figures(s, ipam.IPv4).Leased; got != n {
		t.Errorf("%d addresses are leased, want %d", got, n)
	}
	if d := cmp.Diff(held(l), held(other)); d != "" {
		t.Errorf("the cache and the store differ:\n%s", d)
	}
}

// each calls do with 0 to n-1, by so many callers at once.
func each(callers, n int, do func(int)) {
	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := c; i < n; i += callers {
				do(i)
			}
		})
	}
	wg.Wait()
}
