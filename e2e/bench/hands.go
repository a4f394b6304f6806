package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// hands is how many requests of one kind the scheduler and the kubelets have under way.
const hands = 16

// room is how many pods may wait for a hand; more than any run has.
const room = 1 << 16

// Crew plays scheduler and kubelets for the pods of a namespace: it binds those that have no node, one node after the
// other, and ends those that are being deleted. It starts nothing, and without nodes it binds nothing.
type Crew struct {
	*Tracker
	client    kubernetes.Interface
	namespace string
	nodes     []string
	next      atomic.Uint64
	made      atomic.Int64 // pods that were created
	binds     chan *corev1.Pod
	ends      chan *corev1.Pod
	stop      context.CancelFunc
	done      sync.WaitGroup
}

// newCrew starts to work for the pods of a namespace.
func newCrew(ctx context.Context, client kubernetes.Interface, namespace string, nodes []string) (*Crew, error) {
	c := &Crew{Tracker: NewTracker(), client: client, namespace: namespace, nodes: nodes,
		binds: make(chan *corev1.Pod, room), ends: make(chan *corev1.Pod, room)}
	ctx, c.stop = context.WithCancel(ctx)
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(namespace))
	handler, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    c.see,
		UpdateFunc: func(_, obj any) { c.see(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if p, ok := obj.(*corev1.Pod); ok {
				c.Vanish(time.Now(), p.UID)
			}
		},
	})
	if err != nil {
		c.stop()
		return nil, fmt.Errorf("watch the pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		c.stop()
		return nil, fmt.Errorf("watch the pods: %w", ctx.Err())
	}
	for range hands {
		c.done.Go(func() { c.work(ctx, c.binds, "bind", c.bind) })
		c.done.Go(func() { c.work(ctx, c.ends, "end", c.end) })
	}
	c.done.Go(func() { <-ctx.Done(); factory.Shutdown() })
	return c, nil
}

// Close stops the work; pods stay as they are.
func (c *Crew) Close() {
	c.stop()
	c.done.Wait()
}

func (c *Crew) see(obj any) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return
	}
	switch c.observe(time.Now(), p) {
	case bind:
		if len(c.nodes) > 0 {
			c.binds <- p
		}
	case end:
		c.ends <- p
	case nothing:
	}
}

func (c *Crew) work(ctx context.Context, pods <-chan *corev1.Pod, what string, do func(context.Context, *corev1.Pod) error) {
	for {
		select {
		case <-ctx.Done():
			return
		case p := <-pods:
			if err := do(ctx, p); err != nil && ctx.Err() == nil && !apierrors.IsNotFound(err) {
				c.Fail(fmt.Errorf("%s pod %s: %w", what, p.Name, err))
			}
		}
	}
}

func (c *Crew) bind(ctx context.Context, p *corev1.Pod) error {
	node := c.nodes[c.next.Add(1)%uint64(len(c.nodes))]
	b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace, UID: p.UID},
		Target: corev1.ObjectReference{Kind: "Node", Name: node}}
	err := c.client.CoreV1().Pods(p.Namespace).Bind(ctx, b, metav1.CreateOptions{})
	if apierrors.IsConflict(err) { // it is being deleted by now
		return nil
	}
	return err
}

func (c *Crew) end(ctx context.Context, p *corev1.Pod) error {
	o := metav1.DeleteOptions{GracePeriodSeconds: new(int64), Preconditions: &metav1.Preconditions{UID: &p.UID}}
	return c.client.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, o)
}

// Created is how the creation of pods went.
type Created struct {
	Took []time.Duration
	// All is how long it took from the first to the last.
	All time.Duration
	// Refused are those that the API server refused for what admission said, with the first reason.
	Refused int
	Reason  string
	Pods    []*corev1.Pod
}

// create makes pods by so many clients, each one after the other.
func (c *Crew) create(ctx context.Context, clients int, pods []*corev1.Pod) (*Created, error) {
	out := &Created{Took: make([]time.Duration, len(pods)), Pods: make([]*corev1.Pod, len(pods))}
	var mu sync.Mutex
	begun := time.Now()
	err := each(ctx, clients, len(pods), func(ctx context.Context, n int) error {
		at := time.Now()
		made, err := c.client.CoreV1().Pods(c.namespace).Create(ctx, pods[n], metav1.CreateOptions{})
		out.Took[n] = time.Since(at)
		if apierrors.IsConflict(err) || apierrors.IsInvalid(err) || apierrors.IsForbidden(err) {
			mu.Lock()
			defer mu.Unlock()
			if out.Refused++; out.Reason == "" {
				out.Reason = err.Error()
			}
			return nil
		}
		if err != nil {
			return fmt.Errorf("create pod %s: %w", pods[n].Name, err)
		}
		c.made.Add(1)
		out.Pods[n] = made
		return nil
	})
	out.All = time.Since(begun)
	return out, err
}

// remove deletes pods, as their owner would.
func (c *Crew) remove(ctx context.Context, clients int, names []string) error {
	return each(ctx, clients, len(names), func(ctx context.Context, n int) error {
		err := c.client.CoreV1().Pods(c.namespace).Delete(ctx, names[n], metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete pod %s: %w", names[n], err)
		}
		return nil
	})
}

// run marks pods running, as kubelets do.
func (c *Crew) run(ctx context.Context, clients int, names []string) error {
	status := []byte(`{"status":{"phase":"Running","containerStatuses":[{"name":"main","image":"none","imageID":"none","ready":true,"started":true,` +
		`"restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}`)
	return each(ctx, clients, len(names), func(ctx context.Context, n int) error {
		_, err := c.client.CoreV1().Pods(c.namespace).Patch(ctx, names[n], statusPatch, status, metav1.PatchOptions{}, "status")
		if err != nil {
			return fmt.Errorf("mark pod %s running: %w", names[n], err)
		}
		return nil
	})
}

// each does something n times by so many at once, and stops at the first error.
func each(ctx context.Context, clients, n int, do func(context.Context, int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(clients, n) {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && ctx.Err() == nil; i = int(next.Add(1)) - 1 {
				if err := do(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return ctx.Err()
}
