package objects

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/admissionregistration/install"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/flowcontrol/install"
	_ "k8s.io/kubernetes/pkg/apis/networking/install"
	_ "k8s.io/kubernetes/pkg/apis/policy/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"

	"github.com/berth-net/berth/tools/ship/render"
)

// foreign are the kinds whose defaults an extension sets.
func foreign() map[string]bool {
	return map[string]bool{"CustomResourceDefinition": true, "Issuer": true, "Certificate": true, "ServiceMonitor": true, "PrometheusRule": true}
}

// The API server adds nothing to what is applied, so whoever compares finds no drift. What the programs write, the
// bundle, is nowhere in it.
func TestB103DefaultsAreStated(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		for _, o := range objects {
			if foreign()[o.Kind()] {
				continue
			}
			applied := typed(t, o)
			if applied == nil {
				t.Errorf("%s is of no known kind", o.Key())
				continue
			}
			stored := applied.DeepCopyObject()
			legacyscheme.Scheme.Default(stored)
			if d := cmp.Diff(applied, stored, cmpopts.IgnoreTypes(corev1.NamespaceStatus{})); d != "" {
				t.Errorf("%s: the API server would add\n%s", o.Key(), d)
			}
			if m, ok := applied.(metav1.Object); ok && (m.GetResourceVersion() != "" || len(m.GetManagedFields()) > 0) {
				t.Errorf("%s has what only the API server writes", o.Key())
			}
		}
		text, err := render.Encode(objects)
		if err != nil {
			t.Fatal(err)
		}
		for _, word := range []string{"caBundle", "\nstatus:", "creationTimestamp:"} {
			if strings.Contains(string(text), word) {
				t.Errorf("%q is in the manifests", word)
			}
		}
	})
}

// What is checked in for those without kustomize is what kustomize builds now.
func TestInstallFilesAreFresh(t *testing.T) {
	for _, overlay := range render.Installs() {
		want, err := render.Install(repo, overlay)
		if err != nil {
			t.Fatal(err)
		}
		got, err := readFile(render.InstallFile(overlay))
		if err != nil {
			t.Fatal(err)
		}
		if got != string(want) {
			t.Errorf("%s is stale: run make generate", render.InstallFile(overlay))
		}
	}
}
