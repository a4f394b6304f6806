package worker

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// whole tells that the very pod has its finalizer, its port, its record and a bound lease.
func (w *world) whole(p *corev1.Pod) error {
	now, err := w.get(p.Name)
	if err != nil || now.UID != p.UID || !slices.Contains(now.Finalizers, network.Finalizer) {
		return fmt.Errorf("%w: pod %s with finalizers %v, want %s", err, now.UID, now.Finalizers, p.UID)
	}
	port, ok := w.nb.Port(p.Name + ".app")
	if !ok || port.ExternalIDs[nb.KeyPodUID] != string(p.UID) {
		return fmt.Errorf("port %v is not that of %s", port, p.UID)
	}
	var ip kubeovnv1.IP
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: p.Name + ".app"}, &ip); err != nil {
		return err
	}
	if ip.Annotations[annotationUID] != string(p.UID) {
		return fmt.Errorf("record of %s, not of %s", ip.Annotations[annotationUID], p.UID)
	}
	if !slices.ContainsFunc(w.podLeases(), func(h ipam.Held) bool {
		return h.PodUID == string(p.UID) && h.Address.String() == p.Annotations[addressKey]
	}) {
		return fmt.Errorf("leases %v, want %s of %s", w.podLeases(), p.Annotations[addressKey], p.UID)
	}
	return nil
}

// mutable is a fault that a test turns on and off.
type mutable struct{ on atomic.Bool }

// patches fails all patches of pods by the worker while it is on.
func (m *mutable) patches(r memkube.Request) memkube.Fault {
	if m.on.Load() && r.Verb == "patch" && r.Resource == "pods" && r.HTTP.UserAgent() != testAgent {
		return memkube.Fault{Err: errors.New("out of order")}
	}
	return memkube.Fault{}
}

// A pod is deleted by force and made anew under its name, 50 times. The late cleanup of the one before, by what was known
// of it then, takes nothing from the new one.
func TestB68LateCleanupOfTheFormerPod(t *testing.T) {
	for name, change := range map[string]func(*appsv1.StatefulSet) func(*corev1.Pod){
		"alone":    func(*appsv1.StatefulSet) func(*corev1.Pod) { return func(*corev1.Pod) {} },
		"of a set": func(s *appsv1.StatefulSet) func(*corev1.Pod) { return ofSet(s) },
	} {
		t.Run(name, func(t *testing.T) {
			var fault mutable
			w := newWorld(t, worldOptions{intercept: fault.patches})
			owned := change(w.makeSet())
			w.admit(podNamed("web-0", onNode, owned))
			for i := range 50 {
				former := w.wired("web-0")
				fault.on.Store(true) // or the finalizer comes back
				w.change("web-0", func(p *corev1.Pod) { p.Finalizers = nil })
				w.end("web-0")
				w.gone("web-0")
				w.admit(podNamed("web-0", onNode, owned))
				fault.on.Store(false)
				w.until("the new pod is served", func() error {
					now, err := w.get("web-0")
					if err != nil || now.Annotations["ovn.kubernetes.io/routed"] != "true" {
						return fmt.Errorf("%w: %v", err, now.Annotations)
					}
					return w.whole(now)
				})
				now := w.wired("web-0")
				// The record may change in between, as any object may: then the worker tries again.
				w.until("the late cleanup", func() error { return w.worker.reclaim(w.ctx, w.worker.subjectOf(former)) })
				if err := w.whole(now); err != nil {
					t.Fatalf("round %d: %v", i, err)
				}
			}
			w.until("what the former ones had is free", w.leased(1))
		})
	}
}

// A pod that waits for a foreign finalizer on a node that is gone holds nobody up when the worker starts.
func TestB70TerminatingPodOfAGoneNode(t *testing.T) {
	const foreign = "example.com/other"
	w := newWorld(t, worldOptions{})
	w.makeNode("n2", "192.0.2.2", nil)
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	w.runsOn("a", p.Annotations[addressKey])
	w.change("a", func(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, foreign) })
	w.stop()
	w.must(w.client.Delete(w.ctx, podNamed("a"), client.GracePeriodSeconds(3600)))
	w.must(w.client.Delete(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}))
	w.start(worldOptions{})
	w.admit(podNamed("b", func(p *corev1.Pod) { p.Spec.NodeName = "n2" }))
	b := w.wired("b")
	w.finalizers(podNamed("a"), foreign)
	w.until("only the new pod has something", func() error {
		if _, wired := w.nb.Port("a.app"); wired {
			return errors.New("port a.app is there")
		}
		return errors.Join(w.leased(1)(), w.whole(b))
	})
	w.keeps("the pod with the foreign finalizer", w.there(podNamed("a")))
}

// A pod went while the worker was away, and another one asks for its address.
func TestB72DeletedWhileTheWorkerWasAway(t *testing.T) {
	w := newWorld(t, worldOptions{})
	const five = "10.16.0.5"
	w.unique()
	w.admit(podNamed("p1", onNode, annotated(addressKey, five)))
	w.wired("p1")
	w.stop()
	w.change("p1", func(p *corev1.Pod) { p.Finalizers = nil })
	w.end("p1")
	w.gone("p1")
	w.must(w.client.Create(w.ctx, podNamed("p2", onNode, annotated(addressKey, five))))
	w.start(worldOptions{})
	p2 := w.wired("p2")
	if got := p2.Annotations[addressKey]; got != five {
		t.Errorf("p2 has %s", got)
	}
	if _, there := w.nb.Port("p1.app"); there {
		t.Error("p1's port is there beside p2's")
	}
	w.must(w.leased(1)())
	w.must(w.whole(p2))
	w.end("p2")
	w.clean()
}

// scale sets how many pods a set wants.
func (w *world) scale(set *appsv1.StatefulSet, n int32) {
	w.t.Helper()
	set.Spec.Replicas = &n
	w.must(w.client.Update(w.ctx, set))
}

// A set is scaled down and up again while its pods terminate, and the sweep goes on all the time.
func TestB75ScaledDownAndUp(t *testing.T) {
	w := newWorld(t, worldOptions{})
	set := w.makeSet()
	w.scale(set, 3)
	names := []string{"web-0", "web-1", "web-2"}
	pods := map[string]*corev1.Pod{}
	for _, name := range names {
		w.admit(podNamed(name, onNode, ofSet(set)))
		pods[name] = w.wired(name)
		w.runsOn(name, pods[name].Annotations[addressKey])
	}
	living := func() error {
		for _, p := range pods {
			if err := w.whole(p); err != nil {
				return err
			}
		}
		return nil
	}
	w.scale(set, 0)
	for _, name := range names {
		w.must(w.client.Delete(w.ctx, podNamed(name), client.GracePeriodSeconds(3600)))
	}
	w.keeps("what terminating pods have", living)
	w.scale(set, 3)
	for _, name := range names {
		before := pods[name].Annotations[addressKey]
		delete(pods, name)
		w.end(name)
		w.gone(name)
		w.must(living())
		w.admit(podNamed(name, onNode, ofSet(set)))
		p := w.wired(name)
		if got := p.Annotations[addressKey]; got != before {
			t.Errorf("%s had %s and has %s", name, before, got)
		}
		pods[name] = p
	}
	w.keeps("what the pods have", living)
}

// A pod of a set that is evicted, or completes, comes back to its address.
func TestB76EvictedPodOfASet(t *testing.T) {
	for _, phase := range []corev1.PodPhase{corev1.PodFailed, corev1.PodSucceeded} {
		t.Run(string(phase), func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			set := w.makeSet()
			w.admit(podNamed("web-0", onNode, ofSet(set)))
			p := w.wired("web-0")
			before := p.Annotations[addressKey]
			p.Status.Phase, p.Status.Reason = phase, "Evicted"
			w.must(w.client.Status().Update(w.ctx, p))
			w.finalizers(p)
			w.keeps("the set's lease", w.leased(1))
			w.admit(podNamed("other", onNode))
			w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, podNamed("web-0"), client.GracePeriodSeconds(0))))
			w.gone("web-0")
			w.admit(podNamed("web-0", onNode, ofSet(set)))
			if got := w.wired("web-0").Annotations[addressKey]; got != before {
				t.Errorf("it had %s and has %s", before, got)
			}
		})
	}
}

// Nothing puts the finalizer onto a pod that is being deleted, and nothing of ours holds up an owner's deletion.
func TestB84NoFinalizerOnADyingPod(t *testing.T) {
	w := newWorld(t, worldOptions{blocks: true})
	w.admit(podNamed("a", onNode))
	p := w.wired("a")
	w.runsOn("a", p.Annotations[addressKey])
	w.noOwners()
	w.stop()
	w.change("a", func(p *corev1.Pod) { p.Finalizers = []string{"example.com/other"} })
	w.must(w.client.Create(w.ctx, podNamed("late", onNode, func(p *corev1.Pod) { p.Finalizers = []string{"example.com/other"} })))
	for _, name := range []string{"a", "late"} {
		w.must(w.client.Delete(w.ctx, podNamed(name), client.GracePeriodSeconds(3600)))
	}
	w.kube.ResetRequests()
	w.start(worldOptions{blocks: true})
	for _, name := range []string{"a", "late"} {
		w.look(name)
	}
	w.keeps("no write to a pod", func() error {
		if n := w.kube.Requests()["patch pods"] + w.kube.Requests()["update pods"]; n > 0 {
			return fmt.Errorf("%d writes", n)
		}
		return w.leased(1)()
	})
}

// noOwners tells that no object that the worker made has an owner, whose deletion it could hold up.
func (w *world) noOwners() {
	w.t.Helper()
	var ips kubeovnv1.IPList
	var subnets kubeovnv1.SubnetList
	var vpcs kubeovnv1.VpcList
	w.must(w.client.List(w.ctx, &ips))
	w.must(w.client.List(w.ctx, &subnets))
	w.must(w.client.List(w.ctx, &vpcs))
	blocks := w.blocks()
	if len(ips.Items) == 0 || len(blocks) == 0 {
		w.t.Fatalf("%d records, %d blocks", len(ips.Items), len(blocks))
	}
	check := func(o client.Object) {
		for _, f := range o.GetFinalizers() {
			if f != network.Finalizer {
				w.t.Errorf("%T %s has the finalizer %s", o, o.GetName(), f)
			}
		}
		for _, r := range o.GetOwnerReferences() {
			if r.BlockOwnerDeletion != nil && *r.BlockOwnerDeletion {
				w.t.Errorf("%T %s holds up the deletion of %s %s", o, o.GetName(), r.Kind, r.Name)
			}
		}
	}
	for i := range ips.Items {
		check(&ips.Items[i])
	}
	for i := range subnets.Items {
		check(&subnets.Items[i])
	}
	for i := range vpcs.Items {
		check(&vpcs.Items[i])
	}
	for i := range blocks {
		check(&blocks[i])
	}
}
