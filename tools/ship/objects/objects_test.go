// Package objects tests what is shipped, as built by kustomize.
//
// Invariant: every rule holds for every overlay that somebody installs, and says its exceptions.
package objects

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/tools/ship/render"
)

const (
	repo     = "../../.."
	system   = "berth-system"
	webhook  = "berth-webhook"
	worker   = "berth-worker"
	restrict = "pod-security.kubernetes.io/enforce"
)

// overlays are all that is installed on a cluster of somebody's own.
func overlays() []string {
	return []string{"alone", "alone-cert-manager", "alone-fail", "beside", "beside-cert-manager", "beside-fail"}
}

// eachOverlay runs a test on the objects of each overlay.
func eachOverlay(t *testing.T, test func(t *testing.T, overlay string, objects []render.Object)) {
	t.Helper()
	for _, overlay := range overlays() {
		t.Run(overlay, func(t *testing.T) {
			objects, err := render.Overlay(repo, overlay, "monitoring")
			if err != nil {
				t.Fatal(err)
			}
			test(t, overlay, objects)
		})
	}
}

// decode is the object as its type has it; unknown fields are errors.
func decode[T any](t *testing.T, o render.Object) T {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var out T
	if err := yaml.UnmarshalStrict(text, &out); err != nil {
		t.Fatalf("%s: %v", o.Key(), err)
	}
	return out
}

// typed is the object as Kubernetes' own type; nil when the kind is somebody else's.
func typed(t *testing.T, o render.Object) runtime.Object {
	t.Helper()
	text, err := yaml.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := scheme.Codecs.UniversalDeserializer().Decode(text, nil, nil)
	if runtime.IsNotRegisteredError(err) {
		return nil
	}
	if err != nil {
		t.Fatalf("%s: %v", o.Key(), err)
	}
	return out
}

// all are the objects of a kind, by name.
func all[T any](t *testing.T, objects []render.Object, kind string) map[string]T {
	t.Helper()
	out := map[string]T{}
	for _, o := range objects {
		if o.Kind() == kind {
			out[o.Name()] = decode[T](t, o)
		}
	}
	if len(out) == 0 {
		t.Fatalf("there is no %s", kind)
	}
	return out
}

// deployments are the two programs.
func deployments(t *testing.T, objects []render.Object) map[string]appsv1.Deployment {
	t.Helper()
	out := all[appsv1.Deployment](t, objects, "Deployment")
	if len(out) != 2 || out[webhook].Name == "" || out[worker].Name == "" {
		t.Fatalf("the Deployments are %v", slices.Collect(mapKeys(out)))
	}
	return out
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}

// argument is the value of a flag of the program, empty when it isn't given.
func argument(d appsv1.Deployment, flag string) string {
	for _, a := range d.Spec.Template.Spec.Containers[0].Args {
		if v, ok := strings.CutPrefix(a, "--"+flag+"="); ok {
			return v
		}
	}
	return ""
}
