//go:build e2e

package lifecycle

import (
	"context"
	"encoding/json"
	"errors"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// handName is a node whose kubelet is this test: its pods have no network namespace, so hundreds cost little.
const handName = "hand"

// handTaint keeps others' pods off it.
const handTaint = "e2e.berth.dev/hand"

// onHand has a pod run there.
func onHand(s *corev1.PodSpec) {
	s.NodeSelector = map[string]string{corev1.LabelHostname: handName}
	s.Tolerations = append(s.Tolerations, corev1.Toleration{Key: handTaint, Operator: corev1.TolerationOpExists})
}

// hand makes the node, and plays its kubelet until the test's other cleanups are done. Call it before objects are made.
func (h *harness) hand(t *testing.T) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: handName, Labels: map[string]string{corev1.LabelHostname: handName}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: handTaint, Effect: corev1.TaintEffectNoSchedule}}}}
	h.create(t, node)
	room := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("500"), corev1.ResourceCPU: resource.MustParse("64"),
		corev1.ResourceMemory: resource.MustParse("64Gi")}
	old := node.DeepCopy()
	node.Status = corev1.NodeStatus{Capacity: room, Allocatable: room,
		Addresses:  []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.10"}},
		Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
	// A patch: others write to a new node at the same time.
	if err := h.api.Status().Patch(t.Context(), node, client.StrategicMergeFrom(old)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			if err := errors.Join(h.handBeat(ctx), h.handRound(ctx)); err != nil && ctx.Err() == nil {
				t.Logf("the node played by hand: %v", err)
			}
			time.Sleep(150 * time.Millisecond) // as often as a kubelet might look
		}
	}()
	t.Cleanup(func() {
		h.empty(t) // its pods end by it
		cancel()
		<-done
		if err := h.api.Delete(context.WithoutCancel(t.Context()), node); err != nil {
			t.Error(err)
		}
	})
}

// handBeat says that the node is there, or it would be found lost.
func (h *harness) handBeat(ctx context.Context) error {
	var node corev1.Node
	if err := h.api.Get(ctx, client.ObjectKey{Name: handName}, &node); err != nil {
		return err
	}
	for i := range node.Status.Conditions {
		c := &node.Status.Conditions[i]
		if c.Type != corev1.NodeReady || time.Since(c.LastHeartbeatTime.Time) < 10*time.Second {
			continue
		}
		old := node.DeepCopy()
		c.LastHeartbeatTime = metav1.Now()
		return h.api.Status().Patch(ctx, &node, client.StrategicMergeFrom(old))
	}
	return nil
}

// handRound does for every pod of the node what is due, for several at once as kubelets do.
func (h *harness) handRound(ctx context.Context) error {
	var list corev1.PodList
	if err := h.api.List(ctx, &list, client.MatchingFields{"spec.nodeName": handName}); err != nil {
		return err
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range list.Items {
		p := &list.Items[i]
		switch {
		case p.DeletionTimestamp != nil && *p.DeletionGracePeriodSeconds != 0:
			group.Go(func() error {
				return client.IgnoreNotFound(h.api.Delete(ctx, p, client.GracePeriodSeconds(0), client.Preconditions{UID: &p.UID}))
			})
		case p.DeletionTimestamp == nil && p.Status.Phase == corev1.PodPending &&
			p.Annotations[network.Key(network.DefaultProvider, network.SuffixRouted)] == "true":
			group.Go(func() error { return client.IgnoreNotFound(h.handStart(ctx, p)) })
		}
	}
	return group.Wait()
}

// handStart says that the pod runs, or of one that isn't restarted that it has run to its end.
func (h *harness) handStart(ctx context.Context, p *corev1.Pod) error {
	now := metav1.Now()
	status := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now}}}
	container := corev1.ContainerStatus{Name: p.Spec.Containers[0].Name, Ready: true,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}
	if p.Spec.RestartPolicy == corev1.RestartPolicyNever {
		status.Phase, status.Conditions, container.Ready = corev1.PodSucceeded, nil, false
		container.State = corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{StartedAt: now, FinishedAt: now}}
	}
	status.ContainerStatuses = []corev1.ContainerStatus{container}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	return h.api.Status().Patch(ctx, p, client.RawPatch(types.StrategicMergePatchType, body))
}
