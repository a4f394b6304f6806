package admission

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/pkg/network"
)

var update = flag.Bool("update", false, "write the golden files anew")

// manifests are the pods of testdata as JSON, by name.
func manifests(t testing.TB) map[string][]byte {
	t.Helper()
	files, err := filepath.Glob("testdata/pods/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	out := map[string][]byte{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		if out[strings.TrimSuffix(filepath.Base(f), ".yaml")], err = yaml.YAMLToJSONStrict(text); err != nil {
			t.Fatalf("%s: %v", f, err)
		}
	}
	return out
}

// answer is what a golden file holds of a response.
type answer struct {
	Allowed  bool              `json:"allowed"`
	Code     int32             `json:"code,omitempty"`
	Message  string            `json:"message,omitempty"`
	Warnings []string          `json:"warnings,omitempty"`
	Audit    map[string]string `json:"auditAnnotations"`
	Patch    json.RawMessage   `json:"patch,omitempty"`
}

func golden(t *testing.T, r *admissionv1.AdmissionResponse) []byte {
	t.Helper()
	a := answer{Allowed: r.Allowed, Warnings: r.Warnings, Audit: r.AuditAnnotations, Patch: r.Patch}
	if r.Result != nil {
		a.Code, a.Message = r.Result.Code, r.Result.Message
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(a); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestGolden holds the answers to pods as controllers and people make them. Run it with -update to write them anew.
func TestGolden(t *testing.T) {
	pods := manifests(t)
	for name, pod := range pods {
		t.Run(name, func(t *testing.T) {
			resp, _ := newPlace(t).review(t, pod, "")
			got, file := golden(t, resp), "testdata/golden/"+name+".json"
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatalf("%v: run the test with -update", err)
			}
			if d := cmp.Diff(string(want), string(got)); d != "" {
				t.Error(d)
			}
		})
	}
	files, err := filepath.Glob("testdata/golden/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if pods[strings.TrimSuffix(filepath.Base(f), ".json")] == nil {
			t.Errorf("%s is the answer to no pod: remove it", f)
		}
	}
}

// without gives an object without what a patch may change.
func without(t *testing.T, pod []byte) map[string]any {
	t.Helper()
	d := json.NewDecoder(bytes.NewReader(pod))
	d.UseNumber()
	var out map[string]any
	if err := d.Decode(&out); err != nil {
		t.Fatal(err)
	}
	meta, _ := out["metadata"].(map[string]any)
	delete(meta, "annotations")
	delete(meta, "finalizers")
	if spec, ok := out["spec"].(map[string]any); ok {
		gates, _ := spec["schedulingGates"].([]any)
		spec["schedulingGates"] = slices.DeleteFunc(gates, func(g any) bool {
			gate, _ := g.(map[string]any)
			return len(gate) == 1 && gate["name"] == network.AddressGate
		})
	}
	return out
}

// A patch changes annotations, finalizers and our gate alone; those of others, and fields that nobody knows, stay as they are.
func TestB51PatchTouchesNothingElse(t *testing.T) {
	for name, pod := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			_, patched := newPlace(t).review(t, pod, "")
			if d := cmp.Diff(without(t, pod), without(t, patched), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
			before, after := metaOf(t, string(pod)), metaOf(t, string(patched))
			for k, v := range before.Annotations {
				if !network.Output(k) && after.Annotations[k] != v {
					t.Errorf("%s was %q and is %q", k, v, after.Annotations[k])
				}
			}
			for k := range after.Annotations {
				if _, old := before.Annotations[k]; !old && !network.Output(k) && k != network.RequestedKey {
					t.Errorf("%s was added", k)
				}
			}
			if n := len(before.Finalizers); len(after.Finalizers) < n || !slices.Equal(before.Finalizers, after.Finalizers[:n]) {
				t.Errorf("finalizers %q became %q", before.Finalizers, after.Finalizers)
			}
		})
	}
}

// The patch gives what the typed API would give.
func TestPatchIsWhatTheTypedAPIGives(t *testing.T) {
	for name, pod := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			resp, patched := newPlace(t).review(t, pod, "")
			var want, got corev1.Pod
			if err := json.Unmarshal(pod, &want); err != nil {
				t.Fatal(err)
			}
			p := newPlace(t)
			err := typed{p.ledger, p.Topology, p.Config, p.random}.mutate(t.Context(), "ns", &want)
			if (err == nil) != resp.Allowed {
				t.Fatalf("allowed: %v, typed: %v", resp.Allowed, err)
			}
			if !resp.Allowed {
				return
			}
			if err := json.Unmarshal(patched, &got); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(text(t, want), text(t, got)); d != "" {
				t.Error(d)
			}
		})
	}
}

// text is a pod as JSON; an empty map or list is none.
func text(t *testing.T, pod corev1.Pod) string {
	t.Helper()
	out, err := json.MarshalIndent(pod, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// Reinvoked with its own answer and one container more, a pod of any kind keeps what it has.
func TestB42ReinvocationOfEach(t *testing.T) {
	for name, pod := range manifests(t) {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			first, patched := p.review(t, pod, "")
			if first.AuditAnnotations[auditOutcome] != outcomeAllocated {
				return
			}
			again := bytes.Replace(patched, []byte(`"containers":[`), []byte(`"containers":[{"name":"late"},`), 1)
			second, _ := p.review(t, again, "")
			if !second.Allowed || len(second.Patch) > 0 || second.AuditAnnotations[auditOutcome] != outcomeKept {
				t.Errorf("%+v: %s", second.AuditAnnotations, second.Patch)
			}
			first.AuditAnnotations[auditOutcome] = outcomeKept
			if d := cmp.Diff(first.AuditAnnotations, second.AuditAnnotations); d != "" {
				t.Error(d)
			}
		})
	}
}

// How many containers a pod has makes no difference.
func TestPatchForAnyNumberOfContainers(t *testing.T) {
	want, _ := newPlace(t).review(t, sized(t, 1), "")
	for n := 2; n <= 60; n++ {
		got, patched := newPlace(t).review(t, sized(t, n), "")
		if d := cmp.Diff(golden(t, want), golden(t, got)); d != "" {
			t.Fatalf("%d containers: %s", n, d)
		}
		var pod corev1.Pod
		if err := json.Unmarshal(patched, &pod); err != nil || len(pod.Spec.Containers) != n {
			t.Fatalf("%d of %d containers: %v", len(pod.Spec.Containers), n, err)
		}
	}
}

// sized is a Deployment's pod with so many containers.
func sized(t testing.TB, containers int) []byte {
	t.Helper()
	var pod map[string]any
	if err := json.Unmarshal(manifests(t)["deployment"], &pod); err != nil {
		t.Fatal(err)
	}
	spec := pod["spec"].(map[string]any)
	one := spec["containers"].([]any)[0]
	list := make([]any, containers)
	for i := range list {
		list[i] = one
	}
	spec["containers"] = list
	out, err := json.Marshal(pod)
	if err != nil {
		t.Fatal(err)
	}
	return out
}
