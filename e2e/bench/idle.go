package bench

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const idleName = "bench-idle"

// idle measures creations with a webhook that allows everything and does nothing: what any webhook costs.
func (w *World) idle(ctx context.Context, name string, s Sizes) (_ []Creates, err error) {
	server := httptest.NewUnstartedServer(http.HandlerFunc(allow))
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	fail, none, scope := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.NamespacedScope
	hooks := w.client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	_, err = hooks.Create(ctx, &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: idleName},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "idle.bench.berth.dev", AdmissionReviewVersions: []string{"v1"}, FailurePolicy: &fail, SideEffects: &none,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{URL: &server.URL,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": roomyName}},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope}}},
		}}}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make the webhook that does nothing: %w", err)
	}
	defer func() {
		if gone := hooks.Delete(context.WithoutCancel(ctx), idleName, metav1.DeleteOptions{}); err == nil && gone != nil {
			err = fmt.Errorf("take the webhook that does nothing out: %w", gone)
		}
	}()
	err = until(ctx, "the API server asks the webhook that does nothing", func(ctx context.Context) error {
		p, err := w.client.CoreV1().Pods(roomyName).Create(ctx, pod("trial", map[string]string{idleName: ""}), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && p.Annotations[idleName] != asked {
			err = fmt.Errorf("it did not: %v", p.Annotations)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return w.creations(ctx, name, s)
}

// asked is what the webhook sets the annotation to of a pod that carries it, so that it can be seen at work.
const asked = "asked"

func allow(rw http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(rw, "an AdmissionReview was expected", http.StatusBadRequest)
		return
	}
	answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	if dry := review.Request.DryRun; dry != nil && *dry { // the trial
		kind := admissionv1.PatchTypeJSONPatch
		answer.PatchType, answer.Patch = &kind, []byte(`[{"op":"replace","path":"/metadata/annotations/`+idleName+`","value":"`+asked+`"}]`)
	}
	review.Request, review.Response = nil, answer
	rw.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(rw).Encode(review) // a caller that has left is told nothing
}
