package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Times after which a pod that waits is looked at again without any event.
const (
	retryWaiting  = 10 * time.Second
	retryHeld     = 30 * time.Second
	recheckMargin = time.Second
)

// subject is a pod and what was found out about it.
type subject struct {
	*corev1.Pod
	claim   ipam.Claim
	claimed bool
	carried []network.CarriedInterface
	owner   ipam.Owner
	// identity is the name of the pod's ports and records.
	identity string
	// sharedWith is the launcher of the same virtual machine that has the leases while it lives; empty: there is none.
	sharedWith string
	// leases held under the pod's claim, as the ledger's cache knows them.
	leases []ipam.Held
}

func (w *Worker) subjectOf(pod *corev1.Pod) *subject {
	s := &subject{Pod: pod, carried: network.Carried(pod.Annotations), owner: w.ownerOf(pod)}
	s.identity = network.Identity(network.PodOf(pod), s.owner)
	if s.claim, s.claimed = network.ClaimOf(pod.Annotations); s.claimed {
		s.leases = w.Ledger.ByClaim(s.claim)
	}
	return s
}

// locate tells the subnets of networks whose annotations name none, for another CNI plugs them in: by the pod's leases, else
// by the provider.
func (w *Worker) locate(ctx context.Context, s *subject) error {
	for i := range s.carried {
		c := &s.carried[i]
		if c.Subnet != "" || len(c.Addresses) == 0 || !network.Given(s.Annotations, c.Provider) {
			continue
		}
		at := slices.IndexFunc(s.leases, func(l ipam.Held) bool { return l.Provider == c.Provider && slices.Contains(c.Addresses, l.Address) })
		if at >= 0 {
			c.Subnet = s.leases[at].Subnet
			continue
		}
		cat, err := w.topology.Topology(ctx)
		if err != nil {
			return err
		}
		c.Subnet = cat.SubnetOf(*c)
	}
	return nil
}

func (s *subject) key() client.ObjectKey { return client.ObjectKeyFromObject(s.Pod) }

func (s *subject) uid() string { return string(s.UID) }

// ownerUID is that of the pod's controller, where it is the owner of the leases. A virtual machine's pods have its
// instances for controllers.
func (s *subject) ownerUID() string { return facts.ControllerUID(s.Pod, s.owner) }

func (s *subject) finalized() bool { return slices.Contains(s.Finalizers, network.Finalizer) }

// complete tells that the pod carries the answer of an allocation.
func (s *subject) complete() bool { return answered(s.Pod, s.carried) }

// answered tells so of a pod by what it carries.
func answered(p *corev1.Pod, carried []network.CarriedInterface) bool {
	return slices.ContainsFunc(carried, func(c network.CarriedInterface) bool { return network.Given(p.Annotations, c.Provider) })
}

// running tells that the pod's network is in use, so that it can't be given another address.
func (s *subject) running() bool { return facts.Running(s.Pod) }

// boundHere are the leases that are bound to this very pod.
func (s *subject) boundHere() []ipam.Held {
	var out []ipam.Held
	for _, l := range s.leases {
		if l.PodUID == s.uid() {
			out = append(out, l)
		}
	}
	return out
}

// Reconcile brings one pod to what its whole truth asks for.
func (w *Worker) Reconcile(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	free, err := w.placing.turn(ctx, r.NamespacedName)
	if err != nil {
		return reconcile.Result{}, err
	}
	defer free()
	var pod corev1.Pod
	if err := w.Client.Get(ctx, r.NamespacedName, &pod); err != nil {
		if apierrors.IsNotFound(err) {
			w.unwait(r.NamespacedName)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("read pod %s: %w", r.NamespacedName, err)
	}
	if again, err := w.settle(ctx, &pod); err != nil || again > 0 {
		return reconcile.Result{RequeueAfter: again}, err
	}
	result, err := w.reconcile(ctx, w.subjectOf(&pod))
	if busy := (*busyError)(nil); errors.As(err, &busy) {
		return reconcile.Result{RequeueAfter: retryHeld}, nil
	}
	return result, err
}

func (w *Worker) reconcile(ctx context.Context, s *subject) (reconcile.Result, error) {
	w.recall(ctx, s)
	if err := w.locate(ctx, s); err != nil {
		return reconcile.Result{}, err
	}
	var again time.Duration // after which more is to be plugged in
	switch {
	case !regains(s.Pod):
		w.unwait(s.key())
	case s.claimed:
		var err error
		if s, again, err = w.attach(ctx, s); err != nil || s == nil {
			return reconcile.Result{}, err
		}
		if s, err = w.regain(ctx, s); s == nil {
			return reconcile.Result{}, err
		}
	}
	if !s.claimed && !s.finalized() {
		return w.unclaimed(ctx, s)
	}
	verdict, err := w.judge(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	switch verdict.Action {
	case lifecycle.Release, lifecycle.Unwire:
		w.unwait(s.key())
		return reconcile.Result{}, w.reclaim(ctx, s)
	case lifecycle.Serve, lifecycle.RestoreFinalizer:
		if !s.complete() {
			return w.late(ctx, s)
		}
		if again == 0 {
			w.unwait(s.key())
		}
		result, err := w.serve(ctx, s)
		if err != nil {
			return reconcile.Result{}, err
		}
		return cmp.Or(result, reconcile.Result{RequeueAfter: again}), nil
	}
	if grace := s.DeletionGracePeriodSeconds; grace != nil && *grace == 0 || verdict.Row == 7 {
		w.warn(s.Pod, reasonInUse, actionReclaim, "its addresses are not taken back: "+verdict.Reason+ifNodeGone)
	}
	if verdict.After > 0 {
		return reconcile.Result{RequeueAfter: verdict.After + recheckMargin}, nil
	}
	return reconcile.Result{RequeueAfter: retryHeld}, nil // its node may yet turn out to be lost
}

// judge gathers the facts. Of a sticky owner only the sweep asks whether it still keeps its leases: here it does.
func (w *Worker) judge(ctx context.Context, s *subject) (lifecycle.Verdict, error) {
	known := lifecycle.Facts{Pod: s.Pod, OwnerKeeps: lifecycle.No, Leased: len(s.leases) > 0, Finalized: s.finalized(),
		Unfenced: facts.Unfenced(s.Pod, s.leases), Now: w.Clock.Now()}
	if slices.ContainsFunc(s.leases, func(l ipam.Held) bool { return l.Owner.Sticky() }) {
		known.OwnerKeeps = lifecycle.Yes
	}
	if (s.DeletionTimestamp != nil || lifecycle.Ended(s.Pod)) && s.Spec.NodeName != "" {
		var node corev1.Node
		err := w.Client.Get(ctx, client.ObjectKey{Name: s.Spec.NodeName}, &node)
		switch {
		case err == nil:
			known.Node = &node
		case apierrors.IsNotFound(err):
			// The cache may not know a young node yet: only a live read can tell that it is gone.
			gone, err := w.nodeGone(ctx, s.Spec.NodeName)
			if err != nil {
				return lifecycle.Verdict{}, err
			}
			known.NodeGone = gone
		default:
			return lifecycle.Verdict{}, fmt.Errorf("read node %s: %w", s.Spec.NodeName, err)
		}
	}
	return lifecycle.Decide(known), nil
}

func (w *Worker) nodeGone(ctx context.Context, name string) (bool, error) {
	err := w.Live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	if err == nil || apierrors.IsNotFound(err) {
		return err != nil, nil
	}
	return false, fmt.Errorf("read node %s: %w", name, err)
}

// busyError says that a pod can't be wired now, and that nothing is gained by trying again soon.
type busyError struct{ reason string }

func (e *busyError) Error() string { return e.reason }
