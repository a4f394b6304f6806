package sampler

import (
	"math/big"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const one, two = ipam.Claim("11111111111111111111111111111111"), ipam.Claim("22222222222222222222222222222222")

func five() netip.Addr { return netip.MustParseAddr("10.0.0.5") }

func pod(uid string, claim ipam.Claim) lifecycle.Pod {
	return lifecycle.Pod{Namespace: "ns", Name: "p-" + uid, UID: uid, Claim: claim, Addresses: []netip.Addr{five()}, Finalized: true}
}

func lease(claim ipam.Claim, uid string, o ipam.Owner) ipam.Held {
	return ipam.Held{Block: "s-0a000000", Subnet: "s", Lease: ipam.Lease{Address: five(), Claim: claim, Generation: 1, Owner: o, PodUID: uid, PodName: "p-" + uid}}
}

func port(name, uid string, claim ipam.Claim) nb.LogicalSwitchPort {
	return nb.LogicalSwitchPort{Name: name, Addresses: []string{"0a:58:0a:00:00:05 10.0.0.5"}, ExternalIDs: map[string]string{
		nb.KeySwitch: "s", nb.KeyPod: "ns/p-" + uid, nb.KeyPodUID: uid, nb.KeyClaim: string(claim)}}
}

func figures(free, leased, excluded, size int64) ipam.Figures {
	return ipam.Figures{Free: big.NewInt(free), Leased: int(leased), Excluded: big.NewInt(excluded), Size: big.NewInt(size)}
}

func TestLook(t *testing.T) {
	simple := ipam.PodOwner("ns")
	machine := ipam.Owner{Group: "kubevirt.io", Kind: network.KindVM, Namespace: "ns", Name: "vm"}
	bare := pod("u", one)
	bare.Finalized = false
	allowed := Allowed{Duplicates: time.Second, Orphans: time.Minute, Missing: 10 * time.Second, Quiet: 2 * time.Minute}
	for name, c := range map[string]struct {
		snap Snapshot
		// within is a time after which nothing is told yet, after one after which the rules are.
		within, after time.Duration
		want          []Rule
	}{
		"all is well": {Snapshot{Pods: []lifecycle.Pod{pod("u", one)}, Leases: []ipam.Held{lease(one, "u", simple)}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)},
			Sums: map[string]ipam.Figures{"s": figures(200, 50, 4, 254)}}, time.Hour, 2 * time.Hour, nil},
		"two ports": {Snapshot{Pods: []lifecycle.Pod{pod("u", one)}, Leases: []ipam.Held{lease(one, "u", simple)},
			Ports: []nb.LogicalSwitchPort{port("p", "u", one), port("q", "u", one)}}, time.Second, 2 * time.Second, []Rule{OneAddressOnePort}},
		"two pods, one claim": {Snapshot{Pods: []lifecycle.Pod{pod("u", one), pod("v", one)}, Leases: []ipam.Held{lease(one, "u", simple)}},
			time.Second, 2 * time.Second, []Rule{OneLeaseOnePod}},
		"two pods, two claims": {Snapshot{Pods: []lifecycle.Pod{pod("u", one), pod("v", two)}, Leases: []ipam.Held{lease(one, "u", simple)}},
			time.Second, 2 * time.Second, []Rule{OneLeaseOnePod}},
		"two pods, one of them done": {Snapshot{Pods: []lifecycle.Pod{pod("u", one), pod("v", two)}, Leases: []ipam.Held{lease(one, "u", simple)},
			Done: map[string]bool{"v": true}}, time.Second, 2 * time.Second, nil},
		"two launchers":               {Snapshot{Pods: []lifecycle.Pod{pod("u", one), pod("v", one)}, Leases: []ipam.Held{lease(one, "u", machine)}}, time.Hour, 2 * time.Hour, nil},
		"port of nobody":              {Snapshot{Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, time.Minute, 2 * time.Minute, []Rule{PortHasOwner}},
		"lease of a pod that is gone": {Snapshot{Leases: []ipam.Held{lease(one, "u", simple)}}, time.Minute, 2 * time.Minute, []Rule{LeaseHasOwner}},
		"lease that an owner keeps": {Snapshot{Leases: []ipam.Held{lease(one, "u", machine)}, Keeps: func(ipam.Held) lifecycle.Answer { return lifecycle.Yes }},
			time.Hour, 2 * time.Hour, nil},
		"address without lease": {Snapshot{Pods: []lifecycle.Pod{pod("u", one)}}, 10 * time.Second, 11 * time.Second, []Rule{PodHasLease}},
		"sums":                  {Snapshot{Sums: map[string]ipam.Figures{"s": figures(200, 50, 3, 254)}}, 10 * time.Second, 11 * time.Second, []Rule{SumsAddUp}},
		"pending":               {Snapshot{Pods: []lifecycle.Pod{pod("u", one)}, Leases: []ipam.Held{lease(one, "", simple)}}, 2 * time.Minute, 3 * time.Minute, []Rule{NothingPends}},
		"no finalizer":          {Snapshot{Pods: []lifecycle.Pod{bare}, Leases: []ipam.Held{lease(one, "u", simple)}}, 2 * time.Minute, 3 * time.Minute, []Rule{HolderIsFinalized}},
	} {
		t.Run(name, func(t *testing.T) {
			s, start := New(allowed), time.Unix(1000, 0)
			for _, at := range []time.Duration{0, c.within} {
				if got := s.Look(start.Add(at), c.snap); len(got) > 0 {
					t.Errorf("after %s: %v", at, got)
				}
			}
			var got []Rule
			for _, v := range s.Look(start.Add(c.after), c.snap) {
				if got = append(got, v.Rule); v.Detail == "" || !v.Since.Equal(start) {
					t.Errorf("%v", v)
				}
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// What ended in between begins anew, and what moves is not quiet.
func TestBreaksStartAnew(t *testing.T) {
	s, at := New(Allowed{Orphans: time.Minute, Quiet: time.Minute}), time.Unix(1000, 0)
	orphan := Snapshot{Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}
	for _, snap := range []Snapshot{orphan, {}, orphan} {
		if got := s.Look(at, snap); len(got) > 0 {
			t.Errorf("%v", got)
		}
		at = at.Add(50 * time.Second)
	}
	s = New(Allowed{Quiet: time.Minute})
	for g := range int64(5) { // another pod's lease changes all the time
		pending, other := lease(one, "", ipam.PodOwner("ns")), lease(two, "v", ipam.PodOwner("ns"))
		other.Address, other.Generation = other.Address.Next(), g
		v := pod("v", two)
		v.Addresses = []netip.Addr{other.Address}
		if got := s.Look(at, Snapshot{Pods: []lifecycle.Pod{pod("u", one), v}, Leases: []ipam.Held{pending, other}}); g > 1 && len(got) > 0 {
			t.Errorf("%v", got)
		}
		at = at.Add(50 * time.Second)
	}
}

// Time in which nothing could be seen doesn't count, and time in which something could does.
func TestPause(t *testing.T) {
	s, at := New(Allowed{Orphans: time.Minute}), time.Unix(1000, 0)
	orphan := Snapshot{Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}
	s.Look(at, orphan)
	s.Pause(5 * time.Minute)
	if got := s.Look(at.Add(6*time.Minute), orphan); len(got) > 0 {
		t.Errorf("a minute after it could see again: %v", got)
	}
	if got := s.Look(at.Add(6*time.Minute+time.Second), orphan); len(got) != 1 {
		t.Errorf("a second later: %v", got)
	}
}
