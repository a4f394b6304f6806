package worker

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// A copy of the manifest of a pod that has ended comes to its lease before the pod's port was taken away: never have two
// ports that address.
func TestCopyOfAnEndedPodTakesItsPortAway(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	w.stop()
	p.Status.Phase = corev1.PodSucceeded
	w.must(w.client.Status().Update(w.ctx, p))
	c := podNamed("copy", onNode)
	c.Annotations, c.Finalizers = maps.Clone(p.Annotations), p.Finalizers
	maps.DeleteFunc(c.Annotations, func(k, _ string) bool { return network.Progress(k) })
	w.must(w.client.Create(w.ctx, c))

	h := w.employ(worldOptions{})
	defer h.end()
	_, err := h.Reconcile(w.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(c)})
	w.must(err)
	w.until("the copy has its port, alone", func() error {
		if got := w.podPorts(); !slices.Equal(got, []string{"copy.app"}) {
			return fmt.Errorf("ports %v", got)
		}
		return nil
	})
	for range 2 {
		_, err := h.Reconcile(w.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(p)})
		w.must(err)
	}
	if got := w.podLeases(); len(got) != 1 || got[0].PodUID != string(c.UID) {
		t.Errorf("after the end of the former pod the leases are %v", got)
	}
}

// The port and the record of a virtual machine are under its own name. A list of pods that comes back empty takes neither
// from its launcher.
func TestEmptyListOfPodsAndALauncher(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeMachine()
	w.admit(launcher("virt-launcher-vm-a", "n1"))
	w.wired("virt-launcher-vm-a")
	w.seen(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "vm.app"}})
	w.stop()
	h := w.employ(worldOptions{})
	defer h.end()
	w.seen(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "vm.app"}})
	h.Client = podless{h.Client}
	for range 3 {
		w.must(h.sweep(w.ctx))
		if _, ok := w.nb.Port("vm.app"); !ok {
			t.Fatal("the launcher's port is gone")
		}
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "vm.app"}, &kubeovnv1.IP{}))
	}
	if len(h.noted) == 0 {
		t.Error("it suspected nothing: the list wasn't empty")
	}
}

// A lease was found without a pod, and then its owner's pod came back: what was decided on before takes neither the lease
// nor the port from it.
func TestLateSweepAfterTheReturn(t *testing.T) {
	w := newWorld(t, worldOptions{})
	set := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	w.wired("web-0")
	w.until("bound", w.allBound)
	w.end("web-0")
	w.gone("web-0")
	before := w.podLeases()[0]
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	now := w.wired("web-0")
	w.stop()
	h := w.employ(worldOptions{})
	defer h.end()
	h.ripe[before.Ref()] = true
	late := &repair{Worker: h.Worker, keeper: facts.NewKeeper(h.Live, h.Client.RESTMapper()), live: map[string][]lifecycle.Pod{"app": nil}}
	_, err := late.mendLease(w.ctx, lifecycle.Finding{Kind: lifecycle.LeaseOrphaned, Subject: before.Ref().String(), Lease: before, Namespace: "app",
		Pod: "web-0", PodUID: before.PodUID})
	w.must(err)
	time.Sleep(50 * time.Millisecond) // nothing tells that no port goes
	if p, ok := w.nb.Port("web-0.app"); !ok || p.ExternalIDs[nb.KeyPodUID] != string(now.UID) {
		t.Errorf("the port is %v", p)
	}
	if !slices.ContainsFunc(w.podLeases(), func(l ipam.Held) bool { return l.PodUID == string(now.UID) }) {
		t.Errorf("leases %v", w.podLeases())
	}
}
