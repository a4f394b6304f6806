package ipam

import "fmt"

// ClosedError says that nothing is given from a subnet now: leases of it may have been lost, and whoever has such an
// address must be found first. It is a fault of the system and no Refusal.
type ClosedError struct {
	Subnet, Reason string
}

func (e *ClosedError) Error() string {
	return fmt.Sprintf("subnet %s is closed until its leases are restored: %s", e.Subnet, e.Reason)
}

// Closed tells why nothing is to be given from the subnet; empty: it is open.
func (s *Subnet) Closed() string { return s.closed }

// Loss is why a subnet, or an L2 domain, is closed here.
type Loss struct {
	Reason string
	// Times is how often leases were found to be lost since it was open.
	Times int
}

// loss is why a subnet (or an L2 domain) is closed here.
type loss struct {
	Loss
	// blocks that were not there any more in a read. The watch, which tells everything in order, may yet show that they were
	// emptied before they were deleted.
	blocks map[string]bool
	// sure tells that there is more than that.
	sure bool
}

// lose closes what belongs to a subnet (or an L2 domain), for leases of it have gone that nobody gave back. l.mu is held.
func (l *Ledger) lose(subnet, reason string) *loss {
	if subnet == "" {
		return nil
	}
	x := l.lost[subnet]
	if x == nil {
		x = &loss{Loss: Loss{Reason: reason}, blocks: map[string]bool{}}
		l.lost[subnet] = x
	}
	if x.Times++; x.Times > 1 {
		return x
	}
	if l.Lost != nil {
		l.Lost(subnet, reason)
	}
	return x
}

// loseSurely is lose where nothing that is seen later can clear it up. l.mu is held.
func (l *Ledger) loseSurely(subnet, reason string) {
	if x := l.lose(subnet, reason); x != nil {
		x.sure = true
	}
}

// clear is for a block that the watch has shown to be deleted. One that was empty by then was only seen late. l.mu is
// held.
func (l *Ledger) clear(e *entry) {
	x := l.lost[e.template.Subnet]
	if x == nil || len(e.block.Leases) > 0 {
		return
	}
	if delete(x.blocks, e.name); len(x.blocks) == 0 && !x.sure {
		delete(l.lost, e.template.Subnet)
	}
}

// Close closes a subnet to new leases here, until Reopen. What is there may still be bound, freed and restored.
func (l *Ledger) Close(subnet, reason string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loseSurely(subnet, reason)
}

// Reopen opens what Close, or a loss that was noticed here, has closed, unless more was lost since it was seen.
func (l *Ledger) Reopen(subnet string, seen Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.lost[subnet]; x != nil && x.Times == seen.Times {
		delete(l.lost, subnet)
	}
}

// ClosedHere tells which subnets, and L2 domains, are closed here, and why.
func (l *Ledger) ClosedHere() map[string]Loss {
	l.mu.Lock()
	defer l.mu.Unlock()
	out := make(map[string]Loss, len(l.lost))
	for s, x := range l.lost {
		out[s] = x.Loss
	}
	return out
}

// Open tells that leases may be taken in a subnet: a *ClosedError otherwise.
func (l *Ledger) Open(s *Subnet) error {
	if s.closed != "" {
		return &ClosedError{Subnet: s.name, Reason: s.closed}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, name := range []string{s.name, s.domain} {
		if x := l.lost[name]; x != nil {
			return &ClosedError{Subnet: s.name, Reason: x.Reason}
		}
	}
	return nil
}

// compareWith tells, before b (nil: none) takes the place of what is known of e, whether leases were lost: a block with
// leases is never deleted, and its revision only grows. l.mu is held.
func (l *Ledger) compareWith(e *entry, b *Block) {
	old := e.block
	if old == nil || len(old.Leases) == 0 {
		return
	}
	switch {
	case b == nil:
		if x := l.lose(old.Subnet, fmt.Sprintf("block %s is gone with %d leases", old.Name, len(old.Leases))); x != nil {
			x.blocks[old.Name] = true
		}
	case b.Revision < old.Revision:
		l.loseSurely(old.Subnet, fmt.Sprintf("block %s went back from revision %d to %d", old.Name, old.Revision, b.Revision))
	}
}

// wentBack tells that a live read gave a block that is older than what was known before the read began: the store itself
// was put back. asOf is the highest resourceVersion that was known then.
func (e *entry) wentBack(b *Block, asOf string) bool {
	return e.block != nil && newer(e.block.ResourceVersion, b.ResourceVersion) && !newer(e.block.ResourceVersion, asOf)
}

// open keeps a request's candidates to those from which leases may be taken. A sticky owner may have leases in any of
// them, so that one that is closed stops all.
func (s *serving) open() error {
	var open []Source
	for _, c := range s.ir.Candidates {
		err := s.ledger.Open(c.Subnet)
		if err == nil {
			open = append(open, c)
			continue
		}
		if s.shut = err; s.request.Owner.Sticky() || s.request.Existing {
			return err
		}
	}
	if len(open) == 0 {
		return s.shut
	}
	s.ir.Candidates = open
	return nil
}

// stillOpen tells, when all is taken, that nothing was lost meanwhile in what it was taken from.
func (t *taking) stillOpen(a *Allocation) error {
	for _, i := range a.Interfaces {
		if i.Subnet == nil {
			continue
		}
		if err := t.ledger.Open(i.Subnet); err != nil {
			return err
		}
	}
	return nil
}

// opened tells that leases may be taken in a block.
func (l *Ledger) opened(b *Block) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if x := l.lost[b.Subnet]; x != nil {
		return &ClosedError{Subnet: b.Subnet, Reason: x.Reason}
	}
	return nil
}
