package ipam_test

import (
	"testing"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// A write that was stored, and whose answer was lost, is found by a live read, though no watch tells of it: the take and the
// bind are made once. Where nothing is unknown nothing is read live.
func TestB99StoredButNotAnswered(t *testing.T) {
	store := memstore.New()
	l := newLedger(t, store, "a")
	s := subnet(t, "s", "", "10.0.0.0/24")
	lose := true
	store.SetFault(func(c memstore.Call) memstore.Fault {
		lost := lose && c.Verb == memstore.Write
		if lost {
			lose = false
		}
		return memstore.Fault{LoseAnswer: lost}
	})
	reads := func() int { c := store.Calls(); return c[memstore.Get] + c[memstore.List] }
	ask := ipam.Request{Claim: newClaim(t), Owner: ipam.PodOwner("ns"), Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s}}}}}
	got, err := l.Take(t.Context(), ask)
	if err != nil {
		t.Fatal(err)
	}
	if n := reads(); n != 1 {
		t.Errorf("%d live reads after one unknown outcome", n)
	}
	lose = true
	bound, err := l.Bind(t.Context(), "uid", "pod", got.Interfaces[0].Leases[0].Ref())
	if err != nil || len(bound) != 1 || bound[0].PodUID != "uid" {
		t.Fatalf("bound %+v: %v", bound, err)
	}
	if n := reads(); n != 2 {
		t.Errorf("%d live reads after two unknown outcomes", n)
	}
	ask.Claim = newClaim(t)
	if _, err := l.Take(t.Context(), ask); err != nil {
		t.Fatal(err)
	}
	if n := reads(); n != 2 {
		t.Errorf("%d live reads, one of them with nothing unknown", n)
	}
	store.SetFault(nil)
	blocks, err := store.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	leases := 0
	for _, b := range blocks {
		leases += len(b.Leases)
	}
	if leases != 2 {
		t.Errorf("%d leases of two pods", leases)
	}
}
