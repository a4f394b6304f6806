//go:build e2e

package policy

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/pkg/network"
)

// subresources by which annotations and finalizers of a pod can be written.
func ways() map[string][]string { return map[string][]string{"pods": nil, "pods-status": {"status"}} }

// stored makes a pod as an administrator and removes it with the test.
func (h *harness) stored(t *testing.T, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	pods := h.Client().CoreV1().Pods(namespace)
	out, err := pods.Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute) // the test's has ended
		defer cancel()
		none, now := []byte(`{"metadata":{"finalizers":null}}`), int64(0)
		_, err := pods.Patch(ctx, out.Name, types.MergePatchType, none, metav1.PatchOptions{})
		if err == nil {
			err = pods.Delete(ctx, out.Name, metav1.DeleteOptions{GracePeriodSeconds: &now})
		}
		if err != nil && !apierrors.IsNotFound(err) {
			t.Error(err)
		}
	})
	return out
}

// Every protected annotation is refused to strangers and granted to keepers, by each way, set, changed and removed.
func TestProtectedAnnotations(t *testing.T) {
	h := start(t)
	full := h.stored(t, served, wired("full"))
	bare := h.stored(t, served, pod("bare", nil))
	for way, sub := range ways() {
		for key, value := range protected() {
			t.Run(way+"/"+strings.ReplaceAll(key, "/", "~"), func(t *testing.T) {
				for what, c := range map[string]struct {
					pod  string
					body []byte
				}{"set": {bare.Name, annotate(key, value)}, "change": {full.Name, annotate(key, value)}, "remove": {full.Name, annotate(key, removed)},
					"change among free ones": {full.Name, annotate(key, value, "team", "blue")}} {
					patch := func(user string, opts metav1.PatchOptions) error {
						_, err := h.kubeAs(t, user).CoreV1().Pods(served).Patch(t.Context(), c.pod, types.MergePatchType, c.body, opts, sub...)
						return err
					}
					if err := patch(stranger, metav1.PatchOptions{}); !refusedBy(err, "berth-pod-update") || !strings.Contains(err.Error(), key) {
						t.Errorf("%s by a stranger: %v", what, err)
					}
					if err := patch(worker, metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
						t.Errorf("%s by the worker: %v", what, err)
					}
				}
			})
		}
	}
	for name, want := range map[string]map[string]string{"full": full.Annotations, "bare": bare.Annotations} {
		got, err := h.Client().CoreV1().Pods(served).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || fmt.Sprint(got.Annotations) != fmt.Sprint(want) {
			t.Errorf("%s changed: %v, %v", name, got.Annotations, err)
		}
	}
}

// Who is a keeper, and who is not.
func TestKeepers(t *testing.T) {
	h := start(t)
	h.stored(t, served, wired("keepers"))
	dry := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	try := func(user string, groups ...string) error {
		_, err := h.kubeAs(t, user, groups...).CoreV1().Pods(served).Patch(t.Context(), "keepers", types.MergePatchType, annotate(claimKey, otherClaim), dry)
		return err
	}
	for _, u := range keepers() {
		if err := try(u); err != nil {
			t.Errorf("%s: %v", u, err)
		}
	}
	for _, u := range strangers() {
		if err := try(u); !refusedBy(err, "berth-pod-update") {
			t.Errorf("%s: %v", u, err)
		}
	}
	if err := try(stranger, "system:masters"); err != nil { // they hold every verb
		t.Errorf("an administrator: %v", err)
	}
	if err := try(stranger, "system:serviceaccounts"); !refusedBy(err, "berth-pod-update") {
		t.Errorf("by a group that is in no list: %v", err)
	}
}

// What is not protected is anybody's, by each way; a user that may write it at all writes it also on a wired pod.
func TestFreeAnnotations(t *testing.T) {
	h := start(t)
	for way, sub := range ways() {
		h.stored(t, served, wired("free-"+way))
		for key, value := range free() {
			got, err := h.kubeAs(t, stranger).CoreV1().Pods(served).Patch(t.Context(), "free-"+way, types.MergePatchType, annotate(key, value), metav1.PatchOptions{}, sub...)
			if err != nil || got.Annotations[key] != value {
				t.Errorf("%s: %s: %v", way, key, err)
			}
		}
	}
	body := []byte(`{"metadata":{"labels":{"a":"b","berth.dev/inject":"disabled"}}}`)
	if got, err := h.kubeAs(t, stranger).CoreV1().Pods(served).Patch(t.Context(), "free-pods", types.MergePatchType, body, metav1.PatchOptions{}); err != nil || got.Labels["a"] != "b" {
		t.Errorf("labels: %v", err)
	}
	// A pod that opts out afterwards does not get round the policy.
	if _, err := h.kubeAs(t, stranger).CoreV1().Pods(served).Patch(t.Context(), "free-pods", types.MergePatchType, annotate(claimKey, otherClaim), metav1.PatchOptions{}); !refusedBy(err, "berth-pod-update") {
		t.Errorf("by way of a label: %v", err)
	}
}

// B54, B84: our finalizer comes off by us and by the break-glass verb alone, also from a pod that is being deleted; those
// of others are theirs.
func TestB54Finalizer(t *testing.T) {
	h := start(t)
	with, without := `{"metadata":{"finalizers":["example.org/other","berth.dev/network"]}}`, `{"metadata":{"finalizers":["example.org/other"]}}`
	for way, sub := range ways() {
		for who, user := range map[string]string{"worker": worker, "ovn": ovn, "rescuer": rescuer} {
			t.Run(way+"/"+who, func(t *testing.T) {
				name := "final-" + way + "-" + who
				h.stored(t, served, wired(name))
				pods := h.Client().CoreV1().Pods(served)
				grace := int64(0)
				if err := pods.Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &grace}); err != nil {
					t.Fatal(err)
				}
				patch := func(user, body string) (*corev1.Pod, error) {
					return h.kubeAs(t, user).CoreV1().Pods(served).Patch(t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
				}
				for _, u := range strangers() {
					if _, err := patch(u, without); !refusedBy(err, "berth-pod-update") {
						t.Errorf("removed by %s: %v", u, err)
					}
				}
				if p, err := patch(stranger, `{"metadata":{"finalizers":["berth.dev/network"]}}`); err != nil || len(p.Finalizers) != 1 {
					t.Errorf("another's finalizer: %v", err)
				}
				if _, err := patch(user, `{"metadata":{"finalizers":null}}`); err != nil {
					t.Errorf("removed by %s: %v", user, err)
				}
				if _, err := pods.Get(t.Context(), name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					t.Errorf("the pod is still there: %v", err)
				}
			})
		}
		name := "unfinal-" + way
		h.stored(t, served, pod(name, nil))
		if _, err := h.kubeAs(t, stranger).CoreV1().Pods(served).Patch(t.Context(), name, types.MergePatchType, []byte(with), metav1.PatchOptions{}, sub...); !refusedBy(err, "berth-pod-update") {
			t.Errorf("set by a stranger: %v", err)
		}
		if _, err := h.kubeAs(t, worker).CoreV1().Pods(served).Patch(t.Context(), name, types.MergePatchType, []byte(with), metav1.PatchOptions{}, sub...); err != nil {
			t.Errorf("set by the worker: %v", err)
		}
	}
}

// B54: what the cluster does with pods all day goes on: status, conditions, eviction, debugging, binding, deletion.
func TestB54ClusterGoesOn(t *testing.T) {
	h := start(t)
	p := h.stored(t, served, wired("life"))
	if err := h.kubeAs(t, "system:kube-scheduler", "system:masters").CoreV1().Pods(served).Bind(t.Context(), binding("life"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("binding: %v", err)
	}
	p, err := h.kubeAs(t, kubelet, "system:nodes").CoreV1().Pods(served).Get(t.Context(), p.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	p.Status.Phase, p.Status.PodIP = corev1.PodRunning, "10.16.0.5"
	if p, err = h.kubeAs(t, kubelet, "system:nodes").CoreV1().Pods(served).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil || p.Status.PodIP != "10.16.0.5" {
		t.Errorf("the kubelet's status: %v", err)
	}
	body := []byte(`{"status":{"conditions":[{"type":"DisruptionTarget","status":"True"}]}}`)
	if _, err := h.kubeAs(t, podGC).CoreV1().Pods(served).Patch(t.Context(), p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("a condition by a controller: %v", err)
	}
	owned := []byte(`{"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r","uid":"u"}]}}`)
	if _, err := h.kubeAs(t, manager).CoreV1().Pods(served).Patch(t.Context(), p.Name, types.MergePatchType, owned, metav1.PatchOptions{}); err != nil {
		t.Errorf("adoption: %v", err)
	}
	debug := []byte(`{"metadata":{"annotations":{"berth.dev/claim":"` + otherClaim + `"},"finalizers":[]},"spec":{"ephemeralContainers":[{"name":"d","image":"i"}]}}`)
	got, err := h.kubeAs(t, stranger).CoreV1().Pods(served).Patch(t.Context(), p.Name, types.StrategicMergePatchType, debug, metav1.PatchOptions{}, "ephemeralcontainers")
	if err != nil || len(got.Spec.EphemeralContainers) != 1 {
		t.Errorf("debugging: %v", err)
	} else if got.Annotations[claimKey] != oldClaim || !slices.Contains(got.Finalizers, network.Finalizer) {
		t.Errorf("debugging reaches what is protected: %v %v", got.Annotations, got.Finalizers)
	}
	if err := h.kubeAs(t, stranger).CoreV1().Pods(served).Delete(t.Context(), p.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("deletion: %v", err)
	}
}

// An annotation on a Binding arrives on the pod, by the subresource and by the old way.
func TestBindings(t *testing.T) {
	h := start(t)
	legacy := func(user string, b *corev1.Binding, dry bool) error {
		r := h.kubeAs(t, user).CoreV1().RESTClient().Post().Namespace(served).Resource("bindings").Body(b)
		if dry {
			r.Param("dryRun", metav1.DryRunAll)
		}
		return r.Do(t.Context()).Error()
	}
	sub := func(user string, b *corev1.Binding, dry bool) error {
		o := metav1.CreateOptions{}
		if dry {
			o.DryRun = []string{metav1.DryRunAll}
		}
		return h.kubeAs(t, user).CoreV1().Pods(served).Bind(t.Context(), b, o)
	}
	for way, bind := range map[string]func(string, *corev1.Binding, bool) error{"legacy": legacy, "subresource": sub} {
		t.Run(way, func(t *testing.T) {
			name := "bind-" + way
			h.stored(t, served, pod(name, nil))
			for key := range protected() {
				if err := bind(stranger, binding(name, key), false); !refusedBy(err, "berth-pod-binding") || !strings.Contains(err.Error(), key) {
					t.Errorf("%s: %v", key, err)
				}
				if err := bind(ovn, binding(name, key), true); err != nil {
					t.Errorf("%s by a keeper: %v", key, err)
				}
			}
			final := binding(name)
			final.Finalizers = []string{network.Finalizer}
			if err := bind(stranger, final, false); !refusedBy(err, "berth-pod-binding") {
				t.Errorf("finalizer: %v", err)
			}
			all := binding(name)
			for key := range free() {
				all.Annotations[key] = "x"
			}
			if err := bind(stranger, all, false); err != nil {
				t.Errorf("free annotations: %v", err)
			}
			got, err := h.Client().CoreV1().Pods(served).Get(t.Context(), name, metav1.GetOptions{})
			if err != nil || got.Annotations["team"] != "x" || got.Spec.NodeName != "n1" {
				t.Errorf("annotations of the binding did not arrive, so nothing was tested: %v %v", got.Annotations, err)
			}
		})
	}
}

// Copies of wired pods are refused where Berth serves, and nowhere else.
func TestCopies(t *testing.T) {
	h := start(t)
	for name, c := range map[string]struct {
		user, namespace string
		change          func(*corev1.Pod)
		refused         bool
	}{
		"served":       {stranger, served, nil, true},
		"served later": {stranger, lateServed, nil, true},
		"by a keeper":  {ovn, served, nil, true},
		"by the verb":  {rescuer, served, nil, false},
		"not opted in": {stranger, foreign, nil, false},
		"opted out":    {stranger, served, func(p *corev1.Pod) { p.Labels = map[string]string{"berth.dev/inject": "disabled"} }, false},
		"on the host":  {stranger, served, func(p *corev1.Pod) { p.Spec.HostNetwork = true }, false},
		"nothing to be refused": {stranger, served, func(p *corev1.Pod) {
			p.Annotations = map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.9", "ovn.kubernetes.io/mac_address": "0a:00:00:00:00:01", claimKey: oldClaim}
		}, false},
		"without annotations": {stranger, served, func(p *corev1.Pod) { p.Annotations = nil }, false},
	} {
		t.Run(name, func(t *testing.T) {
			for _, key := range []string{"ovn.kubernetes.io/allocated", routedKey, "net1.default.ovn.kubernetes.io/routed"} {
				p := pod("copy", map[string]string{key: "true"})
				if c.change != nil {
					c.change(p)
				}
				_, err := h.kubeAs(t, c.user).CoreV1().Pods(c.namespace).Create(t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
				if c.refused && !refusedBy(err, "berth-pod-create") || !c.refused && err != nil {
					t.Errorf("%s: %v", key, err)
				}
			}
		})
	}
}

// Where nobody opted in, nothing is refused.
func TestOtherNamespaces(t *testing.T) {
	h := start(t)
	h.stored(t, foreign, wired("foreign"))
	for key, value := range protected() {
		if _, err := h.kubeAs(t, stranger).CoreV1().Pods(foreign).Patch(t.Context(), "foreign", types.MergePatchType, annotate(key, value), metav1.PatchOptions{}); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := h.kubeAs(t, stranger).CoreV1().Pods(foreign).Bind(t.Context(), binding("foreign", claimKey), metav1.CreateOptions{}); err != nil {
		t.Errorf("binding: %v", err)
	}
}

// As many and as long annotations as a pod may have don't exhaust what a policy may cost.
func TestCostOfManyAnnotations(t *testing.T) {
	h := start(t)
	p := wired("many")
	many := []string{}
	for i := range 2000 {
		key := fmt.Sprintf("%s%04d.kubernetes.io/%s", strings.Repeat("a.b", 20), i, strings.Repeat("x", 40))
		p.Annotations[key] = "v"
		many = append(many, key, "w")
	}
	h.stored(t, served, p)
	user := h.kubeAs(t, stranger).CoreV1().Pods(served)
	if _, err := user.Patch(t.Context(), "many", types.MergePatchType, annotate(many...), metav1.PatchOptions{}); err != nil {
		t.Errorf("all of them changed: %v", err)
	}
	if _, err := user.Patch(t.Context(), "many", types.MergePatchType, annotate(append(many, claimKey, otherClaim)...), metav1.PatchOptions{}); !refusedBy(err, "berth-pod-update") {
		t.Errorf("and a protected one: %v", err)
	}
	if _, err := user.Patch(t.Context(), "many", types.StrategicMergePatchType, []byte(`{"status":{"phase":"Running"}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Errorf("status: %v", err)
	}
}
