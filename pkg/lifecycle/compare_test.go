package lifecycle

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const one, two = ipam.Claim("11111111111111111111111111111111"), ipam.Claim("22222222222222222222222222222222")

func addr() netip.Addr { return netip.MustParseAddr("10.0.0.5") }

func lease(change ...func(*ipam.Held)) ipam.Held {
	h := ipam.Held{Block: "s-0a000000", Subnet: "s", Lease: ipam.Lease{Address: addr(), Claim: one, Generation: 1, Owner: ipam.PodOwner("ns")}}
	for _, c := range change {
		c(&h)
	}
	return h
}

func boundTo(uid string) func(*ipam.Held) {
	return func(h *ipam.Held) { h.PodUID, h.PodName = uid, "p" }
}

func sticky(h *ipam.Held) {
	h.Owner = ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: "web-0"}
}

func vm(h *ipam.Held) { h.Owner = ipam.Owner{Kind: "VirtualMachine", Namespace: "ns", Name: "vm"} }

func port(name, uid string, claim ipam.Claim) nb.LogicalSwitchPort {
	p := nb.LogicalSwitchPort{Name: name, Addresses: []string{"0a:58:0a:00:00:05 10.0.0.5"},
		ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s", nb.KeyPod: "ns/p"}}
	if claim != "" {
		p.ExternalIDs[nb.KeyClaim], p.ExternalIDs[nb.KeyPodUID] = string(claim), uid
	}
	return p
}

func TestCompare(t *testing.T) {
	alive := Pod{Namespace: "ns", Name: "p", UID: "u", Claim: one, Addresses: []netip.Addr{addr()}, Finalized: true}
	with := func(change func(*Pod)) Pod {
		p := alive
		change(&p)
		return p
	}
	keeps := func(a Answer) func(ipam.Held) Answer { return func(ipam.Held) Answer { return a } }
	next := func(h *ipam.Held) { h.Address = h.Address.Next() }
	six := func(h *ipam.Held) { h.Address = netip.MustParseAddr("fd00::5") }
	mac := func(h *ipam.Held) { h.Address, h.MAC = netip.Addr{}, ipam.MAC{2, 1} }
	claimed := func(h *ipam.Held) { h.Claim = two }
	routed := func(p *Pod) { p.Routed = []string{"ovn"} }
	on := func(provider string) func(*ipam.Held) { return func(h *ipam.Held) { h.Provider = provider } }
	for name, c := range map[string]struct {
		state State
		want  []Kind
	}{
		"all fits": {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(boundTo("u"))}, Ports: []nb.LogicalSwitchPort{port("p.ns", "u", one)},
			Records: []Record{{Name: "p.ns", PodUID: "u"}}}, nil},
		"pending lease":                     {State{Leases: []ipam.Held{lease()}}, []Kind{LeasePending}},
		"lease that will be bound":          {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease()}}, nil},
		"claim whose addresses are to come": {State{Pods: []Pod{with(func(p *Pod) { p.Addresses = nil })}, Leases: []ipam.Held{lease()}}, nil},
		"claim with another address": {State{Pods: []Pod{with(func(p *Pod) { p.Addresses = []netip.Addr{addr().Next()} })}, Leases: []ipam.Held{lease()}},
			[]Kind{LeaseMissing, LeasePending}},
		"reserved":                    {State{Leases: []ipam.Held{lease(func(h *ipam.Held) { h.Owner = ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: "v"} })}, Keeps: keeps(No)}, nil},
		"lease of a pod that is gone": {State{Leases: []ipam.Held{lease(boundTo("x"))}}, []Kind{LeaseOrphaned}},
		"lease of a pod that ended":   {State{Pods: []Pod{with(func(p *Pod) { p.Over = true })}, Leases: []ipam.Held{lease(boundTo("u"))}}, []Kind{LeaseOrphaned}},
		"sticky, kept":                {State{Leases: []ipam.Held{lease(sticky, boundTo("x"))}, Keeps: keeps(Yes)}, nil},
		"sticky, nobody knows":        {State{Leases: []ipam.Held{lease(sticky)}, Keeps: keeps(Unknown)}, nil},
		"sticky, nobody asked":        {State{Leases: []ipam.Held{lease(sticky)}}, nil},
		"sticky, given up":            {State{Leases: []ipam.Held{lease(sticky)}, Keeps: keeps(No)}, []Kind{LeasePending}},
		"sticky, moved on": {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(sticky, boundTo("u")), lease(sticky, boundTo("x"), next)}, Keeps: keeps(Yes)},
			[]Kind{LeaseOrphaned}},
		"sticky, moved on, two claims": {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(sticky, boundTo("u")), lease(sticky, next, claimed)}, Keeps: keeps(Unknown)},
			[]Kind{LeasePending}},
		"sticky, never came for the other":     {State{Leases: []ipam.Held{lease(sticky), lease(sticky, boundTo("x"), next)}, Keeps: keeps(Yes)}, []Kind{LeasePending}},
		"sticky, never came for either":        {State{Leases: []ipam.Held{lease(sticky), lease(sticky, next, claimed)}, Keeps: keeps(Yes)}, []Kind{LeasePending}},
		"sticky, came for both":                {State{Leases: []ipam.Held{lease(sticky, boundTo("x")), lease(sticky, boundTo("y"), next)}, Keeps: keeps(Yes)}, nil},
		"sticky, a network less":               {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(sticky, boundTo("u")), lease(sticky, next, on("n1.ns.ovn"))}, Keeps: keeps(Yes)}, []Kind{LeasePending}},
		"sticky, a family less":                {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(sticky, boundTo("u")), lease(sticky, six)}, Keeps: keeps(Yes)}, []Kind{LeasePending}},
		"sticky, two networks and no pod":      {State{Leases: []ipam.Held{lease(sticky), lease(sticky, next, on("n1.ns.ovn"))}, Keeps: keeps(Yes)}, nil},
		"sticky, two families and no pod":      {State{Leases: []ipam.Held{lease(sticky), lease(sticky, six)}, Keeps: keeps(Yes)}, nil},
		"machine, two networks":                {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(vm, boundTo("u")), lease(vm, next, on("n1.ns.ovn"))}, Keeps: keeps(Yes)}, nil},
		"machine, moved on":                    {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(vm, boundTo("u")), lease(vm, boundTo("x"), next)}, Keeps: keeps(Yes)}, []Kind{LeaseOrphaned}},
		"sticky, the other is another owner's": {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(boundTo("u")), lease(sticky, next)}, Keeps: keeps(Yes)}, nil},
		"sticky, a MAC of a claim that went":   {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(sticky, boundTo("u")), lease(sticky, claimed, mac)}, Keeps: keeps(Yes)}, []Kind{LeasePending}},
		"sticky, a MAC that nobody came for":   {State{Leases: []ipam.Held{lease(sticky, boundTo("x")), lease(sticky, mac)}, Keeps: keeps(Yes)}, nil},
		"orphaned port":                        {State{Ports: []nb.LogicalSwitchPort{port("p.ns", "x", one)}}, []Kind{PortOrphaned}},
		"foreign port":                         {State{Ports: []nb.LogicalSwitchPort{port("f.ns", "", "")}}, nil},
		"port without lease":                   {State{Pods: []Pod{with(func(p *Pod) { p.Claim = "" })}, Ports: []nb.LogicalSwitchPort{port("p.ns", "u", one)}}, []Kind{PortUnleased}},
		"orphaned record":                      {State{Records: []Record{{Name: "p.ns", PodUID: "x"}}}, []Kind{RecordOrphaned}},
		"one address twice":                    {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(boundTo("u"))}, Ports: []nb.LogicalSwitchPort{port("p.ns", "u", one), port("f.ns", "", "")}}, []Kind{PortDuplicate}},
		"lost lease":                           {State{Pods: []Pod{alive}}, []Kind{LeaseMissing}},
		"lost port":                            {State{Complete: true, Pods: []Pod{with(routed)}, Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))}}, []Kind{PortMissing}},
		"lost port, nobody looked":             {State{Pods: []Pod{with(routed)}, Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))}}, nil},
		"lost port of a pod that is going": {State{Complete: true, Pods: []Pod{with(func(p *Pod) { routed(p); p.Deleting = true })},
			Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))}}, nil},
		"another's port in its place": {State{Complete: true, Pods: []Pod{with(routed)}, Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))},
			Ports: []nb.LogicalSwitchPort{port("f.ns", "", "")}}, []Kind{PortMissing}},
		"port is there": {State{Complete: true, Pods: []Pod{with(routed)}, Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))},
			Ports: []nb.LogicalSwitchPort{port("p.ns", "u", one)}}, nil},
		"no port yet":                           {State{Complete: true, Pods: []Pod{alive}, Leases: []ipam.Held{lease(boundTo("u"), on("ovn"))}}, nil},
		"a network without a port":              {State{Complete: true, Pods: []Pod{with(routed)}, Leases: []ipam.Held{lease(boundTo("u"), on("mv.ns"))}}, nil},
		"lease under another claim":             {State{Pods: []Pod{with(func(p *Pod) { p.Claim = two })}, Leases: []ipam.Held{lease(boundTo("u"))}}, []Kind{LeaseMissing}},
		"lost lease of a pod that is going":     {State{Pods: []Pod{with(func(p *Pod) { p.Deleting = true })}}, nil},
		"two pods, one lease":                   {State{Pods: []Pod{alive, with(func(p *Pod) { p.UID, p.Name = "v", "q" })}, Leases: []ipam.Held{lease(boundTo("u"))}}, []Kind{LeaseShared}},
		"two launchers, one machine":            {State{Pods: []Pod{alive, with(func(p *Pod) { p.UID, p.Name = "v", "q" })}, Leases: []ipam.Held{lease(vm, boundTo("u"))}}, nil},
		"finalizer missing":                     {State{Pods: []Pod{with(func(p *Pod) { p.Finalized = false })}, Leases: []ipam.Held{lease(boundTo("u"))}}, []Kind{FinalizerMissing}},
		"finalizer missing, pod being deleted":  {State{Pods: []Pod{with(func(p *Pod) { p.Finalized, p.Deleting = false, true })}, Leases: []ipam.Held{lease(boundTo("u"))}}, nil},
		"lease of a MAC, claim carried by none": {State{Leases: []ipam.Held{lease(func(h *ipam.Held) { h.Address, h.MAC = netip.Addr{}, ipam.MAC{2, 1} })}}, []Kind{LeasePending}},
		"lease of a MAC, claim carried": {State{Pods: []Pod{alive}, Leases: []ipam.Held{lease(boundTo("u")),
			lease(func(h *ipam.Held) { h.Address, h.MAC = netip.Addr{}, ipam.MAC{2, 1} })}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var got []Kind
			for _, f := range Compare(c.state) {
				got = append(got, f.Kind)
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestWatchlist(t *testing.T) {
	type look struct {
		after time.Duration
		seen  []ipam.Held
		want  int
	}
	again := lease(func(h *ipam.Held) { h.Generation = 2 })
	other := lease(func(h *ipam.Held) { h.Claim = two })
	held := []ipam.Held{lease()}
	for name, looks := range map[string][]look{
		"ripe at the age":         {{0, held, 0}, {59 * time.Second, held, 0}, {time.Second, held, 1}, {time.Second, held, 1}},
		"first look is no proof":  {{time.Hour, held, 0}},
		"a pause starts anew":     {{0, held, 0}, {50 * time.Second, nil, 0}, {10 * time.Second, held, 0}, {50 * time.Second, held, 0}, {10 * time.Second, held, 1}},
		"a new generation":        {{0, held, 0}, {60 * time.Second, []ipam.Held{again}, 0}, {60 * time.Second, []ipam.Held{again}, 1}},
		"a new claim":             {{0, held, 0}, {60 * time.Second, []ipam.Held{other}, 0}},
		"a clock that goes back":  {{0, held, 0}, {-time.Hour, held, 0}, {time.Minute, held, 1}},
		"two leases, one is ripe": {{0, held, 0}, {60 * time.Second, []ipam.Held{lease(), lease(func(h *ipam.Held) { h.Address = h.Address.Next() })}, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			w, at := NewWatchlist(0), now()
			for i, l := range looks {
				at = at.Add(l.after)
				if got := w.Observe(at, l.seen); len(got) != l.want {
					t.Errorf("look %d: %d eligible, want %d", i, len(got), l.want)
				}
			}
		})
	}
}
