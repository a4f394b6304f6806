package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pgregory.net/rapid"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
)

// The steps of a machine.

// trouble has the next writes of a step go wrong in a way that is to change nothing.
func (m *machine) trouble(t *rapid.T) {
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "faults") {
		m.faults = append(m.faults, rapid.SampledFrom([]memstore.Fault{{}, {Err: ipam.ErrConflict}, {Err: errInjected}, {LoseAnswer: true}}).Draw(t, "fault"))
	}
}

func web(i int) ipam.Owner {
	return ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: fmt.Sprint("web-", i)}
}

// take is a new pod's, or a sticky owner's.
func (m *machine) take(t *rapid.T) {
	sh := m.shape(t)
	if i := rapid.IntRange(0, 9).Draw(t, "sticky"); i < 3 {
		sh.owner = web(i)
		if known, ok := m.shapes[web(i).String()]; ok {
			sh = known
		}
		m.shapes[web(i).String()] = sh
	}
	m.trouble(t)
	m.request(t, m.ledger(t), ipam.Request{Claim: m.fresh(t), Owner: sh.owner, Interfaces: m.interfaces(t, sh, nil)}, sh)
}

func (m *machine) shape(t *rapid.T) shape {
	sh := shape{owner: ipam.PodOwner("ns")}
	n := rapid.SampledFrom([]int{1, 1, 1, 2}).Draw(t, "interfaces")
	for i := range n {
		x := ifaceShape{provider: []string{"ovn", "net1"}[i], plots: []int{i}, noMAC: rapid.IntRange(0, 9).Draw(t, "no MAC") == 0}
		if n == 1 {
			x.plots = rapid.SampledFrom([][]int{{0}, {1}, {0, 1}, {1, 0}, {0, 0}}).Draw(t, "candidates")
		}
		for range x.plots {
			x.pools = append(x.pools, rapid.SampledFrom([]string{"", "", "", "p", "q", "r"}).Draw(t, "pool"))
		}
		x.families = rapid.SampledFrom([][]ipam.Family{nil, nil, {ipam.IPv4}, {ipam.IPv6}}).Draw(t, "families")
		sh.interfaces = append(sh.interfaces, x)
	}
	return sh
}

// interfaces makes the interfaces of a request; had are the addresses that the asker has.
func (m *machine) interfaces(t *rapid.T, sh shape, had []netip.Addr) []ipam.InterfaceRequest {
	var irs []ipam.InterfaceRequest
	for i, x := range sh.interfaces {
		ir := ipam.InterfaceRequest{Provider: x.provider, Families: x.families, NoMAC: x.noMAC}
		for k, p := range x.plots {
			ir.Candidates = append(ir.Candidates, ipam.Source{Subnet: m.subs[p], Pool: x.pools[k]})
		}
		m.choices(t, &ir, x, had)
		if i == 0 && rapid.IntRange(0, 2).Draw(t, "MAC?") == 0 {
			ir.MAC = m.mac(t, ir, len(sh.interfaces) == 1)
		}
		irs = append(irs, ir)
	}
	return irs
}

// choices draws what is asked for.
func (m *machine) choices(t *rapid.T, ir *ipam.InterfaceRequest, x ifaceShape, had []netip.Addr) {
	draw := func(f ipam.Family) (a netip.Addr) {
		p := m.plots[rapid.SampledFrom(x.plots).Draw(t, "plot")]
		var as []netip.Addr
		for _, b := range had {
			if ipam.FamilyOf(b) == f {
				as = append(as, b)
			}
		}
		if len(as) == 0 || rapid.Bool().Draw(t, "another") {
			as = p.addresses(f)
		}
		if len(as) == 0 || len(x.families) > 0 && !slices.Contains(x.families, f) {
			return a
		}
		a = rapid.SampledFrom(as).Draw(t, "address")
		if rapid.IntRange(0, 19).Draw(t, "beyond") == 0 {
			a = as[len(as)-1].Next()
		}
		return a
	}
	n := rapid.SampledFrom([]int{0, 0, 0, 1, 1, 2, 3, 5}).Draw(t, "choices")
	if n == 1 && m.reserved(t, ir, x) {
		return
	}
	for range n {
		var choice []netip.Addr
		which := rapid.IntRange(1, 3).Draw(t, "which")
		if a := draw(ipam.IPv4); a.IsValid() && which != 2 {
			choice = append(choice, a)
		}
		if a := draw(ipam.IPv6); a.IsValid() && which != 1 {
			choice = append(choice, a)
		}
		if len(choice) > 0 {
			ir.Choices = append(ir.Choices, choice)
		}
	}
}

// reserved asks for what is a Vip's, in its name.
func (m *machine) reserved(t *rapid.T, ir *ipam.InterfaceRequest, x ifaceShape) bool {
	owners := map[netip.Addr]ipam.Owner{}
	for _, k := range x.plots {
		maps.Copy(owners, m.plots[k].reserved)
		for s, l := range m.want.leases {
			if s.in == m.plots[k].name && l.Owner.Kind == ipam.KindVip {
				owners[s.addr] = l.Owner
			}
		}
	}
	maps.DeleteFunc(owners, func(a netip.Addr, _ ipam.Owner) bool {
		return len(x.families) > 0 && !slices.Contains(x.families, ipam.FamilyOf(a))
	})
	if len(owners) == 0 || rapid.Bool().Draw(t, "not reserved") {
		return false
	}
	a := rapid.SampledFrom(slices.SortedFunc(maps.Keys(owners), netip.Addr.Compare)).Draw(t, "reserved")
	ir.Choices, ir.Reservation = [][]netip.Addr{{a}}, owners[a]
	return true
}

// mac draws one that is asked for: any of a few, one that another address will be given, or the own one.
func (m *machine) mac(t *rapid.T, ir ipam.InterfaceRequest, hashed bool) ipam.MAC {
	few := []ipam.MAC{{2, 0, 0, 0, 0, 1}, {2, 0, 0, 0, 0, 2}, {2, 0, 0, 0, 0, 3}}
	if hashed {
		for _, p := range m.plots {
			if as := p.addresses(ipam.IPv6); len(as) > 1 {
				few = append(few, ipam.HashedMAC(as[1], 0))
			}
		}
	}
	few = append(few, ipam.DerivedMAC(netip.MustParseAddr("10.0.0.9")))
	for _, choice := range ir.Choices {
		if a := in(choice, ipam.IPv4); a.IsValid() {
			few = append(few, ipam.DerivedMAC(a))
		}
	}
	return rapid.SampledFrom(few).Draw(t, "MAC")
}

// comeBack is a pod's that is planned anew under its claim, or a sticky owner's.
func (m *machine) comeBack(t *rapid.T) {
	keys := slices.Sorted(maps.Keys(m.shapes))
	if len(keys) == 0 {
		t.Skip("nobody is known")
	}
	key := rapid.SampledFrom(keys).Draw(t, "who")
	sh := m.shapes[key]
	r := ipam.Request{Claim: m.fresh(t), Owner: sh.owner}
	if claim, ok := ipam.ParseClaim(key); ok {
		r.Claim, r.Existing = claim, true
	} else if claim, ok := m.want.claimOf(sh.owner); ok && rapid.Bool().Draw(t, "existing") {
		r.Claim, r.Existing = claim, true
	}
	i := m.ledger(t)
	if r.Existing { // what a claim has is the cache's word
		m.tell(i, len(m.log))
	}
	had := r.Claim
	if c, ok := m.want.claimOf(sh.owner); ok {
		had = c
	}
	var addrs []netip.Addr
	for _, s := range m.want.of(had) {
		if s.addr.IsValid() {
			addrs = append(addrs, s.addr)
		}
	}
	r.Interfaces = m.interfaces(t, sh, addrs)
	m.trouble(t)
	m.request(t, i, r, sh)
}

// reopen has every ledger give again, for nothing is ever lost here.
func (m *machine) reopen() {
	for _, l := range m.ledgers {
		for name, loss := range l.ClosedHere() {
			l.Reopen(name, loss)
		}
	}
}

// request takes, and has the judge look at the answer.
func (m *machine) request(t *rapid.T, i int, r ipam.Request, sh shape) {
	j := judge{register: m.want, plots: map[string]*plot{}, claim: r.Claim, owner: r.Owner, exact: m.abreast(i)}
	for _, p := range m.plots {
		j.plots[p.name] = p
	}
	if c, ok := m.want.claimOf(r.Owner); ok {
		j.claim = c
	}
	if r.Owner.Sticky() && !j.exact {
		// Two ledgers may make the same lease of one owner under one claim at once. Whose was lost can't be told then.
		m.faults = slices.DeleteFunc(m.faults, func(f memstore.Fault) bool { return f.LoseAnswer || errors.Is(f.Err, errInjected) })
	}
	got, err := m.ledgers[i].Take(context.Background(), r)
	for closed := (*ipam.ClosedError)(nil); errors.As(err, &closed); { // it was away for longer than an address rests
		m.reopen()
		got, err = m.ledgers[i].Take(context.Background(), r)
	}
	t.Logf("ledger %s, knowing all %t, takes %+v: %+v, %v", m.ledgers[i].Replica, j.exact, r, got, err)
	if err != nil {
		m.refused(t, j, r, err)
		return
	}
	if len(m.want.of(j.claim)) == 0 && !j.exact { // it tried what it believed to be the owner's first
		j.claim = got.Claim
	}
	if got.Claim != j.claim {
		t.Fatalf("claim %s, want %s", got.Claim, j.claim)
	}
	if r.Owner.Kind == ipam.KindPod {
		m.shapes[string(got.Claim)] = sh
	}
	for k, as := range got.Interfaces {
		if ir := r.Interfaces[k]; !j.can(ir) {
			t.Fatalf("%+v was given %+v, which can't be had", ir, as)
		} else if err := j.given(ir, as); err != nil {
			t.Fatalf("%+v was given %+v: %v", ir, as, err)
		}
	}
	for k, as := range got.Interfaces {
		m.enter(j, r.Interfaces[k], as)
	}
}

// enter notes in the model what an interface was given.
func (m *machine) enter(j judge, ir ipam.InterfaceRequest, as ipam.Assignment) {
	for _, h := range as.Leases {
		s := spot{in: h.Subnet, addr: h.Address}
		x, ok := m.want.leases[s]
		if !ok || !j.mine(ir, x) {
			x = ipam.Lease{Address: h.Address, Claim: j.claim, Owner: j.owner, Provider: ir.Provider, Requested: h.Requested}
			if r := ir.Reservation; h.Requested && r != (ipam.Owner{}) {
				x.Under = &r
			}
		}
		x.MAC, x.Generation = h.MAC, h.Generation
		m.want.put(h.Subnet, x)
	}
	s := spot{in: j.plots[as.Subnet.Name()].l2(), mac: as.MAC}
	if _, ok := m.want.leases[s]; !ok && as.MAC != (ipam.MAC{}) && !as.MAC.Derived() {
		m.want.put(s.in, ipam.Lease{MAC: as.MAC, Claim: j.claim, Owner: j.owner, Provider: ir.Provider, Requested: ir.MAC != (ipam.MAC{})})
	}
}

// refused tells whether a refusal is true.
func (m *machine) refused(t *rapid.T, j judge, r ipam.Request, err error) {
	refusal, ok := ipam.AsRefusal(err)
	if !ok {
		t.Fatalf("%+v: %v", r, err)
	}
	// Whether a sticky owner has the address of a derived MAC, or what a pool lacks, is the cache's word.
	cached := !j.exact && r.Owner.Sticky() && (r.Interfaces[0].MAC.Derived() || !refusal.Unavailable())
	if !cached && !slices.ContainsFunc(r.Interfaces, func(ir ipam.InterfaceRequest) bool { return !j.can(ir) }) {
		t.Fatalf("%+v could be had and was refused: %v", r, err)
	}
	empty := j
	empty.register = newRegister()
	// Of a list, one that is held is tried, and it may be one that can't be had for another reason too.
	if !refusal.Unavailable() && !slices.ContainsFunc(r.Interfaces, func(ir ipam.InterfaceRequest) bool { return len(ir.Choices) > 1 || !empty.can(ir) }) {
		t.Fatalf("%+v could be had later and was refused for good: %v", r, err)
	}
	if why := j.untrue(r, err); why != "" {
		t.Fatalf("%+v was refused: %v: %s", r, err, why)
	}
}

// untrue tells what is wrong with a refusal.
func (j judge) untrue(r ipam.Request, err error) string {
	var (
		held     *ipam.HeldError
		heldMAC  *ipam.MACHeldError
		full     *ipam.ExhaustedError
		outside  *ipam.NotInSubnetError
		gateway  *ipam.GatewayError
		reserved *ipam.ReservedError
		pool     *ipam.PoolError
		family   *ipam.FamilyError
		mac      *ipam.MACReservedError
	)
	is := func(holds bool, why string) string {
		if holds {
			return ""
		}
		return why
	}
	holds := func(s spot, x ipam.Lease) bool { return alike(j.leases[s], x) }
	switch {
	case errors.As(err, &held):
		return is(holds(spot{in: held.Subnet, addr: held.Address}, held.Holder), "the holder is another")
	case errors.As(err, &heldMAC):
		return is(holds(spot{in: heldMAC.Domain, mac: heldMAC.MAC}, heldMAC.Holder), "the holder is another")
	case errors.As(err, &full):
		fresh, old := j.open(j.plots[full.Subnet], full.Pool, full.Family)
		return is(len(fresh)+len(old) == 0, fmt.Sprint("free are ", fresh, old))
	case errors.As(err, &outside):
		return is(!j.plots[outside.Subnet].usable(outside.Address), "it is a host address")
	case errors.As(err, &gateway):
		return is(j.plots[gateway.Subnet].gateways[gateway.Address], "it is no gateway")
	case errors.As(err, &reserved):
		return is(j.plots[reserved.Subnet].reserved[reserved.Address] == reserved.For, "it is not reserved so")
	case errors.As(err, &pool):
		return is(!j.plots[pool.Subnet].hasPool(pool.Pool, pool.Family), "there is the pool")
	case errors.As(err, &family):
		return is(len(j.plots[family.Subnet].addresses(family.Family)) == 0, "there is the family")
	case errors.As(err, &mac):
		return is(r.Interfaces[0].MAC.Derived(), "it is not derived")
	}
	return "a refusal of a kind that is not known"
}

// claim draws one that is held.
func (m *machine) claim(t *rapid.T) ipam.Claim {
	cs := m.claims()
	if len(cs) == 0 {
		t.Skip("nothing is held")
	}
	return rapid.SampledFrom(cs).Draw(t, "claim")
}

func (m *machine) bind(t *rapid.T) {
	c, i, stale := m.claim(t), m.ledger(t), rapid.IntRange(0, 3).Draw(t, "stale") == 0
	uid := fmt.Sprint("uid-", rapid.IntRange(0, 2).Draw(t, "pod"))
	m.trouble(t)
	_, err := m.ledgers[i].Bind(context.Background(), uid, "pod", m.refs(c, stale)...)
	void := false
	for _, s := range m.want.of(c) {
		x := m.want.leases[s]
		switch {
		case x.PodUID == uid:
		case stale:
			void = true
		default:
			x.PodUID, x.PodName = uid, "pod"
			m.want.leases[s] = x
		}
	}
	var staleErr *ipam.StaleError
	if void != errors.As(err, &staleErr) || !void && err != nil {
		t.Fatalf("bound with stale refs %t: %v", stale, err)
	}
}

func (m *machine) free(t *rapid.T) {
	c, stale := m.claim(t), rapid.IntRange(0, 4).Draw(t, "stale") == 0
	m.trouble(t)
	t.Logf("freeing %s, stale %t", c, stale)
	if err := m.ledgers[m.ledger(t)].Free(context.Background(), m.refs(c, stale)...); err != nil {
		t.Fatal(err)
	}
	if !stale {
		for _, s := range m.want.of(c) {
			m.want.drop(s, m.now())
		}
	}
}

// handOver gives the lease of a pod that has one address and nothing else to a pod that waits.
func (m *machine) handOver(t *rapid.T) {
	c, stale := m.claim(t), rapid.IntRange(0, 3).Draw(t, "stale") == 0
	ss := m.want.of(c)
	if len(ss) != 1 || !ss[0].addr.Is4() {
		t.Skip("its MAC is leased too")
	}
	to := ipam.Lease{MAC: m.want.leases[ss[0]].MAC, Claim: m.fresh(t), Owner: ipam.PodOwner("waiting"), Provider: "ovn", Requested: true}
	m.trouble(t)
	_, err := m.ledgers[m.ledger(t)].HandOver(context.Background(), m.refs(c, stale)[0], to)
	var staleErr *ipam.StaleError
	if stale != errors.As(err, &staleErr) || !stale && err != nil {
		t.Fatalf("handed over by a stale ref %t: %v", stale, err)
	}
	if !stale {
		to.Address, to.Under = ss[0].addr, m.want.leases[ss[0]].Under
		m.want.put(ss[0].in, to)
	}
}

// restore puts back a lease that the ledger has lost, or has not.
func (m *machine) restore(t *rapid.T) {
	k, i := rapid.IntRange(0, 1).Draw(t, "subnet"), m.ledger(t)
	p := m.plots[k]
	a := rapid.SampledFrom(p.addresses(rapid.SampledFrom(p.families()).Draw(t, "family"))).Draw(t, "address")
	if !p.usable(a) {
		t.Skip("nobody can have had it")
	}
	x := ipam.Lease{Address: a, Claim: m.fresh(t), Owner: ipam.PodOwner("lost"), Provider: "ovn"}
	if a.Is4() {
		x.MAC = ipam.DerivedMAC(a)
	}
	if rapid.Bool().Draw(t, "a Vip's") {
		x.Owner, x.Provider = vip(rapid.IntRange(0, 1).Draw(t, "vip")), ""
	}
	before, leased := m.want.leases[spot{in: p.name, addr: a}]
	if leased && rapid.Bool().Draw(t, "known") {
		x.Claim = before.Claim
	}
	m.trouble(t)
	err := m.ledgers[i].Restore(context.Background(), m.subs[k], x)
	var held *ipam.HeldError
	if other := leased && before.Claim != x.Claim; other != errors.As(err, &held) || !other && err != nil {
		t.Fatalf("restored %+v over %+v: %v", x, before, err)
	}
	if !leased {
		m.want.put(p.name, x)
	}
}

func (m *machine) prune(t *rapid.T) {
	i := m.ledger(t)
	m.tell(i, len(m.log))
	m.clock.Step(time.Minute) // what was changed lately stays, and to be told is a change
	if _, err := m.ledgers[i].Prune(context.Background()); err != nil {
		t.Fatal(err)
	}
	m.want.prune(m.now())
}
