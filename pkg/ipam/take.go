package ipam

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"time"
)

// errRival says that another process took first leases for the same sticky owner at the same moment.
var errRival = errors.New("another allocation for this owner is under way")

// attempts bounds how often Take starts anew when it meets a rival or a lease that changed under it.
const attempts = 12

// Take leases all that r asks for, or nothing. A Refusal says why it can't be had; any other error is a fault of the
// system, and the next attempt must come with a fresh claim.
func (l *Ledger) Take(ctx context.Context, r Request) (*Allocation, error) {
	for try := 0; ; try++ {
		t := &taking{ledger: l, ctx: ctx, request: r, claim: r.Claim}
		a, err := t.run()
		if err == nil {
			return a, nil
		}
		t.undo()
		var stale *StaleError
		if try >= attempts || !errors.Is(err, errRival) && !errors.As(err, &stale) {
			return nil, err
		}
		if err := l.pause(ctx, try); err != nil {
			return nil, err
		}
		if !r.Existing {
			if r.Claim, err = NewClaim(l.Random); err != nil {
				return nil, err
			}
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
	ctx     context.Context
	request Request
	claim   Claim
	have    []Held // leases that the pod or its owner had before
	took    []Held // leases that this attempt made
	preview bool
}

func (t *taking) run() (*Allocation, error) {
	if err := t.lookUp(); err != nil {
		return nil, err
	}
	a := &Allocation{}
	for _, ir := range t.request.Interfaces {
		as, err := t.serve(ir)
		if err != nil {
			return nil, err
		}
		a.Interfaces = append(a.Interfaces, as)
	}
	if err := t.confirm(); err != nil {
		return nil, err
	}
	a.Claim = t.claim
	return a, nil
}

func (t *taking) undo() {
	if len(t.took) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), t.ledger.Timeout)
	defer cancel()
	refs := make([]Ref, len(t.took))
	for i, h := range t.took {
		refs[i] = h.Ref()
	}
	// What can't be given back now is pending, and the sweep finds it: no pod carries its claim.
	_ = t.ledger.release(ctx, 0, refs)
	t.took = nil
}

// lookUp finds the leases that the owner, or the claim, has already.
func (t *taking) lookUp() error {
	l := t.ledger
	find := func() bool {
		if t.request.Existing {
			t.have = l.ByClaim(t.request.Claim)
		}
		if t.request.Owner.Sticky() && len(t.have) == 0 {
			t.have = l.ByOwner(t.request.Owner)
		}
		return len(t.have) > 0
	}
	if !find() && t.request.Existing {
		if err := l.Refresh(t.ctx, t.subnets()...); err != nil {
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

// subnets names all candidates, and the L2 domains where a MAC was asked for.
func (t *taking) subnets() []string {
	var names []string
	for _, ir := range t.request.Interfaces {
		for _, s := range ir.Candidates {
			names = append(names, s.name)
			if s.domain != s.name && ir.MAC != (MAC{}) {
				names = append(names, s.domain)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// serve gives one interface its leases from the first candidate that can. Exhaustion is judged after one live read
// of all candidates.
func (t *taking) serve(ir InterfaceRequest) (Assignment, error) {
	var first error
	for _, live := range []bool{false, true} {
		if live {
			if err := t.ledger.Refresh(t.ctx, t.subnets()...); err != nil {
				return Assignment{}, fmt.Errorf("reading the blocks before a refusal: %w", err)
			}
			first = nil
		}
		for _, s := range ir.Candidates {
			mark := len(t.took)
			as, err := t.serveFrom(s, ir)
			if err == nil {
				return as, nil
			}
			var full *ExhaustedError
			if !errors.As(err, &full) {
				return Assignment{}, err
			}
			if first == nil {
				first = err
			}
			t.giveBack(mark)
		}
		if first == nil {
			return Assignment{}, fmt.Errorf("interface %s has no subnet to take from", ir.Provider)
		}
	}
	return Assignment{}, first
}

func (t *taking) giveBack(mark int) {
	rest := slices.Clone(t.took[:mark])
	t.took = t.took[mark:]
	t.undo()
	t.took = rest
}

func (t *taking) serveFrom(s *Subnet, ir InterfaceRequest) (Assignment, error) {
	as := Assignment{Provider: ir.Provider, Subnet: s}
	families := ir.Families
	if len(families) == 0 {
		families = s.Families()
	}
	asked := map[Family]netip.Addr{}
	for _, a := range ir.Addresses {
		if err := s.Check(a); err != nil {
			return as, err
		}
		asked[FamilyOf(a)] = a
	}
	for _, f := range families {
		if _, ok := s.Prefix(f); !ok {
			return as, &FamilyError{Subnet: s.name, Family: f}
		}
	}
	mac, err := t.askedMAC(s, ir, asked[IPv4])
	if err != nil {
		return as, err
	}
	for _, f := range families {
		h, err := t.address(s, ir, f, asked[f], mac)
		if err != nil {
			return as, err
		}
		mac = h.MAC
		as.Leases = append(as.Leases, h)
	}
	as.MAC = mac
	return as, nil
}

// askedMAC leases the MAC that was asked for. A MAC that is derived from the pod's own address needs no lease.
func (t *taking) askedMAC(s *Subnet, ir InterfaceRequest, v4 netip.Addr) (MAC, error) {
	m := ir.MAC
	if m == (MAC{}) {
		return m, nil
	}
	if m.Derived() {
		if v4.IsValid() && m == DerivedMAC(v4) {
			return m, nil
		}
		for _, h := range t.have { // a returning owner asks for what it has
			if h.Provider == ir.Provider && h.Address.Is4() && h.MAC == m {
				return m, nil
			}
		}
		return MAC{}, &MACReservedError{MAC: m}
	}
	return m, t.leaseMAC(s, ir.Provider, m, true)
}

func (t *taking) leaseMAC(s *Subnet, provider string, m MAC, requested bool) error {
	want := Lease{MAC: m, Claim: t.claim, Owner: t.request.Owner, Provider: provider, Requested: requested}
	_, err := t.claimLease(Block{Name: m.bucket(s.domain), Subnet: s.domain}, want, func(x *Lease) error {
		return &MACHeldError{Domain: s.domain, MAC: m, Holder: *x}
	})
	return err
}

// address gives the interface its address of one family: the one that it has, the one that it asks for, or any.
func (t *taking) address(s *Subnet, ir InterfaceRequest, f Family, asked netip.Addr, mac MAC) (Held, error) {
	if h, ok := t.kept(s, ir.Provider, f, asked); ok && (ir.MAC == (MAC{}) || h.MAC == ir.MAC) {
		return t.reuse(h)
	}
	want := Lease{Address: asked, MAC: mac, Claim: t.claim, Owner: t.request.Owner, Provider: ir.Provider, Requested: asked.IsValid()}
	if !asked.IsValid() {
		return t.any(s, f, want)
	}
	if err := t.fillMAC(s, &want); err != nil {
		return Held{}, err
	}
	return t.claimLease(blockOf(s, asked), want, func(x *Lease) error {
		return &HeldError{Subnet: s.name, Address: asked, Holder: *x}
	})
}

func blockOf(s *Subnet, a netip.Addr) Block {
	return Block{Name: BlockName(s.name, a), Subnet: s.name, SubnetUID: s.uid, First: blockFirst(a)}
}

// kept finds the lease that the interface has already.
func (t *taking) kept(s *Subnet, provider string, f Family, asked netip.Addr) (Held, bool) {
	for _, h := range t.have {
		if h.Address.IsValid() && h.Provider == provider && h.Subnet == s.name && FamilyOf(h.Address) == f && (!asked.IsValid() || h.Address == asked) {
			return h, true
		}
	}
	return Held{}, false
}

// reuse keeps a lease. A sticky owner's generation is raised, so that a release decided before is void; what a claim
// holds is as fresh as the claim.
func (t *taking) reuse(h Held) (Held, error) {
	if t.preview || !t.request.Owner.Sticky() || t.request.Existing && h.PodUID == "" {
		return h, nil
	}
	o := &op{ctx: t.ctx, apply: func(b *Block) (*Lease, error) {
		x := b.find(h.Address, h.MAC)
		if x == nil || x.Claim != h.Claim || x.Owner != h.Owner {
			return nil, &StaleError{Ref: h.Ref(), Now: x}
		}
		return b.put(*x), nil
	}, landed: landedAs}
	x, err := t.ledger.submit(t.ledger.entryAt(h.Ref()), o)
	if err != nil {
		return Held{}, err
	}
	h.Lease = *x
	return h, nil
}

func landedAs(b *Block, made *Lease) bool {
	x := b.find(made.Address, made.MAC)
	return x != nil && x.Claim == made.Claim && x.Generation == made.Generation
}

// claimLease takes the lease that want names, or keeps it where this claim has it.
func (t *taking) claimLease(template Block, want Lease, held func(*Lease) error) (Held, error) {
	fresh := true
	apply := func(b *Block) (*Lease, error) {
		fresh = true
		if x := b.find(want.Address, want.MAC); x != nil {
			if x.Claim == want.Claim && x.Provider == want.Provider {
				fresh = false
				return x, nil
			}
			return nil, held(x)
		}
		if err := settle(b, template.SubnetUID); err != nil {
			return nil, err
		}
		return b.put(want), nil
	}
	return t.commit(template, apply, &fresh)
}

// settle makes an empty block of a former Subnet this one's.
func settle(b *Block, uid string) error {
	if b.SubnetUID == uid || b.MACs() {
		return nil
	}
	if len(b.Leases) > 0 {
		return errFull
	}
	b.SubnetUID, b.Freed = uid, nil
	return nil
}

// commit has apply committed to a block and notes what it made.
func (t *taking) commit(template Block, apply func(*Block) (*Lease, error), fresh *bool) (Held, error) {
	l := t.ledger
	l.mu.Lock()
	e := l.entryOf(template)
	if t.preview {
		defer l.mu.Unlock()
		x, err := apply(draftOf(e.block, template))
		if err != nil {
			return Held{}, err
		}
		return Held{Block: e.name, Subnet: template.Subnet, Lease: *x}, nil
	}
	l.mu.Unlock()
	o := &op{ctx: t.ctx, apply: apply, landed: landedAs}
	o.undo = func(made *Lease) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), l.Timeout)
		go func() {
			defer cancel()
			_ = l.release(ctx, 0, []Ref{Held{Block: e.name, Lease: *made}.Ref()}) // else the sweep finds it pending
		}()
	}
	x, err := l.submit(e, o)
	if err != nil {
		return Held{}, err
	}
	h := Held{Block: e.name, Subnet: template.Subnet, Lease: *x}
	if *fresh {
		t.took = append(t.took, h)
	}
	return h, nil
}

// fillMAC gives want a MAC by its address when it has none.
func (t *taking) fillMAC(s *Subnet, want *Lease) error {
	if want.MAC != (MAC{}) {
		return nil
	}
	if want.Address.Is4() {
		want.MAC = DerivedMAC(want.Address)
		return nil
	}
	return t.hashedMAC(s, want)
}

// hashedMAC leases a MAC for an interface that has only an IPv6 address.
func (t *taking) hashedMAC(s *Subnet, want *Lease) error {
	for salt := uint32(0); ; salt++ {
		m := HashedMAC(want.Address, salt)
		err := t.leaseMAC(s, want.Provider, m, false)
		var held *MACHeldError
		if err == nil {
			want.MAC = m
			return nil
		}
		if !errors.As(err, &held) || salt == 64 {
			return err
		}
	}
}

// any takes an address that nobody asked for.
func (t *taking) any(s *Subnet, f Family, want Lease) (Held, error) {
	l := t.ledger
	fresh := true
	for {
		l.mu.Lock()
		c, freshOnly := l.pick(s, f)
		if c == nil {
			l.mu.Unlock()
			return Held{}, &ExhaustedError{Subnet: s.name, Family: f, Figures: l.Figures(s, f)}
		}
		c.inflight++
		c.fix()
		e, mask, template := c.e, c.mask, c.e.template
		l.mu.Unlock()
		h, err := t.commit(template, func(b *Block) (*Lease, error) {
			if err := settle(b, s.uid); err != nil {
				return nil, err
			}
			a, ok := choose(b, mask, freshOnly)
			if !ok {
				return nil, errFull
			}
			x := want
			x.Address = a
			switch {
			case x.MAC != (MAC{}):
			case a.Is4():
				x.MAC = DerivedMAC(a)
			default:
				x.MAC = HashedMAC(a, 0)
			}
			return b.put(x), nil
		}, &fresh)
		l.mu.Lock()
		c.inflight--
		if e.cell == c {
			c.fix()
		}
		l.mu.Unlock()
		if errors.Is(err, errFull) {
			if t.preview {
				return Held{}, &ExhaustedError{Subnet: s.name, Family: f, Figures: l.Figures(s, f)}
			}
			continue
		}
		if err != nil || f == IPv4 || want.MAC != (MAC{}) {
			return h, err
		}
		return t.addMAC(s, h)
	}
}

// addMAC leases the MAC of an interface that has only an IPv6 address, and corrects the address's lease when the
// first choice had a holder.
func (t *taking) addMAC(s *Subnet, h Held) (Held, error) {
	want := h.Lease
	if err := t.hashedMAC(s, &want); err != nil {
		return Held{}, err
	}
	if t.preview || want.MAC == h.MAC {
		h.MAC = want.MAC
		return h, nil
	}
	r := h.Ref()
	o := &op{ctx: t.ctx, apply: func(b *Block) (*Lease, error) {
		x, err := b.at(r)
		if err != nil {
			return nil, err
		}
		y := *x
		y.MAC = want.MAC
		return b.put(y), nil
	}, landed: landedAs}
	x, err := t.ledger.submit(t.ledger.entryAt(r), o)
	if err != nil {
		return Held{}, err
	}
	old := h
	h.Lease = *x
	for i := range t.took {
		if t.took[i].Ref() == old.Ref() {
			t.took[i] = h
		}
	}
	return h, nil
}

// choose gives the address of b that nobody used for longest.
func choose(b *Block, mask uint64, freshOnly bool) (netip.Addr, bool) {
	used, old := b.used()
	if free := mask &^ used &^ old; free != 0 {
		return addOffset(b.First, uint8(bits.TrailingZeros64(free))), true
	}
	if freshOnly {
		return netip.Addr{}, false
	}
	best := -1
	for i, f := range b.Freed {
		if mask&(1<<offsetIn(f.Address)) != 0 && (best < 0 || f.At < b.Freed[best].At) {
			best = i
		}
	}
	if best < 0 {
		return netip.Addr{}, false
	}
	return b.Freed[best].Address, true
}

// confirm looks, after an owner's first lease, whether somebody else took one for the same owner.
func (t *taking) confirm() error {
	if !t.request.Owner.Sticky() || len(t.took) == 0 || len(t.have) > 0 || t.preview {
		return nil
	}
	if err := t.ledger.Refresh(t.ctx, t.subnets()...); err != nil {
		return fmt.Errorf("confirming the first lease of %s: %w", t.request.Owner, err)
	}
	for _, h := range t.ledger.ByOwner(t.request.Owner) {
		if h.Claim != t.claim {
			return errRival
		}
	}
	return nil
}

// Preview tells what Take would give now, as the cache knows it, without writing.
func (l *Ledger) Preview(ctx context.Context, r Request) (*Allocation, error) {
	return (&taking{ledger: l, ctx: ctx, request: r, claim: r.Claim, preview: true}).run()
}
