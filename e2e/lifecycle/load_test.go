//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// lives is how long a pod of a load is there before it is deleted.
const lives = 4 * time.Second

// load creates pods at a pace, whatever becomes of them, and deletes the oldest.
type load struct {
	harness   *harness
	namespace string
	keep      int
	cancel    context.CancelFunc
	done      sync.WaitGroup

	mu     sync.Mutex
	living []*corev1.Pod
	made   []creation
	failed []error
}

// creation is one CREATE, and whether its answer had addresses.
type creation struct {
	began, ended time.Time
	given        bool
}

// load begins one. It ends with the test at the latest.
func (h *harness) load(t *testing.T, namespace string, pace time.Duration) *load {
	t.Helper()
	l := &load{harness: h, namespace: namespace, keep: int(lives / pace)}
	var ctx context.Context
	ctx, l.cancel = context.WithCancel(t.Context())
	l.done.Go(func() {
		tick := time.NewTicker(pace)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				l.done.Go(func() { l.one(ctx, n) })
			}
		}
	})
	t.Cleanup(l.stop)
	return l
}

// stop returns when nothing is under way any more.
func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// one creates a pod, and deletes the oldest when there are many.
func (l *load) one(ctx context.Context, n int) {
	p := pod(l.namespace, fmt.Sprintf("load-%d", n), onHand)
	began := time.Now()
	err := l.harness.api.Create(ctx, p)
	old := l.note(creation{began: began, ended: time.Now(), given: network.Given(p.Annotations, network.DefaultProvider)}, p, err)
	if old != nil && err == nil {
		err = client.IgnoreNotFound(l.harness.api.Delete(ctx, old))
	}
	if err != nil && ctx.Err() == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.failed = append(l.failed, err)
	}
}

// note takes a creation in, and gives the pod that is to go.
func (l *load) note(c creation, p *corev1.Pod, err error) (old *corev1.Pod) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		return nil
	}
	l.made, l.living = append(l.made, c), append(l.living, p)
	if len(l.living) > l.keep {
		old, l.living = l.living[0], l.living[1:]
	}
	return old
}

// since gives the creations that began at that time or later, in the order of their beginnings.
func (l *load) since(at time.Time) []creation {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []creation
	for _, c := range l.made {
		if !c.began.Before(at) {
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b creation) int { return a.began.Compare(b.began) })
	return out
}

// goesOn waits until so many creations have begun since then that were answered with addresses.
func (l *load) goesOn(t *testing.T, at time.Time, n int) {
	t.Helper()
	until(t.Context(), t, "pods are created with addresses", func(context.Context) error {
		all, with := l.since(at), 0
		for _, c := range all {
			if c.given {
				with++
			}
		}
		if with < n {
			return fmt.Errorf("%d of %d", with, len(all))
		}
		return nil
	})
}

// withheld tells what creations met since then: how many there were, how many of them were answered without addresses,
// how long it took from the first of these to the first one after the last of them, and how long the slowest took.
func (l *load) withheld(at time.Time) (all, without int, lasted, slowest time.Duration) {
	var first time.Time
	ended := true
	for _, c := range l.since(at) {
		all++
		slowest = max(slowest, c.ended.Sub(c.began))
		switch {
		case !c.given:
			if without++; without == 1 {
				first = c.began
			}
			ended = false
		case !ended:
			lasted, ended = c.began.Sub(first), true
		}
	}
	return all, without, lasted, slowest
}
