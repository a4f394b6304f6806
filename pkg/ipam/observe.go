package ipam

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// Observe tells of a block as it was at its ResourceVersion.
func (l *Ledger) Observe(b *Block) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.observe(b)
}

func (l *Ledger) observe(b *Block) {
	e := l.entryOf(Block{Name: b.Name, Subnet: b.Subnet, SubnetUID: b.SubnetUID, First: b.First})
	if e.block == nil || newer(b.ResourceVersion, e.block.ResourceVersion) {
		l.install(e, b)
	}
}

// Forget tells that the block was gone at that ResourceVersion.
func (l *Ledger) Forget(name, resourceVersion string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.known[name]; e != nil && e.block != nil && !newer(e.block.ResourceVersion, resourceVersion) {
		l.clear(e)
		l.install(e, nil)
	}
}

// Replace tells all blocks that there are at that ResourceVersion.
func (l *Ledger) Replace(blocks []*Block, resourceVersion string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.replace(blocks, resourceVersion, false)
}

// replace takes in a list of all blocks of the subnets; of none named, of all. live tells that it was read after what
// was known at that resourceVersion.
func (l *Ledger) replace(blocks []*Block, resourceVersion string, live bool, subnets ...string) {
	there := make(map[string]bool, len(blocks))
	for _, b := range blocks {
		there[b.Name] = true
		if e := l.known[b.Name]; live && e != nil && e.wentBack(b, resourceVersion) {
			l.loseSurely(b.Subnet, fmt.Sprintf("block %s is older than it was", b.Name))
			l.install(e, b)
			continue
		}
		l.observe(b)
	}
	within := make(map[string]bool, len(subnets))
	for _, s := range subnets {
		within[s] = true
	}
	for name, e := range l.known {
		if !there[name] && e.block != nil && (len(within) == 0 || within[e.template.Subnet]) &&
			(resourceVersion == "" || !newer(e.block.ResourceVersion, resourceVersion)) {
			l.install(e, nil)
		}
	}
}

// Refresh reads the blocks of the named subnets (and L2 domains) live into the cache; none named means all.
func (l *Ledger) Refresh(ctx context.Context, subnets ...string) error {
	_, err := l.refresh(ctx, subnets...)
	return err
}

// reads are the live reads of the same subnets: one at a time, for a list may be large, and many may be refused at once.
type reads struct {
	running bool
	next    *read // that has not begun
}

// read is one of them, for all who came before it began.
type read struct {
	asOf uint64
	err  error
	done chan struct{}
}

// refresh gives the count of takes up to which the cache then shows the blocks as they all were at one moment, after the
// call began.
func (l *Ledger) refresh(ctx context.Context, subnets ...string) (asOf uint64, err error) {
	key := strings.Join(subnets, " ")
	l.mu.Lock()
	rs := l.reads[key]
	if rs == nil {
		rs = &reads{}
		l.reads[key] = rs
	}
	if rs.next == nil {
		rs.next = &read{done: make(chan struct{})}
	}
	r := rs.next
	if !rs.running {
		rs.running = true
		go l.readAll(context.WithoutCancel(ctx), key, subnets)
	}
	l.mu.Unlock()
	select {
	case <-r.done:
		return r.asOf, r.err
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// readAll reads the subnets until nobody waits for it.
func (l *Ledger) readAll(ctx context.Context, key string, subnets []string) {
	for {
		l.mu.Lock()
		r := l.reads[key].next
		l.reads[key].next = nil
		if r == nil {
			delete(l.reads, key)
		}
		l.mu.Unlock()
		if r == nil {
			return
		}
		r.asOf, r.err = l.read(ctx, subnets)
		close(r.done)
	}
}

func (l *Ledger) read(ctx context.Context, subnets []string) (asOf uint64, err error) {
	l.mu.Lock()
	before, asOf := l.highest(subnets), l.takes
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	bs, err := l.Store.List(ctx, subnets...)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	quiet := l.takes == asOf
	// What was known before the read began and is not in it is gone; what came to be known since may be newer.
	l.replace(bs, before, true, subnets...)
	if quiet {
		asOf = l.takes
	}
	return asOf, nil
}

// refreshOwner reads the leases that the sticky owner has in the named subnets live into the cache. A block that is not
// among them and was thought to hold one is read again by itself.
func (l *Ledger) refreshOwner(ctx context.Context, o Owner, subnets ...string) error {
	listing, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	bs, err := l.Store.ListOwner(listing, o, subnets...)
	if err != nil {
		return err
	}
	l.mu.Lock()
	stale := map[*entry]bool{}
	for _, k := range l.owners[o] {
		if slices.Contains(subnets, k.e.template.Subnet) {
			stale[k.e] = true
		}
	}
	for _, b := range bs {
		l.observe(b)
		delete(stale, l.known[b.Name])
	}
	l.mu.Unlock()
	for e := range stale {
		if err := l.reload(ctx, e); err != nil {
			return err
		}
	}
	return nil
}

// highest is the highest resourceVersion that is known among the subnets' blocks; "0" when there is none.
func (l *Ledger) highest(subnets []string) string {
	top := "0"
	see := func(e *entry) {
		if e.block != nil && newer(e.block.ResourceVersion, top) {
			top = e.block.ResourceVersion
		}
	}
	if len(subnets) == 0 {
		for _, e := range l.known {
			see(e)
		}
	}
	for _, s := range subnets {
		for e := range l.bySub[s] {
			see(e)
		}
	}
	return top
}
