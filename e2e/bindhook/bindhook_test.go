//go:build e2e

package bindhook

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The scheduler binds pods, and they become bound and routed in one write: no event shows them with a node and not routed.
// A machine that is busy may be late with some, and then the worker's patch follows.
func TestBoundAndRoutedInOneWrite(t *testing.T) {
	h := start(t)
	h.leads(t)
	counted := func() float64 {
		n, err := h.answers(t.Context(), "routed")
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	before := counted()
	events, err := h.api.Watch(t.Context(), &corev1.PodList{}, client.InNamespace(served))
	if err != nil {
		t.Fatal(err)
	}
	defer events.Stop()
	const pods = 10
	once := 0
	for n := range pods {
		name := fmt.Sprintf("one-write-%d", n)
		h.pod(t, name, scheduled)
		for e := range events.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || p.Name != name || p.Spec.NodeName == "" {
				continue
			}
			if p.Annotations[routedKey] == "true" {
				once++
			}
			break
		}
		h.routed(t, name)
	}
	now := counted() - before
	t.Logf("%d of %d pods were bound and routed in one write", once, pods)
	if once == 0 || float64(once) != now {
		t.Errorf("%d were bound and routed in one write, the worker says %v", once, now)
	}
	h.ready(t, pods)
}

// ready waits until so many pods run: the node's daemon has found all that it needs.
func (h *harness) ready(t *testing.T, n int) {
	t.Helper()
	until(t.Context(), t, fmt.Sprintf("%d pods are ready", n), func(ctx context.Context) error {
		var pods corev1.PodList
		if err := h.api.List(ctx, &pods, client.InNamespace(served)); err != nil {
			return err
		}
		ready := 0
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
					ready++
				}
			}
		}
		if ready != n {
			return fmt.Errorf("%d of %d", ready, len(pods.Items))
		}
		return nil
	})
}

// Marks that a caller puts onto a Binding are refused, by either way of binding and also while no worker is there; without
// them the same caller may bind.
func TestForgedMarks(t *testing.T) {
	h := start(t)
	h.leads(t)
	p := h.pod(t, "forged")
	forged := map[string]string{routedKey: "true"}
	legacy := func() error {
		return h.as(t, stranger).Create(t.Context(), binding(p, "node-1", forged))
	}
	ways := map[string]func() error{"the subresource": func() error { return h.bind(t, stranger, p, "node-1", forged) }, "the old way": legacy}
	for way, bind := range ways {
		if err := bind(); !refused(err) {
			t.Errorf("by %s: %v", way, err)
		}
	}
	h.scale(t, 0)
	for way, bind := range ways {
		if err := bind(); err == nil || !strings.Contains(err.Error(), "marks.bind.berth.dev") {
			t.Errorf("by %s, while no worker is there: %v", way, err)
		}
	}
	var now corev1.Pod
	if err := h.api.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil || now.Spec.NodeName != "" || now.Annotations[routedKey] != "" {
		t.Errorf("bound to %q, %v %v", now.Spec.NodeName, now.Annotations, err)
	}
	if err := h.bind(t, stranger, p, "node-1", map[string]string{"team": "x"}); err != nil {
		t.Errorf("without marks: %v", err)
	}
	h.scale(t, 1)
	if got := h.routed(t, "forged"); got.Annotations["team"] != "x" {
		t.Errorf("%v", got.Annotations)
	}
}

// scale sets how many workers there are.
func (h *harness) scale(t *testing.T, n int32) {
	t.Helper()
	key := client.ObjectKey{Namespace: "berth-system", Name: "berth-worker"}
	until(t.Context(), t, fmt.Sprintf("there are %d workers", n), func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := h.api.Get(ctx, key, &d); err != nil {
			return err
		}
		if *d.Spec.Replicas != n {
			d.Spec.Replicas = &n
			if err := h.api.Update(ctx, &d); err != nil {
				return err
			}
		}
		var pods corev1.PodList
		if err := h.api.List(ctx, &pods, client.InNamespace(key.Namespace), client.MatchingLabels{"app.kubernetes.io/name": key.Name}); err != nil {
			return err
		}
		if d.Status.ReadyReplicas != n || len(pods.Items) != int(n) {
			return fmt.Errorf("%d ready, %d pods", d.Status.ReadyReplicas, len(pods.Items))
		}
		return nil
	})
}

// Of two workers only the leader is asked: nobody else listens. It is killed, and while it is away pods are bound all the
// same; the next one has them routed, and is asked then.
func TestLeaderDies(t *testing.T) {
	h := start(t)
	h.scale(t, 2)
	h.leads(t)
	h.onlyOneListens(t)
	before := h.pod(t, "before")
	if err := h.KillWorker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := h.bind(t, stranger, before, "node-1", nil); err != nil {
		t.Errorf("while no worker leads: %v", err)
	}
	t.Logf("bound in %s while no worker leads", time.Since(began).Round(time.Millisecond))
	h.routed(t, "before")
	h.leads(t)
	h.onlyOneListens(t)
	for n := range 5 { // one may be late
		name := fmt.Sprintf("after-%d", n)
		p := h.pod(t, name)
		if err := h.bind(t, stranger, p, "node-2", nil); err != nil {
			t.Fatal(err)
		}
		h.routed(t, name)
	}
	if n, err := h.answers(t.Context(), "routed"); err != nil || n == 0 {
		t.Errorf("the next leader has routed %v pods with their bindings, %v", n, err)
	}
	h.scale(t, 1)
}

// onlyOneListens tries to reach every worker where the leader is asked.
func (h *harness) onlyOneListens(t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	if err := h.api.List(t.Context(), &pods, client.InNamespace("berth-system"), client.MatchingLabels{"app.kubernetes.io/name": "berth-worker"}); err != nil {
		t.Fatal(err)
	}
	listening := 0
	for _, p := range pods.Items {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(t.Context(), "tcp", net.JoinHostPort(p.Status.PodIP, "9444"))
		if err == nil {
			listening++
			_ = conn.Close()
		}
	}
	if len(pods.Items) != 2 || listening != 1 {
		t.Errorf("%d of %d workers listen", listening, len(pods.Items))
	}
}

// Two bind a pod to different nodes. One of them wins, and port and record end where the pod is; so does a pod that is
// deleted while it is bound.
func TestBindingsThatFail(t *testing.T) {
	h := start(t)
	h.leads(t)
	for n := range 5 {
		name := fmt.Sprintf("torn-%d", n)
		p := h.pod(t, name)
		var both sync.WaitGroup
		errs := make([]error, 2)
		for i := range errs {
			both.Go(func() { errs[i] = h.bind(t, stranger, p, fmt.Sprintf("node-%d", i+1), nil) })
		}
		both.Wait()
		if (errs[0] == nil) == (errs[1] == nil) {
			t.Errorf("%v, %v", errs[0], errs[1])
		}
		got := h.routed(t, name)
		until(t.Context(), t, name+" is in the groups of its node", func(context.Context) error {
			for _, g := range h.nb.GroupsOf(name + "." + served) {
				if !strings.HasSuffix(g, "."+strings.ReplaceAll(got.Spec.NodeName, "-", ".")) {
					return fmt.Errorf("it is on %s and in %s", got.Spec.NodeName, g)
				}
			}
			return nil
		})
		gone := h.pod(t, fmt.Sprintf("gone-%d", n))
		both.Go(func() { errs[0] = h.bind(t, stranger, gone, "node-1", nil) }) // it may come too late
		both.Go(func() { errs[1] = h.api.Delete(t.Context(), gone, client.GracePeriodSeconds(0)) })
		both.Wait()
		if errs[1] != nil {
			t.Error(errs[1])
		}
	}
}

// A dry run does nothing.
func TestDryRun(t *testing.T) {
	h := start(t)
	h.leads(t)
	p := h.pod(t, "dry")
	err := h.as(t, stranger).SubResource("binding").Create(t.Context(), p, binding(p, "node-1", nil), client.DryRunAll)
	if err != nil {
		t.Fatal(err)
	}
	var now corev1.Pod
	if err := h.api.Get(t.Context(), client.ObjectKeyFromObject(p), &now); err != nil || now.Spec.NodeName != "" || now.Annotations[routedKey] != "" {
		t.Errorf("on %q: %v %v", now.Spec.NodeName, now.Annotations, err)
	}
	if groups := h.nb.GroupsOf(p.Name + "." + served); len(groups) != 0 {
		t.Errorf("its port is in %v", groups)
	}
}
