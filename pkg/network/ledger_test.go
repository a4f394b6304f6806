package network

import (
	"crypto/rand"
	"math/big"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/utils/clock"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

const none = "none"

// served plans as many pods of this kind, asks a ledger for each, and tells the subnet and the addresses that it got.
func (w world) served(t *testing.T, pods int) []string {
	t.Helper()
	l, err := ipam.New(ipam.Options{Store: memstore.New(), Replica: "one", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for range pods {
		planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		claim, err := ipam.NewClaim(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		a, err := l.Take(t.Context(), planned.Request(claim, false))
		if _, refused := ipam.AsRefusal(err); refused {
			out = append(out, none)
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, a.Interfaces[0].Subnet.Name()+" "+join(a.Interfaces[0].Addresses()))
	}
	return out
}

// A pool that is full gives way to the next one, and the last one to nobody; who chooses a subnet gets what is in no pool
// there.
func TestB22FullPoolGivesWay(t *testing.T) {
	p1, p2 := pool(1, "p1", "red", "red", "10.18.0.8"), pool(2, "p2", "red", "red", "10.18.0.20..10.18.0.21")
	others := pool(3, "others", "ovn-default", "", "10.16.0.2..10.16.255.252")
	cases := map[string]struct {
		world
		first string
		all   []string
	}{
		"from pool to pool":      {pooled(annotated(), p1, p2), "red 10.18.0.8", []string{none, "red 10.18.0.20", "red 10.18.0.21", "red 10.18.0.8"}},
		"another subnet's pools": {pooled(annotated(ls, "ovn-default"), p1, p2, others), "ovn-default 10.16.255.25", []string{none, none, "ovn-default 10.16.255.253", "ovn-default 10.16.255.254"}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got := c.served(t, len(c.all))
			if !strings.HasPrefix(got[0], c.first) || got[len(got)-1] != none {
				t.Errorf("the first of %q is not %s, or the last got an address", got, c.first)
			}
			slices.Sort(got)
			if d := cmp.Diff(c.all, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A full subnet gives way to the next one, whatever broken one stands between them.
func TestB25FullSubnetGivesWay(t *testing.T) {
	for _, order := range []string{"ok1,orphan,ok2", "orphan,ok1,ok2", "ok1,ok2,orphan", "ok2,orphan,ok1"} {
		t.Run(order, func(t *testing.T) {
			w := in("red", annotated(), subnet("ok1", "10.1.0.0/30"), subnet("ok2", "10.3.0.0/30"),
				subnet("orphan", "10.2.0.0/24", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "gone" }))
			w.ns.Annotations = map[string]string{ls: order}
			want := []string{"ok1 10.1.0.2", "ok2 10.3.0.2", none}
			if strings.Index(order, "ok2") < strings.Index(order, "ok1") {
				want[0], want[1] = want[1], want[0]
			}
			if d := cmp.Diff(want, w.served(t, 3)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// A Subnet's status is output: what it says of addresses decides nothing.
func TestB17StatusDecidesNothing(t *testing.T) {
	status := func(available int64, free string) func(*kubeovnv1.Subnet) {
		return func(s *kubeovnv1.Subnet) {
			s.Status.V4AvailableIPs, s.Status.V4UsingIPs = kubeovnv1.NewBigInt(big.NewInt(available)), kubeovnv1.NewBigInt(big.NewInt(100-available))
			s.Status.V4AvailableIPRange = free
		}
	}
	cases := map[string]struct {
		says func(*kubeovnv1.Subnet)
		want []string
	}{
		"it says full": {status(0, ""), []string{"a 10.1.0.2", "b 10.3.0.2", none}},
		"it says free": {status(100, "10.1.0.2-10.1.0.101"), []string{"a 10.1.0.2", "b 10.3.0.2", none}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(), subnet("a", "10.1.0.0/30", bound("red"), c.says), subnet("b", "10.3.0.0/30", bound("red"), c.says))
			if d := cmp.Diff(c.want, w.served(t, 3)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}
