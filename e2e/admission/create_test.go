//go:build e2e

package admission

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/network"
)

// B41: pods of one generateName have no name at admission, and share nothing. Both replicas serve.
func TestGenerateName(t *testing.T) {
	w := start(t)
	const ns = "generate"
	w.enter(t, space{name: ns, cidr: "10.201.0.0/24"})
	before := w.answered(t, "allocated")
	pods := make([]*corev1.Pod, 50)
	parallel(len(pods), len(pods), func(i int) {
		p := pod("", nil)
		p.GenerateName = "web-"
		var err error
		if pods[i], err = w.Client().CoreV1().Pods(ns).Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			t.Errorf("pod %d: %v", i, err)
			pods[i] = p
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	distinct(t, pods)
	for _, p := range pods {
		if !strings.HasPrefix(p.Name, "web-") || p.Name == "web-" {
			t.Errorf("a pod is named %q", p.Name)
		}
	}
	after := w.answered(t, "allocated")
	t.Logf("answered: %v, then %v", before, after)
	for _, r := range w.replicas {
		if after[r.name] == before[r.name] {
			t.Errorf("replica %s gave no address", r.name)
		}
	}
	w.accounts(t)
	w.clear(t, ns)
}

// A second creation of a name fails after admission: its lease goes, and the first pod's stays.
func TestNameConflict(t *testing.T) {
	w := start(t)
	const ns = "conflict"
	w.enter(t, space{name: ns, cidr: "10.202.0.0/24"})
	first := w.create(t, ns, pod("one", nil))
	for range 3 {
		if _, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("one", nil), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
			t.Fatalf("%v, want AlreadyExists", err)
		}
	}
	// In a stream of pods some are taken ahead, and go back long before the sweep frees what is pending.
	w.await(t, "four leases of four calls of admission are there", func() bool { return len(w.mustLeases(t, ns)) == 4 })
	w.accounts(t)
	if d := cmp.Diff(address(first), address(w.pod(t, ns, "one"))); d != "" {
		t.Error(d)
	}
	w.clear(t, ns)
}

// A second creation of a StatefulSet's pod is given the living pod's leases, and takes nothing from it.
func TestNameConflictSticky(t *testing.T) {
	w := start(t)
	const ns = "sticky"
	w.enter(t, space{name: ns, cidr: "10.203.0.0/24"})
	one, labels := int32(1), map[string]string{"app": "db"}
	_, err := w.Client().AppsV1().StatefulSets(ns).Create(t.Context(), &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "db"},
		Spec: appsv1.StatefulSetSpec{Replicas: &one, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.await(t, "the pod is there", func() bool { return len(w.pods(t, ns)) == 1 })
	db := w.bound(t, ns, "db-0")
	again := pod("db-0", nil)
	again.Labels, again.OwnerReferences = db.Labels, db.OwnerReferences
	if _, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), again, metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Fatalf("%v, want AlreadyExists", err)
	}
	sweeps := time.Now().Add(pendingAge + 3*sweepPeriod)
	w.await(t, "pending leases would have been freed", func() bool {
		for _, l := range w.mustLeases(t, ns) {
			if l.Address != address(db) || l.Claim != db.Annotations[network.ClaimKey] {
				t.Fatalf("a lease of %s for %s", l.Address, l.Claim)
			}
		}
		return time.Now().After(sweeps)
	})
	if n := len(w.mustLeases(t, ns)); n != 1 {
		t.Errorf("%d leases, want one", n)
	}
	w.accounts(t)
	w.clear(t, ns)
}

// A dry run gets a preview and changes nothing; what is no dry run, by dryRun false or by none, gets a lease.
func TestDryRun(t *testing.T) {
	w := start(t)
	const ns = "dry"
	w.enter(t, space{name: ns, cidr: "10.204.0.0/24"})
	versions := func() map[string]string {
		var l v1alpha1.AddressBlockList
		if err := w.objs.List(t.Context(), &l); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, b := range l.Items {
			if b.Spec.Subnet == ns {
				out[b.Name] = b.ResourceVersion
			}
		}
		return out
	}
	w.accounts(t)
	before := versions()
	p, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod("dry", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || address(p) == "" || p.Annotations[network.ClaimKey] != network.ClaimPreview {
		t.Errorf("%v, annotations %v", err, p.Annotations)
	}
	yes, no := true, false
	for name, tc := range map[string]struct {
		dryRun *bool
		leases int
	}{
		"true": {&yes, 0}, "false": {&no, 1}, "absent": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			for _, r := range w.replicas {
				a, err := r.post(t.Context(), ns, pod("posted", nil), tc.dryRun)
				if err != nil || !a.Allowed {
					t.Fatalf("replica %s: %+v %v", r.name, a, err)
				}
				if n := len(w.mustLeases(t, ns)); n != tc.leases {
					t.Errorf("%d leases after the answer of replica %s, want %d", n, r.name, tc.leases)
				}
				if d := cmp.Diff(before, versions()); (d == "") != (tc.leases == 0) {
					t.Errorf("blocks (-before +after): %s", d)
				}
				w.accounts(t) // no pod came of it
				before = versions()
			}
		})
	}
	pasted := w.create(t, ns, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dry", Annotations: p.Annotations}, Spec: podSpec()})
	if pasted.Annotations[network.RequestedKey] != "" {
		t.Errorf("a preview that came back was taken for a request: %v", pasted.Annotations)
	}
	w.accounts(t)
	w.clear(t, ns)
}

// stockEnds is when what was taken ahead is back after the last pod: long before a lease is free that only the sweep finds.
const stockEnds = 4 * time.Second

// B66: a pod that is deleted at once gives everything back.
func TestB66CreateDelete(t *testing.T) {
	w := start(t)
	const ns = "now"
	w.enter(t, space{name: ns, cidr: "10.205.0.0/24"})
	now := int64(0)
	parallel(200, 8, func(i int) {
		name := fmt.Sprintf("p%d", i)
		p, err := w.Client().CoreV1().Pods(ns).Create(t.Context(), pod(name, nil), metav1.CreateOptions{})
		if err != nil || address(p) == "" {
			t.Errorf("create %s: %v", name, err)
			return
		}
		if err := w.Client().CoreV1().Pods(ns).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
			t.Errorf("delete %s: %v", name, err)
		}
	})
	began := time.Now()
	w.await(t, "all pods are gone", func() bool { return len(w.pods(t, ns)) == 0 })
	t.Logf("all pods gone %s after the last deletion", time.Since(began).Round(time.Millisecond))
	ended := time.Now()
	w.await(t, "no lease is left", func() bool { return len(w.mustLeases(t, ns)) == 0 })
	if took := time.Since(ended); took > stockEnds {
		t.Errorf("leases of pods that had the finalizer were left for %s", took)
	}
	w.accounts(t)
}

// B49: five hundred creations at once are all served.
func TestB49FiveHundredAtOnce(t *testing.T) {
	w := start(t)
	const ns, n = "many", 500
	w.enter(t, space{name: ns, cidr: "10.206.0.0/22"})
	kube, err := kubernetes.NewForConfig(w.config(10000))
	if err != nil {
		t.Fatal(err)
	}
	before := w.answered(t, "overloaded")
	pods, took := make([]*corev1.Pod, n), make([]time.Duration, n)
	var late atomic.Int64
	began := time.Now()
	parallel(n, n, func(i int) {
		asked := time.Now()
		p, err := kube.CoreV1().Pods(ns).Create(t.Context(), pod(fmt.Sprintf("p%d", i), nil), metav1.CreateOptions{})
		for range 5 { // as a controller does, when the webhook had no time on this machine
			if !apierrors.IsInternalError(err) {
				break
			}
			late.Add(1)
			p, err = kube.CoreV1().Pods(ns).Create(t.Context(), pod(fmt.Sprintf("p%d", i), nil), metav1.CreateOptions{})
		}
		if err != nil {
			t.Errorf("pod %d: %v", i, err)
		}
		pods[i], took[i] = p, time.Since(asked)
	})
	t.Logf("%d pods created in %s, p50 %s, p99 %s, told to try again %d times, %d calls of the webhook late", n, time.Since(began).Round(time.Millisecond),
		percentile(took, 50), percentile(took, 99), total(w.answered(t, "overloaded"))-total(before), late.Load())
	if t.Failed() {
		t.FailNow()
	}
	distinct(t, pods)
	w.accounts(t)
	began = time.Now()
	w.clear(t, ns)
	t.Logf("all reclaimed in %s", time.Since(began).Round(time.Millisecond))
}

// B42, B48: callers give up while admission is under way, or after it, and try again until the pod is there. What their
// attempts took comes back.
func TestClientTimeout(t *testing.T) {
	w := start(t)
	const ns = "timeout"
	w.enter(t, space{name: ns, cidr: "10.207.0.0/24", labels: map[string]string{otherLabel: "yes"}})
	t.Run("the API server's limit, while a later webhook hangs", func(t *testing.T) {
		w.other.do(t, ns, hanging)
		err := w.Client().CoreV1().RESTClient().Post().Namespace(ns).Resource("pods").Body(pod("slow", nil)).Timeout(time.Second).Do(t.Context()).Error()
		if err == nil {
			t.Fatal("created, though a webhook hung")
		}
		t.Log(err)
		w.other.rest(ns)
		if n := len(w.mustLeases(t, ns)); n != 1 {
			t.Errorf("%d leases of the attempt, want one", n)
		}
		slow := w.create(t, ns, pod("slow", nil))
		w.accounts(t)
		if d := cmp.Diff(address(slow), address(w.pod(t, ns, "slow"))); d != "" {
			t.Error(d)
		}
	})
	t.Run("the client's, at any moment", func(t *testing.T) {
		var mu sync.Mutex
		gaveUp, attempts := 0, 0
		parallel(30, 6, func(i int) {
			for attempt := 0; ; attempt++ {
				// From too short for anything, to long enough.
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(2+i%10+attempt*7)*time.Millisecond)
				_, err := w.Client().CoreV1().Pods(ns).Create(ctx, pod(fmt.Sprintf("p%d", i), nil), metav1.CreateOptions{})
				mu.Lock()
				attempts++
				if err != nil && ctx.Err() != nil {
					gaveUp++
				}
				mu.Unlock()
				cancel()
				switch {
				case err == nil, apierrors.IsAlreadyExists(err):
					return
				case attempt > 1000 || t.Context().Err() != nil:
					t.Errorf("pod %d: %v", i, err)
					return
				}
			}
		})
		t.Logf("%d attempts, of which %d were given up; %d leases at the end", attempts, gaveUp, len(w.mustLeases(t, ns)))
		if gaveUp == 0 {
			t.Error("nobody gave up: the case was not there")
		}
	})
	var pods []*corev1.Pod
	for _, p := range w.pods(t, ns) {
		pods = append(pods, &p)
	}
	if len(pods) != 31 {
		t.Errorf("%d pods, want 31", len(pods))
	}
	distinct(t, pods)
	w.accounts(t)
	w.clear(t, ns)
}
