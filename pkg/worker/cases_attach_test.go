package worker

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/topology"
)

// serving makes a Subnet for a provider, and has the worker see it.
func (w *world) serving(name, cidr, provider string) {
	w.t.Helper()
	spec := kubeovnv1.SubnetSpec{CIDRBlock: cidr, Provider: provider}
	if topology.IsOVN(provider) {
		spec.Vpc = "ovn-cluster"
	}
	w.makeSubnet(name, spec)
	w.seen(w.subnet(name))
	if spec.Vpc == "" {
		return
	}
	w.until("switch "+name, func() error {
		if _, ok := w.nb.Switch(name); !ok {
			return fmt.Errorf("no switch")
		}
		return nil
	})
}

// attachment makes a NetworkAttachmentDefinition.
func (w *world) attachment(name, config string) *unstructured.Unstructured {
	w.t.Helper()
	nad := object("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", name, map[string]any{"config": config})
	w.must(w.client.Create(w.ctx, nad))
	return nad
}

// ovnAttachment makes one whose NIC is a port of OVN, with the provider <name>.app.ovn.
func (w *world) ovnAttachment(name string) {
	w.t.Helper()
	w.attachment(name, fmt.Sprintf(`{"type":"kube-ovn","provider":"%s.app.ovn"}`, name))
}

func annotated(pairs ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		for i := 0; i < len(pairs); i += 2 {
			p.Annotations[pairs[i]] = pairs[i+1]
		}
	}
}

func attachedTo(names string) func(*corev1.Pod) { return annotated(network.NetworksKey, names) }

// admitWhole creates a pod as admission would have it, by all that it names.
func (w *world) admitWhole(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	view, err := w.worker.topology.ForLive(w.ctx, network.PodOf(p))
	w.must(err)
	return w.admitBy(p, view)
}

// podPorts are the names of all pods' ports.
func (w *world) podPorts() []string {
	var names []string
	for _, p := range w.nb.Ports() {
		if p.Type == "" {
			names = append(names, p.Name)
		}
	}
	slices.Sort(names)
	return names
}

// leasedTo tells the subnet of each provider's address lease.
func (w *world) leasedTo() map[string]string {
	out := map[string]string{}
	for _, l := range w.podLeases() {
		if l.Address.IsValid() {
			out[l.Provider] += l.Subnet
		}
	}
	return out
}

// The address of another CNI's NIC is given back also when the attachment went before the pod.
func TestB30AddressOfAnotherCNI(t *testing.T) {
	for name, end := range map[string]func(*world){
		"by the finalizer": func(w *world) {
			w.reports("a", stoppedState())
			w.end("a")
		},
		"by the sweep": func(w *world) {
			w.says("n1", corev1.ConditionTrue) // its kubelet ends what has no pod
			w.stop()
			w.change("a", func(p *corev1.Pod) { p.Finalizers = nil })
			w.end("a")
			w.start(worldOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.serving("mv", "10.32.0.0/24", "mv.app")
			nad := w.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
			w.admitWhole(podNamed("a", onNode, attachedTo("mv")))
			p := w.wired("a")
			if d := cmp.Diff(map[string]string{network.DefaultProvider: "s", "mv.app": "mv"}, w.leasedTo()); d != "" {
				t.Fatalf("leases (-want +got):\n%s", d)
			}
			w.must(w.allBound())
			if p.Annotations["mv.app.kubernetes.io/allocated"] != "true" {
				t.Errorf("annotations %v", p.Annotations)
			}
			if d := cmp.Diff([]string{"a.app"}, w.podPorts()); d != "" {
				t.Errorf("ports (-want +got):\n%s", d)
			}
			for _, record := range []string{"a.app", "a.app.mv.app"} {
				w.seen(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: record}})
			}
			w.look("a")
			w.kube.ResetRequests()
			w.look("a")
			if n := w.kube.Requests(); n["patch pods"]+n["patch ips"]+n["create ips"] > 0 {
				t.Errorf("writes without a change: %v", n)
			}
			w.must(w.client.Delete(w.ctx, nad))
			end(w)
			w.clean()
		})
	}
}

// nic is one network of a machine's spec.
func nic(name, attachment string) any {
	return map[string]any{"name": name, "multus": map[string]any{"networkName": attachment}}
}

// rewire gives a stopped machine other networks.
func (w *world) rewire(vm *unstructured.Unstructured, networks ...any) {
	w.t.Helper()
	w.must(unstructured.SetNestedSlice(vm.Object, networks, "spec", "template", "spec", "networks"))
	w.must(w.client.Update(w.ctx, vm))
}

// boot starts the machine: its launcher names these attachments.
func (w *world) boot(name, attachments string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	p := launcher(name, "n1")
	if attachments != "" {
		attachedTo(attachments)(p)
	}
	for _, c := range change {
		c(p)
	}
	w.admitWhole(p)
	return w.wired(name)
}

// halt ends the machine's launcher.
func (w *world) halt(name string) {
	w.t.Helper()
	w.end(name)
	w.gone(name)
}

// plugged waits until the machine has exactly these networks: a port, a record and a lease for each, by provider.
func (w *world) plugged(subnets map[string]string) {
	w.t.Helper()
	var ports []string
	for provider := range subnets {
		ports = append(ports, network.PortName("vm", "app", provider))
	}
	slices.Sort(ports)
	w.until("exactly the listed networks", func() error {
		var list kubeovnv1.IPList
		w.must(w.client.List(w.ctx, &list))
		var records []string
		for i := range list.Items {
			records = append(records, list.Items[i].Name)
		}
		slices.Sort(records)
		if d := cmp.Diff(subnets, w.leasedTo()) + cmp.Diff(ports, w.podPorts()) + cmp.Diff(ports, records); d != "" {
			return fmt.Errorf("leases, ports, records (-want +got):\n%s", d)
		}
		return w.allBound()
	})
}

const (
	firstNIC  = "n1.app.ovn"
	secondNIC = "n2.app.ovn"
)

// A NIC is plugged, unplugged and plugged again, and then moved to another network while the machine is stopped.
func TestB61PluggedAgain(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.serving("s1", "10.30.0.0/24", firstNIC)
	w.serving("s2", "10.31.0.0/24", secondNIC)
	w.ovnAttachment("n1")
	w.ovnAttachment("n2")
	vm := w.makeMachine(nic("a", "n1"))
	before := w.boot("virt-launcher-vm-1", "n1")
	w.plugged(map[string]string{network.DefaultProvider: "s", firstNIC: "s1"})
	w.halt("virt-launcher-vm-1")
	w.rewire(vm)
	w.boot("virt-launcher-vm-2", "")
	w.plugged(map[string]string{network.DefaultProvider: "s"})
	w.halt("virt-launcher-vm-2")

	w.rewire(vm, nic("a", "n1"))
	w.boot("virt-launcher-vm-3", "n1")
	w.plugged(map[string]string{network.DefaultProvider: "s", firstNIC: "s1"})
	w.halt("virt-launcher-vm-3")
	w.rewire(vm, nic("a", "app/n2"))
	after := w.boot("virt-launcher-vm-4", "n2")
	w.plugged(map[string]string{network.DefaultProvider: "s", secondNIC: "s2"})
	if after.Annotations[addressKey] != before.Annotations[addressKey] {
		t.Errorf("the default network had %s and has %s", before.Annotations[addressKey], after.Annotations[addressKey])
	}
	w.halt("virt-launcher-vm-4")
	w.must(w.client.Delete(w.ctx, vm))
	w.clean()
}

// NIC 1 goes to another subnet of its network, and the others keep what they have.
func TestB62OtherSubnetOfOneNIC(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.serving("s1", "10.30.0.0/24", firstNIC)
	w.serving("s3", "10.33.0.0/24", firstNIC)
	w.serving("s2", "10.31.0.0/24", secondNIC)
	w.ovnAttachment("n1")
	w.ovnAttachment("n2")
	vm := w.makeMachine(nic("a", "n1"), nic("b", "n2"))
	in := func(subnet string) func(*corev1.Pod) {
		return annotated(network.Key(firstNIC, network.SuffixSubnet), subnet)
	}
	before := w.boot("virt-launcher-vm-1", "n1,n2", in("s1"))
	w.plugged(map[string]string{network.DefaultProvider: "s", firstNIC: "s1", secondNIC: "s2"})
	w.halt("virt-launcher-vm-1")
	after := w.boot("virt-launcher-vm-2", "n1,n2", in("s3"))
	w.plugged(map[string]string{network.DefaultProvider: "s", firstNIC: "s3", secondNIC: "s2"})
	for _, provider := range []string{network.DefaultProvider, secondNIC} {
		for _, suffix := range []string{network.SuffixAddress, network.SuffixMAC} {
			if key := network.Key(provider, suffix); before.Annotations[key] == "" || after.Annotations[key] != before.Annotations[key] {
				t.Errorf("%s was %q and is %q", key, before.Annotations[key], after.Annotations[key])
			}
		}
	}
	if key := network.Key(firstNIC, network.SuffixAddress); after.Annotations[key] == before.Annotations[key] {
		t.Errorf("NIC 1 still has %s", after.Annotations[key])
	}
	w.halt("virt-launcher-vm-2")
	w.must(w.client.Delete(w.ctx, vm))
	w.clean()
}

// A machine that is stopped, and then deleted, gives everything back, also when nobody watched it go.
func TestB115StoppedThenDeleted(t *testing.T) {
	for name, remove := range map[string]func(*world, *unstructured.Unstructured){
		"while the worker runs": func(w *world, vm *unstructured.Unstructured) { w.must(w.client.Delete(w.ctx, vm)) },
		"while it doesn't": func(w *world, vm *unstructured.Unstructured) {
			w.stop()
			w.must(w.client.Delete(w.ctx, vm))
			w.start(worldOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.serving("s1", "10.30.0.0/24", firstNIC)
			w.ovnAttachment("n1")
			vm := w.makeMachine(nic("a", "n1"))
			w.boot("virt-launcher-vm-1", "n1")
			w.halt("virt-launcher-vm-1")
			w.keeps("the stopped machine's leases", w.leased(2))
			remove(w, vm)
			w.clean()
		})
	}
}
