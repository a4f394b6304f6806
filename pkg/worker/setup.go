package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// always is a part that runs on standbys too.
type always func(context.Context) error

// Start runs it.
func (a always) Start(ctx context.Context) error { return a(ctx) }

// NeedLeaderElection is false.
func (always) NeedLeaderElection() bool { return false }

// follow starts the informers of all that is read: the first look at an object must not find an empty cache.
func (w *Worker) follow(ctx context.Context, mgr manager.Manager) error {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexClaim, claimIndex); err != nil {
		return fmt.Errorf("index pods by claim: %w", err)
	}
	return errors.Join(w.changes.Watch(ctx, mgr.GetCache(), w.topology.EIPs), w.watchExits(ctx, mgr.GetCache()))
}

// Setup hooks the worker into the manager whose client and cache it was made with.
func (w *Worker) Setup(ctx context.Context, mgr manager.Manager) error {
	if err := w.follow(ctx, mgr); err != nil {
		return err
	}
	if err := errors.Join(
		mgr.Add(manager.RunnableFunc(w.lead)),
		mgr.Add(manager.RunnableFunc(w.sweepLoop)),
		mgr.Add(manager.RunnableFunc(w.stir)),
		mgr.Add(manager.RunnableFunc(w.rebuildLoop)),
		mgr.Add(always(w.observe)),
	); err != nil {
		return err
	}
	if err := w.setupPods(mgr); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	if err := w.setupReservations(mgr); err != nil {
		return fmt.Errorf("watch reservations: %w", err)
	}
	if err := w.setupFinalizers(mgr); err != nil {
		return fmt.Errorf("watch what leases hold: %w", err)
	}
	if w.Topology != Ensure {
		return w.setupUnrealised(mgr)
	}
	if err := errors.Join(mgr.Add(manager.RunnableFunc(w.statusLoop)), mgr.Add(manager.RunnableFunc(w.makeNetworks)), w.setupTopology(mgr), w.setupSecurity(mgr)); err != nil {
		return fmt.Errorf("watch topology: %w", err)
	}
	return nil
}

func (w *Worker) setupPods(mgr manager.Manager) error {
	skip := true // several workers may live in one process
	return builder.ControllerManagedBy(mgr).Named("pod").
		Watches(&corev1.Pod{}, &urgentFirst{prepareAfter: w.PrepareAfter}, builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
			p, ok := o.(*corev1.Pod)
			return ok && !p.Spec.HostNetwork
		}))).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(w.podsOf), builder.WithPredicates(predicate.LabelChangedPredicate{})).
		WatchesRawSource(source.Channel(w.wake, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{MaxConcurrentReconciles: w.Concurrency, SkipNameValidation: &skip, RateLimiter: backoff()}).
		Complete(reconcile.Func(w.Reconcile))
}

// urgentFirst has what waits for us come before what only is to be compared: of the pods that are there at the start,
// those that neither run nor have ended, and those that are being deleted. One that only its node is missing of comes
// after a while, or with its next event: that of its node, as a rule.
type urgentFirst struct {
	handler.EnqueueRequestForObject
	prepareAfter time.Duration
}

// Create enqueues a pod. The queue takes what is new before what a first list has.
func (h *urgentFirst) Create(ctx context.Context, e event.CreateEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	p, ok := e.Object.(*corev1.Pod)
	switch {
	case !ok:
	case h.prepareAfter > 0 && onlyUnscheduled(p):
		q.AddAfter(reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)}, h.prepareAfter)
		return
	case p.DeletionTimestamp != nil || !lifecycle.Ended(p) && !facts.Running(p):
		e.IsInInitialList = false
	}
	h.EnqueueRequestForObject.Create(ctx, e, q)
}

// onlyUnscheduled tells of a pod that carries the answer of an allocation, and waits for a node alone.
func onlyUnscheduled(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && !lifecycle.Ended(p) && p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0 && slices.Contains(p.Finalizers, network.Finalizer) &&
		answered(p, network.Carried(p.Annotations))
}

// backoff of failures. An outage must not keep anybody waiting long after its end.
func backoff() workqueue.TypedRateLimiter[reconcile.Request] {
	return workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](20*time.Millisecond, 30*time.Second)
}

// podsOf gives the pods of a namespace that has opted in.
func (w *Worker) podsOf(ctx context.Context, ns client.Object) []reconcile.Request {
	if l := ns.GetLabels()[network.LabelInject]; l != network.InjectEnabled && l != network.InjectLate {
		return nil
	}
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.InNamespace(ns.GetName()), client.UnsafeDisableDeepCopy); err != nil {
		w.Log.Error(err, "Pods of a namespace could not be listed", "namespace", ns.GetName())
		return nil
	}
	var out []reconcile.Request
	for i := range pods.Items {
		if _, claimed := network.ClaimOf(pods.Items[i].Annotations); !claimed {
			out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&pods.Items[i])})
		}
	}
	return out
}

// setupReservations watches what reserves addresses; all of it is one piece of work.
func (w *Worker) setupReservations(mgr manager.Manager) error {
	skip := true
	options := controller.Options{SkipNameValidation: &skip, RateLimiter: backoff()}
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: "reservations"}}}
	})
	foreign := builder.WithPredicates(predicate.NewPredicateFuncs(func(o client.Object) bool {
		_, ours := o.GetLabels()[labelClaim]
		return !ours
	}))
	err := builder.ControllerManagedBy(mgr).Named("reservations").
		Watches(&kubeovnv1.Vip{}, one).Watches(&corev1.Node{}, one).Watches(&kubeovnv1.Subnet{}, one).Watches(&kubeovnv1.IP{}, one, foreign).
		WithOptions(options).Complete(reconcile.Func(w.reconcileReservations))
	if err != nil || w.Topology != Ensure {
		return err
	}
	return builder.ControllerManagedBy(mgr).Named("vip").For(&kubeovnv1.Vip{}).
		WithOptions(options).Complete(reconcile.Func(w.reconcileVip))
}
