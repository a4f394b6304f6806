package ovn

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

const (
	defaultMaxBatch   = 256
	defaultMaxDelay   = time.Millisecond
	defaultBurstDelay = 400 * time.Millisecond

	// northd and every node's controller work anew after each transaction. So when many pods come or go at once, fewer
	// transactions serve all of them sooner: of the changes of the last burstTime that came while another was under way,
	// each beyond burstFree lets the next batch wait burstStep longer. One caller after the other makes none of these.
	burstTime = time.Second
	burstFree = 8
	burstStep = 8 * time.Millisecond
	burstMost = 128 // of those changes that are remembered
)

// WriterOptions tune a Writer.
type WriterOptions struct {
	// Epoch is what RaiseEpoch returned. Under any other epoch nothing is written.
	Epoch int64
	// MaxBatch bounds the changes in one transaction; 256 when zero.
	MaxBatch int
	// MaxDelay bounds how long a change waits for company, which otherwise is what comes while the last
	// transaction is under way; 1 ms when zero.
	MaxDelay time.Duration
	// BurstDelay is how long it waits at most in a burst; 400 ms when zero. A caller whose time ends before twice of it is
	// served as if there were none, and whoever waits with it.
	BurstDelay time.Duration
}

// store is where a Writer writes.
type store interface {
	// current is the database as it can be relied on now; an error: it can't.
	current() (snapshot, error)
	// await waits until it can.
	await(ctx context.Context) (snapshot, error)
	// changed returns a channel that is closed at the next change of what a snapshot shows.
	changed() <-chan struct{}
	meter() *metrics
}

// Writer composes the changes of all its callers into few transactions.
type Writer struct {
	store        store
	opts         WriterOptions
	metrics      *metrics
	transactions atomic.Int64
	wake         chan struct{}

	mu      sync.Mutex
	queue   []*request
	last    [burstMost]time.Time // when the last changes came while another was under way, in a ring
	next    int                  // of the ring: the oldest
	busy    bool                 // a batch is under way
	started bool
	stopped bool
}

// request is one caller waiting.
type request struct {
	change Change
	// left tells why the caller doesn't wait any more; nil while it does.
	left    func() error
	since   time.Time
	urgent  bool
	refused int
	done    chan error
}

func (r *request) finish(err error) { r.done <- err }

// NewWriter returns a Writer that writes through a client under an epoch. Run makes it work.
func NewWriter(c *Client, opts WriterOptions) *Writer { return newWriter(c, opts) }

func newWriter(s store, opts WriterOptions) *Writer {
	if opts.MaxBatch <= 0 {
		opts.MaxBatch = defaultMaxBatch
	}
	if opts.MaxDelay <= 0 {
		opts.MaxDelay = defaultMaxDelay
	}
	if opts.BurstDelay <= 0 {
		opts.BurstDelay = defaultBurstDelay
	}
	s.meter().epoch.Set(float64(opts.Epoch))
	return &Writer{store: s, opts: opts, metrics: s.meter(), wake: make(chan struct{}, 1)}
}

// Apply blocks until the change holds in the database and the client's reads show it. A change that holds already
// costs no transaction, and ports that are as they are to be don't wait either. When ctx ends first, the change may or may
// not have been written.
func (w *Writer) Apply(ctx context.Context, ch Change) error {
	if w.holds(ch) {
		return nil
	}
	r := &request{change: ch, left: ctx.Err, since: time.Now(), done: make(chan error, 1)}
	if end, ok := ctx.Deadline(); ok {
		r.urgent = end.Sub(r.since) < 2*w.opts.BurstDelay
	}
	w.mu.Lock()
	if w.stopped {
		w.mu.Unlock()
		return applyError(ch, ErrStopped)
	}
	if w.busy || len(w.queue) > 0 {
		w.last[w.next] = r.since
		w.next = (w.next + 1) % burstMost
	}
	w.queue = append(w.queue, r)
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-r.done:
		return applyError(ch, err)
	case <-ctx.Done():
		return applyError(ch, ctx.Err())
	}
}

// holds tells that ports are as they are to be: nobody who only makes sure is to wait for a batch. What isn't asked for is
// whether somebody is about to change that, for such a change may as well come a moment later.
func (w *Writer) holds(ch Change) bool {
	if len(ch.Ensure.Ports) == 0 || len(ch.RemovePorts) > 0 {
		return false
	}
	snap, err := w.store.current()
	if err != nil {
		return false
	}
	for _, p := range ch.Ensure.Ports {
		if len(p.SecurityGroups) > 0 { // whose members are compared with all ports: a batch does so once
			return false
		}
		if _, ok := snap.port(p.Row.Name); !ok {
			return false
		}
	}
	w.mu.Lock()
	stopped := w.stopped
	w.mu.Unlock()
	f := compose(snap, w.opts.Epoch, []Change{ch}).fates[0]
	return !stopped && f.err == nil && !f.part && !f.deferred
}

func applyError(ch Change, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("northbound rows of %q: %w", ch.Key, err)
}

// Transactions returns how many transactions were sent.
func (w *Writer) Transactions() int64 { return w.transactions.Load() }

// Run writes until ctx is done. It may be called once. Callers that still wait then get ErrStopped.
func (w *Writer) Run(ctx context.Context) error {
	w.mu.Lock()
	again := w.started
	w.started = true
	w.mu.Unlock()
	if again {
		return errors.New("northbound writer: Run was called twice")
	}
	for {
		batch := w.collect(ctx)
		if batch == nil {
			w.stop()
			return nil
		}
		for len(batch) > 0 {
			batch = w.commit(ctx, batch)
		}
	}
}

func (w *Writer) stop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.stopped = true
	for _, r := range w.queue {
		r.finish(ErrStopped)
	}
	w.queue = nil
}

// collect waits for a batch: a full one, or what has come within the delay of the first. It returns nil when ctx is
// done.
func (w *Writer) collect(ctx context.Context) []*request {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		batch, wait := w.take()
		if len(batch) > 0 {
			return batch
		}
		var ripe <-chan time.Time
		if wait > 0 {
			timer.Reset(wait)
			ripe = timer.C
		}
		select {
		case <-ctx.Done():
		case <-w.wake:
		case <-ripe:
		}
	}
	return nil
}

// take returns a batch that is due, or after what time the one that is waiting will be.
func (w *Writer) take() ([]*request, time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.busy = false
	if len(w.queue) == 0 {
		return nil, 0
	}
	n := min(len(w.queue), w.opts.MaxBatch)
	if wait := time.Until(w.due()); wait > 0 && n < w.opts.MaxBatch {
		return nil, wait
	}
	batch := w.queue[:n:n]
	w.queue = w.queue[n:]
	w.busy = true
	return batch, 0
}

// due is when those that wait have waited long enough.
func (w *Writer) due() time.Time {
	delay := max(w.opts.MaxDelay, min(w.burst(), w.opts.BurstDelay))
	due := w.queue[0].since.Add(delay)
	for _, r := range w.queue {
		if soon := r.since.Add(w.opts.MaxDelay); r.urgent && soon.Before(due) {
			due = soon
		}
	}
	return due
}

// burst is how long a batch waits for what else comes.
func (w *Writer) burst() time.Duration {
	since, n := time.Now().Add(-burstTime), 0
	for n < burstMost && w.last[(w.next+burstMost-1-n)%burstMost].After(since) {
		n++
	}
	return time.Duration(max(n-burstFree, 0)) * burstStep
}
