package ipam

import (
	"context"
	"errors"
	"math/bits"
	"net/netip"
	"slices"
)

// choices gives what of the interface's choices the subnet has, the interface's own leases first; one empty choice
// when nothing is asked for. It passes over what the cache knows to be held while there are others.
func (s *serving) choices(sub *Subnet) ([][]netip.Addr, error) {
	if len(s.ir.Choices) == 0 {
		return [][]netip.Addr{nil}, nil
	}
	var own, open, held [][]netip.Addr
	var first error
	for _, choice := range s.ir.Choices {
		if err := s.check(sub, choice); err != nil {
			first = better(first, err)
			continue
		}
		switch mine, theirs := s.standing(sub, choice); {
		case mine:
			own = append(own, choice)
		case theirs:
			held = append(held, choice)
		default:
			open = append(open, choice)
		}
	}
	if len(held) > 0 {
		// One of these is tried at last: its block is read live, and the holder named. The others are passed over by the
		// cache's word, and judged again after a live read of all.
		s.unsure = s.unsure || !s.live
		held = held[:1]
	}
	out := slices.Concat(own, open, held)
	if len(out) == 0 {
		return nil, first
	}
	return out, nil
}

func (s *serving) check(sub *Subnet, choice []netip.Addr) error {
	for _, a := range choice {
		if err := sub.Check(a, s.ir.Reservation); err != nil {
			return err
		}
	}
	return nil
}

// standing tells, by the cache, that the interface has one of the addresses, or somebody else.
func (s *serving) standing(sub *Subnet, choice []netip.Addr) (mine, theirs bool) {
	l := s.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range choice {
		e := l.known[BlockName(sub.name, a)]
		if e == nil || e.block == nil {
			continue
		}
		if x := e.block.find(a, MAC{}); x != nil {
			if x.Claim == s.claim && x.Provider == s.ir.Provider {
				mine = true
			} else if x.Owner != s.ir.Reservation {
				theirs = true
			}
		}
	}
	return mine && !theirs, theirs
}

// address gives the interface its address of one family: the one that it has, the one that it asks for, or any.
func (s *serving) address(c Source, f Family, asked netip.Addr, mac MAC) (Held, error) {
	if h, ok := s.kept(c, f, asked); ok {
		return s.keep(c, h, mac)
	}
	want := Lease{Address: asked, MAC: mac, Claim: s.claim, Owner: s.request.Owner, Provider: s.ir.Provider, Requested: asked.IsValid()}
	if !asked.IsValid() {
		return s.any(c, f, want)
	}
	if r := s.ir.Reservation; r != (Owner{}) && r != s.request.Owner {
		want.Under = &r
	}
	if err := s.fillMAC(c.Subnet, &want); err != nil {
		return Held{}, err
	}
	return s.claimLease(blockOf(c.Subnet, asked), want, func(x *Lease) error {
		return &HeldError{Subnet: c.Subnet.name, Address: asked, Holder: *x}
	})
}

func blockOf(s *Subnet, a netip.Addr) Block {
	return Block{Name: BlockName(s.name, a), Subnet: s.name, SubnetUID: s.uid, First: blockFirst(a)}
}

// allows tells whether a lease that the interface has is one that it may have from the source.
func (s *serving) allows(c Source, h Held) bool {
	if !c.Subnet.usable.Contains(h.Address) { // its CIDR, or its gateway, is another by now
		return false
	}
	if len(s.ir.Choices) > 0 {
		f := FamilyOf(h.Address)
		return slices.ContainsFunc(s.ir.Choices, func(choice []netip.Addr) bool {
			return slices.Contains(choice, h.Address) || !slices.ContainsFunc(choice, func(a netip.Addr) bool { return FamilyOf(a) == f })
		})
	}
	return c.Pool == "" || c.Subnet.InPool(c.Pool, h.Address)
}

// kept finds the lease that the interface has already.
func (s *serving) kept(c Source, f Family, asked netip.Addr) (Held, bool) {
	for _, h := range s.have {
		if h.Address.IsValid() && h.Provider == s.ir.Provider && h.Subnet == c.Subnet.name && FamilyOf(h.Address) == f &&
			(h.Address == asked || !asked.IsValid() && s.allows(c, h)) {
			return h, true
		}
	}
	return Held{}, false
}

// keep keeps a lease that the interface has, with the MAC that the interface is to have.
func (s *serving) keep(c Source, h Held, mac MAC) (Held, error) {
	switch {
	case mac != (MAC{}) || s.beside:
	case s.noMAC():
		mac = h.MAC
	default:
		x := h.Lease
		if err := s.keepMAC(c.Subnet, &x); err != nil {
			return Held{}, err
		}
		mac = x.MAC
	}
	return s.reuse(h, mac)
}

// renews tells that a lease which is kept gets a new generation: a sticky owner's does, so that a release decided before is
// void; what a claim holds is as fresh as the claim.
func (s *serving) renews(x *Lease) bool {
	return s.request.Shared || s.request.Owner.Sticky() && (!s.request.Existing || x.PodUID != "")
}

// reuse keeps a lease. The interface's MAC, where it is another now, goes into it.
func (s *serving) reuse(h Held, mac MAC) (Held, error) {
	if s.preview() || mac == h.MAC && !s.renews(&h.Lease) {
		h.MAC = mac
		return h, nil
	}
	var was *Lease // before the first attempt that may have been stored
	return s.commit(Block{Name: h.Block, Subnet: h.Subnet, First: firstOfBlock(h.Address)}, func(b *Block) (step, error) {
		x := b.find(h.Address, h.MAC)
		if x == nil || x.Claim != h.Claim || x.Owner != h.Owner {
			return step{}, &StaleError{Ref: h.Ref(), Now: x}
		}
		if x.MAC != mac {
			was = x
		}
		y := *x
		y.MAC = mac
		return step{lease: b.put(y), fresh: was != nil, was: was, again: true}, nil
	})
}

// firstOfBlock is the zero value for a lease in a bucket of MACs.
func firstOfBlock(a netip.Addr) netip.Addr {
	if !a.IsValid() {
		return a
	}
	return blockFirst(a)
}

func landedAs(b *Block, made *Lease) bool {
	x := b.find(made.Address, made.MAC)
	return x != nil && x.Claim == made.Claim && x.Generation == made.Generation && x.Provider == made.Provider && x.MAC == made.MAC
}

// claimLease takes the lease that want names, or keeps it where this claim has it. What is reserved for want.Under is
// lent.
func (s *serving) claimLease(template Block, want Lease, held func(*Lease) error) (Held, error) {
	return s.commit(template, func(b *Block) (step, error) {
		if x := b.find(want.Address, want.MAC); x != nil {
			switch {
			case x.Claim == want.Claim && x.Provider == want.Provider && s.renews(x):
				return step{lease: b.put(*x), again: true}, nil
			case x.Claim == want.Claim && x.Provider == want.Provider:
				return step{lease: x}, nil
			case !want.LentFrom(x.Owner):
				return step{}, held(x)
			}
		}
		if settle(b, template.SubnetUID) != nil {
			return step{}, &FormerSubnetError{Subnet: b.Subnet, Block: b.Name, Holder: *b.Leases[0]}
		}
		return take(b, want), nil
	})
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

// step is what one operation made of a block.
type step struct {
	lease *Lease
	fresh bool   // the lease was not there before, or another was
	was   *Lease // that other
	prior Freed  // what was remembered of its address
	again bool   // others may make the same of the lease at the same moment, and it may be done twice
}

func take(b *Block, x Lease) step {
	was, prior := b.find(x.Address, x.MAC), b.freed(x.Address)
	return step{lease: b.put(x), fresh: true, was: was, prior: prior}
}

// commit has apply committed to a block and notes what it made.
func (s *serving) commit(template Block, apply func(*Block) (step, error)) (Held, error) {
	if s.preview() {
		return s.draft(template, apply)
	}
	l := s.ledger
	l.mu.Lock()
	e := l.entryOf(template)
	l.mu.Unlock()
	var made step
	o := &op{ctx: s.ctx, patient: s.request.patient}
	o.apply = func(b *Block) (*Lease, error) {
		before := made
		err := l.opened(b)
		if err != nil { // what is missing in the block is not free
			return nil, err
		}
		if made, err = apply(b); err == nil && o.doubt && made.again && before.fresh && !made.fresh {
			made.fresh, made.was = true, before.was // it had landed
		}
		o.doubt = false
		return made.lease, err
	}
	o.landed = func(b *Block, x *Lease) bool { return !made.again && landedAs(b, x) }
	o.undo = func(x *Lease) {
		if !made.fresh {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), l.Timeout)
		go func() {
			defer cancel()
			// Else the sweep finds it pending.
			_ = l.giveBack(ctx, taken{Held: Held{Block: e.name, Lease: *x}, was: made.was, prior: made.prior})
		}()
	}
	x, err := l.submit(e, o)
	if err != nil {
		return Held{}, err
	}
	h := Held{Block: e.name, Subnet: template.Subnet, Lease: *x}
	if made.fresh {
		s.took = append(s.took, taken{Held: h, was: made.was, prior: made.prior})
	}
	return h, nil
}

// draft applies to what the preview has made of the block so far. A block that isn't known stays so: nothing would take it
// out of the cache again.
func (s *serving) draft(template Block, apply func(*Block) (step, error)) (Held, error) {
	l := s.ledger
	b := s.drafts[template.Name]
	if b == nil {
		l.mu.Lock()
		var known *Block
		if e := l.known[template.Name]; e != nil {
			known = e.block
		}
		b = draftOf(known, template)
		l.mu.Unlock()
		s.drafts[template.Name] = b
	}
	made, err := apply(b)
	if err != nil {
		s.unsure = s.unsure || !s.live
		return Held{}, err
	}
	return Held{Block: template.Name, Subnet: template.Subnet, Lease: *made.lease}, nil
}

// any takes an address that nobody asked for: a sticky owner's former one while it rests, else the one that was not
// used for longest.
func (s *serving) any(c Source, f Family, want Lease) (Held, error) {
	l := s.ledger
	if a, ok := l.former(s.request.Owner, c, f); ok {
		h, err := s.takeFrom(c, f, blockOf(c.Subnet, a), want, func(b *Block) (netip.Addr, bool) {
			return a, b.freed(a).Owner == s.request.Owner
		})
		if !errors.Is(err, errFull) {
			return h, err
		}
	}
	for {
		l.mu.Lock()
		cell, freshOnly := l.pick(c, f)
		if cell == nil {
			s.unsure = s.unsure || !s.live || l.takenSince(c, f, s.asOf)
			l.mu.Unlock()
			return Held{}, &ExhaustedError{Subnet: c.Subnet.name, Pool: c.Pool, Family: f, Figures: l.PoolFigures(c, f)}
		}
		cell.inflight++
		cell.fix()
		mask, template := cell.mask, cell.e.template
		l.mu.Unlock()
		h, err := s.takeFrom(c, f, template, want, func(b *Block) (netip.Addr, bool) { return choose(b, mask, freshOnly) })
		l.mu.Lock()
		cell.inflight--
		if cell.e.on(cell.shelf) == cell {
			cell.fix()
		}
		l.mu.Unlock()
		if !errors.Is(err, errFull) {
			return h, err
		}
		if s.preview() {
			return Held{}, &ExhaustedError{Subnet: c.Subnet.name, Pool: c.Pool, Family: f, Figures: l.PoolFigures(c, f)}
		}
	}
}

// takeFrom takes the address that choose gives, and its MAC.
func (s *serving) takeFrom(c Source, f Family, template Block, want Lease, choose func(*Block) (netip.Addr, bool)) (Held, error) {
	h, err := s.commit(template, func(b *Block) (step, error) {
		if err := settle(b, c.Subnet.uid); err != nil {
			return step{}, err
		}
		a, ok := choose(b)
		if !ok {
			return step{}, errFull
		}
		x := want
		x.Address = a
		switch {
		case x.MAC != (MAC{}):
		case a.Is4():
			x.MAC = DerivedMAC(a)
		case !s.noMAC():
			x.MAC = HashedMAC(a, 0)
		}
		return take(b, x), nil
	})
	if err != nil || f == IPv4 || want.MAC != (MAC{}) || s.noMAC() {
		return h, err
	}
	return s.addMAC(c.Subnet, h)
}

// former finds an address of the source that the sticky owner had and that rests.
func (l *Ledger) former(o Owner, c Source, f Family) (netip.Addr, bool) {
	if !o.Sticky() {
		return netip.Addr{}, false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	var best Freed
	set := c.Subnet.region(c.Pool)
	for k, at := range l.formerly[o] {
		a := k.addr.addr
		if k.e.template.Subnet == c.Subnet.name && k.e.block != nil && k.e.block.SubnetUID == c.Subnet.uid && FamilyOf(a) == f && set != nil &&
			set.of(f).Contains(a) && at > best.At {
			best = Freed{Address: a, At: at}
		}
	}
	return best.Address, best.At > 0
}

// choose gives the address of b that nobody used for longest.
func choose(b *Block, mask uint64, freshOnly bool) (netip.Addr, bool) {
	used, old := b.bits()
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
