package memkube_test

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/internal/memkube"
)

// answerer is a webhook that records what it was asked.
type answerer struct {
	mu     sync.Mutex
	asked  []admissionv1.AdmissionRequest
	query  []string
	answer func(r *http.Request, q *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, int)
}

func (a *answerer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	a.mu.Lock()
	a.asked = append(a.asked, *review.Request)
	a.query = append(a.query, r.URL.RawQuery+" "+r.Proto+" "+r.Host)
	a.mu.Unlock()
	resp, code := a.answer(r, review.Request)
	if code != 0 {
		http.Error(w, "broken", code)
		return
	}
	if resp.UID == "" {
		resp.UID = review.Request.UID
	}
	_ = json.NewEncoder(w).Encode(admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: resp})
}

func patchResponse(patch string) *admissionv1.AdmissionResponse {
	typ := admissionv1.PatchTypeJSONPatch
	return &admissionv1.AdmissionResponse{Allowed: true, Patch: []byte(patch), PatchType: &typ}
}

// label is a webhook's answer that puts its path into an annotation, once.
func label(r *http.Request, q *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	var p corev1.Pod
	if err := json.Unmarshal(q.Object.Raw, &p); err != nil {
		return &admissionv1.AdmissionResponse{}
	}
	key := strings.Trim(r.URL.Path, "/")
	if p.Annotations[key] != "" {
		return &admissionv1.AdmissionResponse{Allowed: true}
	}
	if p.Annotations == nil {
		return patchResponse(fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{%q:"x"}}]`, key))
	}
	return patchResponse(fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations/%s","value":"x"}]`, key))
}

// hookServer serves a over TLS.
func hookServer(t *testing.T, a *answerer) (services map[string]string, bundle []byte) {
	t.Helper()
	srv := httptest.NewUnstartedServer(a)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	t.Cleanup(srv.Close)
	return map[string]string{"svc/example": srv.URL}, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
}

func hookConfig(bundle []byte, url string, change ...func(*registration.MutatingWebhook)) *registration.MutatingWebhookConfiguration {
	side, timeout := registration.SideEffectClassNoneOnDryRun, int32(5)
	w := registration.MutatingWebhook{Name: "pods.berth.dev", SideEffects: &side, TimeoutSeconds: &timeout, AdmissionReviewVersions: []string{"v1"},
		ClientConfig: registration.WebhookClientConfig{URL: &url, CABundle: bundle},
		Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
			Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}
	for _, f := range change {
		f(&w)
	}
	return &registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth"}, Webhooks: []registration.MutatingWebhook{w}}
}

type outcome struct {
	answer  *admissionv1.AdmissionResponse
	code    int
	change  func(*registration.MutatingWebhook)
	labels  map[string]string
	asked   int
	status  int32
	message string
	patched bool
}

func outcomes() map[string]outcome {
	ignore := func(w *registration.MutatingWebhook) { p := registration.Ignore; w.FailurePolicy = &p }
	deny := &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests, Message: "no address free"}}
	return map[string]outcome{
		"patched":        {answer: patchResponse(`[{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`), asked: 1, patched: true},
		"allowed":        {answer: &admissionv1.AdmissionResponse{Allowed: true}, asked: 1},
		"denied":         {answer: deny, asked: 1, status: 429, message: `admission webhook "pods.berth.dev" denied the request: no address free`},
		"denied ignored": {answer: deny, change: ignore, asked: 1, status: 429, message: `admission webhook "pods.berth.dev" denied the request: no address free`},
		"denied dumbly":  {answer: &admissionv1.AdmissionResponse{}, asked: 1, status: 400, message: `admission webhook "pods.berth.dev" denied the request without explanation`},
		"broken":         {code: 500, asked: 1, status: 500, message: `Internal error occurred: failed calling webhook "pods.berth.dev": failed to call webhook:`},
		"broken ignored": {code: 500, change: ignore, asked: 1},
		"wrong uid":      {answer: &admissionv1.AdmissionResponse{Allowed: true, UID: "x"}, asked: 1, status: 500, message: `received invalid webhook response`},
		"bad patch":      {answer: patchResponse(`[{"op":"remove","path":"/none"}]`), change: ignore, asked: 1, status: 500, message: "Internal error occurred"},
		"untrusted":      {change: func(w *registration.MutatingWebhook) { w.ClientConfig.CABundle = nil }, status: 500, message: "certificate"},
		"other namespace": {change: func(w *registration.MutatingWebhook) {
			w.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "other"}}
		}},
		"excluded object": {labels: map[string]string{"berth.dev/inject": "disabled"}, change: func(w *registration.MutatingWebhook) {
			w.ObjectSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
				{Key: "berth.dev/inject", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"disabled"}}}}
		}},
		"other operation": {change: func(w *registration.MutatingWebhook) {
			w.Rules[0].Operations = []registration.OperationType{registration.Update}
		}},
		"unmet condition": {change: func(w *registration.MutatingWebhook) {
			w.MatchConditions = []registration.MatchCondition{{Name: "never", Expression: "false"}}
		}},
	}
}

func TestAdmissionOutcomes(t *testing.T) {
	for name, c := range outcomes() {
		t.Run(name, func(t *testing.T) {
			a := &answerer{answer: func(*http.Request, *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, int) {
				if c.answer == nil {
					return nil, c.code
				}
				copied := *c.answer
				return &copied, c.code
			}}
			services, bundle := hookServer(t, a)
			_, cs := start(t, memkube.Options{MatchCondition: func(e string, _ map[string]any) (bool, error) { return e != "false", nil }})
			ctx := within(t)
			change := c.change
			if change == nil {
				change = func(*registration.MutatingWebhook) {}
			}
			must[*registration.MutatingWebhookConfiguration](t)(cs.AdmissionregistrationV1().MutatingWebhookConfigurations().
				Create(ctx, hookConfig(bundle, services["svc/example"]+"/mutate", change), metav1.CreateOptions{}))
			got, err := createOnce(t, cs, pod("a", func(p *corev1.Pod) { p.Labels = c.labels }))
			var status metav1.Status
			if s, ok := err.(apierrors.APIStatus); ok {
				status = s.Status()
			}
			if status.Code != c.status || !strings.Contains(status.Message, c.message) {
				t.Errorf("got %d %q, %v", status.Code, status.Message, err)
			}
			if c.status == 0 && (got.Annotations["a"] == "b") != c.patched {
				t.Errorf("annotations %v", got.Annotations)
			}
			if len(a.asked) != c.asked {
				t.Errorf("asked %d times", len(a.asked))
			}
		})
	}
}

// createOnce doesn't follow the client's own retries of 429.
func createOnce(t *testing.T, cs kubernetes.Interface, p *corev1.Pod) (*corev1.Pod, error) {
	t.Helper()
	out := &corev1.Pod{}
	err := cs.CoreV1().RESTClient().Post().MaxRetries(0).Namespace(p.Namespace).Resource("pods").Body(p).Do(within(t)).Into(out)
	return out, err
}

func TestAdmissionRequest(t *testing.T) {
	a := &answerer{answer: func(*http.Request, *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, int) {
		return &admissionv1.AdmissionResponse{Allowed: true, Warnings: []string{"careful"}}, 0
	}}
	services, bundle := hookServer(t, a)
	s, _ := start(t, memkube.Options{ServiceURL: services})
	ctx := within(t)
	cfg := rest.CopyConfig(s.Config())
	warnings := &warned{}
	cfg.WarningHandlerWithContext = nil
	cfg.WarningHandler = warnings
	cs := must[*kubernetes.Clientset](t)(kubernetes.NewForConfig(cfg))
	must[*registration.MutatingWebhookConfiguration](t)(cs.AdmissionregistrationV1().MutatingWebhookConfigurations().
		Create(ctx, hookConfig(bundle, services["svc/example"]+"/mutate"), metav1.CreateOptions{}))
	gen := pod("")
	gen.GenerateName = "web-"
	must[*corev1.Pod](t)(cs.CoreV1().Pods("default").Create(ctx, gen, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldManager: "me"}))
	q := a.asked[0]
	var seen corev1.Pod
	if err := json.Unmarshal(q.Object.Raw, &seen); err != nil {
		t.Fatal(err)
	}
	if seen.Name != "" || seen.UID != "" || seen.Namespace != "default" || q.Name != "" || q.UID == "" || !*q.DryRun || q.Operation != admissionv1.Create {
		t.Errorf("request %+v, object %+v", q, seen.ObjectMeta)
	}
	if !strings.HasPrefix(a.query[0], "timeout=5s HTTP/1.1 ") {
		t.Errorf("query %q", a.query[0])
	}
	if diff := cmp.Diff([]string{"careful"}, warnings.texts); diff != "" {
		t.Error(diff)
	}
}

type warned struct{ texts []string }

func (w *warned) HandleWarningHeader(_ int, _ string, text string) { w.texts = append(w.texts, text) }

// Of two webhooks, the first is asked again because the second changed the pod; the second isn't.
func TestReinvocation(t *testing.T) {
	a := &answerer{answer: func(r *http.Request, q *admissionv1.AdmissionRequest) (*admissionv1.AdmissionResponse, int) {
		return label(r, q), 0
	}}
	services, bundle := hookServer(t, a)
	_, cs := start(t, memkube.Options{})
	ctx := within(t)
	again := registration.IfNeededReinvocationPolicy
	cfg := hookConfig(bundle, services["svc/example"]+"/one", func(w *registration.MutatingWebhook) { w.ReinvocationPolicy = &again })
	second := hookConfig(bundle, services["svc/example"]+"/two", func(w *registration.MutatingWebhook) {
		w.Name, w.ReinvocationPolicy = "second.berth.dev", &again
	})
	cfg.Webhooks = append(cfg.Webhooks, second.Webhooks...)
	must[*registration.MutatingWebhookConfiguration](t)(cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(ctx, cfg, metav1.CreateOptions{}))
	got := must[*corev1.Pod](t)(cs.CoreV1().Pods("default").Create(ctx, pod("a"), metav1.CreateOptions{}))
	if diff := cmp.Diff(map[string]string{"one": "x", "two": "x"}, got.Annotations); diff != "" {
		t.Error(diff)
	}
	uids := map[string]bool{}
	for _, q := range a.asked {
		uids[string(q.UID)] = true
	}
	if len(a.asked) != 3 || len(uids) != 3 {
		t.Errorf("asked %d times under %d UIDs", len(a.asked), len(uids))
	}
}
