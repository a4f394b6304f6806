package worker

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// stock is a pod as kube-ovn-controller leaves it: with its values, its marks and its record, and no claim.
func (w *world) stock(name, address string, change ...func(*corev1.Pod)) *corev1.Pod {
	w.t.Helper()
	w.must(w.client.Create(w.ctx, &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name + ".app", Labels: map[string]string{labelReserved: "false", labelSubnet: "s", "s": ""}},
		Spec: kubeovnv1.IPSpec{PodName: name, Namespace: "app", Subnet: "s", NodeName: "n1", IPAddress: address, V4IPAddress: address, MacAddress: "00:00:00:12:34:56",
			AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}}))
	p := podNamed(name, onNode, func(p *corev1.Pod) {
		p.Annotations = map[string]string{addressKey: address, "ovn.kubernetes.io/mac_address": "00:00:00:12:34:56", "ovn.kubernetes.io/cidr": "10.16.0.0/24",
			"ovn.kubernetes.io/gateway": "10.16.0.1", "ovn.kubernetes.io/logical_switch": "s", "ovn.kubernetes.io/logical_router": "ovn-cluster",
			"ovn.kubernetes.io/pod_nic_type": "veth-pair", "ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true"}
	})
	for _, c := range change {
		c(p)
	}
	w.must(w.client.Create(w.ctx, p))
	w.runsOn(name, address)
	return p
}

func (w *world) runsOn(name, address string) {
	w.t.Helper()
	p, err := w.get(name)
	w.must(err)
	old := p.DeepCopy()
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, address, []corev1.PodIP{{IP: address}}
	w.must(w.client.Status().Patch(w.ctx, p, client.MergeFrom(old)))
}

// A pod that runs when its namespace comes to us keeps the addresses that it has, and is then a pod like any other.
func TestRunningPodIsTakenOver(t *testing.T) {
	for _, label := range []string{network.InjectLate, network.InjectEnabled} {
		t.Run(label, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.label("app", "")
			before := w.stock("r", "10.16.0.77")
			w.label("app", label)
			w.until("its lease is bound", func() error {
				p, err := w.get("r")
				if err != nil {
					return err
				}
				h, _ := w.ledger.Lookup("s", netip.MustParseAddr("10.16.0.77"))
				if h.PodUID != string(p.UID) || len(p.Finalizers) != 1 {
					return fmt.Errorf("lease %v, finalizers %v", h, p.Finalizers)
				}
				if _, wired := w.nb.Port("r.app"); !wired {
					return fmt.Errorf("no port")
				}
				return nil
			})
			w.keeps("its annotations", func() error {
				p, err := w.get("r")
				for k, v := range before.Annotations {
					if err == nil && p.Annotations[k] != v {
						err = fmt.Errorf("%s is %q, not %q", k, p.Annotations[k], v)
					}
				}
				return err
			})
			w.end("r")
			w.clean()
		})
	}
}

// What the ledger can't lease is left alone, and told.
func TestRunningPodThatCanNotBeTakenOver(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*corev1.Pod)
		runs   string
	}{
		"runs on another address":       {nil, "10.16.0.78"},
		"in a subnet that is not there": {func(p *corev1.Pod) { p.Annotations["ovn.kubernetes.io/logical_switch"] = "gone" }, ""},
		"outside of its subnet":         {func(p *corev1.Pod) { p.Annotations[addressKey] = "192.0.2.1" }, "192.0.2.1"},
		"only asks":                     {func(p *corev1.Pod) { p.Annotations = map[string]string{addressKey: "10.16.0.77"} }, ""},
		"says nothing":                  {func(p *corev1.Pod) { p.Annotations = nil }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.label("app", "")
			var change []func(*corev1.Pod)
			if c.change != nil {
				change = append(change, c.change)
			}
			w.stock("r", "10.16.0.77", change...)
			if c.runs != "" {
				w.runsOn("r", c.runs)
			}
			before, err := w.get("r")
			w.must(err)
			w.label("app", network.InjectLate)
			w.until("it is told", func() error { return w.told("r", reasonRunning) })
			p, err := w.get("r")
			w.must(err)
			if p.Annotations[network.ClaimKey] != "" || len(p.Finalizers) > 0 || p.Annotations[addressKey] != before.Annotations[addressKey] {
				t.Errorf("annotations %v, finalizers %v", p.Annotations, p.Finalizers)
			}
		})
	}
}

// told tells whether there is an event of that reason on the pod.
func (w *world) told(pod, reason string) error {
	p, err := w.get(pod)
	if err != nil {
		return err
	}
	var list eventsv1.EventList
	if err := w.client.List(w.ctx, &list, client.InNamespace("app")); err != nil {
		return err
	}
	var have []string
	for _, e := range list.Items {
		if e.Reason == reason && e.Regarding.UID == p.UID {
			return nil
		}
		have = append(have, e.Reason)
	}
	return fmt.Errorf("events %s", strings.Join(have, ","))
}

// A namespace that names a subnet which is gone before one that is there: who runs keeps what it has, who comes gets the
// latter, and nobody writes again and again.
func TestB26ANamespaceThatNamesAGoneSubnet(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	before := w.wired("a").Annotations
	var ns corev1.Namespace
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "app"}, &ns))
	old := ns.DeepCopy()
	ns.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "gone,s"}
	w.must(w.client.Patch(w.ctx, &ns, client.MergeFrom(old)))
	w.seen(&ns)
	w.must(w.client.Create(w.ctx, podNamed("late", onNode)))
	if got := w.wired("late").Annotations["ovn.kubernetes.io/logical_switch"]; got != "s" {
		t.Errorf("a new pod is in %q", got)
	}
	w.quiet()
	if diff := cmp.Diff(before, w.wired("a").Annotations); diff != "" {
		t.Errorf("the running pod was changed (-want +got):\n%s", diff)
	}
}

// A namespace that comes and goes changes nothing for the pods that run in it, and what they have is given back when they
// end.
func TestB79OptOut(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	before := w.wired("a")
	w.runsOn("a", before.Annotations[addressKey])
	for _, label := range []string{"", network.InjectLate, network.InjectEnabled, "", network.InjectDisabled} {
		w.label("app", label)
		w.look("a")
		p, err := w.get("a")
		w.must(err)
		for k, v := range before.Annotations {
			if p.Annotations[k] != v {
				t.Errorf("labelled %q: %s is %q, not %q", label, k, p.Annotations[k], v)
			}
		}
		if len(p.Finalizers) != 1 {
			t.Errorf("labelled %q: finalizers %v", label, p.Finalizers)
		}
		w.must(w.leased(1)())
	}
	w.must(w.client.Create(w.ctx, podNamed("late", onNode)))
	w.look("late")
	if p, err := w.get("late"); err != nil || p.Annotations[network.ClaimKey] != "" {
		t.Errorf("%v: a pod of a namespace that opted out was served: %v", err, p.Annotations)
	}
	w.must(w.client.Delete(w.ctx, podNamed("late"), client.GracePeriodSeconds(0)))
	w.end("a")
	w.clean()
}
