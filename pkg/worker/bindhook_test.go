package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const routedKey, allocatedKey = "ovn.kubernetes.io/routed", "ovn.kubernetes.io/allocated"

func routedMarks() map[string]string {
	return map[string]string{allocatedKey: "true", routedKey: "true"}
}

// asking is what an API server asks about.
type asking struct {
	request admissionv1.AdmissionRequest
	binding corev1.Binding
}

func (a asking) body(t *testing.T) []byte {
	t.Helper()
	raw, err := json.Marshal(a.binding)
	if err != nil {
		t.Fatal(err)
	}
	a.request.Object = runtime.RawExtension{Raw: raw}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Request: &a.request})
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// askingOf asks about pod a, bound to node n1 by the scheduler.
func askingOf(change ...func(*asking)) asking {
	a := asking{
		request: admissionv1.AdmissionRequest{UID: "r1", Operation: admissionv1.Create, Namespace: "app", Name: "a", SubResource: "binding",
			Resource: metav1.GroupVersionResource{Version: "v1", Resource: "pods"}, UserInfo: authenticationv1.UserInfo{Username: "system:kube-scheduler"}},
		binding: corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "a", UID: "u1"}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}},
	}
	for _, c := range change {
		c(&a)
	}
	return a
}

func newHook(t *testing.T, connect func(context.Context, placement) (map[string]string, error)) *BindHook {
	t.Helper()
	m, err := NewMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &BindHook{connect: connect, wake: func() {}, clock: clock.RealClock{}, metrics: m, limit: DefaultBindLimit, slots: make(chan struct{}, 2)}
}

// post gives the answer.
func (h *BindHook) post(ctx context.Context, t *testing.T, path string, body []byte) (int, *admissionv1.AdmissionResponse) {
	t.Helper()
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, path, bytes.NewReader(body))
	w := httptest.NewRecorder()
	h.Handler().ServeHTTP(w, r)
	var review admissionv1.AdmissionReview
	if w.Code == http.StatusOK {
		if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil {
			t.Fatal(err)
		}
	}
	return w.Code, review.Response
}

func TestBindHookAnswers(t *testing.T) {
	after := func(d time.Duration, marks map[string]string, err error) func(context.Context, placement) (map[string]string, error) {
		return func(ctx context.Context, _ placement) (map[string]string, error) {
			select {
			case <-time.After(d):
				return marks, err
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}
	const ms = time.Millisecond
	both := `[{"op":"add","path":"/metadata/annotations","value":{}},` +
		`{"op":"add","path":"/metadata/annotations/ovn.kubernetes.io~1allocated","value":"true"},{"op":"add","path":"/metadata/annotations/ovn.kubernetes.io~1routed","value":"true"}]`
	for name, c := range map[string]struct {
		connect func(context.Context, placement) (map[string]string, error)
		change  func(*asking)
		busy    bool
		outcome string
		patch   string
		took    time.Duration
	}{
		"in time":     {connect: after(20*ms, routedMarks(), nil), outcome: boundRouted, patch: both, took: 20 * ms},
		"late":        {connect: after(80*ms, routedMarks(), nil), outcome: boundLate, took: DefaultBindLimit},
		"never":       {connect: after(time.Hour, nil, nil), outcome: boundLate, took: DefaultBindLimit},
		"not ours":    {connect: after(ms, nil, nil), outcome: boundNotOurs, took: ms},
		"fault":       {connect: after(ms, nil, errors.New("no database")), outcome: boundError, took: ms},
		"panic":       {connect: func(context.Context, placement) (map[string]string, error) { panic("no") }, outcome: boundError},
		"all at work": {connect: after(0, routedMarks(), nil), busy: true, outcome: boundLate},
		"dry run":     {change: func(a *asking) { a.request.DryRun = new(true) }, outcome: boundNotOurs},
		"no UID":      {change: func(a *asking) { a.binding.UID = "" }, outcome: boundNotOurs},
		"no node":     {change: func(a *asking) { a.binding.Target.Name = "" }, outcome: boundNotOurs},
		"not a node":  {change: func(a *asking) { a.binding.Target.Kind = "Rack" }, outcome: boundNotOurs},
		"a pod":       {change: func(a *asking) { a.request.SubResource = "" }, outcome: boundNotOurs},
		"an update":   {change: func(a *asking) { a.request.Operation = admissionv1.Update }, outcome: boundNotOurs},
		"beside others'": {connect: after(ms, routedMarks(), nil), outcome: boundRouted, took: ms,
			change: func(a *asking) { a.binding.Annotations = map[string]string{"other": "x", routedKey: "no"} },
			patch: `[{"op":"add","path":"/metadata/annotations/ovn.kubernetes.io~1allocated","value":"true"},` +
				`{"op":"replace","path":"/metadata/annotations/ovn.kubernetes.io~1routed","value":"true"}]`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHook(t, func(ctx context.Context, p placement) (map[string]string, error) {
					if want := (placement{key: client.ObjectKey{Namespace: "app", Name: "a"}, uid: "u1", node: "n1"}); c.connect == nil || p != want {
						t.Errorf("asked to connect %v", p)
						return nil, nil
					}
					return c.connect(ctx, p)
				})
				if c.busy {
					h.slots <- struct{}{}
					h.slots <- struct{}{}
				}
				a := askingOf()
				if c.change != nil {
					c.change(&a)
				}
				began := time.Now()
				code, got := h.post(t.Context(), t, PathBind, a.body(t))
				if code != http.StatusOK || !got.Allowed || got.UID != "r1" || (got.PatchType != nil) != (c.patch != "") {
					t.Fatalf("%d %+v", code, got)
				}
				if d := cmp.Diff(c.patch, string(got.Patch)); d != "" {
					t.Errorf("patch (-want +got):\n%s", d)
				}
				if took := time.Since(began); took != c.took {
					t.Errorf("took %s, want %s", took, c.took)
				}
				for _, o := range boundOutcomes() {
					if n := testutil.ToFloat64(h.metrics.answered.WithLabelValues(o)); n != 0 && o != c.outcome || n != 1 && o == c.outcome {
						t.Errorf("%v answers counted as %s, want one as %s", n, o, c.outcome)
					}
				}
				time.Sleep(2 * bindWork) // what is late ends
			})
		})
	}
}

// What is late goes on behind the answer, also when the caller has left, and not without end.
func TestBindHookWorksOn(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		leave bool
		want  error
	}{
		"late":        {80 * time.Millisecond, false, nil},
		"caller left": {80 * time.Millisecond, true, nil},
		"never":       {time.Hour, false, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ended := make(chan error, 1)
				h := newHook(t, func(ctx context.Context, _ placement) (map[string]string, error) {
					select {
					case <-time.After(c.takes):
					case <-ctx.Done():
					}
					ended <- ctx.Err()
					return nil, ctx.Err()
				})
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if c.leave {
					time.AfterFunc(10*time.Millisecond, cancel)
				}
				_, got := h.post(ctx, t, PathBind, askingOf().body(t))
				if !got.Allowed || len(got.Patch) > 0 || len(h.slots) != 1 {
					t.Errorf("%+v, %d at work", got, len(h.slots))
				}
				if err := <-ended; !errors.Is(err, c.want) {
					t.Errorf("the work ended with %v, want %v", err, c.want)
				}
				synctest.Wait()
				if len(h.slots) != 0 {
					t.Error("its place is not free again")
				}
			})
		})
	}
}

func TestBindHookNotUnderstood(t *testing.T) {
	h := newHook(t, nil)
	for name, body := range map[string]string{
		"no JSON":       "binding",
		"no request":    `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`,
		"other version": `{"apiVersion":"admission.k8s.io/v2","kind":"AdmissionReview","request":{"uid":"x"}}`,
		"too long":      `{"apiVersion":"` + strings.Repeat("x", bindBody) + `"}`,
	} {
		for _, path := range []string{PathBind, PathGuard} {
			if code, _ := h.post(t.Context(), t, path, []byte(body)); code != http.StatusBadRequest {
				t.Errorf("%s at %s: %d", name, path, code)
			}
		}
	}
	if n := testutil.ToFloat64(h.metrics.answered.WithLabelValues(boundError)); n != 8 {
		t.Errorf("%v errors counted", n)
	}
}

// The guard is asked about Bindings with marks of their callers, and says no, with what is wrong.
func TestBindGuard(t *testing.T) {
	h := newHook(t, nil)
	a := askingOf(func(a *asking) {
		a.request.UserInfo.Username = "mallory"
		a.binding.Annotations = map[string]string{routedKey: "true", "net1.shop.ovn.kubernetes.io/allocated": "true", "other": "x"}
	})
	code, got := h.post(t.Context(), t, PathGuard, a.body(t))
	if code != http.StatusOK || got.Allowed || got.Result.Code != http.StatusForbidden {
		t.Fatalf("%d %+v", code, got)
	}
	for _, word := range []string{"mallory", routedKey, "net1.shop.ovn.kubernetes.io/allocated"} {
		if !strings.Contains(got.Result.Message, word) {
			t.Errorf("%q is not in: %s", word, got.Result.Message)
		}
	}
	if strings.Contains(got.Result.Message, "other") {
		t.Errorf("it names what is none of our business: %s", got.Result.Message)
	}
	if n := testutil.ToFloat64(h.metrics.answered.WithLabelValues(boundRefused)); n != 1 {
		t.Errorf("%v refusals counted", n)
	}
}

// Two that work on one pod take turns, those on others don't, and nothing is kept of who has gone.
func TestPlacingTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlacing()
		a, b := client.ObjectKey{Name: "a"}, client.ObjectKey{Name: "b"}
		free, err := p.turn(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		other, err := p.turn(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		other()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.turn(ctx, a); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second one came in between: %v", err)
		}
		second := make(chan time.Time, 1)
		go func() {
			free, err := p.turn(t.Context(), a)
			if err == nil {
				second <- time.Now()
				free()
			}
		}()
		time.Sleep(time.Minute)
		freed := time.Now()
		free()
		if at := <-second; at != freed {
			t.Errorf("the second one came at %s, want %s", at, freed)
		}
		synctest.Wait()
		if len(p.turns) != 0 {
			t.Errorf("%d turns are kept", len(p.turns))
		}
	})
}

// A pod whose binding has not been seen to end is looked at when it should have, and forgotten when nobody has settled it.
func TestPlacingOverdue(t *testing.T) {
	p, now := newPlacing(), time.Now()
	key := client.ObjectKey{Namespace: "app", Name: "a"}
	p.begin(placement{key: key, uid: "u1"}, now)
	for _, c := range []struct {
		after time.Duration
		want  []client.ObjectKey
		known bool
	}{{placedFor - time.Second, nil, true}, {placedFor, []client.ObjectKey{key}, true}, {2*placedFor + time.Second, nil, false}} {
		if d := cmp.Diff(c.want, p.overdue(now.Add(c.after))); d != "" {
			t.Errorf("after %s:\n%s", c.after, d)
		}
		if got := p.placed("u1"); got != c.known {
			t.Errorf("after %s known: %v", c.after, got)
		}
	}
}
