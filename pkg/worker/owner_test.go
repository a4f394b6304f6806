package worker

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

func ofSet(uid metav1.Object) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "web", UID: uid.GetUID(), Controller: &yes}}
	}
}

// A StatefulSet's pod comes back to its address; scaled away, the address is given back.
func TestStickyOwner(t *testing.T) {
	w := newWorld(t, worldOptions{})
	replicas := int32(1)
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas}}
	w.must(w.client.Create(w.ctx, set))
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	first := w.wired("web-0")
	w.end("web-0")
	w.gone("web-0")
	if _, ok := w.nb.Port("web-0.app"); ok || len(w.podLeases()) != 1 {
		t.Fatalf("port left: %t, leases %v", ok, w.podLeases())
	}
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	second := w.wired("web-0")
	for _, key := range []string{"ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address", network.ClaimKey} {
		if first.Annotations[key] != second.Annotations[key] {
			t.Errorf("%s was %s and is %s", key, first.Annotations[key], second.Annotations[key])
		}
	}
	if l := w.podLeases(); len(l) != 1 || l[0].PodUID != string(second.UID) {
		t.Errorf("leases %v", l)
	}
	old := set.DeepCopy()
	*set.Spec.Replicas = 0
	w.must(w.client.Patch(w.ctx, set, client.MergeFrom(old)))
	w.end("web-0")
	w.clean()
}

// A pod behind the gate gets the address that another one leaves, and the gate goes.
func TestWaitingPodGetsFreedAddress(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tiny"},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/30", Gateway: "10.17.0.1", Protocol: "IPv4", Provider: "ovn", Vpc: "ovn-cluster"}}))
	inTiny := func(p *corev1.Pod) { p.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "tiny"} }
	w.must(w.client.Create(w.ctx, podNamed("a", onNode, inTiny)))
	a := w.wired("a")
	w.must(w.client.Create(w.ctx, podNamed("b", inTiny, func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
	})))
	w.until("b waits", func() error {
		w.worker.mu.Lock()
		defer w.worker.mu.Unlock()
		if len(w.worker.waiting) == 0 {
			return fmt.Errorf("it does not")
		}
		return nil
	})
	w.end("a")
	w.until("b has the address", func() error {
		b, err := w.get("b")
		if err == nil && (len(b.Spec.SchedulingGates) > 0 || b.Annotations["ovn.kubernetes.io/ip_address"] != a.Annotations["ovn.kubernetes.io/ip_address"]) {
			err = fmt.Errorf("gates %v, annotations %v", b.Spec.SchedulingGates, b.Annotations)
		}
		return err
	})
}

// Pods whose leases were lost have them back, whether they run or not: they are wired. The subnet is open again then.
func TestLostLeases(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a"))
	w.admit(podNamed("runs", onNode))
	w.wired("runs")
	w.until("both bound", w.allBound)
	before := w.podLeases()
	for _, l := range before {
		w.must(w.ledger.Free(w.ctx, l.Ref()))
	}
	w.worker.enqueue(client.ObjectKey{Namespace: "app", Name: "a"})
	w.worker.enqueue(client.ObjectKey{Namespace: "app", Name: "runs"})
	w.until("leases again", func() error {
		if d := cmp.Diff(before, w.podLeases(), cmpopts.EquateComparable(netip.Addr{}), cmpopts.IgnoreFields(ipam.Lease{}, "Generation")); d != "" {
			return fmt.Errorf("leases (-want +got):\n%s", d)
		}
		return w.opened()
	})
}

// A pod that was never wired and that lost its lease gets another.
func TestLostLeaseBeforeWiring(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.stop()
	a := w.admit(podNamed("a"))
	for _, l := range w.podLeases() {
		w.must(w.ledger.Free(w.ctx, l.Ref()))
	}
	w.start(worldOptions{})
	w.until("another lease", func() error {
		pod, err := w.get("a")
		if err == nil && (pod.Annotations[network.ClaimKey] == a.Annotations[network.ClaimKey] || pod.Annotations["ovn.kubernetes.io/ip_address"] == "") {
			err = fmt.Errorf("annotations %v", pod.Annotations)
		}
		return err
	})
	w.until("bound", w.allBound)
}

// A pod that was marked as routed a moment ago keeps its addresses, though the worker's view of it is older than that.
func TestStaleViewRenewsNothing(t *testing.T) {
	w := newWorld(t, worldOptions{})
	before := w.admit(podNamed("a", onNode))
	want := w.wired("a").Annotations
	w.must(w.worker.renew(w.ctx, w.worker.subjectOf(before)))
	p, err := w.get("a")
	w.must(err)
	if d := cmp.Diff(want, p.Annotations); d != "" {
		t.Errorf("annotations (-want +got):\n%s", d)
	}
}
