package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

// placedFor is how long a Binding may be under way after its hook was asked: an API server's write ends by 34 s.
const placedFor = 40 * time.Second

// connectAhead connects a pod to the node that it is about to be bound to, and gives its marks: none for a pod that is left to
// the reconciler.
func (w *Worker) connectAhead(ctx context.Context, p placement) (map[string]string, error) {
	select {
	case <-w.leading:
	default:
		return nil, nil // a standby writes nothing
	}
	free, err := w.placing.turn(ctx, p.key)
	if err != nil {
		return nil, err
	}
	defer free()
	s, err := w.placeable(ctx, p)
	if s == nil || err != nil {
		return nil, err
	}
	w.placing.begin(p, w.Clock.Now())
	wires, err := w.connect(ctx, s)
	if err != nil {
		return nil, err
	}
	if now := w.Northbound.Epoch(); now != w.epoch {
		return nil, fmt.Errorf("connect pod %s: %w (epoch %d, this one is %d)", p.key, ovn.ErrFenced, now, w.epoch)
	}
	return marks(wires), nil
}

// placeable reads a pod as it would be on the node. It gives nil for pods of others, and for those with which anything is
// out of the ordinary: without what admission gives, with networks yet to be plugged in, with leases that launchers
// share, marked or running already.
func (w *Worker) placeable(ctx context.Context, p placement) (*subject, error) {
	var pod corev1.Pod
	if err := w.Client.Get(ctx, p.key, &pod); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read pod %s: %w", p.key, err)
	}
	if pod.UID != p.uid || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || lifecycle.Ended(&pod) ||
		pod.Spec.HostNetwork || len(pod.Spec.SchedulingGates) > 0 {
		return nil, nil
	}
	// Whoever names a node that isn't there has no group made for it.
	if err := w.Client.Get(ctx, client.ObjectKey{Name: p.node}, &corev1.Node{}); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, nil
		}
		return nil, fmt.Errorf("read node %s: %w", p.node, err)
	}
	pod.Spec.NodeName = p.node
	s := w.subjectOf(&pod)
	if !s.claimed || !s.finalized() || !s.complete() || s.running() || s.owner.Kind == network.KindVM || !network.Settled(s.Annotations) {
		return nil, nil
	}
	return s, nil
}

// settle tells how long a pod that has no node is left as it is, for its binding may be under way. One that was not bound
// in that time loses its records: they say that it is on a node.
func (w *Worker) settle(ctx context.Context, pod *corev1.Pod) (time.Duration, error) {
	until, ok := w.placing.until(pod.UID)
	switch {
	case !ok || pod.DeletionTimestamp != nil || lifecycle.Ended(pod):
		return 0, nil // reclaim forgets it
	case pod.Spec.NodeName != "":
		w.placing.forget(pod.UID)
		return 0, nil
	}
	if left := until.Sub(w.Clock.Now()); left > 0 {
		return left, nil
	}
	if err := w.dropRecords(ctx, w.subjectOf(pod), true); err != nil {
		return 0, err
	}
	w.placing.forget(pod.UID)
	return 0, nil
}

// wakeUnbound has the pods looked at whose bindings have taken too long to be under way.
func (w *Worker) wakeUnbound() {
	for _, key := range w.placing.overdue(w.Clock.Now()) {
		w.enqueue(key)
	}
}

// placing knows which pods are being bound, and has the hook and the reconciler work on one pod in turn. A nil one knows
// nothing and lets everybody at once.
type placing struct {
	// lasts is how long a binding may be under way.
	lasts time.Duration

	mu    sync.Mutex
	turns map[client.ObjectKey]*turn
	pods  map[types.UID]placed
}

// turn is whose turn it is with one pod.
type turn struct {
	busy  chan struct{}
	users int
}

// placed is a pod that was connected before it was bound.
type placed struct {
	key   client.ObjectKey
	until time.Time
}

func newPlacing() *placing {
	return &placing{lasts: placedFor, turns: map[client.ObjectKey]*turn{}, pods: map[types.UID]placed{}}
}

// turn waits until nobody else works on the pod. Call free afterwards.
func (p *placing) turn(ctx context.Context, key client.ObjectKey) (free func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	p.mu.Lock()
	t := p.turns[key]
	if t == nil {
		t = &turn{busy: make(chan struct{}, 1)}
		p.turns[key] = t
	}
	t.users++
	p.mu.Unlock()
	leave := func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		if t.users--; t.users == 0 {
			delete(p.turns, key)
		}
	}
	select {
	case t.busy <- struct{}{}:
		return func() { <-t.busy; leave() }, nil
	case <-ctx.Done():
		leave()
		return nil, fmt.Errorf("wait for the turn with pod %s: %w", key, ctx.Err())
	}
}

func (p *placing) begin(at placement, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pods[at.uid] = placed{key: at.key, until: now.Add(p.lasts)}
}

func (p *placing) until(uid types.UID) (time.Time, bool) {
	if p == nil {
		return time.Time{}, false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	x, ok := p.pods[uid]
	return x.until, ok
}

// placed tells whether the pod was connected before it was bound, and that nobody has seen yet how that ended.
func (p *placing) placed(uid types.UID) bool {
	_, ok := p.until(uid)
	return ok
}

func (p *placing) forget(uid types.UID) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, uid)
}

// overdue gives the pods whose time is up. One that nobody settles then is gone, and is forgotten.
func (p *placing) overdue(now time.Time) []client.ObjectKey {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []client.ObjectKey
	for uid, x := range p.pods {
		switch late := now.Sub(x.until); {
		case late > p.lasts:
			delete(p.pods, uid)
		case late >= 0:
			out = append(out, x.key)
		}
	}
	return out
}
