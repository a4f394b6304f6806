package worker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// keeps looks on for several sweeps and the age of pending leases, and sees that the check holds all the time.
func (w *world) keeps(what string, check func() error) {
	w.t.Helper()
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // nothing tells that nothing happens
		if err := check(); err != nil {
			w.t.Fatalf("%s: %v", what, err)
		}
	}
}

func (w *world) leased(n int) func() error {
	return func() error {
		if l := w.podLeases(); len(l) != n {
			return fmt.Errorf("leases %v, want %d", l, n)
		}
		return nil
	}
}

// object is one of any kind.
func object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"namespace": "app", "name": name}, "spec": spec}}
}

func controlledBy(apiVersion, kind, name string, uid types.UID) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: uid, Controller: &yes}}
	}
}

// change patches a pod.
func (w *world) change(name string, change func(*corev1.Pod)) {
	w.t.Helper()
	p, err := w.get(name)
	w.must(err)
	old := p.DeepCopy()
	change(p)
	w.must(w.client.Patch(w.ctx, p, client.MergeFrom(old)))
}

func (w *world) makeSet() *appsv1.StatefulSet {
	w.t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "web"}}
	w.must(w.client.Create(w.ctx, set))
	return set
}

// The pod of a set that is deleted without its pods stays, a new set takes it over, and it comes back to its address. A
// set that is made anew under the name and takes nothing over has no part in the address.
func TestB74OwnerMadeAnew(t *testing.T) {
	w := newWorld(t, worldOptions{})
	first := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(first)))
	before := w.wired("web-0")
	w.change("web-0", func(p *corev1.Pod) { p.OwnerReferences = nil })
	w.must(w.client.Delete(w.ctx, first))
	w.keeps("the orphan's lease", w.leased(1))

	second := w.makeSet()
	w.change("web-0", ofSet(second))
	w.until("the lease knows its owner", func() error {
		if l := w.podLeases(); len(l) != 1 || l[0].OwnerUID != string(second.UID) {
			return fmt.Errorf("%+v", l)
		}
		return nil
	})
	w.end("web-0")
	w.gone("web-0")
	w.keeps("the set's lease", w.leased(1))
	w.admit(podNamed("web-0", onNode, ofSet(second)))
	if after := w.wired("web-0"); after.Annotations[addressKey] != before.Annotations[addressKey] {
		t.Errorf("it had %s and has %s", before.Annotations[addressKey], after.Annotations[addressKey])
	}
	w.end("web-0")
	w.gone("web-0")
	w.must(w.client.Delete(w.ctx, second))
	w.makeSet()
	w.clean()
}

// Sets of OpenKruise pass over reserved ordinals; owners of configured kinds keep as long as they exist.
func TestOtherOwnersKeep(t *testing.T) {
	w := newWorld(t, worldOptions{change: func(o *Options) { o.Network.Owners = []network.OwnerKind{{Group: "example.com", Kind: "Farm"}} }})
	set := object("apps.kruise.io/v1beta1", "StatefulSet", "web", map[string]any{"replicas": int64(2), "reserveOrdinals": []any{int64(1)}})
	farm := object("example.com/v1", "Farm", "farm", map[string]any{})
	w.must(w.client.Create(w.ctx, set))
	w.must(w.client.Create(w.ctx, farm))
	for _, name := range []string{"web-1", "web-2"} {
		w.admit(podNamed(name, onNode, controlledBy("apps.kruise.io/v1beta1", "StatefulSet", "web", set.GetUID())))
	}
	w.admit(podNamed("cow", onNode, controlledBy("example.com/v1", "Farm", "farm", farm.GetUID())))
	for _, name := range []string{"web-1", "web-2", "cow"} {
		w.wired(name)
		w.end(name)
		w.gone(name)
	}
	w.until("the reserved ordinal's lease is gone", w.leased(2))
	w.keeps("the others", w.leased(2))
	w.must(w.client.Delete(w.ctx, farm))
	w.until("the farm's lease is gone", w.leased(1))
	w.must(w.client.Delete(w.ctx, set))
	w.clean()
}

// What can't be read is not gone: the lease stays while reads of its owner fail.
func TestB73UnknownOwnerIsNotGone(t *testing.T) {
	broken := true
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if broken && r.Resource == "statefulsets" {
			return memkube.Fault{Err: fmt.Errorf("out of order")}
		}
		return memkube.Fault{}
	}})
	w.admit(podNamed("web-0", onNode, controlledBy("apps/v1", "StatefulSet", "web", "gone")))
	w.wired("web-0")
	w.end("web-0")
	w.gone("web-0")
	w.keeps("the lease of an owner that can't be read", w.leased(1))
}

// A running pod that has lost its annotations keeps its lease, and has them back.
func TestB73EmptyAddressAnnotation(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	before := w.wired("a")
	w.change("a", func(p *corev1.Pod) { p.Annotations[addressKey] = "" })
	w.until("the address is back", func() error {
		p, err := w.get("a")
		if err == nil && p.Annotations[addressKey] != before.Annotations[addressKey] {
			err = fmt.Errorf("annotations %v", p.Annotations)
		}
		return err
	})
	w.keeps("its lease", w.leased(1))
}

func launcher(name, node string) *corev1.Pod {
	return podNamed(name, controlledBy("kubevirt.io/v1", "VirtualMachineInstance", "vm", types.UID("vmi-"+name)), func(p *corev1.Pod) { p.Spec.NodeName = node })
}

func (w *world) makeMachine(networks ...any) *unstructured.Unstructured {
	w.t.Helper()
	vm := object("kubevirt.io/v1", "VirtualMachine", "vm", map[string]any{"template": map[string]any{"spec": map[string]any{"networks": networks}}})
	w.must(w.client.Create(w.ctx, vm))
	return vm
}

// A machine that is stopped keeps its address, has it when it starts, and gives it back when it is deleted.
func TestB60StoppedMachine(t *testing.T) {
	w := newWorld(t, worldOptions{})
	vm := w.makeMachine()
	w.admit(launcher("virt-launcher-vm-a", "n1"))
	before := w.wired("virt-launcher-vm-a")
	w.end("virt-launcher-vm-a")
	w.gone("virt-launcher-vm-a")
	w.keeps("the stopped machine's lease", w.leased(1))
	w.admit(launcher("virt-launcher-vm-b", "n1"))
	after := w.wired("virt-launcher-vm-b")
	for _, key := range []string{addressKey, "ovn.kubernetes.io/mac_address"} {
		if after.Annotations[key] != before.Annotations[key] {
			t.Errorf("%s was %s and is %s", key, before.Annotations[key], after.Annotations[key])
		}
	}
	w.end("virt-launcher-vm-b")
	w.gone("virt-launcher-vm-b")
	w.keeps("the stopped machine's lease", w.leased(1))
	w.must(w.client.Delete(w.ctx, vm))
	w.clean()
}

// chassis waits until the machine's port asks for these nodes and is that pod's.
func (w *world) chassis(nodes, pod string) {
	w.t.Helper()
	w.until("the port of "+pod+" on "+nodes, func() error {
		p, err := w.get(pod)
		if err != nil {
			return err
		}
		port, ok := w.nb.Port("vm.app")
		if !ok || port.Options["requested-chassis"] != nodes || port.ExternalIDs[nb.KeyPodUID] != string(p.UID) {
			return fmt.Errorf("port %v, pod %s", port, p.UID)
		}
		if l := w.podLeases(); len(l) != 1 || l[0].PodUID != string(p.UID) {
			return fmt.Errorf("leases %+v", l)
		}
		return nil
	})
}

// Both launchers of a migrating machine share the address. The one that ends takes nothing from the other.
func TestB59Migration(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{addressKey: "100.64.0.3"}}}))
	w.makeMachine()
	w.admit(launcher("virt-launcher-vm-a", "n1"))
	before := w.wired("virt-launcher-vm-a").Annotations[addressKey]

	w.admit(launcher("virt-launcher-vm-b", "n2"))
	if got := w.wired("virt-launcher-vm-b").Annotations[addressKey]; got != before {
		t.Fatalf("the target has %s, the source %s", got, before)
	}
	w.chassis("n1,n2", "virt-launcher-vm-a")
	w.end("virt-launcher-vm-b") // cancelled
	w.gone("virt-launcher-vm-b")
	w.chassis("", "virt-launcher-vm-a")

	w.admit(launcher("virt-launcher-vm-c", "n2"))
	w.wired("virt-launcher-vm-c")
	w.chassis("n1,n2", "virt-launcher-vm-a")
	p, err := w.get("virt-launcher-vm-a")
	w.must(err)
	p.Status.Phase = corev1.PodSucceeded
	w.must(w.client.Status().Update(w.ctx, p))
	w.chassis("", "virt-launcher-vm-c")
	w.end("virt-launcher-vm-a")
	w.gone("virt-launcher-vm-a")
	var ip kubeovnv1.IP
	w.until("the record is the target's", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: "vm.app"}, &ip); err != nil {
			return err
		}
		if ip.Spec.NodeName != "n2" {
			return fmt.Errorf("record %+v", ip.Spec)
		}
		return nil
	})
	w.keeps("the target's port", func() error {
		if _, ok := w.nb.Port("vm.app"); !ok {
			return fmt.Errorf("it is gone")
		}
		return w.leased(1)()
	})
}

// A NIC that is taken out of a stopped machine's spec gives its address back, and no other does.
func TestB10UnpluggedFromAStoppedMachine(t *testing.T) {
	w := newWorld(t, worldOptions{})
	vm := w.makeMachine(map[string]any{"name": "a", "multus": map[string]any{"networkName": "n1"}}, map[string]any{"name": "b", "multus": map[string]any{"networkName": "app/n2"}})
	var subnet kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &subnet))
	set := []ipam.Source{{Subnet: network.NewSubnet(&subnet, network.Around{}).Set}}
	a, err := w.ledger.Take(w.ctx, ipam.Request{Claim: "0123456789abcdef0123456789abcdef", Owner: ipam.Owner{Group: "kubevirt.io", Kind: network.KindVM, Namespace: "app", Name: "vm"},
		Interfaces: []ipam.InterfaceRequest{{Provider: "n1.app.ovn", Candidates: set}, {Provider: "n2.app.ovn", Candidates: set}}})
	w.must(err)
	for _, i := range a.Interfaces {
		_, err := w.ledger.Bind(w.ctx, "gone", "virt-launcher-vm-x", i.Leases[0].Ref())
		w.must(err)
	}
	w.keeps("both leases", w.leased(2))
	w.must(unstructured.SetNestedSlice(vm.Object, []any{map[string]any{"name": "b", "state": "absent"}}, "spec", "template", "spec", "domain", "devices", "interfaces"))
	w.must(w.client.Update(w.ctx, vm))
	w.until("one lease", w.leased(1))
	w.keeps("the other's", func() error {
		if l := w.podLeases(); len(l) != 1 || !strings.HasPrefix(l[0].Provider, "n1.") {
			return fmt.Errorf("leases %v", l)
		}
		return nil
	})
}

// A running pod from which everything of ours was taken has it back.
func TestStrippedPodRegains(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	before := w.wired("a")
	p, err := w.get("a")
	w.must(err)
	old := p.DeepCopy()
	p.Status.PodIP = before.Annotations[addressKey]
	w.must(w.client.Status().Patch(w.ctx, p, client.MergeFrom(old)))
	w.change("a", func(p *corev1.Pod) { p.Annotations, p.Finalizers = map[string]string{"mine": "kept"}, nil })
	w.until("all is back", func() error {
		p, err := w.get("a")
		if err != nil {
			return err
		}
		for k, v := range before.Annotations {
			if p.Annotations[k] != v {
				return fmt.Errorf("%s is %q, not %q", k, p.Annotations[k], v)
			}
		}
		if p.Annotations["mine"] != "kept" || len(p.Finalizers) != 1 {
			return fmt.Errorf("annotations %v, finalizers %v", p.Annotations, p.Finalizers)
		}
		return nil
	})
	w.keeps("its lease", w.leased(1))
	w.change("a", func(p *corev1.Pod) { p.Annotations = nil })
	w.end("a")
	w.clean()
}
