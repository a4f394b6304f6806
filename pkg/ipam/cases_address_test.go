package ipam_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

func TestB04StaticChangeKeepsOtherFamily(t *testing.T) {
	web0 := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "default", Name: "web-0"}
	for name, again := range map[string]func(first *ipam.Allocation) ask{
		"owner came back":   func(*ipam.Allocation) ask { return ask{owner: web0} },
		"pod planned anew":  func(a *ipam.Allocation) ask { return ask{claim: a.Claim} },
		"owner's new claim": func(a *ipam.Allocation) ask { return ask{owner: web0, claim: a.Claim} },
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, memstore.New(), "a")
			s := build(t, ipam.SubnetSpec{Name: "s", Prefixes: prefixes("10.0.0.0/29", "2001:db8::/125"), Gateways: addrs("10.0.0.6", "2001:db8::7")})
			first := mustTake(t, l, s, ask{owner: again(&ipam.Allocation{}).owner, addrs: []string{"10.0.0.1", "2001:db8::1"}})
			old := first.Interfaces[0].Leases[0].Ref()
			change := again(first)
			change.addrs = []string{"10.0.0.2", "2001:db8::1"}
			second := mustTake(t, l, s, change)
			if got := addresses(second); !cmp.Equal(got, change.addrs) || second.Claim != first.Claim {
				t.Fatalf("got %v under %s, want %v under %s", got, second.Claim, change.addrs, first.Claim)
			}
			if err := l.Free(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			_, six := takeAll(t, l, s, ipam.IPv6, "")
			_, four := takeAll(t, l, s, ipam.IPv4, "")
			slices.Sort(six)
			slices.Sort(four)
			if d := cmp.Diff([]string{"2001:db8::2", "2001:db8::3", "2001:db8::4", "2001:db8::5", "2001:db8::6"}, six); d != "" {
				t.Errorf("others got these IPv6 addresses:\n%s", d)
			}
			if d := cmp.Diff([]string{"10.0.0.1", "10.0.0.3", "10.0.0.4", "10.0.0.5"}, four); d != "" {
				t.Errorf("others got these IPv4 addresses:\n%s", d)
			}
			checkAccounts(t, l, s)
			for f, want := range map[ipam.Family]int{ipam.IPv4: 5, ipam.IPv6: 6} {
				if fig := l.Figures(s, f); fig.Leased != want || fig.Free.Sign() != 0 {
					t.Errorf("%s: %d leased and %s free, want %d and none", f, fig.Leased, fig.Free, want)
				}
			}
		})
	}
}

// poolEdits is a subnet that is edited: pool p is .10 to .12, pool q overlaps it and comes after it.
type poolEdits struct {
	excluded, deleted bool
}

func (e poolEdits) subnet(t *testing.T) *ipam.Subnet {
	spec := ipam.SubnetSpec{Name: "s", Prefixes: prefixes("10.0.0.0/28"), Gateways: addrs("10.0.0.1")}
	if !e.deleted {
		spec.Pools = append(spec.Pools, ipam.Pool{Name: "p", Set: set(t, "10.0.0.10-10.0.0.12")})
	}
	spec.Pools = append(spec.Pools, ipam.Pool{Name: "q", Set: set(t, "10.0.0.12-10.0.0.13")})
	if e.excluded {
		spec.Exclude = set(t, "10.0.0.11")
	}
	return build(t, spec)
}

// want tells what each pool has to give while somebody holds .10.
func (e poolEdits) want() map[string][]string {
	w := map[string][]string{"q": {"10.0.0.13"}, "": {"10.0.0.14", "10.0.0.2", "10.0.0.3", "10.0.0.4", "10.0.0.5", "10.0.0.6", "10.0.0.7", "10.0.0.8", "10.0.0.9"}}
	if e.deleted {
		w["q"] = append(w["q"], "10.0.0.12")
	} else {
		w["p"] = append(w["p"], "10.0.0.12")
	}
	if !e.excluded {
		p := "p"
		if e.deleted {
			p = ""
		}
		w[p] = append(w[p], "10.0.0.11")
	}
	for _, x := range w {
		slices.Sort(x)
	}
	return w
}

func TestB06PoolsFollowTheSubnetAsItIs(t *testing.T) {
	steps := map[string]func(*testing.T, *ipam.Ledger, *poolEdits){
		"exclude":  func(_ *testing.T, _ *ipam.Ledger, e *poolEdits) { e.excluded = true },
		"include":  func(_ *testing.T, _ *ipam.Ledger, e *poolEdits) { e.excluded = false },
		"delete":   func(_ *testing.T, _ *ipam.Ledger, e *poolEdits) { e.deleted = true },
		"recreate": func(_ *testing.T, _ *ipam.Ledger, e *poolEdits) { e.deleted = false },
		"release .11": func(t *testing.T, l *ipam.Ledger, e *poolEdits) {
			free(t, l, mustTake(t, l, e.subnet(t), ask{addrs: []string{"10.0.0.11"}}))
		},
	}
	runs := 0
	permute([]string{"exclude", "include", "delete", "recreate", "release .11"}, func(order []string) {
		runs++
		var e poolEdits
		l := newLedger(t, memstore.New(), "a")
		p1 := mustTake(t, l, e.subnet(t), ask{addrs: []string{"10.0.0.10"}, pool: "p"})
		for i, step := range order {
			steps[step](t, l, &e)
			got := map[string][]string{}
			s := e.subnet(t)
			for pool := range e.want() {
				all, as := takeAll(t, l, s, ipam.IPv4, pool)
				slices.Sort(as)
				got[pool] = as
				if fig := l.PoolFigures(ipam.Source{Subnet: s, Pool: pool}, ipam.IPv4); fig.Free.Sign() != 0 {
					t.Errorf("%v: pool %q is exhausted and %s are free", order[:i+1], pool, fig.Free)
				}
				for _, a := range all {
					free(t, l, a)
				}
			}
			if d := cmp.Diff(e.want(), got); d != "" {
				t.Fatalf("after %v:\n%s", order[:i+1], d)
			}
			if hs := l.ByClaim(p1.Claim); len(hs) != 1 || hs[0].Address.String() != "10.0.0.10" {
				t.Fatalf("after %v the first pod has %v", order[:i+1], hs)
			}
			checkAccounts(t, l, s)
		}
	})
	if runs < 100 {
		t.Errorf("%d runs", runs)
	}
}

// permute calls do with every order of list.
func permute(list []string, do func([]string)) {
	var rec func(n int)
	rec = func(n int) {
		if n == len(list) {
			do(list)
			return
		}
		for i := n; i < len(list); i++ {
			list[n], list[i] = list[i], list[n]
			rec(n + 1)
			list[n], list[i] = list[i], list[n]
		}
	}
	rec(0)
}

func TestB07WideningKeepsLeases(t *testing.T) {
	store := memstore.New()
	l := newLedger(t, store, "a")
	narrow, wide := subnet(t, "s", "", "10.21.0.0/30"), subnet(t, "s", "", "10.21.0.0/29")
	_, got := takeAll(t, l, narrow, ipam.IPv4, "")
	all, more := takeAll(t, l, wide, ipam.IPv4, "")
	got = append(got, more...)
	slices.Sort(got)
	if d := cmp.Diff([]string{"10.21.0.2", "10.21.0.3", "10.21.0.4", "10.21.0.5", "10.21.0.6"}, got); d != "" {
		t.Fatalf("narrow and then wide it gave:\n%s", d)
	}
	checkAccounts(t, l, wide)
	// Narrow again: what is outside lives on, and is not handed out again once it is free.
	checkAccounts(t, l, narrow)
	if fig := l.Figures(narrow, ipam.IPv4); fig.Leased != 1 || len(l.Leases()) != 5 {
		t.Errorf("%d of %d leases are inside the narrow subnet, want 1 of 5", fig.Leased, len(l.Leases()))
	}
	out := all[slices.IndexFunc(all, func(a *ipam.Allocation) bool { return addresses(a)[0] == "10.21.0.5" })]
	free(t, l, out)
	if _, err := take(t, l, narrow, ask{}); err == nil {
		t.Error("a full subnet gave an address, or one outside its CIDR")
	}
	mustRefuse[*ipam.NotInSubnetError](t, second(take(t, l, narrow, ask{addrs: []string{"10.21.0.5"}})))
	// A replica that starts now sees the same.
	other := newLedger(t, store, "b")
	if got := addresses(mustTake(t, other, wide, ask{})); !cmp.Equal(got, []string{"10.21.0.5"}) {
		t.Errorf("widened again it gave %v, want 10.21.0.5", got)
	}
	mustRefuse[*ipam.ExhaustedError](t, second(take(t, other, wide, ask{})))
}

func second[T any](_ T, err error) error { return err }

func TestB12GatewayIsNeverGiven(t *testing.T) {
	for name, c := range map[string]struct{ cidr, gateway, own, asked string }{
		"IPv6, other spelling": {"2001:db8::/64", "2001:0db8:0:0::0001", "2001:db8::5", "2001:db8::1"},
		"IPv4":                 {"10.0.0.0/24", "10.0.0.1", "10.0.0.5", "10.0.0.1"},
		"IPv4 mapped":          {"10.0.0.0/24", "::ffff:10.0.0.1", "10.0.0.5", "10.0.0.1"},
		"not the first":        {"10.0.0.0/24", "10.0.0.254", "10.0.0.5", "10.0.0.254"},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLedger(t, memstore.New(), "a")
			s := build(t, ipam.SubnetSpec{Name: "s", Prefixes: prefixes(c.cidr), Gateways: addrs(c.gateway)})
			owner := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "default", Name: "web-0"}
			mustTake(t, l, s, ask{owner: owner, addrs: []string{c.own}})
			before := l.Leases()
			for _, o := range []ipam.Owner{owner, {}, {Group: "kubeovn.io", Kind: ipam.KindSubnet, Name: "s"}} {
				_, err := take(t, l, s, ask{owner: o, addrs: []string{c.asked}, under: o})
				if e := refused[*ipam.GatewayError](t, err); e.Address != netip.MustParseAddr(c.asked) || !strings.Contains(e.Error(), "gateway") {
					t.Errorf("refused with %v", e)
				}
			}
			if d := cmp.Diff(before, l.Leases(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("a refused request changed the ledger:\n%s", d)
			}
		})
	}
}

func TestB13AddressesAreNumbers(t *testing.T) {
	l := newLedger(t, memstore.New(), "a")
	s := build(t, ipam.SubnetSpec{Name: "s", Prefixes: prefixes("FD00:0::/120"), Gateways: addrs("fd00:0000::0001"), Exclude: set(t, "FD00::00E0-fd00::e9")})
	if got := addresses(mustTake(t, l, s, ask{addrs: []string{"FD00::00EA"}})); !cmp.Equal(got, []string{"fd00::ea"}) {
		t.Fatalf("asked for FD00::00EA, got %v", got)
	}
	_, got := takeAll(t, l, s, ipam.IPv6, "")
	var want []string
	for i := 2; i < 256; i++ {
		if i < 0xe0 || i > 0xea {
			want = append(want, fmt.Sprintf("fd00::%x", i))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("handed out unasked:\n%s", d)
	}
	for _, held := range []string{"fd00::EA", "FD00:0:0::00ea"} {
		if e := refused[*ipam.HeldError](t, second(take(t, l, s, ask{addrs: []string{held}}))); e.Address.String() != "fd00::ea" {
			t.Errorf("%s: refused with %v", held, e)
		}
	}
	mustTake(t, l, s, ask{addrs: []string{"FD00::00e0"}})
	checkAccounts(t, l, s)
}

func TestB17OnlyTheLedgerDecides(t *testing.T) {
	t.Run("figures say full", func(t *testing.T) {
		store := memstore.New()
		s := subnet(t, "s", "", "10.0.0.0/30")
		a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
		only := mustTake(t, a, s, ask{})
		refresh(t, b)
		free(t, a, only)
		if fig := b.Figures(s, ipam.IPv4); fig.Free.Sign() != 0 {
			t.Fatalf("the figures of a cache that lags say that %s are free", fig.Free)
		}
		mustTake(t, b, s, ask{})
	})
	t.Run("figures say free", func(t *testing.T) {
		store := memstore.New()
		s := subnet(t, "s", "", "10.0.0.0/30")
		a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
		mustTake(t, a, s, ask{})
		if fig := b.Figures(s, ipam.IPv4); fig.Free.Sign() == 0 {
			t.Fatal("the figures of an empty cache say that none is free")
		}
		if e := refused[*ipam.ExhaustedError](t, second(take(t, b, s, ask{}))); e.Figures.Leased != 1 || e.Figures.Free.Sign() != 0 {
			t.Errorf("refused with %v, figures %+v", e, e.Figures)
		}
	})
	t.Run("IPv6 full", func(t *testing.T) {
		l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/126")
		takeAll(t, l, s, ipam.IPv6, "")
		before := held(l)
		e := refused[*ipam.ExhaustedError](t, second(take(t, l, s, ask{})))
		if e.Family != ipam.IPv6 || !strings.Contains(e.Error(), "no IPv6 address is free") {
			t.Errorf("refused with %v", e)
		}
		if d := cmp.Diff(before, held(l)); d != "" {
			t.Errorf("a refused request changed the ledger:\n%s", d)
		}
		mustTake(t, l, s, ask{families: []ipam.Family{ipam.IPv4}})
	})
}

func TestB18ExcludedAddressIsHadWhenOthersAreOut(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "10.0.0.6-10.0.0.6", "10.0.0.0/29")
	l := newLedger(t, store, "a")
	if _, got := takeAll(t, l, s, ipam.IPv4, ""); len(got) != 4 || slices.Contains(got, "10.0.0.6") {
		t.Fatalf("handed out unasked: %v", got)
	}
	for _, replica := range []*ipam.Ledger{l, newLedger(t, store, "b")} {
		a := mustTake(t, replica, s, ask{addrs: []string{"10.0.0.6"}})
		checkAccounts(t, replica, s)
		free(t, replica, a)
		mustRefuse[*ipam.ExhaustedError](t, second(take(t, replica, s, ask{})))
	}
}

func TestB19AnyFreeEntryOfAList(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24")
	list := [][]string{{"10.0.0.10"}, {"10.0.0.11"}, {"10.0.0.200"}}
	scale := func(l *ipam.Ledger) (pods []*ipam.Allocation) {
		t.Helper()
		var got []string
		for range list {
			a := mustTake(t, l, s, ask{list: list})
			pods, got = append(pods, a), append(got, addresses(a)...)
		}
		slices.Sort(got)
		if d := cmp.Diff(slices.Concat(list...), got); d != "" {
			t.Fatalf("the replicas got:\n%s", d)
		}
		return pods
	}
	l := newLedger(t, store, "a")
	pods := scale(l)
	if e := refused[*ipam.ListHeldError](t, second(take(t, l, s, ask{list: list}))); e.Length != 3 {
		t.Errorf("refused with %v", e)
	}
	for i, pod := range pods {
		entry := addresses(pod)
		free(t, l, pod)
		pods[i] = mustTake(t, l, s, ask{list: list})
		if got := addresses(pods[i]); !cmp.Equal(got, entry) {
			t.Errorf("%v was free and %v was given", entry, got)
		}
	}
	for _, pod := range pods {
		free(t, l, pod)
	}
	l = newLedger(t, store, "a") // restarted: it knows nothing
	scale(l)
	mustRefuse[*ipam.ListHeldError](t, second(take(t, newLedger(t, store, "b"), s, ask{list: list})))
	checkAccounts(t, l, s)
}

func TestB27BadRequestHangsNobody(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "2001:db8::/120")
	mustTake(t, l, s, ask{addrs: []string{"10.0.0.9"}, mac: "00:11:22:33:44:55"})
	for name, bad := range map[string]ask{
		"outside":         {addrs: []string{"10.9.0.1"}},
		"outside, IPv6":   {addrs: []string{"10.0.0.10", "fd00::1"}},
		"gateway":         {addrs: []string{"10.0.0.1"}},
		"held":            {addrs: []string{"10.0.0.9"}},
		"MAC held":        {mac: "00:11:22:33:44:55"},
		"MAC kept":        {mac: "0a:58:0a:00:00:09"},
		"no such pool":    {pool: "p"},
		"list held":       {list: [][]string{{"10.0.0.9"}, {"10.0.0.9", "2001:db8::9"}}},
		"network address": {addrs: []string{"10.0.0.0"}},
	} {
		_, err := take(t, l, s, bad)
		if _, ok := ipam.AsRefusal(err); !ok {
			t.Errorf("%s: got %v, want a refusal", name, err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		served := make(chan error, 1)
		go func() {
			_, err := l.Take(ctx, request(t, s, ask{}))
			served <- err
		}()
		select {
		case err := <-served:
			if err != nil {
				t.Errorf("%s: the next request: %v", name, err)
			}
		case <-ctx.Done():
			t.Fatalf("%s: the next request hangs", name)
		}
		cancel()
	}
	checkAccounts(t, l, s)
}
