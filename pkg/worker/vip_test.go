package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func vipOf(name string, edit func(*kubeovnv1.VipSpec)) *kubeovnv1.Vip {
	v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VipSpec{Namespace: "app", Subnet: "s"}}
	edit(&v.Spec)
	return v
}

// served waits until the Vip has an address and this status holds.
func (w *world) served(name string, ok func(kubeovnv1.Vip) bool) kubeovnv1.Vip {
	w.t.Helper()
	var v kubeovnv1.Vip
	w.until("vip "+name, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, &v); err != nil {
			return err
		}
		if v.Status.V4IP == "" || !ok(v) {
			return fmt.Errorf("it is %+v", v)
		}
		return nil
	})
	return v
}

func (w *world) portIs(name string, want nb.LogicalSwitchPort) {
	w.t.Helper()
	w.until("port "+name, func() error {
		got, ok := w.nb.Port(name)
		got.UUID = ""
		if diff := cmp.Diff(want, got); !ok || diff != "" {
			return fmt.Errorf("there: %v; (-want +got):\n%s", ok, diff)
		}
		return nil
	})
}

// A Vip that is more than an address has a port as long as it is there, and its address is free only after that.
func TestVipPorts(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, vipOf("machine", func(s *kubeovnv1.VipSpec) { s.Type, s.V4IP = "kube_host_vm_vip", "10.16.0.50" })))
	w.must(w.client.Create(w.ctx, vipOf("balancer", func(s *kubeovnv1.VipSpec) { s.Type, s.V4IP = "switch_lb_vip", "10.16.0.51" })))
	w.must(w.client.Create(w.ctx, vipOf("plain", func(s *kubeovnv1.VipSpec) { s.V4IP = "10.16.0.52" })))
	labelled := func(v kubeovnv1.Vip) bool { return v.Labels[labelSubnet] == "s" && v.Status.Type == v.Spec.Type }
	machine, balancer := w.served("machine", labelled), w.served("balancer", labelled)
	w.served("plain", labelled)
	router, _ := w.nb.RouterPort("ovn-cluster-s")
	if balancer.Status.Mac != router.MAC || machine.Status.Mac == router.MAC {
		t.Errorf("MACs %s and %s, of the router %s", balancer.Status.Mac, machine.Status.Mac, router.MAC)
	}
	ids := func(vip string) map[string]string {
		return map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s", nb.KeyVip: vip}
	}
	w.portIs("machine.app", nb.LogicalSwitchPort{Name: "machine.app", Addresses: []string{machine.Status.Mac + " 10.16.0.50"}, ExternalIDs: ids("machine")})
	row := nb.LogicalSwitchPort{Name: "balancer.app", Addresses: []string{router.MAC + " 10.16.0.51"}, ExternalIDs: ids("balancer"),
		Options: map[string]string{"arp_proxy": "true"}}
	row.ExternalIDs[nb.KeyOptions] = "arp_proxy"
	w.portIs("balancer.app", row)
	if _, ok := w.nb.Port("plain.app"); ok {
		t.Error("a Vip that moves between pods has a port without any")
	}
	w.must(w.client.Delete(w.ctx, &machine))
	w.until("port and lease are gone", func() error {
		_, port := w.nb.Port("machine.app")
		_, leased := w.ledger.Lookup("s", addressesIn("10.16.0.50")[0])
		if port && !leased {
			t.Fatal("the address was free before the port was gone")
		}
		if port || leased {
			return fmt.Errorf("port %v, lease %v", port, leased)
		}
		return nil
	})
	if _, ok := w.nb.Port("balancer.app"); !ok {
		t.Error("the other Vip's port is gone")
	}
}

// What belongs to no pod outlives the sweeps: the port and the address of a Vip, and the MAC of the router's port.
func TestB82VipsOutliveSweeps(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, vipOf("machine", func(s *kubeovnv1.VipSpec) { s.Type, s.V4IP = "kube_host_vm_vip", "10.16.0.50" })))
	v := w.served("machine", func(v kubeovnv1.Vip) bool { return v.Labels[labelSubnet] == "s" })
	w.portIs("machine.app", nb.LogicalSwitchPort{Name: "machine.app", Addresses: []string{v.Status.Mac + " 10.16.0.50"},
		ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s", nb.KeyVip: "machine"}})
	before := len(w.ledger.Leases())
	for range 3 {
		w.must(w.worker.sweep(w.ctx))
		_, err := w.worker.reconcileReservations(w.ctx, requestFor("reservations"))
		w.must(err)
	}
	_, port := w.nb.Port("machine.app")
	_, leased := w.ledger.Lookup("s", addressesIn("10.16.0.50")[0])
	if !port || !leased || len(w.ledger.Leases()) < before {
		t.Errorf("port %v, lease %v, leases %v", port, leased, w.ledger.Leases())
	}
}

// A Vip takes no pod's port, and tells so; a pass without a change writes nothing.
func TestVipUnderThePodsName(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("web", onNode))
	w.wired("web")
	before, _ := w.nb.Port("web.app")
	w.must(w.client.Create(w.ctx, vipOf("web", func(s *kubeovnv1.VipSpec) { s.Type, s.V4IP = "kube_host_vm_vip", "10.16.0.50" })))
	v := w.served("web", func(v kubeovnv1.Vip) bool {
		return strings.Contains(condition(v.Status.Conditions).Message, "web.app")
	})
	after, _ := w.nb.Port("web.app")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the pod's port (-before +after):\n%s", diff)
	}
	w.seen(&v)
	_, err := w.worker.reconcileVip(w.ctx, requestFor("web"))
	w.must(err)
	again := w.served("web", func(kubeovnv1.Vip) bool { return true })
	if again.ResourceVersion != v.ResourceVersion {
		t.Errorf("it was written again: %+v, then %+v", v, again)
	}
}

// What of a Vip nobody realises is told by its name.
func TestVipTellsWhatIsNotRealised(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, vipOf("v", func(s *kubeovnv1.VipSpec) { s.Selector, s.AttachSubnets = []string{"app:web", "web"}, []string{"t"} })))
	w.served("v", func(v kubeovnv1.Vip) bool {
		c := condition(v.Status.Conditions)
		return c.Status == "False" && strings.Contains(c.Message, "spec.attachSubnets, spec.selector[1] here")
	})
}
