package worker

import (
	"errors"
	"fmt"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

// leftover is a lease of the set's first pod that nobody came for, under a claim of its own.
func (w *world) leftover(address string) {
	w.t.Helper()
	claim, err := ipam.NewClaim(w.worker.Random)
	w.must(err)
	a := netip.MustParseAddr(address)
	w.must(w.ledger.Restore(w.ctx, network.NewSubnet(w.subnet("s"), network.Around{}).Set, ipam.Lease{Address: a, MAC: ipam.DerivedMAC(a), Claim: claim,
		Owner: ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "app", Name: "web-0"}, Provider: network.DefaultProvider}))
}

// only tells that the address is all that is leased to pods.
func (w *world) only(address string) func() error {
	return func() error {
		if l := w.podLeases(); len(l) != 1 || l[0].Address.String() != address {
			return fmt.Errorf("leases %v, want %s", l, address)
		}
		return nil
	}
}

// A set keeps one address for each of its pods: what was left over by an attempt that failed is freed, whether the pod is
// there or comes back later.
func TestSetKeepsOneAddress(t *testing.T) {
	w := newWorld(t, worldOptions{})
	set := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(set), annotated(addressKey, "10.16.0.50")))
	w.wired("web-0")
	w.until("bound", w.allBound)
	w.leftover("10.16.0.40")
	w.leftover("10.16.0.60")
	w.until("the pod has the one", w.only("10.16.0.50"))
	w.end("web-0")
	w.gone("web-0")
	w.leftover("10.16.0.41")
	w.until("the set keeps the one", w.only("10.16.0.50"))
	w.keeps("the set's lease", w.only("10.16.0.50"))
}

// The pod of a set whose subnet has another CIDR by now comes back with an address of that, and has left the former one.
func TestSetWhoseSubnetHasMoved(t *testing.T) {
	w := newWorld(t, worldOptions{})
	set := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	before := w.wired("web-0")
	w.end("web-0")
	w.gone("web-0")
	w.edit("s", func(s *kubeovnv1.SubnetSpec) { s.CIDRBlock, s.Gateway = "10.77.0.0/24", "10.77.0.1" })
	w.seen(w.subnet("s"))
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	after := w.wired("web-0")
	if a := netip.MustParseAddr(after.Annotations[addressKey]); !netip.MustParsePrefix("10.77.0.0/24").Contains(a) {
		t.Errorf("it had %s and has %s", before.Annotations[addressKey], a)
	}
	w.until("the former address is free", w.only(after.Annotations[addressKey]))
}

// A port that somebody removed comes back: nothing else tells of it.
func TestPortThatSomebodyTook(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	before, _ := w.nb.Port("a.app")
	w.nbctl("lsp-del", "a.app")
	w.until("another port is there", func() error {
		if now, _ := w.nb.Port("a.app"); now.UUID == before.UUID {
			return errors.New("it is the one before")
		}
		return w.whole(p)
	})
	w.end("a")
	w.clean()
}

// A pod that was begun and went without its finalizer is forgotten.
func TestBegunAndGone(t *testing.T) {
	w := newWorld(t, worldOptions{})
	gone := podNamed("gone", onNode)
	gone.UID = "uid-of-gone"
	w.worker.begin(w.worker.subjectOf(gone))
	w.until("nothing is remembered", func() error {
		w.worker.mu.Lock()
		defer w.worker.mu.Unlock()
		if n := len(w.worker.started); n > 0 {
			return fmt.Errorf("%d pods are", n)
		}
		return nil
	})
}

// A pod that comes back with another address has left the former one, also when that could not be freed at first.
func TestFormerAddressIsFreedAtTheNextLook(t *testing.T) {
	w := newWorld(t, worldOptions{change: func(o *Options) { o.SweepPeriod = time.Hour }})
	set := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(set), annotated(addressKey, "10.16.0.50")))
	w.wired("web-0")
	w.end("web-0")
	w.gone("web-0")
	var refused atomic.Int32
	former := ipam.BlockName("s", netip.MustParseAddr("10.16.0.50"))
	w.store.SetFault(func(c memstore.Call) memstore.Fault {
		if c.Verb == memstore.Write && c.Block == former && refused.Add(1) == 1 {
			return memstore.Fault{Err: ipam.ErrRefused}
		}
		return memstore.Fault{}
	})
	w.admit(podNamed("web-0", onNode, ofSet(set), annotated(addressKey, "10.16.0.130")))
	w.wired("web-0")
	w.until("the former address is free", w.only("10.16.0.130"))
	if refused.Load() < 2 {
		t.Error("it was freed at once")
	}
}
