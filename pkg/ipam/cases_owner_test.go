package ipam_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

func statefulPod(name string) ipam.Owner {
	return ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "default", Name: name}
}

// nic asks for an interface of its own provider.
func nic(s *ipam.Subnet, provider, mac string, want ...string) ipam.InterfaceRequest {
	ir := ipam.InterfaceRequest{Provider: provider, Candidates: []ipam.Source{{Subnet: s}}}
	if len(want) > 0 {
		ir.Choices = [][]netip.Addr{addrs(want...)}
	}
	if mac != "" {
		m, err := ipam.ParseMAC(mac)
		if err != nil {
			panic(err)
		}
		ir.MAC = m
	}
	return ir
}

func TestB09InterfacesOfOneAttachmentAreReleased(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24")
	pod := func() ipam.Request {
		return ipam.Request{Claim: newClaim(t), Owner: ipam.PodOwner("default"), Interfaces: []ipam.InterfaceRequest{
			nic(s, "net.default.ovn.eth1", "02:00:00:00:00:01", "10.0.0.11"), nic(s, "net.default.ovn.eth2", "02:00:00:00:00:02", "10.0.0.12")}}
	}
	for range 3 {
		a, err := l.Take(t.Context(), pod())
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]string{}
		for _, h := range l.ByClaim(a.Claim) {
			got[h.Provider+" "+h.Ref().String()] = h.MAC.String()
		}
		want := map[string]string{
			"net.default.ovn.eth1 10.0.0.11": "02:00:00:00:00:01", "net.default.ovn.eth1 MAC 02:00:00:00:00:01": "02:00:00:00:00:01",
			"net.default.ovn.eth2 10.0.0.12": "02:00:00:00:00:02", "net.default.ovn.eth2 MAC 02:00:00:00:00:02": "02:00:00:00:00:02"}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatalf("leases of the pod:\n%s", d)
		}
		// What the answer to the take names is what is freed.
		named := refs(l, a)
		for _, i := range a.Interfaces {
			if !slices.Contains(named, i.Leases[0].Ref()) {
				t.Errorf("the answer names %+v, the ledger has %+v", i.Leases[0].Ref(), named)
			}
		}
		if err := l.Free(t.Context(), named...); err != nil {
			t.Fatal(err)
		}
		if left := held(l); len(left) != 0 {
			t.Fatalf("left over: %v", left)
		}
	}
}

func TestB10OneInterfaceIsReleasedAlone(t *testing.T) {
	l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/29", "fd00::/125")
	vm := ipam.Owner{Group: "kubevirt.io", Kind: "VirtualMachine", Namespace: "default", Name: "vm"}
	both := ipam.Request{Claim: newClaim(t), Owner: vm, Interfaces: []ipam.InterfaceRequest{nic(s, "n1", ""), nic(s, "n2", "02:00:00:00:00:02")}}
	a, err := l.Take(t.Context(), both)
	if err != nil {
		t.Fatal(err)
	}
	var unplugged []ipam.Ref
	for _, h := range l.ByOwner(vm) {
		if h.Provider == "n2" {
			unplugged = append(unplugged, h.Ref())
		}
	}
	if len(unplugged) != 3 {
		t.Fatalf("n2 has the leases %v, want two addresses and a MAC", unplugged)
	}
	if err := l.Free(t.Context(), unplugged...); err != nil {
		t.Fatal(err)
	}
	n1, n2 := a.Interfaces[0].Addresses(), a.Interfaces[1].Addresses()
	for i, f := range s.Families() {
		_, got := takeAll(t, l, s, f, "")
		if slices.Contains(got, n1[i].String()) || !slices.Contains(got, n2[i].String()) {
			t.Errorf("n1 has %s, n2 had %s, and others were given %v", n1[i], n2[i], got)
		}
	}
	mustTake(t, l, build(t, ipam.SubnetSpec{Name: "s"}), ask{mac: "02:00:00:00:00:02"})
	// Nothing is left for n2, and n1's addresses are no substitute.
	both.Claim, both.Interfaces[1].MAC = newClaim(t), ipam.MAC{}
	mustRefuse[*ipam.ExhaustedError](t, second(l.Take(t.Context(), both)))
	both.Interfaces, both.Claim = both.Interfaces[:1], newClaim(t)
	back, err := l.Take(t.Context(), both)
	if err != nil || !cmp.Equal(addresses(back), []string{n1[0].String(), n1[1].String()}) {
		t.Errorf("the VM started with %v (%v), want %v", back, err, n1)
	}
	checkAccounts(t, l, s)
}

// Whose leases were freed and taken elsewhere has those under their claim, whatever this replica still believes: also where
// it knows the new ones, and of the former only the MAC's bucket is stale.
func TestOwnerThatMovedUnseen(t *testing.T) {
	for name, bound := range map[string]bool{"new ones unseen": false, "new ones bound here": true} {
		t.Run(name, func(t *testing.T) {
			store, s, owner := memstore.New(), subnet(t, "s", "", "10.0.0.0/24"), statefulPod("web-0")
			a, b := newLedger(t, store, "a"), newLedger(t, store, "b")
			former := mustTake(t, a, s, ask{owner: owner, addrs: []string{"10.0.0.129"}, mac: "02:00:00:00:00:01"})
			refresh(t, b)
			free(t, a, former)
			now := mustTake(t, a, s, ask{owner: owner, addrs: []string{"10.0.0.130"}})
			if bound {
				if _, err := b.Bind(t.Context(), "uid", "web-0", refs(a, now)...); err != nil {
					t.Fatal(err)
				}
			}
			back := mustTake(t, b, s, ask{owner: owner, mac: "02:00:00:00:00:03"})
			if back.Claim != now.Claim || !cmp.Equal(addresses(back), addresses(now)) {
				t.Errorf("%v under %s, want %v under %s", addresses(back), back.Claim, addresses(now), now.Claim)
			}
			refresh(t, a)
			checkAccounts(t, a, s)
		})
	}
}

// Whose address is no host address of the subnet any more comes back to another, under the claim that it had.
func TestOwnerWhoseAddressWentOutOfTheSubnet(t *testing.T) {
	for name, edited := range map[string]ipam.SubnetSpec{
		"the CIDR shrank":       {Prefixes: prefixes("10.0.0.0/25"), Gateways: addrs("10.0.0.1")},
		"the CIDR is another":   {Prefixes: prefixes("10.1.0.0/24"), Gateways: addrs("10.1.0.1")},
		"it became the gateway": {Prefixes: prefixes("10.0.0.0/24"), Gateways: addrs("10.0.0.200")},
		"it became the network": {Prefixes: prefixes("10.0.0.200/29"), Gateways: addrs("10.0.0.201")},
	} {
		t.Run(name, func(t *testing.T) {
			l, owner := newLedger(t, memstore.New(), "a"), statefulPod("web-0")
			edited.Name = "s"
			first := mustTake(t, l, subnet(t, "s", "", "10.0.0.0/24"), ask{owner: owner, addrs: []string{"10.0.0.200"}})
			s := build(t, edited)
			back := mustTake(t, l, s, ask{owner: owner})
			if err := s.Check(back.Interfaces[0].Addresses()[0], ipam.Owner{}); err != nil || back.Claim != first.Claim {
				t.Errorf("it came back to %v under %s: %v", addresses(back), back.Claim, err)
			}
			if again := mustTake(t, l, s, ask{owner: owner}); !cmp.Equal(addresses(again), addresses(back)) {
				t.Errorf("it came back to %v, then to %v", addresses(back), addresses(again))
			}
		})
	}
}

func TestAllInterfacesOrNone(t *testing.T) {
	l, s, small := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24", "fd00::/120"), subnet(t, "small", "", "10.1.0.0/30")
	takeAll(t, l, small, ipam.IPv4, "")
	before := held(l)
	for name, owner := range map[string]ipam.Owner{"pod": ipam.PodOwner("default"), "sticky": statefulPod("web-0")} {
		r := ipam.Request{Claim: newClaim(t), Owner: owner, Interfaces: []ipam.InterfaceRequest{
			nic(s, "n1", "02:00:00:00:00:01"), nic(small, "n2", ""), nic(s, "n3", "", "10.0.0.9")}}
		mustRefuse[*ipam.ExhaustedError](t, second(l.Take(t.Context(), r)))
		if d := cmp.Diff(before, held(l)); d != "" {
			t.Errorf("%s: a refused request changed the ledger:\n%s", name, d)
		}
	}
}

func TestB77StaticChangeFreesTheOldAddress(t *testing.T) {
	for name, owner := range map[string]ipam.Owner{"StatefulSet": statefulPod("web-0"), "VM": {Group: "kubevirt.io", Kind: "VirtualMachine", Namespace: "default", Name: "vm"}} {
		t.Run(name, func(t *testing.T) {
			l, s := newLedger(t, memstore.New(), "a"), subnet(t, "s", "", "10.0.0.0/24")
			first := mustTake(t, l, s, ask{owner: owner, addrs: []string{"10.0.0.5"}})
			old := first.Interfaces[0].Leases[0].Ref()
			moved := mustTake(t, l, s, ask{owner: owner, addrs: []string{"10.0.0.6"}})
			if got := addresses(moved); !cmp.Equal(got, []string{"10.0.0.6"}) || moved.Claim != first.Claim {
				t.Fatalf("got %v under %s, want 10.0.0.6 under %s", got, moved.Claim, first.Claim)
			}
			if n := len(l.ByOwner(owner)); n != 2 {
				t.Fatalf("%d leases, want the new one and the old one that is pending", n)
			}
			mustRefuse[*ipam.HeldError](t, second(take(t, l, s, ask{addrs: []string{"10.0.0.5"}})))
			if err := l.Free(t.Context(), old); err != nil {
				t.Fatal(err)
			}
			mustTake(t, l, s, ask{addrs: []string{"10.0.0.5"}})
			if hs := l.ByOwner(owner); len(hs) != 1 || hs[0].Address.String() != "10.0.0.6" {
				t.Errorf("the owner has %v, want 10.0.0.6", hs)
			}
			// From now on it comes back to the new one.
			if got := addresses(mustTake(t, l, s, ask{owner: owner})); !cmp.Equal(got, []string{"10.0.0.6"}) {
				t.Errorf("it came back to %v", got)
			}
		})
	}
}

func TestB78OwnerOfTheLastAddressComesBack(t *testing.T) {
	for name, c := range map[string]struct {
		spec ipam.SubnetSpec
		ask  ask
	}{
		"subnet of one": {ipam.SubnetSpec{Prefixes: prefixes("10.0.0.0/30"), Gateways: addrs("10.0.0.1")}, ask{}},
		"pool of one": {ipam.SubnetSpec{Prefixes: prefixes("10.0.0.0/24"), Pools: []ipam.Pool{{Name: "p", Set: set(t, "10.0.0.9")}}},
			ask{pool: "p"}},
		"list of one": {ipam.SubnetSpec{Prefixes: prefixes("10.0.0.0/24")}, ask{list: [][]string{{"10.0.0.9"}}}},
		"both families": {ipam.SubnetSpec{Prefixes: prefixes("10.0.0.0/30", "fd00::/126"), Gateways: addrs("10.0.0.1", "fd00::1", "fd00::2")},
			ask{}},
	} {
		t.Run(name, func(t *testing.T) {
			store := memstore.New()
			c.spec.Name, c.ask.owner = "s", statefulPod("web-0")
			s := build(t, c.spec)
			l := newLedger(t, store, "a")
			first := mustTake(t, l, s, c.ask)
			stranger := c.ask
			stranger.owner = statefulPod("web-1")
			if r, ok := ipam.AsRefusal(second(take(t, l, s, stranger))); !ok || !r.Unavailable() {
				t.Fatalf("it is not full: %v", r)
			}
			// The replica that served it, and one that knows nothing yet.
			for _, replica := range []*ipam.Ledger{l, newLedger(t, store, "b")} {
				got, err := take(t, replica, s, c.ask)
				if err != nil {
					t.Errorf("replica %s: %v", replica.Replica, err)
				} else if !cmp.Equal(addresses(got), addresses(first)) || got.Claim != first.Claim {
					t.Errorf("replica %s gave %v, want %v", replica.Replica, addresses(got), addresses(first))
				}
			}
		})
	}
}

func TestB108StaticAddressIsHadWhenItsHolderIsGone(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24")
	webhook, worker := newLedger(t, store, "a"), newLedger(t, store, "w")
	static := ask{addrs: []string{"10.0.0.5"}}
	old := mustTake(t, webhook, s, static)
	refresh(t, worker)
	bound, err := worker.Bind(t.Context(), "uid-1", "web-1", refs(worker, old)...)
	if err != nil {
		t.Fatal(err)
	}
	e := refused[*ipam.HeldError](t, second(take(t, webhook, s, static)))
	if !e.Unavailable() || e.Holder.PodUID != "uid-1" {
		t.Errorf("refused with %v", e)
	}
	if err := worker.Free(t.Context(), bound[0].Ref()); err != nil {
		t.Fatal(err)
	}
	next := mustTake(t, webhook, s, static)
	// The old pod's release is decided once more, late, on what was known of it.
	if err := worker.Free(t.Context(), bound[0].Ref(), old.Interfaces[0].Leases[0].Ref()); err != nil {
		t.Fatal(err)
	}
	refresh(t, worker)
	nowBound, err := worker.Bind(t.Context(), "uid-2", "web-2", refs(worker, next)...)
	if err != nil || nowBound[0].Address.String() != "10.0.0.5" {
		t.Fatalf("the next pod lost its address: %v (%v)", nowBound, err)
	}
	// A pod that waits for it gets it by hand-over, and nobody comes in between.
	waiting := newClaim(t)
	given, err := worker.HandOver(t.Context(), nowBound[0].Ref(), ipam.Lease{MAC: nowBound[0].MAC, Claim: waiting, Owner: ipam.PodOwner("default"), Provider: "ovn", Requested: true})
	if err != nil {
		t.Fatal(err)
	}
	mustRefuse[*ipam.HeldError](t, second(take(t, webhook, s, static)))
	mine := static
	mine.claim = waiting
	if got := mustTake(t, webhook, s, mine); !cmp.Equal(addresses(got), static.addrs) || got.Claim != given.Claim {
		t.Errorf("the waiting pod got %v", got)
	}
}

func TestB118RecordOfADeadPodBlocksNobody(t *testing.T) {
	store := memstore.New()
	s := subnet(t, "s", "", "10.0.0.0/24", "fd00::/120")
	l := newLedger(t, store, "a")
	web0 := statefulPod("web-0")
	first := mustTake(t, l, s, ask{owner: web0})
	dead, err := l.Bind(t.Context(), "uid-1", "web-0", refs(l, first)...)
	if err != nil {
		t.Fatal(err)
	}
	// The worker dies with the pod: its binding stays. The pod's successor comes to another replica.
	other := newLedger(t, store, "b")
	next := mustTake(t, other, s, ask{owner: web0})
	if !cmp.Equal(addresses(next), addresses(first)) {
		t.Fatalf("web-0 came back to %v, want %v", addresses(next), addresses(first))
	}
	bound, err := other.Bind(t.Context(), "uid-2", "web-0", refs(other, next)...)
	if err != nil {
		t.Fatal(err)
	}
	// What was decided about the dead pod is void.
	for _, h := range dead {
		if err := l.Free(t.Context(), h.Ref()); err != nil {
			t.Fatal(err)
		}
	}
	refresh(t, other)
	for i, h := range other.ByOwner(web0) {
		if h.PodUID != "uid-2" || h.Generation != bound[i].Generation || !slices.Contains(addresses(first), h.Address.String()) {
			t.Errorf("lease %+v, want the one that was bound to uid-2", h)
		}
	}
	if n := len(other.ByOwner(web0)); n != len(dead) {
		t.Errorf("%d leases left, want %d", n, len(dead))
	}
	checkAccounts(t, other, s)
}
