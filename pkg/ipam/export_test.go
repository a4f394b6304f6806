package ipam

// Chooser does what of an unasked take happens in memory, on the ledger's own cache: the choice of the block, the
// choice of the address, and the lease in the block's draft. Nothing is stored.
type Chooser struct {
	ledger *Ledger
	source Source
	drafts map[*entry]*Block
	cells  []*cell           // of the takes that are under way
	were   map[*entry]*Block // what installed blocks were before
}

// NewChooser makes one that takes IPv4 addresses from src.
func NewChooser(l *Ledger, src Source) *Chooser {
	return &Chooser{ledger: l, source: src, drafts: map[*entry]*Block{}, were: map[*entry]*Block{}}
}

// Choose makes a lease of any address, and tells whether there was one. Its take is under way until Install or Reset.
func (c *Chooser) Choose(want Lease) bool {
	l := c.ledger
	l.mu.Lock()
	cell, freshOnly := l.pick(c.source, IPv4)
	if cell == nil {
		l.mu.Unlock()
		return false
	}
	cell.inflight++
	cell.fix()
	l.mu.Unlock()
	c.cells = append(c.cells, cell)
	b := c.drafts[cell.e]
	if b == nil {
		b = draftOf(cell.e.block, cell.e.template)
		c.drafts[cell.e] = b
	}
	a, ok := choose(b, cell.mask, freshOnly)
	if !ok {
		return false
	}
	want.Address, want.MAC = a, DerivedMAC(a)
	take(b, want)
	return true
}

// Install puts the drafts into the cache, as after their writes, and ends the takes that are under way.
func (c *Chooser) Install() {
	l := c.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for e, b := range c.drafts {
		if _, ok := c.were[e]; !ok {
			c.were[e] = e.block
		}
		l.install(e, b)
	}
	c.settle()
}

// Reset undoes all that was chosen.
func (c *Chooser) Reset() {
	l := c.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	c.settle()
	for e, b := range c.were {
		l.install(e, b)
	}
	clear(c.were)
}

func (c *Chooser) settle() {
	for _, x := range c.cells {
		x.inflight--
		x.fix()
	}
	c.cells = c.cells[:0]
	clear(c.drafts)
}
