package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	mathrand "math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	clocktesting "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// quickClock never lets anybody wait.
type quickClock struct{ *clocktesting.FakeClock }

func (c quickClock) After(time.Duration) <-chan time.Time {
	ch := make(chan time.Time, 1)
	ch <- c.Now()
	return ch
}

// noise is randomness that can be had again.
type noise struct {
	mu sync.Mutex
	*mathrand.ChaCha8
}

func (n *noise) Read(p []byte) (int, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ChaCha8.Read(p)
}

// news is one change of the store, and which ledger made it.
type news struct {
	by      int
	block   *ipam.Block // nil: deleted
	name    string
	version string
}

// wire is a ledger's line to the store. It notes what changes there, to be told to the other ledgers later.
type wire struct {
	*memstore.Store
	by  int
	mu  *sync.Mutex
	log *[]news
}

func (w wire) note(n news) {
	last := 0
	if len(*w.log) > 0 {
		last, _ = strconv.Atoi((*w.log)[len(*w.log)-1].version)
	}
	n.by, n.version = w.by, strconv.Itoa(last+1) // the store counts its changes
	*w.log = append(*w.log, n)
}

func (w wire) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	stored, err := w.Store.Write(ctx, b)
	switch {
	case err == nil:
		w.note(news{block: stored, name: b.Name})
	case errors.Is(err, memstore.ErrLostAnswer):
		now, readErr := w.Get(ctx, b.Name)
		if readErr != nil {
			return nil, readErr
		}
		w.note(news{block: now, name: b.Name})
	}
	return stored, err
}

func (w wire) Delete(ctx context.Context, b *ipam.Block) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := w.Store.Delete(ctx, b)
	if err == nil {
		w.note(news{name: b.Name})
	}
	return err
}

// shape is what an owner asks for, as far as it stays the same when it comes back.
type shape struct {
	owner      ipam.Owner
	interfaces []ifaceShape
}

type ifaceShape struct {
	provider string
	plots    []int
	pools    []string // of each plot
	families []ipam.Family
	noMAC    bool
}

// machine drives two ledgers over one store, and the model beside them.
type machine struct {
	store   *memstore.Store
	clock   quickClock
	ledgers [2]*ipam.Ledger
	log     []news
	told    [2]int // how much of log each ledger was told
	plots   []*plot
	subs    []*ipam.Subnet
	want    register
	shapes  map[string]shape // by claim of a pod, or by owner
	faults  []memstore.Fault // of the next writes
	random  *noise
}

// now is Unix time.
func (m *machine) now() int64 { return m.clock.Now().Unix() }

func newMachine(t *rapid.T) *machine {
	m := &machine{store: memstore.New(), clock: quickClock{clocktesting.NewFakeClock(time.Unix(1_700_000_000, 0))}, want: newRegister(),
		shapes: map[string]shape{}, random: &noise{ChaCha8: mathrand.NewChaCha8([32]byte{rapid.Byte().Draw(t, "noise")})}}
	var mu sync.Mutex
	for i, name := range []string{"a", "b"} {
		l, err := ipam.New(ipam.Options{Store: wire{m.store, i, &mu, &m.log}, Replica: name, Clock: m.clock, Random: m.random})
		if err != nil {
			t.Fatal(err)
		}
		m.ledgers[i] = l
	}
	m.store.SetFault(func(c memstore.Call) memstore.Fault {
		if c.Verb != memstore.Write || len(m.faults) == 0 {
			return memstore.Fault{}
		}
		f := m.faults[0]
		m.faults = m.faults[1:]
		return f
	})
	domain := rapid.SampledFrom([]string{"", "vlan"}).Draw(t, "domain")
	for i, name := range []string{"s", "t"} {
		p := &plot{name: name, domain: domain, excluded: map[netip.Addr]bool{}, gateways: map[netip.Addr]bool{}, reserved: map[netip.Addr]ipam.Owner{},
			all: map[netip.Prefix][]netip.Addr{}}
		kind := rapid.IntRange(0, 2).Draw(t, "families")
		if kind != 1 {
			p.prefixes = append(p.prefixes, prefix(t, netip.AddrFrom4([4]byte{10, 0, byte(i), 0}), 24, 31))
		}
		if kind != 0 {
			p.prefixes = append(p.prefixes, prefix(t, netip.AddrFrom16([16]byte{0: 0xfd, 1: byte(i)}), 120, 127))
		}
		m.plots = append(m.plots, p)
		m.subs = append(m.subs, nil)
		m.gateways(t, p)
		m.rebuild(t, i)
	}
	return m
}

// prefix draws a part of the 256 addresses from base on.
func prefix(t *rapid.T, base netip.Addr, least, most int) netip.Prefix {
	bits := rapid.IntRange(least, most).Draw(t, "bits")
	return netip.PrefixFrom(nth(base, rapid.IntRange(0, 255).Draw(t, "from")), bits).Masked()
}

func (m *machine) rebuild(t *rapid.T, i int) {
	s, err := m.plots[i].subnet()
	if err != nil {
		t.Fatal(err)
	}
	m.subs[i] = s
}

func (m *machine) gateways(t *rapid.T, p *plot) {
	clear(p.gateways)
	for _, f := range p.families() {
		if rapid.IntRange(0, 3).Draw(t, "gateway?") > 0 {
			p.gateways[rapid.SampledFrom(p.addresses(f)).Draw(t, "gateway")] = true
		}
	}
}

// some draws a part of a subnet's addresses.
func some(t *rapid.T, p *plot, what string) map[netip.Addr]bool {
	has := map[netip.Addr]bool{}
	for _, f := range p.families() {
		as := p.addresses(f)
		from := rapid.IntRange(0, len(as)-1).Draw(t, what+" from")
		n := rapid.SampledFrom([]int{0, 1, 2, 3, 5, len(as) / 2, len(as)}).Draw(t, what+" length")
		for _, a := range as[from:min(len(as), from+n)] {
			has[a] = true
		}
	}
	return has
}

// edit changes a subnet.
func (m *machine) edit(t *rapid.T) {
	i := rapid.IntRange(0, 1).Draw(t, "subnet")
	p := m.plots[i]
	switch what := rapid.SampledFrom([]string{"cidr", "exclude", "gateway", "reserve", "add pool", "remove pool", "swap pools"}).Draw(t, "edit"); what {
	case "cidr":
		for j, x := range p.prefixes {
			b := x.Addr().AsSlice()
			b[len(b)-1] = 0
			base, _ := netip.AddrFromSlice(b)
			p.prefixes[j] = prefix(t, base, x.Addr().BitLen()-8, x.Addr().BitLen()-1)
		}
		m.gateways(t, p)
	case "exclude":
		p.excluded = some(t, p, "excluded")
	case "gateway":
		m.gateways(t, p)
	case "reserve":
		f := rapid.SampledFrom(p.families()).Draw(t, "family")
		p.reserved[rapid.SampledFrom(p.addresses(f)).Draw(t, "reserved")] = vip(rapid.IntRange(0, 1).Draw(t, "vip"))
	case "add pool":
		name := rapid.SampledFrom([]string{"p", "q", "r"}).Draw(t, "pool")
		p.pools = slices.DeleteFunc(p.pools, func(x plotPool) bool { return x.name == name })
		p.pools = slices.Insert(p.pools, rapid.IntRange(0, len(p.pools)).Draw(t, "place"), plotPool{name, some(t, p, "pool")})
	case "remove pool":
		if len(p.pools) > 0 {
			k := rapid.IntRange(0, len(p.pools)-1).Draw(t, "place")
			p.pools = slices.Delete(p.pools, k, k+1)
		}
	case "swap pools":
		slices.Reverse(p.pools)
	}
	m.rebuild(t, i)
}

func vip(i int) ipam.Owner {
	return ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: fmt.Sprint("vip", i)}
}

// abreast tells that a ledger knows all that others changed.
func (m *machine) abreast(i int) bool {
	return !slices.ContainsFunc(m.log[m.told[i]:], func(n news) bool { return n.by != i })
}

// tell tells a ledger some more of what changed.
func (m *machine) tell(i, n int) {
	for _, x := range m.log[m.told[i]:min(len(m.log), m.told[i]+n)] {
		if x.block == nil {
			m.ledgers[i].Forget(x.name, x.version)
		} else {
			m.ledgers[i].Observe(x.block)
		}
		m.told[i]++
	}
}

// check compares store and ledgers with the model.
func (m *machine) check(t *rapid.T) {
	m.faults = nil
	bs, err := m.store.List(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	got, err := read(bs)
	if err != nil {
		t.Fatal(err)
	}
	if d := differ(m.want.leases, got.leases, alike); d != "" {
		t.Fatalf("leases (-want +got):\n%s", d)
	}
	if d := differ(m.want.freed, got.freed, func(a, b ipam.Freed) bool { return a.At == b.At && a.Owner == b.Owner }); d != "" {
		t.Fatalf("freed addresses (-want +got):\n%s", d)
	}
	for s, x := range got.leases {
		if before := m.want.leases[s]; x.Generation < before.Generation {
			t.Fatalf("generation of %v fell from %d to %d", s, before.Generation, x.Generation)
		}
		m.want.leases[s] = x
	}
	if err := got.macs(m.plots); err != nil {
		t.Fatal(err)
	}
	for i := range m.ledgers {
		if m.abreast(i) {
			m.tell(i, len(m.log))
			m.checkIndexes(t, m.ledgers[i])
			m.checkFigures(t, m.ledgers[i])
		}
	}
}

// alike compares leases but for what the ledger makes up: generations, and claims of what went back to a reservation.
func alike(a, b ipam.Lease) bool {
	a.Generation, b.Generation = 0, 0
	if a.Owner.Kind == ipam.KindVip {
		a.Claim, b.Claim = "", ""
	}
	return same(a, b)
}

// same compares leases. It is there for its speed.
func same(a, b ipam.Lease) bool {
	return a.Address == b.Address && a.MAC == b.MAC && a.Claim == b.Claim && a.Generation == b.Generation && a.Owner == b.Owner &&
		a.Provider == b.Provider && a.Requested == b.Requested && cmp.Equal(a.Under, b.Under) && a.PodUID == b.PodUID && a.PodName == b.PodName &&
		len(a.Unknown)+len(b.Unknown) == 0
}

// differ tells what differs between two maps by spot.
func differ[T any](want, got map[spot]T, equal func(a, b T) bool) string {
	if maps.EqualFunc(want, got, equal) {
		return ""
	}
	return cmp.Diff(want, got, cmp.Comparer(equal), cmpopts.EquateComparable(netip.Addr{}, spot{}), cmpopts.EquateEmpty())
}

func (m *machine) checkIndexes(t *rapid.T, l *ipam.Ledger) {
	all := map[spot]ipam.Lease{}
	claims, owners := map[ipam.Claim]int{}, map[ipam.Owner]int{}
	for _, h := range l.Leases() {
		all[spotOf(h.Subnet, h.Lease)] = h.Lease
		claims[h.Claim]++
		owners[h.Owner]++
	}
	if d := differ(m.want.leases, all, same); d != "" {
		t.Fatalf("Leases of %s (-want +got):\n%s", l.Replica, d)
	}
	among := func(what any, hs []ipam.Held, n int) {
		if len(hs) != n {
			t.Fatalf("%v has %d leases, of which %s finds %d", what, n, l.Replica, len(hs))
		}
		for _, h := range hs {
			if x, ok := all[spotOf(h.Subnet, h.Lease)]; !ok || !same(x, h.Lease) {
				t.Fatalf("%v has %+v in %s", what, h, l.Replica)
			}
		}
	}
	for c, n := range claims {
		among(c, l.ByClaim(c), n)
	}
	for o, n := range owners {
		if o.Sticky() {
			among(o, l.ByOwner(o), n)
		}
	}
}

func (m *machine) checkFigures(t *rapid.T, l *ipam.Ledger) {
	equal := func(what string, want, got ipam.Figures) {
		if want.Size.Cmp(got.Size) != 0 || want.Free.Cmp(got.Free) != 0 || want.Excluded.Cmp(got.Excluded) != 0 || want.Leased != got.Leased ||
			want.Resting != got.Resting {
			t.Fatalf("figures of %s by %s: %+v, want %+v", what, l.Replica, got, want)
		}
	}
	for i, p := range m.plots {
		for _, f := range []ipam.Family{ipam.IPv4, ipam.IPv6} {
			equal(p.name, m.want.figures(p, f, m.now(), func(netip.Addr) bool { return true }), l.Figures(m.subs[i], f))
			names := []string{""}
			for _, x := range p.pools {
				names = append(names, x.name)
			}
			for _, name := range names {
				equal(p.name+"/"+name, m.want.figures(p, f, m.now(), func(a netip.Addr) bool { return p.pool(a) == name }),
					l.PoolFigures(ipam.Source{Subnet: m.subs[i], Pool: name}, f))
			}
		}
	}
}

// ledger draws one of the ledgers.
func (m *machine) ledger(t *rapid.T) int {
	return rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "ledger")
}

// claims that pods hold.
func (m *machine) claims() []ipam.Claim {
	cs := map[ipam.Claim]bool{}
	for _, x := range m.want.leases {
		if x.Owner.Kind != ipam.KindVip {
			cs[x.Claim] = true
		}
	}
	return slices.Sorted(maps.Keys(cs))
}

func (m *machine) fresh(t *rapid.T) ipam.Claim {
	c, err := ipam.NewClaim(m.random)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// refs names the leases of a claim as they are, or as they never were.
func (m *machine) refs(c ipam.Claim, stale bool) []ipam.Ref {
	var rs []ipam.Ref
	for _, s := range m.want.of(c) {
		x := m.want.leases[s]
		h := ipam.Held{Block: m.block(s), Subnet: s.in, Lease: x}
		r := h.Ref()
		if stale {
			r.Generation--
		}
		rs = append(rs, r)
	}
	return rs
}

// block gives the name of the block that a lease stands in.
func (m *machine) block(s spot) string {
	bs, _ := m.store.List(context.Background())
	for _, b := range bs {
		for _, x := range b.Leases {
			if spotOf(b.Subnet, *x) == s {
				return b.Name
			}
		}
	}
	return ""
}

// TestModel holds the ledger to the model, step by step.
func TestModel(t *testing.T) {
	rounds := 1
	if long() {
		rounds = 200
	}
	for range rounds {
		checkModel(t)
	}
}

func checkModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := newMachine(t)
		t.Repeat(map[string]func(*rapid.T){
			"": m.check, "take": m.take, "take again": m.take, "take once more": m.take, "come back": m.comeBack, "bind": m.bind, "free": m.free,
			"free more": m.free, "hand over": m.handOver, "restore": m.restore, "edit": m.edit, "prune": m.prune,
			"tell": func(t *rapid.T) {
				m.tell(rapid.IntRange(0, 1).Draw(t, "ledger"), rapid.IntRange(1, 20).Draw(t, "news"))
			},
			"wait": func(t *rapid.T) { m.clock.Step(time.Duration(rapid.IntRange(1, 90).Draw(t, "seconds")) * time.Second) },
		})
	})
}
