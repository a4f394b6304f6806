package memkube_test

import (
	"encoding/json"
	"net/http"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/memkube"
)

// A webhook of pods/binding is asked about the Binding, and what it adds arrives on the pod. One of pods is not asked.
func TestBindingAdmission(t *testing.T) {
	allow := true
	a := &answerer{answer: func(_ *http.Request, _ *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, int) {
		if !allow {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}}, 0
		}
		return patchResponse(`[{"op":"add","path":"/metadata/annotations","value":{"hook":"x"}}]`), 0
	}}
	services, bundle := hookServer(t, a)
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	pods := cs.CoreV1().Pods("default")
	must[*corev1.Pod](t)(pods.Create(ctx, pod("a"), metav1.CreateOptions{}))
	must[*corev1.Pod](t)(pods.Create(ctx, pod("b"), metav1.CreateOptions{}))
	hooks := cs.AdmissionregistrationV1().MutatingWebhookConfigurations()
	must[*registration.MutatingWebhookConfiguration](t)(hooks.Create(ctx, hookConfig(bundle, services["svc/example"]+"/bind", func(w *registration.MutatingWebhook) {
		w.Rules[0].Resources = []string{"pods/binding"}
	}), metav1.CreateOptions{}))
	binding := func(name string) *corev1.Binding {
		return &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, UID: ""}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	}
	must[*corev1.Pod](t)(pods.Create(ctx, pod("c"), metav1.CreateOptions{})) // it is not asked about
	if err := pods.Bind(ctx, binding("a"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	got := must[*corev1.Pod](t)(pods.Get(ctx, "a", metav1.GetOptions{}))
	if d := cmp.Diff(map[string]string{"hook": "x"}, got.Annotations); d != "" || got.Spec.NodeName != "n1" {
		t.Errorf("on %q with %s", got.Spec.NodeName, d)
	}
	allow = false
	if err := pods.Bind(ctx, binding("b"), metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("a Binding that is refused: %v", err)
	}
	if got := must[*corev1.Pod](t)(pods.Get(ctx, "b", metav1.GetOptions{})); got.Spec.NodeName != "" {
		t.Errorf("it is bound to %s", got.Spec.NodeName)
	}
	if len(a.asked) != 2 {
		t.Fatalf("asked %d times", len(a.asked))
	}
	q := a.asked[0]
	var seen corev1.Binding
	if err := json.Unmarshal(q.Object.Raw, &seen); err != nil {
		t.Fatal(err)
	}
	if q.Kind.Kind != "Binding" || q.Resource.Resource != "pods" || q.SubResource != "binding" || q.Name != "a" || q.Namespace != "default" || seen.Target.Name != "n1" {
		t.Errorf("request %+v, object %+v", q, seen)
	}
}
