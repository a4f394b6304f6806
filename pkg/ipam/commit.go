package ipam

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// op is one change of one block. Its committer applies it together with whatever else arrived while the block's last
// write was in flight.
type op struct {
	ctx context.Context //nolint:containedctx // the caller's, who waits for the op
	// apply changes the draft and returns the lease that it made or kept. It may be called several times, on ever
	// newer drafts. An error leaves the draft as it was.
	apply func(draft *Block) (*Lease, error)
	// landed tells, after a write whose outcome is unknown, that its effect is in b.
	landed func(b *Block, made *Lease) bool
	// undo gives back what apply made, for a caller who has left; nil when there is nothing to give back.
	undo func(made *Lease)

	// patient is how long it waits for others to share its write, where none is in flight.
	patient time.Duration
	// frees tells that the op gives a lease back: that it is gone already is as good.
	frees bool
	// doubt tells that it may have landed already.
	doubt bool

	lease *Lease
	err   error
	left  bool // the caller has given up; guarded by Ledger.mu
	done  chan struct{}
}

// submit queues o for e's block and waits for the answer, or until ctx ends: then what o makes is given back.
func (l *Ledger) submit(e *entry, o *op) (*Lease, error) {
	o.done = make(chan struct{})
	l.mu.Lock()
	if l.known[e.name] != e { // forgotten in between
		e2 := l.entryOf(e.template)
		e = e2
	}
	e.queue = append(e.queue, o)
	if linger := l.lingerOf(e, o.patient); !e.running {
		e.running, e.linger, e.hurry = true, linger, make(chan struct{})
		go l.commit(e, linger, e.hurry)
	} else if linger < e.linger { // somebody waits for this one
		e.linger = 0
		close(e.hurry)
	}
	l.mu.Unlock()
	select {
	case <-o.done:
		return o.lease, o.err
	case <-o.ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-o.done: // answered at the same moment
		return o.lease, o.err
	default:
		o.left = true
		if i := slices.Index(e.queue, o); i >= 0 && !o.frees { // nothing was made of it: a block that can't be written gathers none
			e.queue = slices.Delete(e.queue, i, i+1)
		}
		return nil, context.Cause(o.ctx)
	}
}

// crowd changes of a block in one write, less than crowdTime ago, mean that many pods come or go at once: the next ones wait
// for each other crowdLinger times as long as one alone.
const (
	crowd       = 4
	crowdTime   = time.Second
	crowdLinger = 25
)

// lingerOf is how long a change of e waits for others to share its write. l.mu is held.
func (l *Ledger) lingerOf(e *entry, patient time.Duration) time.Duration {
	linger := l.Linger
	if e.shared >= crowd && l.Clock.Since(e.wrote) < crowdTime {
		linger *= crowdLinger
	}
	return max(linger, patient)
}

// commit writes what is queued for e until nothing is. It lets others join first, for a while or until one is in a hurry;
// those that came while it wrote have waited, unless there is a crowd.
func (l *Ledger) commit(e *entry, linger time.Duration, hurry <-chan struct{}) {
	for {
		if linger > 0 {
			select {
			case <-l.Clock.After(linger):
			case <-hurry:
			}
		}
		l.mu.Lock()
		batch := e.queue
		e.queue, e.linger = nil, 0
		l.mu.Unlock()
		if len(batch) > 0 {
			l.write(e, batch)
		}
		l.mu.Lock()
		if len(e.queue) == 0 {
			e.running = false
			if e.block == nil {
				l.install(e, nil)
			}
			l.mu.Unlock()
			return
		}
		if linger = l.lingerOf(e, 0); linger == l.Linger {
			linger = 0
		} else {
			e.linger, e.hurry = linger, make(chan struct{})
		}
		hurry = e.hurry
		l.mu.Unlock()
	}
}

// write applies ops to e's block and stores it, until each of them is answered.
func (l *Ledger) write(e *entry, ops []*op) {
	ctx := context.WithoutCancel(ops[0].ctx)
	live := false
	for failed := 0; len(ops) > 0; {
		l.mu.Lock()
		base, template := e.block, e.template
		l.mu.Unlock()
		draft := draftOf(base, template)
		if err := l.stride(draft); err != nil {
			l.answer(ops, err)
			return
		}
		todo, doubted := l.applyAll(draft, ops, live)
		if len(doubted) > 0 { // a cache may say yes; only a live read says no
			if err := l.reload(ctx, e); err != nil {
				l.answer(ops, err)
				return
			}
			live = true
			continue
		}
		ops = todo
		if len(ops) == 0 {
			return
		}
		if base == nil && draft.Revision == 0 || base != nil && draft.Revision == base.Revision {
			if !live { // there is no compare-and-swap to correct what the cache says
				if err := l.reload(ctx, e); err != nil {
					l.answer(ops, err)
					return
				}
				live = true
				continue
			}
			l.answer(ops, nil)
			return
		}
		stored, err := l.store(ctx, draft)
		switch {
		case err == nil:
			l.committed(e, stored, ops)
			return
		case errors.Is(err, ErrConflict):
			err = l.reload(ctx, e)
			l.conflicted(e, base)
			live = true
			if err != nil {
				l.answer(ops, err)
				return
			}
		case errors.Is(err, ErrRefused):
			if len(ops) > 1 { // one that can't be written never fails its neighbours
				l.write(e, ops[:len(ops)/2])
				l.write(e, ops[len(ops)/2:])
				return
			}
			l.answer(ops, err)
			return
		default:
			if ops = l.resolve(ctx, e, ops, err); len(ops) == 0 {
				return
			}
			<-l.Clock.After(10 * time.Millisecond << min(failed, 6)) // a store that fails at once is not to be stormed
			failed++
			live = true
		}
	}
}

// stride draws how far changes move the draft's revision.
func (l *Ledger) stride(draft *Block) error {
	var b [2]byte
	if _, err := io.ReadFull(l.Random, b[:]); err != nil {
		return fmt.Errorf("drawing a revision: %w", err)
	}
	draft.stride = 1 + int64(binary.BigEndian.Uint16(b[:]))
	return nil
}

func draftOf(base *Block, template Block) *Block {
	if base == nil {
		made := template // so that template stays off the heap where there is a base
		made.Version = FormatVersion
		return &made
	}
	return base.clone()
}

// applyAll applies ops to the draft. It answers those that failed on a live draft or are not worth a read; doubted
// are those whose failure a live read may turn, todo those that wait for the write: also those that failed by what a
// neighbour made of the draft, for that is not true before it is stored.
func (l *Ledger) applyAll(draft *Block, ops []*op, live bool) (todo, doubted []*op) {
	before := draft.Revision
	for _, o := range ops {
		if l.gone(o) {
			continue
		}
		if draft.Version > FormatVersion {
			o.lease, o.err = nil, &FormatError{Block: draft.Name, Version: draft.Version}
		} else {
			o.lease, o.err = o.apply(draft)
		}
		switch {
		case o.err == nil:
			todo = append(todo, o)
		case !live && !errors.Is(o.err, errFull):
			doubted = append(doubted, o)
		case draft.Revision != before:
			todo = append(todo, o)
		default:
			l.answer([]*op{o}, o.err)
		}
	}
	if len(doubted) > 0 {
		// Everything that is not answered is applied again to what the read shows.
		return nil, doubted
	}
	return todo, nil
}

// gone tells that o was answered already or that its caller left before anything was written.
func (l *Ledger) gone(o *op) bool {
	select {
	case <-o.done:
		return true
	default:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if o.left && !o.frees {
		close(o.done)
		return true
	}
	return false
}

func (l *Ledger) store(ctx context.Context, draft *Block) (*Block, error) {
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	return l.Store.Write(ctx, draft)
}

// reload reads e's block live into the cache.
func (l *Ledger) reload(ctx context.Context, e *entry) error {
	l.mu.Lock()
	was, before := e.block, "0"
	if was != nil {
		before = was.ResourceVersion
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, l.Timeout)
	defer cancel()
	b, err := l.Store.Get(ctx, e.name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return fmt.Errorf("reading block %s: %w", e.name, err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b == nil || err != nil {
		if e.block == was { // else it was made since
			l.install(e, nil)
		}
	} else if e.wentBack(b, before) {
		l.loseSurely(b.Subnet, fmt.Sprintf("block %s is older than it was", b.Name))
		l.install(e, b)
	} else if e.block == nil || newer(b.ResourceVersion, e.block.ResourceVersion) {
		l.install(e, b)
	}
	return nil
}

// resolve settles a write of unknown outcome by reading. It answers the ops that have landed, or all when nothing
// can be read, and returns those that must be tried again. A late commit of the lost write then conflicts with ours,
// or ours with it.
func (l *Ledger) resolve(ctx context.Context, e *entry, ops []*op, cause error) []*op {
	var err error
	for i := range 5 {
		if err = l.reload(ctx, e); err == nil {
			break
		}
		<-l.Clock.After(50 * time.Millisecond << i)
	}
	if err != nil {
		l.answer(ops, fmt.Errorf("outcome of a write is unknown: %w", errors.Join(cause, err)))
		return nil
	}
	l.mu.Lock()
	b := e.block
	l.mu.Unlock()
	var again, landed []*op
	for _, o := range ops {
		if o.err == nil && (b != nil && o.landed(b, o.lease) || b == nil && o.frees) {
			landed = append(landed, o)
		} else {
			o.doubt = o.err == nil
			again = append(again, o)
		}
	}
	l.answer(landed, nil)
	return again
}

func (l *Ledger) committed(e *entry, stored *Block, ops []*op) {
	made := 0
	for _, o := range ops {
		if o.err == nil {
			made++
		}
	}
	l.mu.Lock()
	l.stats.Writes++
	l.stats.Operations += int64(made)
	e.shared, e.wrote = made, l.Clock.Now()
	if e.block == nil || newer(stored.ResourceVersion, e.block.ResourceVersion) {
		l.install(e, stored)
	}
	l.mu.Unlock()
	if l.Metrics != nil {
		l.Metrics.Committed(made)
	}
	l.answer(ops, nil)
}

// conflicted counts a write that met a change by somebody else. Where another replica takes, this one takes elsewhere;
// a worker who binds or frees is no rival.
func (l *Ledger) conflicted(e *entry, base *Block) {
	l.mu.Lock()
	l.stats.Conflicts++
	if e.block != nil && slices.ContainsFunc(e.block.Leases, func(x *Lease) bool { return findIn(base, x) == nil }) {
		for _, c := range e.cells {
			c.mine = false
			c.fix()
		}
	}
	l.mu.Unlock()
	if l.Metrics != nil {
		l.Metrics.Conflicted()
	}
}

// answer tells the callers. What was made for one who has left is given back by the next write.
func (l *Ledger) answer(ops []*op, err error) {
	for _, o := range ops {
		if err != nil {
			o.lease, o.err = nil, err
		}
		l.mu.Lock()
		select {
		case <-o.done:
			l.mu.Unlock()
			continue
		default:
		}
		left := o.left
		made := o.lease
		close(o.done)
		l.mu.Unlock()
		if left && err == nil && made != nil && o.undo != nil {
			o.undo(made)
		}
	}
}
