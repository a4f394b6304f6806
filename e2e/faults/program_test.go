package faults

import (
	"context"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// wrongClock is the clock of a machine whose time is wrong by so much.
type wrongClock struct {
	clock.RealClock
	by time.Duration
}

func (c wrongClock) Now() time.Time { return c.RealClock.Now().Add(c.by) }

func (c wrongClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// program is one that is started again whenever it ends.
type program struct {
	mu    sync.Mutex
	kill  context.CancelFunc
	clock wrongClock
}

// end ends the present run of a program.
func (p *program) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.kill != nil {
		p.kill()
	}
}

// setClock ends the present run of a program, and makes the clock of the next ones wrong by so much.
func (p *program) setClock(by time.Duration) {
	p.mu.Lock()
	p.clock.by = by
	p.mu.Unlock()
	p.end()
}

// next begins a further run, with the clock that it is to have.
func (p *program) next(ctx context.Context) (context.Context, clock.WithTicker) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ctx, p.kill = context.WithCancel(ctx)
	return ctx, p.clock
}

// supervise runs a program again and again, until the context ends.
func supervise(ctx context.Context, running *sync.WaitGroup, run func(context.Context, clock.WithTicker) error) *program {
	p := &program{}
	running.Go(func() {
		for ctx.Err() == nil {
			_ = run(p.next(ctx)) // it was killed, fenced, or could not reach anything
			p.end()
			select {
			case <-ctx.Done():
			case <-time.After(300 * time.Millisecond):
			}
		}
	})
	return p
}
