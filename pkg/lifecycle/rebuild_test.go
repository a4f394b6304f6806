package lifecycle

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func claimant(uid string, claim ipam.Claim, change ...func(*Claimant)) Claimant {
	p := Claimant{Namespace: "ns", Name: "p-" + uid, Identity: "p-" + uid, UID: uid, Created: time.Unix(100, 0), Claim: claim, Owner: ipam.PodOwner("ns"),
		Holdings: []Holding{{Provider: "ovn", Subnet: "s", Addresses: []netip.Addr{addr()}, MAC: ipam.DerivedMAC(addr())}}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func runs(p *Claimant)  { p.Running = true }
func older(p *Claimant) { p.Created = time.Unix(1, 0) }
func leaves(p *Claimant) {
	p.Leaving = true
}

func holds(hs ...Holding) func(*Claimant) { return func(p *Claimant) { p.Holdings = hs } }

func bareOf(p *Claimant) { p.Claim, p.Holdings = "", nil }

func TestRebuild(t *testing.T) {
	mac := ipam.MAC{2, 0, 0, 0, 0, 1}
	six := netip.MustParseAddr("fd00::5")
	want := func(uid string, claim ipam.Claim, change ...func(*ipam.Lease)) ipam.Lease {
		l := ipam.Lease{Address: addr(), MAC: ipam.DerivedMAC(addr()), Claim: claim, Owner: ipam.PodOwner("ns"), Provider: "ovn"}
		if uid != "" {
			l.PodUID, l.PodName = uid, "p-"+uid
		}
		for _, c := range change {
			c(&l)
		}
		return l
	}
	restore := func(vouched bool, ls ...ipam.Lease) Rebuilt {
		var r Rebuilt
		for _, l := range ls {
			r.Restore = append(r.Restore, Restored{Subnet: "s", Lease: l, Vouched: vouched})
		}
		return r
	}
	conflict := func(r Rebuilt, uid string) Rebuilt {
		r.Conflicts = append(r.Conflicts, Finding{Kind: LeaseMissing, Subject: "10.0.0.5", Namespace: "ns", Pod: "p-" + uid, PodUID: uid})
		return r
	}
	another := lease(func(h *ipam.Held) { h.Claim = two })
	for name, c := range map[string]struct {
		in   Loss
		want Rebuilt
	}{
		"nothing is missing":     {Loss{Pods: []Claimant{claimant("u", one)}, Leases: []ipam.Held{lease()}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, Rebuilt{}},
		"wired":                  {Loss{Pods: []Claimant{claimant("u", one)}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, restore(true, want("u", one))},
		"running":                {Loss{Pods: []Claimant{claimant("u", one, runs)}}, restore(false, want("u", one))},
		"carried only":           {Loss{Pods: []Claimant{claimant("u", one)}}, restore(false, want("", one))},
		"recorded":               {Loss{Pods: []Claimant{claimant("u", one)}, Records: []Record{{Name: "p", PodUID: "u", Claim: one, Subnet: "s", Addresses: []netip.Addr{addr()}}}}, restore(true, want("u", one))},
		"leaving, still wired":   {Loss{Pods: []Claimant{claimant("u", one, leaves)}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, restore(false, want("u", one))},
		"leaving, not wired":     {Loss{Pods: []Claimant{claimant("u", one, leaves, runs)}}, Rebuilt{}},
		"port of another claim":  {Loss{Pods: []Claimant{claimant("u", one)}, Ports: []nb.LogicalSwitchPort{port("p", "u", two)}}, restore(false, want("", one))},
		"port of a pod that was": {Loss{Ports: []nb.LogicalSwitchPort{port("p", "x", one)}}, Rebuilt{}},
		"annotations lost, port left": {Loss{Pods: []Claimant{claimant("u", "", bareOf)}, Ports: []nb.LogicalSwitchPort{port("p-u.ns.x.y.ovn", "u", one)}},
			restore(true, want("u", one, func(l *ipam.Lease) { l.Provider = "x.y.ovn" }))},
		"annotations lost, record left": {Loss{Pods: []Claimant{claimant("u", "", bareOf)},
			Records: []Record{{Name: "p-u.ns", PodUID: "u", Claim: one, Subnet: "s", Addresses: []netip.Addr{addr()}, MAC: ipam.DerivedMAC(addr())}}}, restore(true, want("u", one))},
		"the wired one before the older": {Loss{Pods: []Claimant{claimant("u", one), claimant("v", two, older)}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}},
			conflict(restore(true, want("u", one)), "v")},
		"the running one before the older":  {Loss{Pods: []Claimant{claimant("u", one, older), claimant("v", two, runs)}}, conflict(restore(false, want("v", two)), "u")},
		"the older one":                     {Loss{Pods: []Claimant{claimant("u", one), claimant("v", two, older)}}, conflict(restore(false, want("", two)), "u")},
		"a copy of a claim is no conflict":  {Loss{Pods: []Claimant{claimant("u", one), claimant("v", one, older)}}, restore(false, want("", one))},
		"given to another meanwhile, wired": {Loss{Pods: []Claimant{claimant("u", one), claimant("v", two)}, Leases: []ipam.Held{another}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, conflict(Rebuilt{Replace: []Replaced{{Old: another, New: want("u", one), Vouched: true}}}, "v")},
		"given to another, who is not seen": {Loss{Pods: []Claimant{claimant("u", one, runs)}, Leases: []ipam.Held{another}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}}, Rebuilt{Replace: []Replaced{{Old: another, New: want("u", one), Vouched: true}}}},
		"given to another, running only":    {Loss{Pods: []Claimant{claimant("u", one, runs)}, Leases: []ipam.Held{another}}, conflict(Rebuilt{}, "u")},
		"given to another, who runs": {Loss{Pods: []Claimant{claimant("u", one), claimant("v", two, runs)}, Leases: []ipam.Held{another}, Ports: []nb.LogicalSwitchPort{port("p", "u", one)}},
			conflict(Rebuilt{}, "u")},
		"given to another, carried only": {Loss{Pods: []Claimant{claimant("u", one)}, Leases: []ipam.Held{another}}, conflict(Rebuilt{}, "u")},
		"reserved meanwhile": {Loss{Pods: []Claimant{claimant("u", one, runs)},
			Leases: []ipam.Held{lease(func(h *ipam.Held) {
				h.Claim, h.Owner = two, ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: "v"}
			})}}, conflict(Rebuilt{}, "u")},
		"its own MAC": {Loss{Pods: []Claimant{claimant("u", one, holds(Holding{Provider: "ovn", Subnet: "s", Addresses: []netip.Addr{addr()}, MAC: mac, Requested: true, RequestedMAC: true}))}},
			restore(false, want("", one, func(l *ipam.Lease) { l.Address, l.MAC, l.Requested = netip.Addr{}, mac, true }), want("", one, func(l *ipam.Lease) { l.MAC, l.Requested = mac, true }))},
		"its own MAC alone": {Loss{Pods: []Claimant{claimant("u", one, holds(Holding{Provider: "ovn", Subnet: "s", Addresses: []netip.Addr{addr()}, MAC: mac}))},
			Leases: []ipam.Held{lease()}}, restore(false, want("", one, func(l *ipam.Lease) { l.Address, l.MAC = netip.Addr{}, mac }))},
		"a MAC and no address": {Loss{Pods: []Claimant{claimant("u", one, holds(Holding{Provider: "ovn", Subnet: "s", MAC: mac}))}},
			restore(false, want("", one, func(l *ipam.Lease) { l.Address, l.MAC = netip.Addr{}, mac }))},
		"two families": {Loss{Pods: []Claimant{claimant("u", one, holds(Holding{Provider: "ovn", Subnet: "s", Addresses: []netip.Addr{addr(), six}, MAC: ipam.DerivedMAC(addr())}))}},
			restore(false, want("", one), want("", one, func(l *ipam.Lease) { l.Address, l.MAC = six, ipam.MAC{} }))},
		"one of two families": {Loss{Pods: []Claimant{claimant("u", one, holds(Holding{Provider: "ovn", Subnet: "s", Addresses: []netip.Addr{addr(), six}, MAC: ipam.DerivedMAC(addr())}))},
			Leases: []ipam.Held{lease()}}, restore(false, want("", one, func(l *ipam.Lease) { l.Address, l.MAC = six, ipam.MAC{} }))},
		"a sticky owner's": {Loss{Pods: []Claimant{claimant("u", one, runs, func(p *Claimant) {
			p.Owner, p.OwnerUID = ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: "web-0"}, "set-1"
		})}}, restore(false, want("u", one, func(l *ipam.Lease) {
			l.Owner, l.OwnerUID = ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: "web-0"}, "set-1"
		}))},
	} {
		t.Run(name, func(t *testing.T) {
			got := Rebuild(c.in)
			if d := cmp.Diff(c.want, got, cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreFields(Finding{}, "Lease", "Detail"),
				cmpopts.SortSlices(func(a, b Restored) bool { return !a.Lease.Address.IsValid() && b.Lease.Address.IsValid() })); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if len(got.Lost()) > 0 != (len(got.Restore) > 0 && got.Restore[0].Vouched || len(got.Replace) > 0 && got.Replace[0].Vouched) {
				t.Errorf("lost %v of %+v", got.Lost(), got)
			}
		})
	}
}
