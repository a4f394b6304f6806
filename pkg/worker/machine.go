package worker

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

// siblings gives the other living launchers of the pod's virtual machine, which carry its claim; none for other pods.
func (w *Worker) siblings(ctx context.Context, s *subject) ([]corev1.Pod, error) {
	if s.owner.Kind != network.KindVM || !s.claimed {
		return nil, nil
	}
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.InNamespace(s.Namespace), client.MatchingFields{indexClaim: string(s.claim)}); err != nil {
		return nil, fmt.Errorf("list the pods of claim %s: %w", s.claim, err)
	}
	var out []corev1.Pod
	for i := range pods.Items {
		if p := &pods.Items[i]; p.UID != s.UID && !lifecycle.Ended(p) && p.DeletionTimestamp == nil && w.ownerOf(p) == s.owner {
			out = append(out, *p)
		}
	}
	return out, nil
}

// migration is that of the machine whose launcher has the leases, while another launcher runs on another node.
func (w *Worker) migration(ctx context.Context, s *subject) (*ovn.Migration, error) {
	others, err := w.siblings(ctx, s)
	if err != nil || s.Spec.NodeName == "" {
		return nil, err
	}
	for _, p := range others {
		if to := p.Spec.NodeName; to != "" && to != s.Spec.NodeName {
			return &ovn.Migration{Source: s.Spec.NodeName, Target: to, Phase: ovn.MigrationRunning}, nil
		}
	}
	return nil, nil
}

// share serves a launcher whose machine's leases are another launcher's while that lives: port and record are one for
// both, and the other one's until it ends.
func (w *Worker) share(ctx context.Context, s *subject) (reconcile.Result, error) {
	again := reconcile.Result{RequeueAfter: retryHeld}
	p := newPatch(s.Pod)
	p.testAnnotation(network.ClaimKey)
	p.finalize()
	if s.Spec.NodeName != "" {
		w.enqueue(client.ObjectKey{Namespace: s.Namespace, Name: s.sharedWith})
		wires, err := w.wires(ctx, s)
		if err != nil {
			return reconcile.Result{}, err
		}
		p.annotate(marks(wires))
	}
	_, _, err := p.send(ctx, w.Client)
	return again, err
}
