//go:build e2e

package admission

import (
	"context"
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/network"
)

// runPods plays scheduler, CNI and kubelet for a namespace until the test ends: it binds what may be scheduled, runs what
// is routed, and ends what is deleted.
func (w *world) runPods(t *testing.T, namespace string) {
	t.Helper()
	watch, err := w.Client().CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range watch.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == "DELETED" {
				continue
			}
			err := w.step(ctx, p)
			// What has changed meanwhile comes as an event of its own.
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsInvalid(err) && !errors.Is(err, context.Canceled) {
				t.Errorf("run pod %s: %v", p.Name, err)
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		watch.Stop()
		<-done
	})
}

// step does the next thing for a pod.
func (w *world) step(ctx context.Context, p *corev1.Pod) error {
	pods := w.Client().CoreV1().Pods(p.Namespace)
	routed := p.Annotations[network.Key(network.DefaultProvider, network.SuffixRouted)] == "true"
	ended := p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
	switch {
	case p.DeletionTimestamp != nil && p.Spec.NodeName != "" && !ended:
		now := int64(0)
		return pods.Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: &now, Preconditions: &metav1.Preconditions{UID: &p.UID}})
	case p.DeletionTimestamp != nil:
		return nil
	case p.Spec.NodeName == "" && len(p.Spec.SchedulingGates) == 0:
		return pods.Bind(ctx, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name, UID: p.UID},
			Target: corev1.ObjectReference{Kind: "Node", Name: node}}, metav1.CreateOptions{})
	case p.Spec.NodeName != "" && routed && p.Status.PodIP == "":
		now := metav1.NewTime(time.Now())
		yes := func(k corev1.PodConditionType) corev1.PodCondition {
			return corev1.PodCondition{Type: k, Status: corev1.ConditionTrue, LastTransitionTime: now}
		}
		started := true
		return w.patchStatus(ctx, p, map[string]any{"phase": corev1.PodRunning, "podIP": address(p),
			"podIPs": []corev1.PodIP{{IP: address(p)}}, "startTime": now,
			"conditions": []corev1.PodCondition{yes(corev1.PodInitialized), yes(corev1.ContainersReady), yes(corev1.PodReady)},
			"containerStatuses": []corev1.ContainerStatus{{Name: "main", Image: "pause:3.10", Ready: true, Started: &started,
				State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}})
	}
	return nil
}

// isReady tells that a pod runs and is Ready.
func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue && p.DeletionTimestamp == nil
		}
	}
	return false
}
