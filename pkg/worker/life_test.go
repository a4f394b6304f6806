package worker

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func TestLifeOfAPod(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a"))
	var port nb.LogicalSwitchPort
	w.until("the port", func() error {
		var ok bool
		if port, ok = w.nb.Port("a.app"); !ok {
			return fmt.Errorf("no port")
		}
		return nil
	})
	p, err := w.get("a")
	w.must(err)
	if got := port.ExternalIDs[nb.KeyPodUID]; got != string(p.UID) {
		t.Errorf("port carries UID %q, want %q", got, p.UID)
	}
	if p.Annotations["ovn.kubernetes.io/allocated"] != "" {
		t.Error("allocated before the pod had a node")
	}
	w.must(w.client.SubResource("binding").Create(w.ctx, p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}))
	p = w.wired("a")
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "a.app"}, &ip))
	want := kubeovnv1.IPSpec{PodName: "a", Namespace: "app", Subnet: "s", NodeName: "n1", IPAddress: p.Annotations["ovn.kubernetes.io/ip_address"],
		V4IPAddress: p.Annotations["ovn.kubernetes.io/ip_address"], MacAddress: p.Annotations["ovn.kubernetes.io/mac_address"],
		AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}
	if d := cmp.Diff(want, ip.Spec); d != "" {
		t.Errorf("record (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"node.n1", "s.n1"}, w.nb.GroupsOf("a.app")); d != "" {
		t.Errorf("groups (-want +got):\n%s", d)
	}
	for _, l := range w.podLeases() {
		if l.PodUID != string(p.UID) {
			t.Errorf("lease %v is not bound", l)
		}
	}
	w.quiet()
	w.end("a")
	w.clean()
}

// quiet looks at everything again and again, and sees no write.
func (w *world) quiet() {
	w.t.Helper()
	w.seen(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "a.app"}})
	w.look("a")
	w.lookAtTopology("s")
	w.must(w.worker.writeStatus(w.ctx))
	w.seen(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}})
	w.kube.ResetRequests()
	tx := w.worker.writer.Transactions()
	for range 5 {
		w.look("a")
		w.lookAtTopology("s")
		w.must(w.worker.sweep(w.ctx))
	}
	if n := w.worker.writer.Transactions() - tx; n != 0 {
		w.t.Errorf("%d transactions without a change", n)
	}
	for k, n := range w.kube.Requests() {
		if verb, _, _ := strings.Cut(k, " "); n > 0 && verb != "get" && verb != "list" && verb != "watch" {
			w.t.Errorf("%d × %q without a change", n, k)
		}
	}
}

// Pods that are deleted before they were ever scheduled.
func TestB65DeletedUnscheduled(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for i := range 20 {
		w.admit(podNamed(fmt.Sprintf("p%d", i)))
		w.end(fmt.Sprintf("p%d", i))
	}
	w.clean()
}

// Pods behind a gate end without the northbound database, for they never had a port.
func TestB65DeletedBehindAGate(t *testing.T) {
	w := newWorld(t, worldOptions{})
	gated := func(p *corev1.Pod) { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "else.where/hold"}} }
	name := func(i int) string { return fmt.Sprintf("p%d", i) }
	for i := range 200 {
		if p := podNamed(name(i), gated); i < 20 {
			w.admit(p)
		} else {
			p.Finalizers = []string{network.Finalizer}
			w.must(w.client.Create(w.ctx, p))
		}
	}
	w.nb.Close()
	for i := range 200 {
		w.end(name(i))
	}
	for i := range 200 {
		w.gone(name(i))
	}
	w.must(w.leased(0)())
}

// A pod that is deleted after its rows were written and before it is patched.
func TestB67DeletedBeforePatch(t *testing.T) {
	gate := make(chan struct{})
	var held atomic.Bool
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Verb == "create" && r.Resource == "ips" && held.CompareAndSwap(false, true) {
			return memkube.Fault{Hold: gate}
		}
		return memkube.Fault{}
	}})
	w.admit(podNamed("a", onNode))
	w.until("the record is being made", func() error {
		if !held.Load() {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	w.end("a")
	close(gate)
	w.clean()
}

// The namespace and the subnet are gone before the pod's end was seen.
func TestB97NamespaceGone(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	w.wired("a")
	w.stop()
	w.end("a")
	w.must(w.client.Delete(w.ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app"}}))
	w.must(w.client.Delete(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}))
	w.must(w.client.Delete(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	w.start(worldOptions{})
	w.clean()
}

func TestLateAllocation(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, podNamed("plain", onNode)))
	w.must(w.client.Create(w.ctx, podNamed("asked", onNode, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.77"}
	})))
	plain, asked := w.wired("plain"), w.wired("asked")
	if got := asked.Annotations["ovn.kubernetes.io/ip_address"]; got != "10.16.0.77" {
		t.Errorf("got %s, asked for 10.16.0.77", got)
	}
	for _, p := range []*corev1.Pod{plain, asked} {
		if len(p.Finalizers) != 1 || p.Annotations[network.ClaimKey] == "" {
			t.Errorf("pod %s: finalizers %v, annotations %v", p.Name, p.Finalizers, p.Annotations)
		}
	}
	w.end("plain")
	w.end("asked")
	w.clean()
}

func TestRunningPodGetsNoAddress(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.label("app", "")
	w.must(w.client.Create(w.ctx, podNamed("r", onNode)))
	p, err := w.get("r")
	w.must(err)
	p.Status.PodIP = "192.0.2.9"
	w.must(w.client.Status().Update(w.ctx, p))
	w.label("app", network.InjectEnabled)
	w.look("r")
	if p, err = w.get("r"); err != nil || p.Annotations[network.ClaimKey] != "" {
		t.Errorf("%v, annotations %v", err, p.Annotations)
	}
}

// A copy of a living pod's manifest gets leases of its own, and its end frees nothing of the original's.
func TestCopyGetsItsOwn(t *testing.T) {
	w := newWorld(t, worldOptions{})
	const addressKey = "ovn.kubernetes.io/ip_address"
	a := w.admit(podNamed("a", onNode))
	w.wired("a")
	w.must(w.client.Create(w.ctx, podNamed("b", onNode, func(p *corev1.Pod) {
		p.Annotations, p.Finalizers = a.Annotations, a.Finalizers
	})))
	w.look("b")
	b := w.wired("b")
	if b.Annotations[network.ClaimKey] == a.Annotations[network.ClaimKey] || b.Annotations[addressKey] == a.Annotations[addressKey] {
		t.Errorf("the copy has %s under claim %s, as the original", b.Annotations[addressKey], b.Annotations[network.ClaimKey])
	}
	w.end("b")
	w.gone("b")
	if _, ok := w.nb.Port("a.app"); !ok || !slices.ContainsFunc(w.podLeases(), func(h ipam.Held) bool { return h.PodUID == string(a.UID) }) {
		t.Errorf("the end of the copy took from the original: %v", w.podLeases())
	}
}

func TestFinishedPodGivesBack(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	p.Status.Phase = corev1.PodSucceeded
	w.must(w.client.Status().Update(w.ctx, p))
	w.until("everything given back", func() error {
		p, err := w.get("a")
		if err != nil {
			return err
		}
		if _, wired := w.nb.Port("a.app"); wired || len(w.podLeases()) > 0 || len(p.Finalizers) > 0 {
			return fmt.Errorf("wired %t, leases %v, finalizers %v", wired, w.podLeases(), p.Finalizers)
		}
		return nil
	})
}

func TestFinalizerComesBack(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	old := p.DeepCopy()
	p.Finalizers = nil
	w.must(w.client.Patch(w.ctx, p, client.MergeFrom(old)))
	w.until("the finalizer", func() error {
		p, err := w.get("a")
		if err == nil && len(p.Finalizers) != 1 {
			err = fmt.Errorf("finalizers %v", p.Finalizers)
		}
		return err
	})
}

// The sweep takes back what nobody answers for: a lease of a create that failed, a pod that went without its finalizer, a
// port and a record left over.
func TestSweep(t *testing.T) {
	w := newWorld(t, worldOptions{})
	var subnet kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &subnet))
	_, err := w.ledger.Take(w.ctx, ipam.Request{Claim: "0123456789abcdef0123456789abcdef", Owner: ipam.PodOwner("app"),
		Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: network.NewSubnet(&subnet, network.Around{}).Set}}}}})
	w.must(err)
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	w.stop()
	old := p.DeepCopy()
	p.Finalizers = nil
	w.must(w.client.Patch(w.ctx, p, client.MergeFrom(old)))
	w.end("a")
	w.start(worldOptions{})
	w.clean()
}

// A worker that another one has taken over from ends with an error.
func TestFencedWorkerEnds(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	w.wired("a")
	_, err := w.nb.RaiseEpoch(w.ctx)
	w.must(err)
	w.admit(podNamed("b", onNode))
	select {
	case err := <-w.ended:
		w.ended = nil
		if err == nil || !strings.Contains(err.Error(), ovn.ErrFenced.Error()) {
			t.Errorf("ended with %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("goes on")
	}
}

// A pod all of whose networks are other CNIs' gets neither claim nor finalizer.
func TestPodOfOtherNetworksIsLeftAlone(t *testing.T) {
	w := newWorld(t, worldOptions{change: func(o *Options) { o.Network.NonPrimary = true }})
	w.label("app", network.InjectEnabled)
	w.must(w.client.Create(w.ctx, podNamed("r", onNode)))
	w.look("r")
	p, err := w.get("r")
	if err != nil || p.Annotations[network.ClaimKey] != "" || len(p.Finalizers) > 0 {
		t.Errorf("%v, annotations %v, finalizers %v", err, p.Annotations, p.Finalizers)
	}
}
