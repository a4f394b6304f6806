package manifests_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	finalizerworker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	"github.com/berth-net/berth/pkg/worker"
)

// The component of the bind hook names what the worker has: its paths, its port, its Service and what it looks for.
func TestBindHookComponent(t *testing.T) {
	o := finalizerworker.DefaultOptions()
	component := read(t, "manifests/components/bind-hook/kustomization.yaml")
	for _, want := range []string{
		"path: " + worker.PathBind + "\n", "path: " + worker.PathGuard + "\n", "name: " + o.Certs.Service + "\n", "namespace: " + o.Certs.Namespace + "\n",
		fmt.Sprintf("--bind-hook-port=%d\n", o.BindHook.Port), fmt.Sprintf("containerPort: %d\n", o.BindHook.Port), "name: " + worker.BindingPolicy + "\n",
		worker.MarksAnnotation + `: "true"` + "\n",
	} {
		if !strings.Contains(component, want) {
			t.Errorf("%q is missing", want)
		}
	}
	var s corev1.Service
	if err := yaml.UnmarshalStrict([]byte(read(t, "manifests/components/bind-hook/service.yaml")), &s); err != nil {
		t.Fatal(err)
	}
	if s.Name != o.Certs.Service || s.Namespace != o.Certs.Namespace || len(s.Spec.Selector) != 0 || s.Spec.Ports[0].TargetPort.IntValue() != o.BindHook.Port {
		t.Errorf("%+v", s)
	}
	rights := read(t, "manifests/components/bind-hook/rbac.yaml")
	for _, want := range []string{"[" + o.Certs.Service + "-ipv4, " + o.Certs.Service + "-ipv6]", "[" + worker.BindingPolicy + "]", "[" + o.Certs.Secret + "]"} {
		if !strings.Contains(rights, want) {
			t.Errorf("%q is missing in the rights", want)
		}
	}
}

// What the component lets pass is what its guard refuses to callers, and together they are what the policy alone refuses.
func TestBindHookGuardsWhatPasses(t *testing.T) {
	keys := regexp.MustCompile(`k\.matches\('([^']+)'\)`)
	patterns := func(text string) []*regexp.Regexp {
		var out []*regexp.Regexp
		for _, m := range keys.FindAllStringSubmatch(text, -1) {
			out = append(out, regexp.MustCompile(m[1]))
		}
		return out
	}
	_, binding, _ := strings.Cut(read(t, "manifests/base/policies.yaml"), "name: berth-pod-binding\n")
	alone := patterns(binding)[0]
	with := patterns(read(t, "manifests/components/bind-hook/kustomization.yaml"))
	if len(with) != 2 {
		t.Fatalf("%d patterns", len(with))
	}
	guard, policy := with[0], with[1]
	for _, suffix := range []string{"allocated", "routed", "ip_address", "mac_address", "ip_address.net1", "cidr", "gateway", "routed.x"} {
		for _, provider := range []string{"ovn", "net1.shop.ovn", "other"} {
			key := provider + ".kubernetes.io/" + suffix
			if guard.MatchString(key) && policy.MatchString(key) {
				t.Errorf("%s is refused twice", key)
			}
			if got, want := guard.MatchString(key) || policy.MatchString(key), alone.MatchString(key); got != want {
				t.Errorf("%s is refused: %v, without the hook: %v", key, got, want)
			}
		}
	}
}

// Its arguments are flags of the worker.
func TestBindHookArguments(t *testing.T) {
	for _, component := range []string{"bind-hook", "bind-hook-cert-manager"} {
		text, err := os.ReadFile(filepath.Join("components", component, "kustomization.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		var args []string
		for _, m := range regexp.MustCompile(`(?m)^ +value: (--.+)$`).FindAllStringSubmatch(string(text), -1) {
			args = append(args, m[1])
		}
		if len(args) == 0 {
			t.Errorf("%s has no arguments", component)
		}
		if err := finalizerworker.NewCommand().ParseFlags(args); err != nil {
			t.Errorf("%s: %v", component, err)
		}
	}
}
