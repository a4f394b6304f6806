package admission

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"

	"github.com/berth-net/berth/internal/catalog"
)

// wellFormed holds what an API server takes for granted of an answer, and gives the response of one that is a review.
func wellFormed(t *testing.T, e env, body string) *admissionv1.AdmissionResponse {
	t.Helper()
	w := e.post(body)
	if testutil.ToFloat64(e.metrics.panics) > 0 || len(e.slots) != 0 {
		t.Fatal(w.Body)
	}
	switch {
	case w.Code >= 400 && w.Code < 500:
		return nil
	case w.Code != http.StatusOK:
		t.Fatalf("HTTP %d: %s", w.Code, w.Body)
	}
	var r admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	resp := r.Response
	if r.APIVersion != "admission.k8s.io/v1" || r.Kind != "AdmissionReview" || r.Request != nil || resp == nil || resp.UID == "" {
		t.Fatalf("%s", w.Body)
	}
	if resp.Allowed == (resp.Result != nil) || !resp.Allowed && (resp.Result.Code < 400 || resp.Result.Message == "" || len(resp.Patch) > 0) {
		t.Fatalf("%s", w.Body)
	}
	if (len(resp.Patch) > 0) != (resp.PatchType != nil) || !slices.Contains(outcomes(), resp.AuditAnnotations[auditOutcome]) {
		t.Fatalf("%s", w.Body)
	}
	return resp
}

// FuzzBody: whatever comes, nothing panics, and the answer is a review or an error of the caller's.
func FuzzBody(f *testing.F) {
	for _, pod := range manifests(f) {
		f.Add(reviewOf(string(pod), ""))
	}
	for _, s := range []string{"", "null", "[]", "{", reviewOf("null", ""), reviewOf("{}", `"operation":"DELETE",`), reviewOf(`{"metadata":{"annotations":{"a":7}}}`, ""),
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u"}}`,
		`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"","operation":"CREATE"}}`, strings.Repeat("[", 20000)} {
		f.Add(s)
	}
	e := newEnv(f, withCatalog(f))
	f.Fuzz(func(t *testing.T, body string) { wellFormed(t, e, body) })
}

// withCatalog has the handler read the real catalog.
func withCatalog(t testing.TB) func(*Options) {
	live := shop(t)
	c := catalog.New(catalog.Options{Cache: live, Live: live, Changes: func() uint64 { return 1 }})
	return func(o *Options) { o.Topology = c }
}

// FuzzHandler: whatever a pod looks like, a patch can be applied, and changes nothing but what it may.
func FuzzHandler(f *testing.F) {
	for _, pod := range manifests(f) {
		f.Add(string(pod))
	}
	f.Add(`{"metadata":{"annotations":null}}`)
	f.Add(`{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":"10.16.0.9,"},"finalizers":["a"]}}`)
	f.Add(`{"metadata":{"annotations":{"berth.dev/claim":"preview","":"x","~":"/"}},"spec":{"schedulingGates":[{}]}}`)
	f.Add(`{"metadata":{"annotations":{"k8s.v1.cni.cncf.io/networks":"[null]"}}}`)
	f.Add(`{"metadata":{"annotations":{"berth.dev/requested":"{\"n1.default.ovn\":null}","k8s.v1.cni.cncf.io/networks":"[{\"name\":\"n1\",\"namespace\":\"default\",\"ips\":[\"10.30.0.9\"]}]"}}}`)
	e := newEnv(f, withCatalog(f))
	f.Fuzz(func(t *testing.T, pod string) {
		resp := wellFormed(t, e, reviewOf(pod, ""))
		if resp == nil || len(resp.Patch) == 0 {
			return
		}
		patch, err := jsonpatch.DecodePatch(resp.Patch)
		if err != nil {
			t.Fatal(err)
		}
		if !json.Valid([]byte(pod)) || slices.ContainsFunc([]string{`"metadata"`, `"spec"`, `"annotations"`, `"finalizers"`}, func(k string) bool { return strings.Count(pod, k) > 1 }) {
			return // the API server sends none such
		}
		patched, err := patch.Apply([]byte(pod))
		if err != nil {
			t.Fatalf("%v: %s", err, resp.Patch)
		}
		metaOf(t, string(patched))
	})
}
