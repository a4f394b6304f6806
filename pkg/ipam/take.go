package ipam

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// errRival says that another process took first leases for the same sticky owner at the same moment.
var errRival = errors.New("another allocation for this owner is under way")

// attempts bounds how often Take starts anew when it meets a rival or a lease that changed under it.
const attempts = 12

// Take leases all that r asks for, or nothing. A Refusal says why it can't be had; any other error is a fault of the
// system, and the next attempt must come with a fresh claim.
func (l *Ledger) Take(ctx context.Context, r Request) (*Allocation, error) {
	a, _, err := l.take(ctx, r)
	return a, err
}

// take gives also which of the leases were not there before.
func (l *Ledger) take(ctx context.Context, r Request) (*Allocation, []taken, error) {
	for try := 0; ; try++ {
		t := &taking{ledger: l, ctx: ctx, request: r, claim: r.Claim}
		a, took, err := t.run() //nolint:contextcheck // what is given back outlives the caller
		if err == nil {
			return a, took, nil
		}
		var stale *StaleError
		if try >= attempts || !errors.Is(err, errRival) && !errors.As(err, &stale) {
			return nil, nil, err
		}
		if err := l.pause(ctx, try); err != nil {
			return nil, nil, err
		}
		if stale != nil { // what else is known of these leases may be as old
			if err := l.Refresh(ctx, subnets(r.Interfaces...)...); err != nil {
				return nil, nil, fmt.Errorf("looking for leases of %s: %w", r.Owner, err)
			}
		}
		if !r.Existing {
			if r.Claim, err = NewClaim(l.Random); err != nil {
				return nil, nil, err
			}
		}
	}
}

// Preview tells what Take would give now, without writing.
func (l *Ledger) Preview(ctx context.Context, r Request) (*Allocation, error) {
	for try := 0; ; try++ {
		a, _, err := (&taking{ledger: l, ctx: ctx, request: r, claim: r.Claim, drafts: map[string]*Block{}}).run() //nolint:contextcheck // nothing is written
		if try >= attempts || !errors.Is(err, errRival) {
			return a, err
		}
	}
}

// pause waits a short random while, so that rivals don't meet again.
func (l *Ledger) pause(ctx context.Context, try int) error {
	var b [1]byte
	if _, err := l.Random.Read(b[:]); err != nil {
		return fmt.Errorf("drawing a pause: %w", err)
	}
	select {
	case <-l.Clock.After(time.Duration(b[0]) * time.Millisecond / 16 << min(try, 4)):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// taking is one attempt of a Take.
type taking struct {
	ledger  *Ledger
	ctx     context.Context //nolint:containedctx // a taking is one call
	request Request
	claim   Claim
	have    []Held            // leases that the pod or its owner had before
	owned   []Held            // all leases that its owner, when it is sticky, was known to have before
	drafts  map[string]*Block // of a preview: what its own choices make of the blocks; nil otherwise
}

func (t *taking) preview() bool { return t.drafts != nil }

// taken is a lease that an attempt made, the one that it made it from (nil: none), and what was remembered of the
// address before.
type taken struct {
	Held
	was   *Lease
	prior Freed
}

// run serves all interfaces at once: each costs round trips, and their blocks are written independently.
func (t *taking) run() (*Allocation, []taken, error) {
	if err := t.lookUp(); err != nil {
		return nil, nil, err
	}
	a := &Allocation{Claim: t.claim, Interfaces: make([]Assignment, len(t.request.Interfaces))}
	errs := make([]error, len(a.Interfaces))
	servings := make([]*serving, len(a.Interfaces))
	var wg sync.WaitGroup
	for i, ir := range t.request.Interfaces {
		s := &serving{taking: t, ir: ir}
		servings[i] = s
		serve := func() { a.Interfaces[i], errs[i] = s.serve() }
		if t.preview() || len(servings) == 1 {
			serve()
		} else {
			wg.Go(serve)
		}
	}
	wg.Wait()
	var took []taken
	for _, s := range servings {
		took = append(took, s.took...)
	}
	err := firstOf(errs)
	if err == nil {
		err = cmp.Or(t.confirm(took), t.stillOpen(a))
	} else if t.mistaken(err, took) {
		err = errRival
	}
	if err != nil {
		t.undo(took)
		return nil, nil, err
	}
	return a, took, nil
}

// firstOf prefers a refusal, which the asker can mend, to the rest.
func firstOf(errs []error) error {
	for _, err := range errs {
		if _, ok := AsRefusal(err); ok {
			return err
		}
	}
	return cmp.Or(errs...)
}

// undo gives back what was taken.
func (t *taking) undo(took []taken) {
	if len(took) == 0 || t.preview() {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.ledger.Timeout)
	defer cancel()
	// What can't be given back now is pending, and the sweep finds it: no pod carries its claim.
	_ = t.ledger.giveBack(ctx, took...)
}

// lookUp finds the leases that the owner, or the claim, has already.
func (t *taking) lookUp() error {
	l := t.ledger
	find := func() bool {
		if t.request.Existing {
			t.have = l.ByClaim(t.request.Claim)
		}
		if t.request.Owner.Sticky() {
			if t.owned = l.ByOwner(t.request.Owner); len(t.have) == 0 {
				t.have = slices.Clone(t.owned)
			}
		}
		return len(t.have) > 0
	}
	if !find() && t.request.Existing {
		if err := l.Refresh(t.ctx, subnets(t.request.Interfaces...)...); err != nil {
			return fmt.Errorf("looking for leases of claim %s: %w", t.request.Claim, err)
		}
		find()
	}
	if len(t.have) > 0 {
		t.claim = t.have[0].Claim
		t.have = slices.DeleteFunc(t.have, func(h Held) bool { return h.Claim != t.claim })
	}
	return nil
}

// subnets names all candidates of interfaces, and the L2 domains that MACs are leased in.
func subnets(interfaces ...InterfaceRequest) []string {
	var names []string
	for _, ir := range interfaces {
		for _, c := range ir.Candidates {
			names = append(names, c.Subnet.name)
			if c.Subnet.domain != c.Subnet.name {
				names = append(names, c.Subnet.domain)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// confirm looks, after a lease that is new to a sticky owner, whether it has others that were not known. One that no pod
// was ever bound to is as good as new: whoever took it may not have come to this.
func (t *taking) confirm(took []taken) error {
	if !t.request.Owner.Sticky() || t.preview() ||
		len(took) == 0 && !slices.ContainsFunc(t.have, func(h Held) bool { return h.PodUID == "" }) {
		return nil
	}
	if err := t.ledger.refreshOwner(t.ctx, t.request.Owner, subnets(t.request.Interfaces...)...); err != nil {
		return fmt.Errorf("confirming the first lease of %s: %w", t.request.Owner, err)
	}
	if t.rival(took) {
		return errRival
	}
	return nil
}

// mistaken tells that what a sticky owner was refused for may be its own.
func (t *taking) mistaken(err error, took []taken) bool {
	if _, refused := AsRefusal(err); !refused || !t.request.Owner.Sticky() || t.preview() {
		return false
	}
	var held *HeldError
	var mac *MACHeldError
	if errors.As(err, &held) && held.Holder.Owner == t.request.Owner || errors.As(err, &mac) && mac.Holder.Owner == t.request.Owner {
		if t.ledger.refreshOwner(t.ctx, t.request.Owner, subnets(t.request.Interfaces...)...) != nil {
			return false
		}
	}
	return t.rival(took)
}

// rival tells that a sticky owner has other leases than it was known to have when the attempt began.
func (t *taking) rival(took []taken) bool {
	type under struct {
		addrOrMAC
		Claim
	}
	known, ours := map[under]bool{}, map[under]bool{}
	for _, h := range t.owned {
		known[under{keyOf(&h.Lease), h.Claim}] = true
	}
	for _, h := range took {
		ours[under{keyOf(&h.Lease), h.Claim}] = true
	}
	now := slices.DeleteFunc(t.ledger.ByOwner(t.request.Owner), func(h Held) bool { return ours[under{keyOf(&h.Lease), h.Claim}] })
	if len(now) > 0 && len(t.owned) > 0 && now[0].Claim != t.owned[0].Claim {
		return true
	}
	return slices.ContainsFunc(now, func(h Held) bool { return !known[under{keyOf(&h.Lease), h.Claim}] })
}

// serving gives one interface its leases.
type serving struct {
	*taking
	ir   InterfaceRequest
	took []taken
	// beside tells that this is the IPv6 part of an interface that has an IPv4 address, whose lease says the MAC.
	beside bool
	// unsure tells that something was refused by what the cache knows.
	unsure bool
	// shut says that some of the candidates are closed; nil: none is.
	shut error
	// live tells that all candidates were read live, and asOf when: the ledger's count of takes.
	live bool
	asOf uint64
}

func (s *serving) noMAC() bool { return s.ir.NoMAC || s.beside }

// serve takes from the first candidate that can give. What the cache refuses is judged again after one live read of
// all candidates; and again when others took there in between, for what was freed before they did may not be known.
func (s *serving) serve() (Assignment, error) {
	if len(s.ir.Candidates) == 0 {
		return Assignment{}, fmt.Errorf("interface %s has no subnet to take from", s.ir.Provider)
	}
	if err := s.open(); err != nil {
		return Assignment{}, err
	}
	as, err := s.serveOnce()
	for try := 0; err != nil && s.unsure && try < attempts; try++ {
		asOf, failed := s.ledger.refresh(s.ctx, subnets(s.ir)...)
		if failed != nil {
			return Assignment{}, fmt.Errorf("reading the blocks before a refusal: %w", failed)
		}
		s.live, s.asOf, s.unsure = true, asOf, false
		clear(s.drafts)
		as, err = s.serveOnce()
	}
	if _, refused := AsRefusal(err); refused && s.shut != nil {
		return as, s.shut // it might have been had there
	}
	return as, err
}

// serveOnce tries the candidates in order, each with the choices that it has: first where the interface has leases
// already.
func (s *serving) serveOnce() (Assignment, error) {
	var first error
	candidates := slices.Clone(s.ir.Candidates)
	slices.SortStableFunc(candidates, func(a, b Source) int { return s.holds(b) - s.holds(a) })
	for _, c := range candidates {
		choices, err := s.choices(c.Subnet)
		if err != nil {
			first = better(first, err)
			continue
		}
		for _, choice := range choices {
			as, err := s.serveFrom(c, choice)
			if err == nil {
				return as, nil
			}
			s.back()
			if _, ok := AsRefusal(err); !ok {
				return Assignment{}, err
			}
			first = better(first, err)
		}
	}
	if n := len(s.ir.Choices); n > 1 {
		if r, ok := AsRefusal(first); ok && r.Unavailable() {
			first = &ListHeldError{Subnet: candidates[0].Subnet.name, Length: n, First: first}
		}
	}
	return Assignment{}, first
}

// better chooses what to tell of two refusals: the first, but rather one that may end by itself.
func better(first, second error) error {
	a, ok := AsRefusal(first)
	if b, is := AsRefusal(second); ok && is && !a.Unavailable() && b.Unavailable() {
		return second
	}
	return cmp.Or(first, second)
}

func (s *serving) back() {
	s.undo(s.took)
	s.took = nil
}

// holds is 1 when the interface has a lease that the source could give, else 0.
func (s *serving) holds(c Source) int {
	for _, h := range s.have {
		if h.Provider == s.ir.Provider && h.Subnet == c.Subnet.name && h.Address.IsValid() && s.allows(c, h) {
			return 1
		}
	}
	return 0
}

// serveFrom gives the interface the chosen addresses, and any for the families that are not chosen.
func (s *serving) serveFrom(c Source, choice []netip.Addr) (Assignment, error) {
	as := Assignment{Provider: s.ir.Provider, Subnet: c.Subnet}
	families := s.ir.families(c.Subnet)
	asked := map[Family]netip.Addr{}
	for _, a := range choice {
		asked[FamilyOf(a)] = a
	}
	for _, f := range families {
		if _, ok := c.Subnet.Prefix(f); !ok {
			return as, &FamilyError{Subnet: c.Subnet.name, Family: f}
		}
		if c.Pool != "" && !asked[f].IsValid() && !c.Subnet.HasPool(c.Pool, f) {
			return as, &PoolError{Subnet: c.Subnet.name, Pool: c.Pool, Family: f}
		}
	}
	mac, err := s.askedMAC(c.Subnet, asked[IPv4])
	if err != nil {
		return as, err
	}
	if as.Leases, err = s.addresses(c, families, asked, mac); err != nil {
		return as, err
	}
	for _, h := range as.Leases {
		if mac == (MAC{}) {
			mac = h.MAC
		}
	}
	if len(families) == 0 && mac == (MAC{}) && !s.ir.NoMAC {
		if mac, err = s.anyMAC(c.Subnet); err != nil {
			return as, err
		}
	}
	if !s.ir.NoMAC {
		as.MAC = mac
	}
	return as, nil
}

// addresses gives one of each family, both at once. The MAC is the IPv4 address's then: the lease of the other says
// nothing of it, unless it was asked for.
func (s *serving) addresses(c Source, families []Family, asked map[Family]netip.Addr, mac MAC) ([]Held, error) {
	held := make([]Held, len(families))
	errs := make([]error, len(families))
	parts := make([]*serving, len(families))
	var wg sync.WaitGroup
	for i, f := range families {
		part := &serving{taking: s.taking, ir: s.ir, live: s.live, asOf: s.asOf, beside: len(families) > 1 && f == IPv6}
		parts[i] = part
		take := func() { held[i], errs[i] = part.address(c, f, asked[f], mac) }
		if s.preview() || len(families) == 1 {
			take()
		} else {
			wg.Go(take)
		}
	}
	wg.Wait()
	for _, part := range parts {
		s.took = append(s.took, part.took...)
		s.unsure = s.unsure || part.unsure
	}
	return held, firstOf(errs)
}
