package ipam_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

func TestUsage(t *testing.T) {
	vip := ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: "v"}
	s := build(t, ipam.SubnetSpec{Name: "s", Prefixes: prefixes("10.0.0.0/28", "fd00::/64"), Gateways: addrs("10.0.0.1", "fd00::1"),
		Exclude: set(t, "10.0.0.14"), Pools: []ipam.Pool{{Name: "p", Set: set(t, "10.0.0.4-10.0.0.5")}},
		Reserved: map[netip.Addr]ipam.Owner{netip.MustParseAddr("10.0.0.13"): vip}})
	l := newLedger(t, memstore.New(), "a")
	for _, a := range []string{"10.0.0.2", "10.0.0.5", "10.0.0.14"} {
		mustTake(t, l, s, ask{addrs: []string{a}, families: []ipam.Family{ipam.IPv4}})
	}
	if err := l.Restore(t.Context(), s, ipam.Lease{Address: netip.MustParseAddr("10.0.0.13"), Claim: newClaim(t), Owner: vip}); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		of         func() (ipam.Usage, error)
		using      string
		left       string
		numU, numA string
	}{
		"IPv4": {func() (ipam.Usage, error) { return l.Usage(s, ipam.IPv4) },
			"[10.0.0.2-10.0.0.2 10.0.0.5-10.0.0.5 10.0.0.13-10.0.0.13]", "[10.0.0.3-10.0.0.4 10.0.0.6-10.0.0.12]", "3", "9"},
		"IPv6": {func() (ipam.Usage, error) { return l.Usage(s, ipam.IPv6) }, "[]", "[fd00::2-fd00::ffff:ffff:ffff:ffff]", "0", "18446744073709551614"},
		"pool": {func() (ipam.Usage, error) { return l.PoolUsage(ipam.Source{Subnet: s, Pool: "p"}, ipam.IPv4) },
			"[10.0.0.5-10.0.0.5]", "[10.0.0.4-10.0.0.4]", "1", "1"},
		"no such pool": {func() (ipam.Usage, error) { return l.PoolUsage(ipam.Source{Subnet: s, Pool: "q"}, ipam.IPv4) }, "[]", "[]", "0", "0"},
	} {
		t.Run(name, func(t *testing.T) {
			u, err := c.of()
			if err != nil {
				t.Fatal(err)
			}
			using, left := u.Counts()
			want := []string{c.using, c.left, c.numU, c.numA}
			if d := cmp.Diff(want, []string{ranges(u.Using), ranges(u.Available), using.String(), left.String()}); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func ranges(s *netipx.IPSet) string { return fmt.Sprint(s.Ranges()) }
