//go:build e2e

package raft

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
)

const (
	churnEvery = 200 * time.Millisecond
	// churnKept pods are there at a time, and at most churnMost with those that are going.
	churnKept, churnMost = 20, 40
)

// life is what was seen of one pod.
type life struct {
	created, routed time.Time
}

// churn makes pods and deletes them again.
type churn struct {
	h       *harness
	stopped sync.WaitGroup
	cancel  context.CancelFunc

	mu    sync.Mutex
	seen  map[string]*life
	alive map[string]bool
	queue []string
	errs  []error
	made  int
}

// churn begins, and goes on until its end is called.
func (h *harness) churn(ctx context.Context, t *testing.T) *churn {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	c := &churn{h: h, cancel: cancel, seen: map[string]*life{}, alive: map[string]bool{}}
	t.Cleanup(func() {
		cancel()
		c.stopped.Wait()
	})
	factory := informers.NewSharedInformerFactoryWithOptions(h.Client(), 0, informers.WithNamespace(namespace))
	informer := factory.Core().V1().Pods().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: c.saw, UpdateFunc: func(_, obj any) { c.saw(obj) }, DeleteFunc: c.gone,
	}); err != nil {
		t.Fatal(err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("pods are not watched")
	}
	c.stopped.Go(func() { c.run(ctx) })
	return c
}

func (c *churn) saw(obj any) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.alive[p.Name] = true
	l := c.of(p.Name)
	if l.routed.IsZero() && p.Annotations["ovn.kubernetes.io/routed"] == "true" {
		l.routed = time.Now()
	}
}

func (c *churn) gone(obj any) {
	if last, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = last.Obj
	}
	if p, ok := obj.(*corev1.Pod); ok {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.alive, p.Name)
	}
}

// of is what was seen of a pod; the caller holds the lock.
func (c *churn) of(name string) *life {
	if c.seen[name] == nil {
		c.seen[name] = &life{}
	}
	return c.seen[name]
}

func (c *churn) run(ctx context.Context) {
	tick := time.NewTicker(churnEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := errors.Join(c.makeOne(ctx), c.deleteOne(ctx)); err != nil && ctx.Err() == nil {
			c.mu.Lock()
			c.errs = append(c.errs, err)
			c.mu.Unlock()
		}
	}
}

// makeOne makes the next pod, unless the machine can't keep up.
func (c *churn) makeOne(ctx context.Context) error {
	c.mu.Lock()
	full := len(c.alive) >= churnMost
	name := fmt.Sprintf("churn-%d", c.made)
	if !full {
		c.made++
		c.of(name).created = time.Now()
		c.queue = append(c.queue, name)
	}
	c.mu.Unlock()
	if full {
		return nil
	}
	_, err := c.h.Client().CoreV1().Pods(namespace).Create(ctx, pod(name), metav1.CreateOptions{})
	return err
}

// deleteOne deletes the oldest pod, once there are enough.
func (c *churn) deleteOne(ctx context.Context) error {
	c.mu.Lock()
	name := ""
	if len(c.queue) > churnKept {
		name, c.queue = c.queue[0], c.queue[1:]
	}
	c.mu.Unlock()
	if name == "" {
		return nil
	}
	err := c.h.Client().CoreV1().Pods(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("pod %s was lost: %w", name, err)
	}
	return err
}

// routedAfter is when the first of the pods was routed that were made after a moment.
func (c *churn) routedAfter(moment time.Time) (time.Time, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var first time.Time
	for _, l := range c.seen {
		if l.created.After(moment) && !l.routed.IsZero() && (first.IsZero() || l.routed.Before(first)) {
			first = l.routed
		}
	}
	return first, !first.IsZero()
}

// end stops making and deleting, and tells what went wrong. What is there stays.
func (c *churn) end(t *testing.T) {
	t.Helper()
	c.cancel()
	c.stopped.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, err := range c.errs {
		t.Errorf("churn: %v", err)
	}
	var took []time.Duration
	for _, l := range c.seen {
		if !l.created.IsZero() && !l.routed.IsZero() {
			took = append(took, l.routed.Sub(l.created))
		}
	}
	if len(took) == 0 {
		t.Fatal("no pod was ever routed")
	}
	slices.Sort(took)
	at := func(percent int) time.Duration { return took[(len(took)-1)*percent/100].Round(time.Millisecond) }
	t.Logf("%d pods made, %d seen routed; from CREATE to routed p50 %s, p90 %s, at most %s", c.made, len(took), at(50), at(90), at(100))
}

func pod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(1)), Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}}}
}
