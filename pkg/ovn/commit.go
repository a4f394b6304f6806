package ovn

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

const (
	// settleTime is how long the mirror gets to show what was committed, before the difference is taken anew.
	settleTime = time.Second
	// staleTime is how long a refused change waits for the mirror to move: it may have been composed from an old one.
	staleTime = 50 * time.Millisecond
	// maxRefused is how often a change may be refused, each time after the mirror has moved.
	maxRefused = 4
)

// commit brings a batch into the database and answers its callers. It returns those that have to go again.
func (w *Writer) commit(ctx context.Context, batch []*request) []*request {
	moved := w.store.changed()
	snap, err := w.store.await(ctx)
	if err != nil || ctx.Err() != nil {
		return finishAll(batch, ErrStopped)
	}
	batch = waiting(batch)
	p := compose(snap, w.opts.Epoch, changesOf(batch))
	part, again := w.sort(batch, p)
	if len(p.ops) == 0 {
		return again
	}
	err = w.send(ctx, snap, p.ops, len(part))
	switch {
	case err == nil:
		return append(w.settle(ctx, part), again...)
	case errors.Is(err, errUnknown):
		return append(part, again...)
	case errors.Is(err, ErrFenced):
		return append(finishAll(part, err), again...)
	case len(part) > 1:
		// One of them is at fault. The halves are composed anew, so that each stands alone.
		half := len(part) / 2
		left := w.commit(ctx, part[:half:half])
		right := w.commit(ctx, part[half:])
		return append(append(left, right...), again...)
	}
	return append(w.refused(ctx, part, err, moved), again...)
}

// sort answers the changes that need no transaction. It returns those that are part of it and those that must wait for
// the next one.
func (w *Writer) sort(batch []*request, p plan) (part, again []*request) {
	for i, f := range p.fates {
		switch {
		case f.err != nil:
			batch[i].finish(f.err)
		case f.deferred:
			again = append(again, batch[i])
		case f.part:
			part = append(part, batch[i])
		default:
			batch[i].finish(nil)
		}
	}
	return part, again
}

func (w *Writer) send(ctx context.Context, snap snapshot, ops []ovsdb.Operation, changes int) error {
	w.transactions.Add(1)
	_, err := snap.transact(ctx, ops)
	var refused *TransactionError
	result := resultCommitted
	switch {
	case err == nil:
		w.metrics.operations.Add(float64(len(ops)))
		w.metrics.batch.Observe(float64(changes))
	case errors.As(err, &refused) && refused.index == 0 && refused.Code == codeTimedOut:
		result, err = resultFenced, fmt.Errorf("%w (this one is %d)", ErrFenced, w.opts.Epoch)
	case refused != nil:
		result = resultRefused
	default:
		result = resultUnknown
	}
	w.metrics.transactions.WithLabelValues(result).Inc()
	return err
}

// settle waits until the mirror shows that the committed changes hold. It returns those that don't: somebody else has
// undone them, or a row that they build on went away meanwhile.
func (w *Writer) settle(ctx context.Context, part []*request) []*request {
	deadline := time.NewTimer(settleTime)
	defer deadline.Stop()
	for {
		changed := w.store.changed()
		snap, err := w.store.await(ctx)
		if err != nil {
			return finishAll(part, ErrStopped)
		}
		var left []*request
		for i, f := range compose(snap, w.opts.Epoch, changesOf(part)).fates {
			switch {
			case f.err == nil && !f.part && !f.deferred:
				part[i].finish(nil)
			default:
				left = append(left, part[i])
			}
		}
		if part = left; len(part) == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-deadline.C:
			return part
		case <-ctx.Done():
			return finishAll(part, ErrStopped)
		}
	}
}

// refused decides on a single change that the database refused: it is tried again when the mirror has moved, since it
// may have been composed before somebody else's write arrived.
func (w *Writer) refused(ctx context.Context, part []*request, err error, moved <-chan struct{}) []*request {
	r := part[0]
	r.refused++
	if r.refused >= maxRefused {
		return finishAll(part, err)
	}
	timer := time.NewTimer(staleTime)
	defer timer.Stop()
	select {
	case <-moved:
		return part
	case <-timer.C:
		return finishAll(part, err)
	case <-ctx.Done():
		return finishAll(part, ErrStopped)
	}
}

func finishAll(batch []*request, err error) []*request {
	for _, r := range batch {
		r.finish(err)
	}
	return nil
}

// waiting leaves out the changes whose callers have gone.
func waiting(batch []*request) []*request {
	var out []*request
	for _, r := range batch {
		if err := r.left(); err != nil {
			r.finish(err)
			continue
		}
		out = append(out, r)
	}
	return out
}

func changesOf(batch []*request) []Change {
	changes := make([]Change, 0, len(batch))
	for _, r := range batch {
		changes = append(changes, r.change)
	}
	return changes
}
