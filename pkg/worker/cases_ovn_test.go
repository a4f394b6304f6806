package worker

import (
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

// The MAC that the router's port has in the northbound database is nobody else's: a pod that asks for it is refused.
func TestB14MACOfTheRouterPort(t *testing.T) {
	w := newWorld(t, worldOptions{})
	owner := ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindSubnet, Name: "s"}
	w.until("the MAC is leased", func() error {
		if len(w.ledger.ByOwner(owner)) == 0 {
			return errors.New("no lease")
		}
		return nil
	})
	port, ok := w.nb.RouterPort("ovn-cluster-s")
	if !ok {
		t.Fatal("no port of the router")
	}
	claim, err := ipam.NewClaim(w.worker.Random)
	w.must(err)
	view, err := w.worker.topology.ForLive(w.ctx, network.PodOf(podNamed("thief", annotated("ovn.kubernetes.io/mac_address", port.MAC))))
	w.must(err)
	plan, bad := network.Plan(view.Pod, view.Namespace, view.Catalog, w.worker.Network)
	w.must(bad.ToAggregate())
	var held *ipam.MACHeldError
	if a, err := w.ledger.Take(w.ctx, plan.Request(claim, false)); !errors.As(err, &held) || held.Holder.Owner != owner {
		t.Errorf("asked for the router's MAC %s: got %+v, %v", port.MAC, a, err)
	}
}

// A machine that is stopped is in no SecurityGroup, for it has no port. Started again it is in the same ones.
func TestB93SecurityGroupsOfAStoppedMachine(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for _, name := range []string{"web", "db"} {
		g := securityGroup(name)
		w.must(w.client.Create(w.ctx, g))
		w.seen(g)
	}
	w.makeMachine()
	guarded := annotated("ovn.kubernetes.io/security_groups", "web,db")
	w.boot("virt-launcher-vm-1", "", guarded)
	w.secured("vm.app", "ovn.sg.db", denyGroup, webGroup)
	w.halt("virt-launcher-vm-1")
	w.secured("vm.app")
	w.must(w.leased(1)())
	w.boot("virt-launcher-vm-2", "", guarded)
	w.secured("vm.app", "ovn.sg.db", denyGroup, webGroup)
}

// Without the northbound database nothing is found to be gone, and no end of a pod gives anything back.
func TestB94NothingIsFreedWithoutTheDatabase(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for _, name := range []string{"stays", "ends"} {
		w.admit(podNamed(name, onNode))
		w.wired(name)
	}
	w.nb.Close()
	w.end("ends")
	for range 3 {
		if err := w.worker.sweep(w.ctx); !errors.Is(err, ovn.ErrNotReady) {
			t.Errorf("sweep: %v, want ErrNotReady", err)
		}
	}
	w.keeps("both leases and the finalizer", func() error {
		p, err := w.get("ends")
		if err == nil && !cmp.Equal(p.Finalizers, []string{network.Finalizer}) {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return errors.Join(err, w.leased(2)())
	})
}

// A machine that has migrated migrates back. While the target has no node yet, the machine stays where it is.
func TestB59MigrationBackAgain(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{addressKey: "100.64.0.3"}}}))
	w.makeMachine()
	first := w.boot("virt-launcher-vm-a", "")
	over := func(name string) {
		t.Helper()
		p, err := w.get(name)
		w.must(err)
		p.Status.Phase = corev1.PodSucceeded
		w.must(w.client.Status().Update(w.ctx, p))
	}
	on := func(node string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.Spec.NodeName = node } }
	w.boot("virt-launcher-vm-b", "", on("n2"))
	w.chassis("n1,n2", "virt-launcher-vm-a")
	over("virt-launcher-vm-a")
	w.chassis("", "virt-launcher-vm-b")
	w.end("virt-launcher-vm-a")
	w.gone("virt-launcher-vm-a")

	waiting := launcher("virt-launcher-vm-c", "")
	w.admitWhole(waiting)
	w.look("virt-launcher-vm-c")
	w.chassis("", "virt-launcher-vm-b")
	w.must(w.client.SubResource("binding").Create(w.ctx, waiting, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}))
	back := w.wired("virt-launcher-vm-c")
	w.chassis("n2,n1", "virt-launcher-vm-b")
	over("virt-launcher-vm-b")
	w.chassis("", "virt-launcher-vm-c")
	if got, want := back.Annotations[addressKey], first.Annotations[addressKey]; got != want {
		t.Errorf("the machine had %s and has %s", want, got)
	}
}
