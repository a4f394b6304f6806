package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/go-logr/logr"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/pkg/network"
)

// Paths of a BindHook.
const (
	// PathBind answers about Bindings.
	PathBind = "/bind"
	// PathGuard refuses Bindings whose callers have put marks on them.
	PathGuard = "/bind/guard"
)

const (
	// DefaultBindLimit is how long an answer about a Binding may take.
	DefaultBindLimit = 50 * time.Millisecond
	// MaxBindLimit is the longest limit: the API server gives up after a second.
	MaxBindLimit = 900 * time.Millisecond
	// bindWork is how long the work for a Binding may go on behind the answer. The pod's reconciler waits for it.
	bindWork = 10 * time.Second
	// bindBody is far more than a review of a Binding has.
	bindBody = 1 << 20
)

// Outcomes of what a BindHook is asked.
const (
	boundRouted  = "routed"
	boundLate    = "late"
	boundNotOurs = "notours"
	boundRefused = "refused"
	boundError   = "error"
)

func boundOutcomes() []string {
	return []string{boundRouted, boundLate, boundNotOurs, boundRefused, boundError}
}

// errLate is that the work was not done in time.
var errLate = errors.New("the pod is connected behind the answer")

// placement is a pod that is being bound to a node.
type placement struct {
	key  client.ObjectKey
	uid  types.UID
	node string
}

// BindHook is asked by the API server about Bindings before it stores them. It connects the pod at once, as the
// reconciler does when it sees a pod with a node, and puts the pod's marks onto the Binding: the API server merges them
// into the pod in the write that gives it its node. So the daemon of the node finds the pod routed when it first sees it,
// and one write is saved.
//
// Invariant: the hook never refuses a Binding and never holds one up for longer than its limit. What it does is what the
// reconciler does, in turn with it for one pod, and holds whatever becomes of the Binding:
//   - A Binding with marks reaches exactly the pod that was connected, or nobody: it carries that pod's UID, which the API
//     server compares in its write. One without a UID is left alone.
//   - The pod is bound to another node: its next event has the reconciler move groups and record.
//   - It is never bound: for placedFor nobody changes what it carries, since the write may still be under way; then its
//     records go, which say that it is on a node. Its port stays, as that of every pod that waits to be scheduled.
//   - It is deleted: the reconciler reclaims in its turn, after this work or instead of it.
//   - This process dies: leases, rows and records are those of a pod that is served, whoever leads next.
//   - Another one leads by now: the epoch says so, also when there is nothing left to write, and no mark is given.
type BindHook struct {
	connect func(context.Context, placement) (map[string]string, error)
	wake    func()
	clock   clock.WithTicker
	metrics *Metrics
	log     logr.Logger
	limit   time.Duration
	slots   chan struct{}
}

// NewBindHook makes the hook of a worker that does not run yet. No answer takes longer than the limit.
func NewBindHook(w *Worker, limit time.Duration) *BindHook {
	w.placing = newPlacing()
	return &BindHook{connect: w.connectAhead, wake: w.wakeUnbound, clock: w.Clock, metrics: w.Metrics, log: w.Log.WithName("bind"),
		limit: limit, slots: make(chan struct{}, w.Concurrency)}
}

// Handler serves PathBind and PathGuard.
func (h *BindHook) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.Handle(PathBind, h.serving(h.bind))
	mux.Handle(PathGuard, h.serving(func(_ context.Context, r *admissionv1.AdmissionRequest, _ time.Time) (*admissionv1.AdmissionResponse, string) {
		return guard(r), boundRefused
	}))
	return mux
}

// Run looks after pods that were connected and never bound, until ctx ends.
func (h *BindHook) Run(ctx context.Context) error {
	tick := h.clock.NewTicker(placedFor / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
			h.wake()
		}
	}
}

// decider answers a request, by the outcome that is counted.
type decider func(ctx context.Context, r *admissionv1.AdmissionRequest, began time.Time) (*admissionv1.AdmissionResponse, string)

// serving reads reviews and writes what is decided. What can't be read is a failed call, which the failurePolicy judges.
func (h *BindHook) serving(decide decider) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		began := h.clock.Now()
		outcome := boundError
		defer func() {
			h.metrics.asked.Observe(h.clock.Since(began).Seconds())
			h.metrics.answered.WithLabelValues(outcome).Inc()
		}()
		review, err := readReview(w, r)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var answer *admissionv1.AdmissionResponse
		answer, outcome = decide(r.Context(), review.Request, began)
		answer.UID = review.Request.UID
		out, err := json.Marshal(&admissionv1.AdmissionReview{TypeMeta: review.TypeMeta, Response: answer})
		if err != nil {
			outcome = boundError
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(out) // a caller that has left is told nothing
	})
}

func readReview(w http.ResponseWriter, r *http.Request) (*admissionv1.AdmissionReview, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bindBody))
	if err != nil {
		return nil, fmt.Errorf("read the review: %w", err)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(body, &review); err != nil {
		return nil, fmt.Errorf("the body is not an AdmissionReview: %w", err)
	}
	if review.Request == nil || review.Request.UID == "" || review.APIVersion != admissionv1.SchemeGroupVersion.String() {
		return nil, errors.New("send an AdmissionReview of admission.k8s.io/v1 with a request")
	}
	return &review, nil
}

// bind answers about one Binding: allowed, and with the pod's marks when it was connected in time.
func (h *BindHook) bind(ctx context.Context, r *admissionv1.AdmissionRequest, began time.Time) (*admissionv1.AdmissionResponse, string) {
	allowed := &admissionv1.AdmissionResponse{Allowed: true}
	p, have, ok := placementOf(r)
	if !ok {
		return allowed, boundNotOurs
	}
	marks, err := h.within(ctx, p, h.limit-h.clock.Since(began))
	switch {
	case errors.Is(err, errLate):
		return allowed, boundLate
	case err != nil:
		h.log.Info("A pod could not be connected before it is bound: it is connected afterwards", "pod", p.key, "node", p.node, "reason", err.Error())
		return allowed, boundError
	case len(marks) == 0:
		return allowed, boundNotOurs
	}
	want := maps.Clone(have)
	if want == nil {
		want = map[string]string{}
	}
	maps.Copy(want, marks)
	if allowed.Patch, err = json.Marshal(jsonpatch.Set(jsonpatch.Annotations, have, want)); err != nil {
		h.log.Error(err, "The marks of a pod could not be written", "pod", p.key)
		return &admissionv1.AdmissionResponse{Allowed: true}, boundError
	}
	kind := admissionv1.PatchTypeJSONPatch
	allowed.PatchType = &kind
	return allowed, boundRouted
}

// placementOf reads which pod is bound where, and the Binding's annotations. ok is false for what is left alone: dry runs,
// and Bindings that would take any pod of the name.
func placementOf(r *admissionv1.AdmissionRequest) (p placement, annotations map[string]string, ok bool) {
	if r.DryRun != nil && *r.DryRun || r.Operation != admissionv1.Create || r.Resource.Group != "" || r.Resource.Resource != "pods" || r.SubResource != "binding" {
		return p, nil, false
	}
	var b corev1.Binding
	if err := json.Unmarshal(r.Object.Raw, &b); err != nil {
		return p, nil, false
	}
	p = placement{key: client.ObjectKey{Namespace: r.Namespace, Name: cmp.Or(b.Name, r.Name)}, uid: b.UID, node: b.Target.Name}
	return p, b.Annotations, p.key.Name != "" && p.uid != "" && p.node != "" && (b.Target.Kind == "" || b.Target.Kind == "Node")
}

// within connects a pod, and waits for it as long as there is time. Work that is not done by then goes on: the pod is
// about to have its node.
func (h *BindHook) within(ctx context.Context, p placement, limit time.Duration) (map[string]string, error) {
	if limit <= 0 {
		return nil, errLate
	}
	select {
	case h.slots <- struct{}{}:
	default:
		return nil, errLate
	}
	type result struct {
		marks map[string]string
		err   error
	}
	done := make(chan result, 1)
	work, cancel := context.WithTimeout(context.WithoutCancel(ctx), bindWork)
	go func() {
		defer cancel()
		defer func() { <-h.slots }()
		var r result
		defer func() {
			if panicked := recover(); panicked != nil {
				r = result{err: fmt.Errorf("panic, report this: %v", panicked)}
			}
			done <- r
		}()
		r.marks, r.err = h.connect(work, p)
	}()
	timer := h.clock.NewTimer(limit)
	defer timer.Stop()
	select {
	case r := <-done:
		return r.marks, r.err
	case <-timer.C():
	case <-ctx.Done():
	}
	return nil, errLate
}

// guard refuses a Binding. The API server asks about those alone that carry marks before anybody has been asked.
func guard(r *admissionv1.AdmissionRequest) *admissionv1.AdmissionResponse {
	var b corev1.Binding
	var keys []string
	if err := json.Unmarshal(r.Object.Raw, &b); err == nil {
		for k := range b.Annotations {
			if _, suffix, ok := network.SplitKey(k); ok && (suffix == network.SuffixAllocated || suffix == network.SuffixRouted) {
				keys = append(keys, k)
			}
		}
	}
	slices.Sort(keys)
	return &admissionv1.AdmissionResponse{Result: &metav1.Status{Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
		Message: fmt.Sprintf("%s may not bind a pod with %s: it would arrive on the pod, whose network hangs on it; only Berth says when that is ready",
			r.UserInfo.Username, cmp.Or(strings.Join(keys, ", "), "marks of its network"))}}
}
