package ipam_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

func TestB01TakenMACCostsNothing(t *testing.T) {
	for name, cidr := range map[string]string{"IPv4": "10.0.0.0/24", "IPv6": "2001:db8::/120"} {
		t.Run(name, func(t *testing.T) {
			l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", cidr)
			mustTake(t, l, s, ask{mac: "00:11:22:33:44:54"})
			before := held(l)
			_, err := take(t, l, s, ask{mac: "00:11:22:33:44:54"})
			var macHeld *ipam.MACHeldError
			if !errors.As(err, &macHeld) {
				t.Fatalf("got %v, want a *MACHeldError", err)
			}
			if d := cmp.Diff(before, held(l)); d != "" {
				t.Errorf("a refused request changed the ledger:\n%s", d)
			}
			checkAccounts(t, l, s)
			got := mustTake(t, l, s, ask{mac: "00:11:22:33:44:66"})
			if m := got.Interfaces[0].MAC.String(); m != "00:11:22:33:44:66" {
				t.Errorf("MAC %s", m)
			}
		})
	}
}

func TestB03SecondFamilyHeldRollsBackFirst(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
	mustTake(t, l, s, ask{addrs: []string{"2001:db8::5"}, families: []ipam.Family{ipam.IPv6}})
	_, err := take(t, l, s, ask{addrs: []string{"10.0.0.5", "2001:db8::5"}})
	var heldErr *ipam.HeldError
	if !errors.As(err, &heldErr) || heldErr.Address != netip.MustParseAddr("2001:db8::5") {
		t.Fatalf("got %v, want a *HeldError that names 2001:db8::5", err)
	}
	mustTake(t, l, s, ask{addrs: []string{"10.0.0.5"}, families: []ipam.Family{ipam.IPv4}})
	checkAccounts(t, l, s)
}

func TestB29PointToPointSubnets(t *testing.T) {
	for cidr, want := range map[string]string{"10.0.0.0/31": "10.0.0.1", "fd00::/127": "fd00::1"} {
		l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", cidr)
		if got := addresses(mustTake(t, l, s, ask{})); !cmp.Equal(got, []string{want}) {
			t.Errorf("%s gave %v, want %s", cidr, got, want)
		}
		_, err := take(t, l, s, ask{})
		var full *ipam.ExhaustedError
		if !errors.As(err, &full) {
			t.Errorf("%s: got %v, want exhaustion", cidr, err)
		}
	}
}

func TestB34OtherFamilyIsCompleted(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
	if got := addresses(mustTake(t, l, s, ask{addrs: []string{"10.0.0.9"}})); len(got) != 2 || got[0] != "10.0.0.9" {
		t.Errorf("got %v, want 10.0.0.9 and an IPv6 address", got)
	}
	six := l.Figures(s, ipam.IPv6).Leased
	if got := addresses(mustTake(t, l, s, ask{addrs: []string{"10.0.0.10"}, families: []ipam.Family{ipam.IPv4}})); !cmp.Equal(got, []string{"10.0.0.10"}) {
		t.Errorf("got %v, want 10.0.0.10 alone", got)
	}
	if got := l.Figures(s, ipam.IPv6).Leased; got != six {
		t.Errorf("%d IPv6 leases, want %d", got, six)
	}
}

func TestB35ParallelReplicas(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24")
	ls := []*ipam.Ledger{newLedger(t, store, "a"), newLedger(t, store, "b"), newLedger(t, store, "c")}
	var mu sync.Mutex
	got := map[string]bool{}
	var all []*ipam.Allocation
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			a, err := take(t, ls[i%3], s, ask{})
			if err != nil {
				t.Errorf("pod %d: %v", i, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all = append(all, a)
			for _, x := range addresses(a) {
				if got[x] {
					t.Errorf("%s was given twice", x)
				}
				got[x] = true
			}
		})
	}
	wg.Wait()
	for i, a := range all {
		l := ls[i%3]
		if err := l.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
		free(t, l, a)
	}
	if err := ls[0].Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := held(ls[0]); len(left) != 0 {
		t.Errorf("left over: %v", left)
	}
	if n, err := ls[0].Prune(t.Context()); err != nil || n != 0 {
		t.Errorf("pruned %d blocks (%v) whose addresses rest", n, err)
	}
}

func TestExhaustionIsTrueAcrossReplicas(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "10.0.0.5-10.0.0.6", "10.0.0.0/29")
	a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
	var last *ipam.Allocation
	for range 3 { // .2 .3 .4; .1 is the gateway
		last = mustTake(t, a, s, ask{})
	}
	_, err := take(t, b, s, ask{})
	var full *ipam.ExhaustedError
	if !errors.As(err, &full) || full.Figures.Leased != 3 || full.Figures.Excluded.Int64() != 2 {
		t.Fatalf("got %v, want exhaustion with 3 leased and 2 excluded", err)
	}
	// b knows the subnet as full; what a frees can be had there at once.
	free(t, a, last)
	mustTake(t, b, s, ask{})
	// Excluded addresses may be asked for.
	mustTake(t, b, s, ask{addrs: []string{"10.0.0.6"}})
	checkAccounts(t, b, s)
	// What b holds is refused by a with the holder, and what is freed is never called held.
	_, err = take(t, a, s, ask{addrs: []string{"10.0.0.6"}})
	var heldErr *ipam.HeldError
	if !errors.As(err, &heldErr) {
		t.Fatalf("got %v, want a *HeldError", err)
	}
}

// A block in which a former subnet of the name has leases is not given from: who asks for an address of it is told so, by a
// live read.
func TestAddressBesideLeasesOfAFormerSubnet(t *testing.T) {
	store := memstore.New()
	subnets := make([]*ipam.Subnet, 2)
	for i := range subnets {
		var err error
		if subnets[i], err = ipam.NewSubnet(ipam.SubnetSpec{Name: "s", UID: fmt.Sprint("uid-", i), Prefixes: prefixes("10.0.0.0/24")}); err != nil {
			t.Fatal(err)
		}
	}
	l, elsewhere, static := newLedger(t, store, "a"), newLedger(t, store, "b"), ask{addrs: []string{"10.0.0.6"}}
	old := mustTake(t, l, subnets[0], ask{addrs: []string{"10.0.0.5"}})
	if e := refused[*ipam.FormerSubnetError](t, second(take(t, l, subnets[1], static))); !e.Unavailable() || e.Holder.Claim != old.Claim {
		t.Errorf("refused with %v", e)
	}
	mustTake(t, l, subnets[1], ask{})
	refresh(t, elsewhere)
	free(t, elsewhere, old)
	if got := addresses(mustTake(t, l, subnets[1], static)); !cmp.Equal(got, static.addrs) {
		t.Errorf("got %v, want %v", got, static.addrs)
	}
}

// What was given back is remembered nowhere. Its block stays for a while, so that who hears of it late takes its end for no
// loss.
func TestBlockOfWhatWasGivenBackStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, s := watching(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
		mustTake(t, l, s, ask{addrs: []string{"2001:db8::5"}, families: []ipam.Family{ipam.IPv6}})
		mustRefuse[*ipam.HeldError](t, second(take(t, l, s, ask{addrs: []string{"10.0.0.5", "2001:db8::5"}})))
		synctest.Wait()
		for _, want := range []int{0, 1, 0} {
			if n, err := l.Prune(t.Context()); err != nil || n != want {
				t.Errorf("%d blocks were deleted (%v), want %d", n, err, want)
			}
			time.Sleep(time.Minute)
		}
	})
}

// slowList tells only after a while what there was.
type slowList struct{ *memstore.Store }

func (s slowList) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	bs, err := s.Store.List(ctx, subnets...)
	time.Sleep(10 * time.Millisecond)
	return bs, err
}

// Those who are refused at the same moment share the reads that confirm it, for a list of a large subnet is large; but no
// read that began before they came.
func TestRefusalsShareTheirReads(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, s := memstore.New(), subnet(t, "s", "", "10.0.0.0/28")
		l, other := newLedger(t, slowList{store}, "a"), newLedger(t, store, "b")
		pods, _ := takeAll(t, l, s, ipam.IPv4, "")
		refresh(t, other)
		before := store.Calls()[memstore.List]
		each(50, 50, func(int) {
			var full *ipam.ExhaustedError
			if _, err := take(t, l, s, ask{}); !errors.As(err, &full) {
				t.Errorf("got %v, want exhaustion", err)
			}
		})
		if n := store.Calls()[memstore.List] - before; n == 0 || n > 3 {
			t.Errorf("%d lists for 50 refusals", n)
		}
		early := make(chan error, 2)
		go func() { early <- l.Refresh(t.Context()) }()
		go func() { early <- l.Refresh(t.Context(), "s") }()
		time.Sleep(time.Millisecond)
		free(t, other, pods[0])
		if got := addresses(mustTake(t, l, s, ask{})); !cmp.Equal(got, addresses(pods[0])) {
			t.Errorf("got %v, and only %v was free", got, addresses(pods[0]))
		}
		for range 2 {
			if err := <-early; err != nil {
				t.Error(err)
			}
		}
	})
}

func TestStickyOwner(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
	a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
	web0 := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "default", Name: "web-0"}
	first := mustTake(t, a, s, ask{owner: web0})
	if got := mustTake(t, b, s, ask{owner: web0}); !cmp.Equal(addresses(got), addresses(first)) || got.Claim != first.Claim {
		t.Errorf("the owner came back to %v under %s, want %v under %s", addresses(got), got.Claim, addresses(first), first.Claim)
	}
	// A release that was decided before it came back is void.
	var refs []ipam.Ref
	for _, h := range first.Interfaces[0].Leases {
		refs = append(refs, h.Ref())
	}
	if err := a.Free(t.Context(), refs...); err != nil {
		t.Fatal(err)
	}
	if err := a.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(a.ByOwner(web0)); n != 2 {
		t.Errorf("%d leases left, want 2", n)
	}
}

func TestStickyRivalsAgree(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/16")
	owner := ipam.Owner{Group: "kubevirt.io", Kind: "VirtualMachine", Namespace: "default", Name: "vm"}
	results := make([][]string, 8)
	var wg sync.WaitGroup
	for i := range results {
		wg.Go(func() {
			a, err := take(t, newLedger(t, store, fmt.Sprint("r", i)), s, ask{owner: owner})
			if err != nil {
				t.Error(err)
				return
			}
			results[i] = addresses(a)
		})
	}
	wg.Wait()
	for _, r := range results {
		if !cmp.Equal(r, results[0]) {
			t.Fatalf("launchers of one VM got %v", results)
		}
	}
	l := newLedger(t, store, "z")
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(l.Leases()); n != 1 {
		t.Errorf("%d leases, want 1: %v", n, held(l))
	}
}

func TestBindAndFreeNameTheGeneration(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24")
	a := mustTake(t, l, s, ask{})
	taken := l.ByClaim(a.Claim)[0].Ref()
	bound, err := l.Bind(t.Context(), "uid-1", "web", taken)
	if err != nil {
		t.Fatal(err)
	}
	if bound[0].Generation <= taken.Generation || bound[0].PodUID != "uid-1" {
		t.Errorf("bound lease %+v", bound[0])
	}
	if again, err := l.Bind(t.Context(), "uid-1", "web", taken); err != nil || again[0].Generation != bound[0].Generation {
		t.Errorf("binding again: %v, %v", again, err)
	}
	var stale *ipam.StaleError
	if _, err := l.Bind(t.Context(), "uid-2", "copy", taken); !errors.As(err, &stale) {
		t.Errorf("a copy was bound: %v", err)
	}
	if err := l.Free(t.Context(), taken); err != nil || len(l.ByClaim(a.Claim)) != 1 {
		t.Errorf("a release from before the bind took the lease (%v)", err)
	}
	if err := l.Free(t.Context(), bound[0].Ref()); err != nil || len(l.ByClaim(a.Claim)) != 0 {
		t.Errorf("the lease was not freed (%v)", err)
	}
}

func TestExistingClaimKeepsItsLeases(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24")
	a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
	first := mustTake(t, a, s, ask{})
	again, err := b.Take(t.Context(), ipam.Request{Claim: first.Claim, Existing: true, Owner: ipam.PodOwner("default"),
		Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s}}}}})
	if err != nil || !cmp.Equal(addresses(again), addresses(first)) {
		t.Fatalf("got %v (%v), want %v", again, err, addresses(first))
	}
	if err := b.Refresh(t.Context()); err != nil || len(b.Leases()) != 1 {
		t.Errorf("leases: %v (%v)", held(b), err)
	}
}

func TestPreviewWritesNothing(t *testing.T) {
	store := memstore.New()
	l, s := newLedger(t, store, "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
	got, err := l.Preview(t.Context(), ipam.Request{Owner: ipam.PodOwner("default"), Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s}}}}})
	if err != nil || len(addresses(got)) != 2 {
		t.Fatalf("got %v (%v)", got, err)
	}
	if bs, err := store.List(t.Context()); err != nil || len(bs) != 0 {
		t.Errorf("a preview stored %v (%v)", bs, err)
	}
}

func TestCallerWhoLeftHoldsNothing(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	c, _ := ipam.NewClaim(rand.Reader)
	_, err := l.Take(ctx, ipam.Request{Claim: c, Owner: ipam.PodOwner("default"), Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s}}}}})
	if err == nil {
		return // the answer came first, and the caller holds what it was given
	}
	mustTake(t, l, s, ask{}) // goes through the same block after whatever was given back
	for range 100 {
		if len(l.ByClaim(c)) == 0 {
			return
		}
		mustTake(t, l, s, ask{})
	}
	t.Errorf("a caller who left still holds %v", l.ByClaim(c))
}
