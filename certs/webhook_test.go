package certs

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/serve"
)

// The whole way: an authority of our own, its bundle injected, a webhook behind a Service, and a pod that it saw, with
// failurePolicy Fail.
func TestWebhookIsTrusted(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_, cs := api(t, memkube.Options{ServiceURL: map[string]string{"default/berth-webhook": "https://" + listener.Addr().String()}})
	flags := DefaultFlags()
	flags.Namespace = testNamespace
	source, injector, err := flags.Build(Deps{Client: cs})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	ended := make(chan error, 3)
	run := func(f func() error) { go func() { ended <- f() }() }
	run(func() error { return source.Run(ctx) })
	run(func() error { return injector.Run(ctx) })
	run(func() error {
		return serve.HTTPS(ctx, serve.HTTPSOptions{Listener: listener, GetCertificate: source.GetCertificate, Handler: http.HandlerFunc(annotate)})
	})
	cfg := webhooks("pods.berth.dev")
	fail, path := registration.Fail, "/mutate"
	cfg.Webhooks[0].FailurePolicy = &fail
	cfg.Webhooks[0].ClientConfig = registration.WebhookClientConfig{
		Service: &registration.ServiceReference{Namespace: testNamespace, Name: "berth-webhook", Path: &path}}
	cfg.Webhooks[0].Rules = []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
		Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}
	if _, err := cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, cfg, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	awaitConfig(ctx, t, cs, func(cfg *registration.MutatingWebhookConfiguration) bool {
		return len(cfg.Webhooks[0].ClientConfig.CABundle) > 0
	})
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	pod, err = cs.CoreV1().Pods(testNamespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil || pod.Annotations["seen"] != "/mutate" {
		t.Errorf("%v %v", pod.Annotations, err)
	}
	cancel()
	for range cap(ended) {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

func annotate(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	typ := admissionv1.PatchTypeJSONPatch
	review.Response = &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true, PatchType: &typ,
		Patch: []byte(`[{"op":"add","path":"/metadata/annotations","value":{"seen":"` + r.URL.Path + `"}}]`)}
	_ = json.NewEncoder(w).Encode(review)
}
