package worker

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/network"
)

// A pod that waits is told so once, however often it is looked at, and that it waits no more.
func TestWaitIsToldOnce(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.serving("full", "10.17.0.0/30", "ovn")
	inFull := annotated("ovn.kubernetes.io/logical_switch", "full")
	w.admitWhole(podNamed("a", onNode, inFull))
	w.wired("a")
	w.must(w.client.Create(w.ctx, podNamed("b", inFull, func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
	})))
	says := func(status corev1.ConditionStatus) func() error {
		return func() error {
			p, err := w.get("b")
			if err != nil {
				return err
			}
			for _, c := range p.Status.Conditions {
				if c.Type == conditionAddress && c.Status == status {
					return nil
				}
			}
			return fmt.Errorf("conditions %v", p.Status.Conditions)
		}
	}
	w.until("it is told that it waits", says(corev1.ConditionFalse))
	w.look("b")
	w.kube.ResetRequests()
	for range 5 {
		w.look("b")
	}
	if n := w.kube.Requests()["patch pods/status"]; n > 0 {
		t.Errorf("%d writes of what is told already", n)
	}
	w.end("a")
	w.until("it is told that it waits no more", says(corev1.ConditionTrue))
}
