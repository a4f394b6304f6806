package worker

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// finalizers waits until an object has these.
func (w *world) finalizers(obj client.Object, want ...string) {
	w.t.Helper()
	w.until(fmt.Sprintf("the finalizers of %T %s", obj, obj.GetName()), func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		if d := cmp.Diff(want, obj.GetFinalizers()); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
}

func (w *world) objectGone(obj client.Object) func() error {
	return func() error {
		err := w.client.Get(w.ctx, client.ObjectKeyFromObject(obj), obj)
		if err == nil {
			return fmt.Errorf("it is there, finalizers %v", obj.GetFinalizers())
		}
		return client.IgnoreNotFound(err)
	}
}

func (w *world) there(obj client.Object) func() error {
	return func() error { return w.client.Get(w.ctx, client.ObjectKeyFromObject(obj), obj) }
}

// A subnet ends after its last lease, whatever family that is of, and whoever else has a finalizer on it.
func TestB32SubnetEndsAfterItsLastLease(t *testing.T) {
	w := newWorld(t, worldOptions{})
	const stock = "kubeovn.io/kube-ovn-controller"
	dual := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "dual", Finalizers: []string{stock}},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.18.0.0/24,fd18::/120", Provider: "ovn", Vpc: "ovn-cluster"}}
	w.must(w.client.Create(w.ctx, dual))
	w.finalizers(dual, stock, network.Finalizer)
	six := network.NewSubnet(dual, network.Around{}).Set
	a, err := w.ledger.Take(w.ctx, ipam.Request{Claim: "0123456789abcdef0123456789abcdef", Owner: ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "app", Name: "web-0"},
		Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: six}}, Families: []ipam.Family{ipam.IPv6}}}})
	w.must(err)
	set := w.makeSet()
	w.must(w.client.Delete(w.ctx, dual))
	w.keeps("the subnet", w.there(dual))
	w.must(w.client.Delete(w.ctx, set))
	w.finalizers(dual, stock)
	if _, leased := w.ledger.Lookup("dual", a.Interfaces[0].Addresses()[0]); leased {
		t.Error("it lets go while there is a lease")
	}
	old := dual.DeepCopy()
	dual.Finalizers = nil
	w.must(w.client.Patch(w.ctx, dual, client.MergeFrom(old)))
	w.until("the subnet ends", w.objectGone(dual))
}

// A subnet whose leases may be lost doesn't end, though the ledger has none.
func TestClosedSubnetDoesNotEnd(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	w.finalizers(s, network.Finalizer)
	w.stop()
	_, err := catalog.MarkClosed(w.ctx, w.client, rand.Reader, s, "a block is gone")
	w.must(err)
	w.must(w.client.Delete(w.ctx, s))
	h := w.employ(worldOptions{})
	defer h.end()
	w.seen(s)
	result, err := h.reconcileFinalizer(w.ctx, request(ofSubnet+"s"))
	w.must(err)
	if result.RequeueAfter == 0 {
		t.Error("nobody looks at it again")
	}
	w.finalizers(s, network.Finalizer)
}

// The finalizer comes back when it is taken off by hand, but not onto what is being deleted.
func TestFinalizersOfTopology(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	w.finalizers(s, network.Finalizer)
	old := s.DeepCopy()
	s.Finalizers = []string{"example.com/other"}
	w.must(w.client.Patch(w.ctx, s, client.MergeFrom(old)))
	w.finalizers(s, "example.com/other", network.Finalizer)
	w.must(w.client.Delete(w.ctx, s))
	w.finalizers(s, "example.com/other")
	w.keeps("what is left", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(s), s); err != nil || len(s.Finalizers) != 1 {
			return fmt.Errorf("%v: %w", s.Finalizers, err)
		}
		return nil
	})
}

// A pool ends after the last lease in it, and a Vip after the last pod that uses it.
func TestPoolAndVipEndAfterTheirLeases(t *testing.T) {
	w := newWorld(t, worldOptions{})
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "s", IPs: []string{"10.16.0.10..10.16.0.12"}}}
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{Subnet: "s", V4IP: "10.16.0.20"}}
	w.must(w.client.Create(w.ctx, pool))
	w.must(w.client.Create(w.ctx, vip))
	w.finalizers(pool, network.Finalizer)
	w.finalizers(vip, network.Finalizer)
	w.until("the Vip has its address", func() error {
		if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(vip), vip); err != nil || vip.Status.V4IP == "" {
			return fmt.Errorf("%w: status %v", err, vip.Status)
		}
		return nil
	})
	w.seen(vip)
	w.must(w.client.Create(w.ctx, podNamed("pooled", onNode, func(p *corev1.Pod) { p.Annotations = map[string]string{"ovn.kubernetes.io/ip_pool": "p"} })))
	w.must(w.client.Create(w.ctx, podNamed("vipped", onNode, func(p *corev1.Pod) { p.Annotations = map[string]string{"ovn.kubernetes.io/vip": "v"} })))
	w.wired("pooled")
	w.wired("vipped")
	w.must(w.client.Delete(w.ctx, pool))
	w.must(w.client.Delete(w.ctx, vip))
	w.keeps("both", func() error {
		if err := w.there(pool)(); err != nil {
			return err
		}
		return w.there(vip)()
	})
	w.end("pooled")
	w.until("the pool ends", w.objectGone(pool))
	w.end("vipped")
	w.until("the Vip ends", w.objectGone(vip))
	w.until("its address is free", func() error {
		if h, ok := w.ledger.Lookup("s", netip.MustParseAddr("10.16.0.20")); ok {
			return fmt.Errorf("%v", h)
		}
		return nil
	})
}

// Somebody adds a finalizer of his own in the moment in which ours is removed: his stays.
func TestFinalizerPatchKeepsOthers(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	w.finalizers(s, network.Finalizer)
	w.stop()
	before := s.DeepCopy()
	s.Finalizers = []string{"example.com/first", network.Finalizer}
	w.must(w.client.Patch(w.ctx, s, client.MergeFrom(before)))
	w.must(w.worker.patchFinalizer(w.ctx, before.DeepCopy(), false)) // by what it knew
	w.must(w.client.Get(w.ctx, client.ObjectKeyFromObject(s), s))
	if !slices.Contains(s.Finalizers, "example.com/first") {
		t.Errorf("finalizers %v", s.Finalizers)
	}
}
