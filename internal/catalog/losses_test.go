package catalog

import (
	"context"
	"crypto/rand"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

// A loss that a ledger noticed closes the subnet for everybody by a mark, and the ledger itself until somebody has taken
// the mark off; a further loss writes another mark.
func TestLosses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := cluster(t, subnet("s", "10.16.0.0/24"), subnet("other", "10.17.0.0/24"))
		l := NewLosses()
		ledger, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "a", Clock: clock.RealClock{}, Random: rand.Reader, Lost: l.Lost})
		if err != nil {
			t.Fatal(err)
		}
		l.Client, l.Ledger, l.Random, l.Clock = api, ledger, rand.Reader, clock.RealClock{}
		l.Failed = func(err error) { t.Error(err) }
		go func() { _ = l.Run(t.Context()) }()
		mark := func(name string) string {
			t.Helper()
			synctest.Wait()
			var s kubeovnv1.Subnet
			if err := api.Get(t.Context(), client.ObjectKey{Name: name}, &s); err != nil {
				t.Fatal(err)
			}
			return s.Annotations[network.ClosedKey]
		}
		ledger.Close("s", "a block is gone")
		first := mark("s")
		if !strings.HasPrefix(first, "a block is gone (") || mark("other") != "" {
			t.Fatalf("marks %q and %q", first, mark("other"))
		}
		time.Sleep(time.Hour)
		if len(ledger.ClosedHere()) == 0 {
			t.Fatal("the ledger gives again, and nobody has looked")
		}
		ledger.Close("s", "another is gone")
		time.Sleep(2 * lossPeriod)
		second := mark("s")
		if second == first {
			t.Fatalf("still marked %q", first)
		}
		obj := subnet("s", "")
		if err := UnmarkClosed(t.Context(), api, obj, first); err == nil || mark("s") != second {
			t.Fatalf("%v: the newer mark was taken for the older", err)
		}
		if err := UnmarkClosed(t.Context(), api, obj, second); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * lossPeriod)
		if here := ledger.ClosedHere(); len(here) > 0 {
			t.Errorf("still closed: %v", here)
		}
	})
}

// A subnet's mark closes it to plans' requests as well.
func TestMarkClosesTheSubnet(t *testing.T) {
	api := cluster(t, subnet("s", "10.16.0.0/24", func(s *kubeovnv1.Subnet) { s.Annotations = map[string]string{network.ClosedKey: "why"} }))
	cat, err := New(Options{Cache: api, Live: api}).Topology(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "a", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	_, err = ledger.Take(t.Context(), ipam.Request{Claim: "0123456789abcdef0123456789abcdef", Owner: ipam.PodOwner("x"), Interfaces: []ipam.InterfaceRequest{
		{Provider: "ovn", Candidates: []ipam.Source{{Subnet: cat.Subnets["s"].Set}}, Choices: [][]netip.Addr{{netip.MustParseAddr("10.16.0.9")}}}}})
	if closed := (*ipam.ClosedError)(nil); !errors.As(err, &closed) || closed.Reason != "why" {
		t.Errorf("%v, want a closed subnet", err)
	}
}

// A subnet that went meanwhile holds nothing up; an API server that can't be reached is asked again.
func TestLossOfASubnetThatIsGone(t *testing.T) {
	if err := UnmarkClosed(t.Context(), cluster(t), subnet("s", ""), "x"); !apierrors.IsNotFound(errors.Unwrap(err)) {
		t.Errorf("%v", err)
	}
	synctest.Test(t, func(t *testing.T) {
		l := NewLosses()
		ledger, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "a", Clock: clock.RealClock{}, Random: rand.Reader, Lost: l.Lost})
		if err != nil {
			t.Fatal(err)
		}
		l.Client, l.Ledger, l.Random, l.Clock = cluster(t), ledger, rand.Reader, clock.RealClock{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = l.Run(ctx) }()
		ledger.Close("s", "why")
		time.Sleep(3 * lossPeriod)
		if here := ledger.ClosedHere(); len(here) > 0 {
			t.Errorf("closed: %v", here)
		}
	})
}
