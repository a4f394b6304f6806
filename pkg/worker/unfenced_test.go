package worker

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

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
	if n := len(w.worker.exits) + len(w.worker.unseen); n > 0 {
		return fmt.Errorf("it remembers %d", n)
	}
	return nil
}

// unserved tells that the pod has no port, and that its addresses on other CNIs' networks are still its predecessor's.
func (w *world) unserved(p *corev1.Pod) func() error {
	return func() error {
		now, err := w.get(p.Name)
		if err != nil || now.Annotations["ovn.kubernetes.io/routed"] != "" {
			return fmt.Errorf("%w: annotations %v", err, now.Annotations)
		}
		for _, l := range w.podLeases() {
			if l.PodUID == string(p.UID) {
				return fmt.Errorf("%s is bound to it", l.Ref())
			}
		}
		return nil
	}
}

// A pod of a set whose finalizer is taken off by hand is followed by another of its name, with its addresses. As long as a
// container of the former one may run, no removal of a port keeps it off the network of another CNI: the new one waits.
func TestHeirWaitsForTheContainersOfAnotherCNI(t *testing.T) {
	later := func(w *world) {
		w.worker.mu.Lock()
		defer w.worker.mu.Unlock()
		for uid, since := range w.worker.unseen {
			w.worker.unseen[uid] = since.Add(-time.Minute)
		}
	}
	for name, c := range map[string]struct {
		node  corev1.ConditionStatus
		state corev1.ContainerState
		// restart has the worker not see how the pod goes.
		restart bool
		// end ends the wait; nil: there is none.
		end func(*world)
	}{
		"its node is out of service":         {corev1.ConditionUnknown, runningState(), false, func(w *world) { w.outOfService("n1") }},
		"its node is ready for long":         {corev1.ConditionTrue, runningState(), false, later},
		"it went unseen, and later":          {corev1.ConditionTrue, runningState(), true, later},
		"it went unseen, and out of service": {corev1.ConditionUnknown, runningState(), true, func(w *world) { w.outOfService("n1") }},
		"it had stopped":                     {corev1.ConditionUnknown, stoppedState(), false, nil},
	} {
		t.Run(name, func(t *testing.T) {
			var fault mutable
			options := worldOptions{intercept: fault.patches, age: time.Minute}
			w := newWorld(t, options)
			w.serving("mv", "10.32.0.0/24", "mv.app")
			w.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
			set := w.makeSet()
			w.admitWhole(podNamed("web-0", onNode, attachedTo("mv"), ofSet(set)))
			before := w.wired("web-0")
			w.says("n1", c.node)
			w.reports("web-0", c.state)
			w.seen(podNamed("web-0"))
			if c.restart {
				w.stop()
			}
			w.stripped("web-0", &fault)
			if c.restart {
				w.start(options)
			}
			after := w.admitWhole(podNamed("web-0", onNode, attachedTo("mv"), ofSet(set)))
			if c.end != nil {
				w.until("it is told", func() error { return w.told("web-0", reasonInUse) })
				w.keeps("the former pod's addresses", w.unserved(after))
				c.end(w)
				w.look("web-0")
			}
			now := w.wired("web-0")
			for _, key := range []string{addressKey, "mv.app.kubernetes.io/ip_address"} {
				if now.Annotations[key] == "" || now.Annotations[key] != before.Annotations[key] {
					t.Errorf("%s was %q and is %q", key, before.Annotations[key], now.Annotations[key])
				}
			}
			w.until("all is bound to it", func() error {
				for _, l := range w.podLeases() {
					if l.PodUID != string(now.UID) {
						return fmt.Errorf("%+v", l)
					}
				}
				return nil
			})
		})
	}
}

// A pod of a set that ends as it should is followed by the next one without a wait.
func TestHeirOfAPodThatHasStopped(t *testing.T) {
	w := newWorld(t, worldOptions{age: time.Minute})
	w.serving("mv", "10.32.0.0/24", "mv.app")
	w.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
	set := w.makeSet()
	for range 5 {
		w.admitWhole(podNamed("web-0", onNode, attachedTo("mv"), ofSet(set)))
		p := w.wired("web-0")
		if err := w.told("web-0", reasonInUse); err == nil {
			t.Errorf("pod %s was told to wait", p.UID)
		}
		w.reports("web-0", runningState())
		w.must(w.client.Delete(w.ctx, podNamed("web-0"), client.GracePeriodSeconds(30)))
		w.reports("web-0", stoppedState())
		w.end("web-0")
		w.gone("web-0")
	}
}
