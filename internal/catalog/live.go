package catalog

import (
	"context"
	"fmt"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// Reader gives what plans of pods need; *Catalog does.
type Reader interface {
	// For may be late by what a cache lags behind.
	For(ctx context.Context, pod network.Pod) (View, error)
	// ForLive is as things are now.
	ForLive(ctx context.Context, pod network.Pod) (View, error)
}

// Plan has a pod planned by what the cache knows, and what is refused by that once more by what is there: its author may
// have made it a moment ago. It gives the view of the last attempt, and what is wrong by that.
func Plan(ctx context.Context, from Reader, pod network.Pod, plan func(View) (field.ErrorList, error)) (view View, wrong field.ErrorList, err error) {
	for _, read := range []func(context.Context, network.Pod) (View, error){from.For, from.ForLive} {
		if view, err = read(ctx, pod); err != nil {
			return view, nil, err
		}
		if wrong, err = plan(view); err != nil || len(wrong) == 0 {
			return view, wrong, err
		}
	}
	return view, wrong, nil
}

// liveReads lets callers who come while the topology is read live share the next read: each gets one that began after
// it came.
type liveReads struct {
	clock atomic.Uint64
	turn  chan struct{}
	// began is when the last read began, and last what it gave. They are their holder's who has the turn.
	began uint64
	last  *network.Catalog
}

// ForLive gives the view for a pod as the API server has it now. A cache may say yes, for the ledger corrects it; only a
// live read may say no.
func (c *Catalog) ForLive(ctx context.Context, pod network.Pod) (View, error) {
	came := c.live.clock.Add(1)
	var ns corev1.Namespace
	if err := c.Live.Get(ctx, client.ObjectKey{Name: pod.Namespace}, &ns); err != nil {
		return View{}, fmt.Errorf("reading namespace %s: %w", pod.Namespace, err)
	}
	cat, err := c.liveTopology(ctx, came)
	if err != nil {
		return View{}, err
	}
	return c.view(ctx, pod, &ns, cat)
}

func (c *Catalog) liveTopology(ctx context.Context, came uint64) (network.Catalog, error) {
	select {
	case c.live.turn <- struct{}{}:
	case <-ctx.Done():
		return network.Catalog{}, fmt.Errorf("reading the topology: %w", context.Cause(ctx))
	}
	defer func() { <-c.live.turn }()
	if c.live.last != nil && c.live.began > came {
		return *c.live.last, nil
	}
	began := c.live.clock.Add(1)
	o, err := c.list(ctx, c.Live)
	if err != nil {
		return network.Catalog{}, err
	}
	c.mu.Lock()
	cat := c.work(o)
	c.mu.Unlock()
	c.live.began, c.live.last = began, &cat
	return cat, nil
}
