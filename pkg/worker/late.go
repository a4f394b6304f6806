package worker

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Reasons of events.
const (
	reasonRefused     = "AddressRefused"
	reasonWaiting     = "WaitingForAddress"
	reasonRunning     = "RunningWithoutLease"
	reasonCopy        = "ClaimOfAnotherPod"
	reasonUnwired     = "NotWired"
	reasonInUse       = "AddressInUse"
	actionAllocate    = "Allocate"
	actionWire        = "Wire"
	actionReclaim     = "Reclaim"
	resultGiven       = "given"
	resultUnavailable = "unavailable"
	resultRefused     = "refused"
	resultFailed      = "failed"
)

// unclaimed looks at a pod without claim and finalizer: is it one that slipped past admission?
func (w *Worker) unclaimed(ctx context.Context, s *subject) (reconcile.Result, error) {
	if s.DeletionTimestamp != nil || lifecycle.Ended(s.Pod) {
		return reconcile.Result{}, nil
	}
	ours, err := w.served(ctx, s.Namespace)
	if err != nil || !ours {
		return reconcile.Result{}, err
	}
	if _, skip := network.Skip(network.PodOf(s.Pod)); skip {
		return reconcile.Result{}, nil
	}
	return w.late(ctx, s)
}

// served reads a pod's namespace and tells whether its pods are ours.
func (w *Worker) served(ctx context.Context, name string) (bool, error) {
	var obj corev1.Namespace
	if err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &obj); err != nil {
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return false, fmt.Errorf("read namespace %s: %w", name, err)
	}
	label := obj.Labels[network.LabelInject]
	return label == network.InjectEnabled || label == network.InjectLate, nil
}

func foreignGate(pod *corev1.Pod) bool {
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name != network.AddressGate {
			return true
		}
	}
	return false
}

// late gives a pod its addresses after admission: first a claim onto the pod, so that everybody agrees on it, then
// leases under that claim, then the addresses.
func (w *Worker) late(ctx context.Context, s *subject) (reconcile.Result, error) {
	switch {
	case foreignGate(s.Pod):
		return reconcile.Result{}, nil // it comes back when the gate goes
	case s.running() && (s.complete() || !w.Network.NonPrimary): // else networks are plugged into it, as with attach
		if s.claimed { // it had nothing when it was given its claim, and runs by now
			w.warn(s.Pod, reasonRunning, actionAllocate, "the pod runs on an address that is in no lease: it is left alone; recreate it to give it one")
			return reconcile.Result{}, nil
		}
		return w.takeOver(ctx, s)
	}
	var plan network.Planned
	view, bad, err := catalog.Plan(ctx, w.topology, network.PodOf(s.Pod), func(v catalog.View) (wrong field.ErrorList, _ error) {
		plan, wrong = network.Plan(v.Pod, v.Namespace, v.Catalog, w.Network)
		return wrong, nil
	})
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := bad.ToAggregate(); err != nil {
		w.Metrics.late.WithLabelValues(resultRefused).Inc()
		w.warn(s.Pod, reasonRefused, actionAllocate, "no address can be given: "+err.Error())
		return reconcile.Result{RequeueAfter: retryHeld}, nil
	}
	if len(plan.Interfaces) == 0 {
		return reconcile.Result{}, nil // no network of ours: admission leaves it alone, too
	}
	if !s.claimed {
		if s, err = w.lay(ctx, s, plan); s == nil {
			return reconcile.Result{}, err
		}
	}
	return w.give(ctx, s, plan, view.Catalog)
}

// lay puts a fresh claim and the finalizer onto the pod. It returns nil when the pod has changed meanwhile.
func (w *Worker) lay(ctx context.Context, s *subject, plan network.Planned) (*subject, error) {
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return nil, err
	}
	if kept := w.Ledger.ByOwner(s.owner); len(kept) > 0 { // a sticky owner's comes back with its leases
		claim = kept[0].Claim
	}
	p := newPatch(s.Pod)
	p.testVersion()
	want := map[string]string{network.ClaimKey: string(claim)}
	if plan.Requested != "" {
		want[network.RequestedKey] = plan.Requested
	}
	p.annotate(want)
	// Their presence tells later that the addresses are given.
	p.unannotate(answerKeys(s)...)
	p.finalize()
	pod, stale, err := p.send(ctx, w.Client)
	if err != nil || stale {
		return nil, err
	}
	fault.Hit(fault.Claimed)
	return w.subjectOf(pod), nil
}

func answerKeys(s *subject) []string {
	var keys []string
	for _, c := range s.carried {
		keys = append(keys, network.Key(c.Provider, network.SuffixCIDR), network.Key(c.Provider, network.SuffixNICType))
	}
	return keys
}

// give takes the leases and writes the addresses.
func (w *Worker) give(ctx context.Context, s *subject, plan network.Planned, cat network.Catalog) (reconcile.Result, error) {
	request := plan.Request(s.claim, true)
	request.Shared = true  // with a former leader
	w.wait(s.Pod, request) // before the attempt, so that an address freed during it isn't missed
	a, err := w.Ledger.Take(ctx, request)
	if refusal, ok := ipam.AsRefusal(err); ok {
		if !refusal.Unavailable() {
			w.unwait(s.key())
			w.Metrics.late.WithLabelValues(resultRefused).Inc()
			w.warn(s.Pod, reasonRefused, actionAllocate, refusal.Error())
			return reconcile.Result{RequeueAfter: retryHeld}, nil
		}
		w.Metrics.late.WithLabelValues(resultUnavailable).Inc()
		w.warn(s.Pod, reasonWaiting, actionAllocate, refusal.Error())
		return reconcile.Result{RequeueAfter: retryWaiting}, w.tellWaiting(ctx, s.Pod, refusal.Error())
	}
	w.unwait(s.key())
	if err != nil {
		w.Metrics.late.WithLabelValues(resultFailed).Inc()
		return reconcile.Result{}, fmt.Errorf("lease addresses for pod %s: %w", s.key(), err)
	}
	fault.Hit(fault.Leased)
	p := newPatch(s.Pod)
	p.testVersion() // a former leader may have been quicker
	p.annotate(network.Annotations(plan, a, cat, w.Network))
	p.finalize()
	if len(s.Spec.SchedulingGates) > 0 { // of another pod it can't be changed any more
		p.selectNodes(network.NodeSelector(a, cat))
	}
	p.ungate(network.AddressGate)
	pod, stale, err := p.send(ctx, w.Client)
	if err != nil || stale {
		return reconcile.Result{}, err // leases of a pod that went stay pending, and the sweep finds them
	}
	fault.Hit(fault.Given)
	w.Metrics.late.WithLabelValues(resultGiven).Inc()
	if err := w.tellWaiting(ctx, pod, ""); err != nil {
		return reconcile.Result{}, err
	}
	return w.serve(ctx, w.subjectOf(pod))
}

// renew gives a pod that lost its leases before it ran a new claim, and takes what was given under the old one.
func (w *Worker) renew(ctx context.Context, s *subject) error {
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return err
	}
	p := newPatch(s.Pod)
	p.testVersion() // it may have been marked, or started, since it was read
	p.annotate(map[string]string{network.ClaimKey: string(claim)})
	for _, c := range s.carried {
		for _, suffix := range []string{network.SuffixAddress, network.SuffixMAC, network.SuffixCIDR, network.SuffixGateway, network.SuffixSubnet,
			network.SuffixAllocated, network.SuffixRouted} {
			p.unannotate(network.Key(c.Provider, suffix))
		}
	}
	_, _, err = p.send(ctx, w.Client)
	return err
}
