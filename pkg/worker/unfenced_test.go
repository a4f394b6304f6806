package worker

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

func runningState() corev1.ContainerState {
	return corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}
}

func stoppedState() corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}
}

// reports has kubelet say how the pod's one container is.
func (w *world) reports(name string, state corev1.ContainerState) {
	w.t.Helper()
	p, err := w.get(name)
	w.must(err)
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: state}}
	w.must(w.client.Status().Update(w.ctx, p))
}

// No removal of a port keeps a container off the network of another CNI: after a deletion by force its address waits until
// the container has stopped, or the node is out of service.
func TestAddressOfAnotherCNIWaitsForTheContainers(t *testing.T) {
	for name, end := range map[string]func(*world){
		"the container stops": func(w *world) { w.reports("a", stoppedState()) },
		"the node is out of service": func(w *world) {
			node := w.node("n1")
			old := node.DeepCopy()
			node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
			w.must(w.client.Patch(w.ctx, node, client.MergeFrom(old)))
			w.seen(node)
			w.look("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.serving("mv", "10.32.0.0/24", "mv.app")
			w.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
			w.admitWhole(podNamed("a", onNode, attachedTo("mv")))
			w.wired("a")
			w.admit(podNamed("port", onNode))
			w.wired("port")
			for _, pod := range []string{"a", "port"} {
				w.reports(pod, runningState())
				w.seen(podNamed(pod))
				w.end(pod)
			}
			w.gone("port") // its port's removal fences it
			w.keeps("the addresses of a running container", w.leased(2))
			w.until("that is told", func() error { return w.told("a", reasonInUse) })
			if _, wired := w.nb.Port("a.app"); !wired {
				t.Error("the pod lost its port before its containers have stopped")
			}
			end(w)
			w.clean()
		})
	}
}
