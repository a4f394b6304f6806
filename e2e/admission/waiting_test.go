//go:build e2e

package admission

import (
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-net/berth/pkg/network"
)

// releaseBudget is from the deletion of a pod to the release of the one that waits for its address.
const releaseBudget = time.Second

func (w *world) deploy(t *testing.T, namespace, name string, replicas int32, surge, unavailable string) {
	t.Helper()
	labels := map[string]string{"app": name}
	s, u := intstr.Parse(surge), intstr.Parse(unavailable)
	_, err := w.Client().AppsV1().Deployments(namespace).Create(t.Context(), &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Strategy: appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType,
				RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &s, MaxUnavailable: &u}},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// stayFull lets a subnet be full for a quarter of an hour, when there is time.
func stayFull(t *testing.T) {
	t.Helper()
	if os.Getenv("BERTH_LONG") == "" {
		return
	}
	select {
	case <-time.After(15 * time.Minute):
	case <-t.Context().Done():
	}
}

// split sorts pods: those that are given their address, and those that wait behind the gate, oldest first.
func split(pods []corev1.Pod) (have, waiting []corev1.Pod) {
	for _, p := range pods {
		switch {
		case p.DeletionTimestamp != nil:
		case given(&p):
			have = append(have, p)
		case gated(&p):
			waiting = append(waiting, p)
		}
	}
	slices.SortFunc(waiting, func(a, b corev1.Pod) int {
		return a.CreationTimestamp.Compare(b.CreationTimestamp.Time)
	})
	return have, waiting
}

// Pods of a Deployment that find no address wait behind the gate, say so, and run within a second of one being free; a
// pod that is created then doesn't overtake them.
func TestWaiting(t *testing.T) {
	w := start(t)
	const ns = "waiting"
	w.enter(t, space{name: ns, cidr: "10.212.0.0/29"}) // five addresses
	w.runPods(t, ns)
	w.deploy(t, ns, "web", 5, "25%", "25%")
	w.await(t, "five pods run", func() bool { return w.running(t, ns) == 5 })
	w.scale(t, ns, "web", 8)
	w.await(t, "three pods wait", func() bool { _, waiting := split(w.pods(t, ns)); return len(waiting) == 3 })
	_, waiting := split(w.pods(t, ns))
	w.toldWaiting(t, &waiting[0])
	stayFull(t) // whoever asks ever more rarely is late by now

	var took, ran []time.Duration
	for range 10 {
		have, waiting := split(w.pods(t, ns))
		began := time.Now()
		w.kill(t, ns, have[0].Name)
		var got []corev1.Pod
		released := func(ok func(*corev1.Pod) bool) func() bool {
			return func() bool {
				got = slices.DeleteFunc(w.pods(t, ns), func(p corev1.Pod) bool {
					return !ok(&p) || !slices.ContainsFunc(waiting, func(x corev1.Pod) bool { return x.UID == p.UID })
				})
				return len(got) > 0
			}
		}
		w.await(t, "a pod that waited has its address", released(given))
		took = append(took, time.Since(began))
		w.await(t, "it runs", released(isReady))
		ran = append(ran, time.Since(began))
		if len(got) != 1 || address(&got[0]) != address(&have[0]) {
			t.Errorf("%s was freed, and %d pods run, the first on %s", address(&have[0]), len(got), address(&got[0]))
		}
		if oldest := waiting[0].CreationTimestamp; got[0].CreationTimestamp.After(oldest.Time) {
			t.Errorf("pod %s of %s was served before one of %s", got[0].Name, got[0].CreationTimestamp, oldest)
		}
		w.await(t, "its successor waits", func() bool { _, now := split(w.pods(t, ns)); return len(now) == 3 })
	}
	t.Logf("deleted -> next has the address: p50 %s, worst %s; -> runs: p50 %s, worst %s", percentile(took, 50), percentile(took, 100),
		percentile(ran, 50), percentile(ran, 100))
	if worst := percentile(took, 100); worst > releaseBudget {
		t.Errorf("a pod was released after %s, want %s", worst, releaseBudget)
	}
	w.accounts(t)
	w.clear(t, ns)
}

// running counts the pods that are Ready.
func (w *world) running(t *testing.T, namespace string) int {
	t.Helper()
	n := 0
	for _, p := range w.pods(t, namespace) {
		if isReady(&p) {
			n++
		}
	}
	return n
}

func (w *world) scale(t *testing.T, namespace, name string, replicas int) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := w.Client().AppsV1().Deployments(namespace).Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// toldWaiting expects condition and event on a pod that waits.
func (w *world) toldWaiting(t *testing.T, p *corev1.Pod) {
	t.Helper()
	w.await(t, "pod "+p.Name+" says that it waits", func() bool {
		return slices.ContainsFunc(w.pod(t, p.Namespace, p.Name).Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == "berth.dev/Address" && c.Status == corev1.ConditionFalse && c.Reason == "WaitingForAddress" && c.Message != ""
		})
	})
	w.await(t, "an event says that pod "+p.Name+" waits", func() bool {
		l, err := w.Client().EventsV1().Events(p.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range l.Items {
			if e.Regarding.UID == p.UID && e.Reason == "WaitingForAddress" {
				return true
			}
		}
		return false
	})
}

// Of two pods that wait, the older one is served, also when one is created while the address is being freed.
func TestWaitingOldestFirst(t *testing.T) {
	w := start(t)
	const ns = "oldest"
	w.enter(t, space{name: ns, cidr: "10.213.0.0/30"}) // one address
	holder := w.create(t, ns, pod("holder", nil))
	w.bound(t, ns, holder.Name)
	wait := map[string]string{network.WhenUnavailableKey: network.Wait}
	var queue []*corev1.Pod
	for i := range 3 {
		if i > 0 { // the age of a pod has whole seconds
			last := queue[i-1].CreationTimestamp.Time
			w.await(t, "the next second", func() bool { return time.Since(last) > 1100*time.Millisecond })
		}
		// Names in the opposite order, so that age decides and nothing else.
		p, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod(fmt.Sprintf("w%d", 9-i), wait), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if !gated(p) || address(p) != "" {
			t.Fatalf("pod %s has gates %v and address %q", p.Name, p.Spec.SchedulingGates, address(p))
		}
		queue = append(queue, p)
		w.toldWaiting(t, p)
	}
	if _, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("refused", nil), metav1.CreateOptions{}); err == nil {
		t.Error("a bare pod that may not wait was admitted into a full subnet")
	}
	for i, next := range queue {
		last := holder
		if i > 0 {
			last = queue[i-1]
		}
		w.kill(t, ns, last.Name)
		if p, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("quick", nil), metav1.CreateOptions{}); err == nil {
			t.Errorf("a new pod overtook those that wait and has %s", address(p))
		}
		w.await(t, "the oldest has the address", func() bool { return given(w.pod(t, ns, next.Name)) })
		for _, p := range queue[i+1:] {
			if got := w.pod(t, ns, p.Name); !gated(got) {
				t.Errorf("%s was released before its turn, with %q", p.Name, address(got))
			}
		}
	}
	w.accounts(t)
	w.clear(t, ns)
}

// A rollout whose subnet has an address for each replica and no more completes.
func TestRollout(t *testing.T) {
	w := start(t)
	for name, tc := range map[string]struct{ cidr, surge, unavailable string }{
		"one at a time":     {"10.214.0.0/29", "1", "1"},
		"defaults":          {"10.214.1.0/29", "25%", "25%"},
		"nothing on top":    {"10.214.2.0/29", "0", "1"},
		"as many more, one": {"10.214.3.0/29", "100%", "1"},
	} {
		t.Run(name, func(t *testing.T) {
			ns := "rollout-" + tc.cidr[7:8]
			w.enter(t, space{name: ns, cidr: tc.cidr})
			w.runPods(t, ns)
			w.deploy(t, ns, "web", 5, tc.surge, tc.unavailable)
			w.await(t, "five pods run", func() bool { return w.running(t, ns) == 5 })
			began := time.Now()
			patch := []byte(`{"spec":{"template":{"metadata":{"annotations":{"e2e.berth.dev/version":"two"}}}}}`)
			if _, err := w.Client().AppsV1().Deployments(ns).Patch(t.Context(), "web", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			w.await(t, "the rollout is complete", func() bool {
				d, err := w.Client().AppsV1().Deployments(ns).Get(t.Context(), "web", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				s := d.Status
				return s.ObservedGeneration == d.Generation && s.UpdatedReplicas == 5 && s.Replicas == 5 && s.AvailableReplicas == 5
			})
			t.Logf("complete in %s", time.Since(began).Round(time.Millisecond))
			w.accounts(t)
			w.clear(t, ns)
		})
	}
}
