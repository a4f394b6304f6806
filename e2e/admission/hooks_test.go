//go:build e2e

package admission

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// balancer hands connections to replicas in turn, as a Service does.
type balancer struct {
	listener net.Listener
	running  sync.WaitGroup

	mu       sync.Mutex
	backends []string
	next     int
	conns    map[net.Conn]bool // nil when closed
}

func newBalancer(ctx context.Context) (*balancer, error) {
	l, err := listen(ctx)
	if err != nil {
		return nil, err
	}
	b := &balancer{listener: l, conns: map[net.Conn]bool{}}
	b.running.Go(b.accept)
	return b, nil
}

func (b *balancer) address() string { return b.listener.Addr().String() }

func (b *balancer) add(backend string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.backends = append(b.backends, backend)
}

func (b *balancer) accept() {
	for {
		in, err := b.listener.Accept()
		if err != nil {
			return
		}
		b.running.Go(func() { b.serve(in) })
	}
}

// serve joins a connection to the next replica.
func (b *balancer) serve(in net.Conn) {
	if !b.enter(in) {
		_ = in.Close()
		return
	}
	defer b.leave(in)
	b.mu.Lock()
	backend := ""
	if len(b.backends) > 0 {
		backend = b.backends[b.next%len(b.backends)]
		b.next++
	}
	b.mu.Unlock()
	out, err := net.Dial("tcp", backend)
	if err != nil || !b.enter(out) {
		return
	}
	defer b.leave(out)
	done := make(chan struct{}, 2)
	for _, way := range [][2]net.Conn{{in, out}, {out, in}} {
		b.running.Go(func() {
			_, _ = io.Copy(way[1], way[0])
			done <- struct{}{}
		})
	}
	<-done // one side has left: the other goes too
}

func (b *balancer) enter(c net.Conn) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.conns != nil {
		b.conns[c] = true
	}
	return b.conns != nil
}

func (b *balancer) leave(c net.Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	_ = c.Close()
	delete(b.conns, c)
}

func (b *balancer) close() error {
	err := b.listener.Close()
	b.mu.Lock()
	for c := range b.conns {
		_ = c.Close()
	}
	b.conns = nil
	b.mu.Unlock()
	b.running.Wait()
	return err
}

// otherLabel on a namespace with the value "yes": its pods meet the other webhook too, after ours.
const otherLabel = "e2e.berth.dev/other"

// behaviour is what the other webhook does with a pod; its context ends when the API server gives up.
type behaviour func(ctx context.Context, p *corev1.Pod) *admissionv1.AdmissionResponse

// otherHook is a mutating webhook of somebody else.
type otherHook struct {
	server *httptest.Server

	mu     sync.Mutex
	does   map[string]behaviour
	counts map[string]int
}

func newOtherHook() *otherHook {
	h := &otherHook{does: map[string]behaviour{}, counts: map[string]int{}}
	h.server = httptest.NewTLSServer(h)
	return h
}

func (h *otherHook) close() error {
	h.server.CloseClientConnections()
	h.server.Close()
	return nil
}

// do tells what it does with a namespace's pods until the test ends. Otherwise it lets them pass.
func (h *otherHook) do(t *testing.T, namespace string, b behaviour) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	h.does[namespace] = b
	t.Cleanup(func() { h.rest(namespace) })
}

// rest has it let a namespace's pods pass again.
func (h *otherHook) rest(namespace string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.does, namespace)
}

// count is how often it was called for a namespace's pods.
func (h *otherHook) count(namespace string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.counts[namespace]
}

// ServeHTTP answers a review.
func (h *otherHook) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var review admissionv1.AdmissionReview
	var p corev1.Pod
	body, err := io.ReadAll(r.Body)
	if err == nil {
		err = json.Unmarshal(body, &review)
	}
	if err == nil {
		err = json.Unmarshal(review.Request.Object.Raw, &p)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.counts[review.Request.Namespace]++
	does := h.does[review.Request.Namespace]
	h.mu.Unlock()
	answer := &admissionv1.AdmissionResponse{Allowed: true}
	if does != nil {
		answer = does(r.Context(), &p)
	}
	answer.UID = review.Request.UID
	review.Request, review.Response = nil, answer
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// registration has a name that comes after ours.
func (h *otherHook) registration() *registration.MutatingWebhookConfiguration {
	none, fail, url, seconds := registration.SideEffectClassNone, registration.Fail, h.server.URL, int32(10)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: h.server.Certificate().Raw})
	return &registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "other-webhook"},
		Webhooks: []registration.MutatingWebhook{{Name: "pod.other.example", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			FailurePolicy: &fail, TimeoutSeconds: &seconds,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{otherLabel: "yes"}},
			ClientConfig:      registration.WebhookClientConfig{URL: &url, CABundle: ca},
			Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
				Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}}
}

// annotating lets pods pass with an annotation, once.
func annotating(key, value string) behaviour {
	return func(_ context.Context, p *corev1.Pod) *admissionv1.AdmissionResponse {
		answer := &admissionv1.AdmissionResponse{Allowed: true}
		if p.Annotations[key] == value {
			return answer
		}
		patch, err := json.Marshal([]map[string]any{{"op": "add", "path": "/metadata/annotations/" + escape(key), "value": value}})
		if err != nil {
			return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: err.Error()}}
		}
		kind := admissionv1.PatchTypeJSONPatch
		answer.Patch, answer.PatchType = patch, &kind
		return answer
	}
}

// refusing lets none pass.
func refusing(why string) behaviour {
	return func(context.Context, *corev1.Pod) *admissionv1.AdmissionResponse {
		return &admissionv1.AdmissionResponse{Result: &metav1.Status{Message: why, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden}}
	}
}

// hanging answers when the API server has given up.
func hanging(ctx context.Context, _ *corev1.Pod) *admissionv1.AdmissionResponse {
	<-ctx.Done()
	return &admissionv1.AdmissionResponse{Allowed: true}
}
