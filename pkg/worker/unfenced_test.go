package worker

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
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
			w.outOfService("n1")
			w.look("a")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onMacvlan(t, worldOptions{})
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

// outOfService taints a node as one on which nothing runs any more.
func (w *world) outOfService(name string) {
	w.t.Helper()
	node := w.node(name)
	old := node.DeepCopy()
	node.Spec.Taints = append(node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoExecute})
	w.must(w.client.Patch(w.ctx, node, client.MergeFrom(old)))
	w.seen(node)
}

// says has a node say whether it is ready.
func (w *world) says(name string, ready corev1.ConditionStatus) {
	w.t.Helper()
	node := w.node(name)
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}
	w.must(w.client.Status().Update(w.ctx, node))
	w.seen(node)
}

// onMacvlan is a world with a pod that has an address on a network of another CNI.
func onMacvlan(t *testing.T, o worldOptions) *world {
	t.Helper()
	w := newWorld(t, o)
	w.serving("mv", "10.32.0.0/24", "mv.app")
	w.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
	w.admitWhole(podNamed("a", onNode, attachedTo("mv")))
	w.wired("a")
	return w
}

// stripped takes the finalizer off a pod by hand, and has it go at once: nothing of ours may come in between.
func (w *world) stripped(name string, fault *mutable) {
	w.t.Helper()
	fault.on.Store(true)
	w.change(name, func(p *corev1.Pod) { p.Finalizers = nil })
	w.end(name)
	w.gone(name)
	fault.on.Store(false)
}

// held tells that of all leases that on the other CNI's network is left, and its record with it.
func (w *world) held() error {
	var ip kubeovnv1.IP
	return errors.Join(w.leasedOnly("mv"), w.client.Get(w.ctx, client.ObjectKey{Name: "a.app.mv.app"}, &ip))
}

func (w *world) leasedOnly(subnet string) error {
	if l := w.podLeases(); len(l) != 1 || l[0].Subnet != subnet {
		return fmt.Errorf("leases %v, want one in %s", l, subnet)
	}
	return nil
}

// A pod whose finalizer is taken off by hand goes at once. What it had behind ports is free then, and its address on
// another CNI's network waits as it would have with the finalizer.
func TestSweepWaitsForTheContainersOfAnotherCNI(t *testing.T) {
	t.Run("seen to run, until the node is out of service", func(t *testing.T) {
		var fault mutable
		w := onMacvlan(t, worldOptions{intercept: fault.patches})
		w.says("n1", corev1.ConditionTrue)
		w.reports("a", runningState())
		w.seen(podNamed("a"))
		w.stripped("a", &fault)
		w.until("what ports fence is free", w.held)
		w.keeps("the address of a running container", w.held)
		w.outOfService("n1")
		w.clean()
		w.until("nothing is remembered", w.forgotten)
	})
	t.Run("seen to have stopped", func(t *testing.T) {
		var fault mutable
		w := onMacvlan(t, worldOptions{intercept: fault.patches})
		w.says("n1", corev1.ConditionUnknown)
		w.reports("a", stoppedState())
		w.seen(podNamed("a"))
		w.stripped("a", &fault)
		w.clean()
		w.until("nothing is remembered", w.forgotten)
	})
	t.Run("unseen, until the node is ready", func(t *testing.T) {
		var fault mutable
		w := onMacvlan(t, worldOptions{intercept: fault.patches})
		w.says("n1", corev1.ConditionUnknown)
		w.reports("a", runningState())
		w.stop()
		w.stripped("a", &fault)
		w.start(worldOptions{})
		w.until("what ports fence is free", w.held)
		w.keeps("the address of an unknown container", w.held)
		w.says("n1", corev1.ConditionTrue)
		w.clean()
	})
	t.Run("called failed while it runs", func(t *testing.T) {
		var fault mutable
		w := onMacvlan(t, worldOptions{intercept: fault.patches})
		w.reports("a", runningState())
		fault.on.Store(true)
		w.change("a", func(p *corev1.Pod) { p.Finalizers = nil })
		p, err := w.get("a")
		w.must(err)
		p.Status.Phase = corev1.PodFailed
		w.must(w.client.Status().Update(w.ctx, p))
		fault.on.Store(false)
		w.keeps("the address of a running container", func() error {
			if !slices.ContainsFunc(w.podLeases(), func(l ipam.Held) bool { return l.Subnet == "mv" }) {
				return errors.New("it is free")
			}
			return nil
		})
		w.outOfService("n1")
		w.look("a")
		w.until("no lease", w.leased(0))
	})
}

// forgotten tells that the worker remembers nothing of pods that went.
func (w *world) forgotten() error {
	w.worker.mu.Lock()
	defer w.worker.mu.Unlock()
	if n := len(w.worker.exits); n > 0 {
		return fmt.Errorf("it remembers %d", n)
	}
	return nil
}
