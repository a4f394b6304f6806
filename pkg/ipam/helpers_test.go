package ipam_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"math/big"
	"net/netip"
	"strings"
	"testing"

	"go4.org/netipx"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
)

func newLedger(tb testing.TB, store ipam.Store, replica string) *ipam.Ledger {
	tb.Helper()
	l, err := ipam.New(ipam.Options{Store: store, Replica: replica, Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

// subnet builds one whose gateways are the first addresses of its CIDRs.
func subnet(tb testing.TB, name string, exclude string, cidrs ...string) *ipam.Subnet {
	tb.Helper()
	spec := ipam.SubnetSpec{Name: name, Prefixes: prefixes(cidrs...)}
	for _, p := range spec.Prefixes {
		gw := p.Masked().Addr()
		if p.Addr().BitLen()-p.Bits() > 1 {
			gw = gw.Next()
		}
		spec.Gateways = append(spec.Gateways, gw)
	}
	if exclude != "" {
		spec.Exclude = set(tb, exclude)
	}
	return build(tb, spec)
}

// build makes a subnet whose UID goes by its name.
func build(tb testing.TB, spec ipam.SubnetSpec) *ipam.Subnet {
	tb.Helper()
	spec.UID = "uid-" + spec.Name
	s, err := ipam.NewSubnet(spec)
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

func prefixes(cidrs ...string) []netip.Prefix {
	ps := make([]netip.Prefix, len(cidrs))
	for i, c := range cidrs {
		ps[i] = netip.MustParsePrefix(c)
	}
	return ps
}

func addrs(texts ...string) []netip.Addr {
	as := make([]netip.Addr, len(texts))
	for i, x := range texts {
		as[i] = netip.MustParseAddr(x)
	}
	return as
}

// set is made of ranges and single addresses.
func set(tb testing.TB, parts ...string) *netipx.IPSet {
	tb.Helper()
	var b netipx.IPSetBuilder
	for _, p := range parts {
		if !strings.Contains(p, "-") {
			p += "-" + p
		}
		b.AddRange(netipx.MustParseIPRange(p))
	}
	s, err := b.IPSet()
	if err != nil {
		tb.Fatal(err)
	}
	return s
}

// ask is a request for one interface.
type ask struct {
	owner    ipam.Owner
	addrs    []string   // the only choice, when list is empty
	list     [][]string // choices
	mac      string
	families []ipam.Family
	pool     string
	under    ipam.Owner // the reservation that may be used
	claim    ipam.Claim // of leases that exist; empty: a new one
}

func request(tb testing.TB, s *ipam.Subnet, a ask) ipam.Request {
	tb.Helper()
	r := ipam.Request{Claim: a.claim, Existing: a.claim != "", Owner: a.owner}
	if a.claim == "" {
		r.Claim = newClaim(tb)
	}
	if a.owner == (ipam.Owner{}) {
		r.Owner = ipam.PodOwner("default")
	}
	ir := ipam.InterfaceRequest{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s, Pool: a.pool}}, Families: a.families, Reservation: a.under}
	if len(a.list) == 0 && len(a.addrs) > 0 {
		a.list = [][]string{a.addrs}
	}
	for _, choice := range a.list {
		ir.Choices = append(ir.Choices, addrs(choice...))
	}
	if a.mac != "" {
		ir.MAC = mac(tb, a.mac)
	}
	r.Interfaces = []ipam.InterfaceRequest{ir}
	return r
}

func newClaim(tb testing.TB) ipam.Claim {
	tb.Helper()
	c, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		tb.Fatal(err)
	}
	return c
}

func mac(tb testing.TB, s string) ipam.MAC {
	tb.Helper()
	m, err := ipam.ParseMAC(s)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}

func take(tb testing.TB, l *ipam.Ledger, s *ipam.Subnet, a ask) (*ipam.Allocation, error) {
	tb.Helper()
	return l.Take(tb.Context(), request(tb, s, a))
}

func mustTake(tb testing.TB, l *ipam.Ledger, s *ipam.Subnet, a ask) *ipam.Allocation {
	tb.Helper()
	got, err := take(tb, l, s, a)
	if err != nil {
		tb.Fatalf("take %+v: %v", a, err)
	}
	return got
}

// mustRefuse tells that err is a refusal of type E.
func mustRefuse[E error](tb testing.TB, err error) {
	tb.Helper()
	_ = refused[E](tb, err)
}

// refused tells that err is a refusal of type E, and gives it.
func refused[E error](tb testing.TB, err error) E {
	tb.Helper()
	var e E
	if !errors.As(err, &e) {
		tb.Fatalf("got %v, want a %T", err, e)
	}
	return e
}

func addresses(a *ipam.Allocation) []string {
	var as []string
	for _, i := range a.Interfaces {
		for _, x := range i.Addresses() {
			as = append(as, x.String())
		}
	}
	return as
}

// refs names what is held under the claim of a.
func refs(l *ipam.Ledger, a *ipam.Allocation) []ipam.Ref {
	var rs []ipam.Ref
	for _, h := range l.ByClaim(a.Claim) {
		rs = append(rs, h.Ref())
	}
	return rs
}

func free(tb testing.TB, l *ipam.Ledger, a *ipam.Allocation) {
	tb.Helper()
	if err := l.Free(tb.Context(), refs(l, a)...); err != nil {
		tb.Fatal(err)
	}
}

func refresh(tb testing.TB, l *ipam.Ledger) {
	tb.Helper()
	if err := l.Refresh(tb.Context()); err != nil {
		tb.Fatal(err)
	}
}

// held gives what the ledger holds, without generations.
func held(l *ipam.Ledger) []string {
	var out []string
	for _, h := range l.Leases() {
		out = append(out, fmt.Sprintf("%s %s %s", h.Ref(), h.MAC, h.Claim))
	}
	return out
}

// takeAll takes addresses of one family that nobody asks for until none is left, and gives them.
func takeAll(tb testing.TB, l *ipam.Ledger, s *ipam.Subnet, f ipam.Family, pool string) (all []*ipam.Allocation, got []string) {
	tb.Helper()
	for {
		a, err := take(tb, l, s, ask{families: []ipam.Family{f}, pool: pool})
		if err != nil {
			mustRefuse[*ipam.ExhaustedError](tb, err)
			return all, got
		}
		all, got = append(all, a), append(got, addresses(a)...)
	}
}

func checkAccounts(tb testing.TB, l *ipam.Ledger, s *ipam.Subnet) {
	tb.Helper()
	for _, f := range s.Families() {
		fig := l.Figures(s, f)
		sum := new(big.Int).Add(fig.Free, fig.Excluded)
		sum.Add(sum, big.NewInt(int64(fig.Leased)))
		if sum.Cmp(fig.Size) != 0 {
			tb.Errorf("%s: free %s + excluded %s + leased %d is not size %s", f, fig.Free, fig.Excluded, fig.Leased, fig.Size)
		}
	}
}
