package worker

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
)

// placingWorld is a world whose worker is asked about bindings, and a second node in it.
func placingWorld(t *testing.T, o worldOptions) (*world, func() *BindHook) {
	t.Helper()
	var hook *BindHook
	o.made = func(w *Worker) {
		hook = NewBindHook(w, 10*time.Second) // whatever the machine is busy with
	}
	w := newWorld(t, o)
	w.must(w.client.Create(w.ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Annotations: map[string]string{addressKey: "100.64.0.3"}}}))
	w.seen(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2"}})
	return w, func() *BindHook { return hook }
}

// waiting admits a pod and returns when its port is there.
func (w *world) waiting(name string) *corev1.Pod {
	w.t.Helper()
	p := w.admit(podNamed(name))
	w.until("the port of "+name, func() error {
		if _, ok := w.nb.Port(name + ".app"); !ok {
			return errors.New("none")
		}
		return nil
	})
	return p
}

// bindTo binds the pod, with what annotations the Binding has.
func (w *world) bindTo(p *corev1.Pod, node string, annotations map[string]string) error {
	return w.client.SubResource("binding").Create(w.ctx, p, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, UID: p.UID, Annotations: annotations},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node}})
}

// place has the worker connect the pod to a node before it is bound.
func (w *world) place(p *corev1.Pod, node string) map[string]string {
	w.t.Helper()
	got, err := w.worker.connectAhead(w.ctx, placement{key: client.ObjectKeyFromObject(p), uid: p.UID, node: node})
	w.must(err)
	return got
}

// on tells that record and groups of the pod say that it is on the node.
func (w *world) on(name, node string) error {
	var ip kubeovnv1.IP
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: name + ".app"}, &ip); err != nil {
		return err
	}
	if ip.Spec.NodeName != node || ip.Labels[labelNode] != node {
		return fmt.Errorf("the record says %s, %v", ip.Spec.NodeName, ip.Labels)
	}
	if d := cmp.Diff([]string{"node." + node, "s." + node}, w.nb.GroupsOf(name+".app")); d != "" {
		return fmt.Errorf("groups (-want +got):\n%s", d)
	}
	return nil
}

// register has the API server ask the hook.
func (w *world) register(hook *BindHook) {
	w.t.Helper()
	server := httptest.NewTLSServer(hook.Handler())
	w.t.Cleanup(server.Close)
	url, side, ignore, seconds := server.URL+PathBind, registration.SideEffectClassNoneOnDryRun, registration.Ignore, int32(20)
	w.must(w.client.Create(w.ctx, &registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "bind"},
		Webhooks: []registration.MutatingWebhook{{Name: "bind.berth.dev", SideEffects: &side, FailurePolicy: &ignore, TimeoutSeconds: &seconds,
			AdmissionReviewVersions: []string{"v1"},
			ClientConfig: registration.WebhookClientConfig{URL: &url,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
				Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods/binding"}}}}}}}))
}

// A pod is bound and routed in one write: nobody sees it with a node and not routed, and the worker writes it no more.
func TestBoundAndRoutedInOneWrite(t *testing.T) {
	w, hook := placingWorld(t, worldOptions{})
	w.register(hook())
	watching, err := client.NewWithWatch(w.kube.Config(), client.Options{Scheme: w.client.Scheme()})
	w.must(err)
	events, err := watching.Watch(w.ctx, &corev1.PodList{})
	w.must(err)
	defer events.Stop()
	p := w.waiting("a")
	w.kube.ResetRequests()
	w.must(w.bindTo(p, "n1", nil))
	for e := range events.ResultChan() {
		p, ok := e.Object.(*corev1.Pod)
		if !ok || p.Spec.NodeName == "" {
			continue
		}
		if p.Annotations[routedKey] != "true" || p.Annotations[allocatedKey] != "true" {
			t.Errorf("the pod was seen with a node and %v", p.Annotations)
		}
		break
	}
	w.must(w.on("a", "n1"))
	w.look("a")
	if n := w.kube.Requests()["patch pods"]; n != 0 {
		t.Errorf("the worker has patched the pod %d times", n)
	}
	if w.worker.placing.placed(p.UID) {
		t.Error("that it was bound is not noticed")
	}
	w.quiet()
	w.end("a")
	w.clean()
}

// Whatever becomes of the binding, the pod ends where it is.
func TestPlacedPods(t *testing.T) {
	for name, then := range map[string]func(w *world, p *corev1.Pod){
		"bound where it was said": func(w *world, p *corev1.Pod) { w.must(w.bindTo(p, "n1", nil)) },
		"bound elsewhere":         func(w *world, p *corev1.Pod) { w.must(w.bindTo(p, "n2", nil)) },
		"bound elsewhere, with the marks": func(w *world, p *corev1.Pod) {
			w.must(w.bindTo(p, "n2", routedMarks()))
			w.until("it is moved", func() error { return w.on("a", "n2") })
		},
		"bound by two at once": func(w *world, p *corev1.Pod) {
			w.must(w.bindTo(p, "n2", routedMarks()))
			if err := w.bindTo(p, "n1", w.place(p, "n1")); err == nil {
				w.t.Error("it was bound twice")
			}
		},
		"bound under another leader": func(w *world, p *corev1.Pod) {
			w.stop()
			w.start(worldOptions{})
			w.must(w.bindTo(p, "n2", routedMarks()))
		},
	} {
		t.Run(name, func(t *testing.T) {
			w, _ := placingWorld(t, worldOptions{})
			p := w.waiting("a")
			if d := cmp.Diff(routedMarks(), w.place(p, "n1")); d != "" {
				t.Fatalf("marks (-want +got):\n%s", d)
			}
			w.must(w.on("a", "n1"))
			then(w, p)
			now := w.wired("a")
			w.until("record and groups", func() error { return w.on("a", now.Spec.NodeName) })
			w.end("a")
			w.clean()
		})
	}
}

// A pod that is never bound is left alone while its binding may be under way, and then says no more that it is on a node.
func TestPlacedAndNeverBound(t *testing.T) {
	w, _ := placingWorld(t, worldOptions{})
	p := w.waiting("a")
	w.place(p, "n1")
	w.must(w.ledger.Free(w.ctx, w.podLeases()[0].Ref())) // any other pod would be given others now
	w.look("a")
	if now, err := w.get("a"); err != nil || now.ResourceVersion != p.ResourceVersion {
		t.Errorf("it was changed while it was being bound: %v %v", err, now.Annotations)
	}
	w.worker.placing.mu.Lock()
	w.worker.placing.lasts = time.Second
	w.worker.placing.pods[p.UID] = placed{key: client.ObjectKeyFromObject(p), until: time.Now()}
	w.worker.placing.mu.Unlock()
	w.worker.wakeUnbound()
	w.until("the record is gone", func() error {
		var records kubeovnv1.IPList
		if err := w.client.List(w.ctx, &records); err != nil {
			return err
		}
		if n := len(records.Items); n > 0 || w.worker.placing.placed(p.UID) {
			return fmt.Errorf("%d records, still placed: %v", n, w.worker.placing.placed(p.UID))
		}
		return nil
	})
	w.until("it has other leases", func() error { return w.allBound() })
	now, err := w.get("a")
	w.must(err)
	w.must(w.bindTo(now, "n2", nil))
	w.wired("a")
	w.until("record and groups", func() error { return w.on("a", "n2") })
	w.end("a")
	w.clean()
}

// One that is deleted before it is bound, or while it is being connected, leaves nothing.
func TestPlacedAndDeleted(t *testing.T) {
	t.Run("afterwards", func(t *testing.T) {
		w, _ := placingWorld(t, worldOptions{})
		p := w.waiting("a")
		w.place(p, "n1")
		w.end("a")
		w.gone("a")
		w.clean()
		w.until("it is forgotten", func() error {
			if w.worker.placing.placed(p.UID) {
				return errors.New("it is not")
			}
			return nil
		})
	})
	t.Run("meanwhile", func(t *testing.T) {
		gate := make(chan struct{})
		var held atomic.Bool
		w, _ := placingWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
			if r.Verb == "create" && r.Resource == "ips" && held.CompareAndSwap(false, true) {
				return memkube.Fault{Hold: gate}
			}
			return memkube.Fault{}
		}})
		p := w.waiting("a")
		done := make(chan error, 1)
		go func() {
			_, err := w.worker.connectAhead(w.ctx, placement{key: client.ObjectKeyFromObject(p), uid: p.UID, node: "n1"})
			done <- err
		}()
		w.until("the record is being made", func() error {
			if !held.Load() {
				return errors.New("not yet")
			}
			return nil
		})
		w.end("a")
		close(gate)
		w.must(<-done)
		w.clean()
	})
}

// The reconciler waits for its turn with a pod that is being connected.
func TestReconcilerWaitsForItsTurn(t *testing.T) {
	w, _ := placingWorld(t, worldOptions{})
	key := client.ObjectKeyFromObject(w.waiting("a"))
	free, err := w.worker.placing.turn(w.ctx, key)
	w.must(err)
	ctx, cancel := context.WithTimeout(w.ctx, 50*time.Millisecond)
	defer cancel()
	if _, err := w.worker.Reconcile(ctx, reconcile.Request{NamespacedName: key}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("it did not wait: %v", err)
	}
	free()
	w.look("a")
}

// What is out of the ordinary is left to the reconciler, and costs nothing.
func TestNotPlaced(t *testing.T) {
	w, _ := placingWorld(t, worldOptions{})
	plain := w.waiting("plain")
	bound := w.admit(podNamed("bound", onNode))
	w.wired("bound")
	w.seen(podNamed("bound"))
	marked := w.waiting("marked")
	marked.Annotations[routedKey] = "true"
	w.must(w.client.Update(w.ctx, marked))
	w.seen(podNamed("marked"))
	foreign := podNamed("foreign")
	foreign.Namespace = "default"
	w.must(w.client.Create(w.ctx, foreign))
	w.seen(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "foreign"}})
	w.makeMachine()
	machine := w.admitWhole(launcher("virt-launcher-vm-a", ""))
	w.look("virt-launcher-vm-a")
	transactions := w.worker.writer.Transactions()
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		uid  types.UID
		node string
	}{
		"of another incarnation": {plain, "other", "n1"},
		"to a node of nobody":    {plain, plain.UID, "n9"},
		"bound already":          {bound, bound.UID, "n2"},
		"marked already":         {marked, marked.UID, "n1"},
		"of others":              {foreign, foreign.UID, "n1"},
		"not there":              {podNamed("none"), "u", "n1"},
		"of a machine":           {machine, machine.UID, "n1"},
	} {
		got, err := w.worker.connectAhead(w.ctx, placement{key: client.ObjectKeyFromObject(c.pod), uid: c.uid, node: c.node})
		if got != nil || err != nil {
			t.Errorf("%s: %v %v", name, got, err)
		}
	}
	if n := w.worker.writer.Transactions() - transactions; n != 0 || len(w.worker.placing.pods) != 0 {
		t.Errorf("%d transactions, placed: %v", n, w.worker.placing.pods)
	}
}

// A standby answers nothing and writes nothing.
func TestStandbyPlacesNothing(t *testing.T) {
	w, _ := placingWorld(t, worldOptions{})
	p := w.waiting("a")
	standby, err := New(w.worker.Options)
	w.must(err)
	NewBindHook(standby, DefaultBindLimit)
	got, err := standby.connectAhead(w.ctx, placement{key: client.ObjectKeyFromObject(p), uid: p.UID, node: "n1"})
	if got != nil || err != nil {
		t.Errorf("%v %v", got, err)
	}
}

// A worker that another one has taken over from gives no marks, also where nothing is left to write.
func TestFencedWorkerMarksNothing(t *testing.T) {
	w, _ := placingWorld(t, worldOptions{})
	p := w.waiting("a")
	w.place(p, "n1") // from now on there is nothing left to write
	_, err := w.nb.RaiseEpoch(w.ctx)
	w.must(err)
	got, err := w.worker.connectAhead(w.ctx, placement{key: client.ObjectKeyFromObject(p), uid: p.UID, node: "n1"})
	if got != nil || !errors.Is(err, ovn.ErrFenced) || !strings.Contains(err.Error(), "epoch") {
		t.Errorf("%v %v", got, err)
	}
}
