package objects

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	registration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"github.com/berth-net/berth/tools/ship/render"
)

// eachWithBindHook runs a test on the overlays with the bind hook.
func eachWithBindHook(t *testing.T, test func(t *testing.T, overlay string, objects []render.Object)) {
	t.Helper()
	for _, overlay := range overlays() {
		t.Run(overlay, func(t *testing.T) {
			components := []string{"bind-hook"}
			if strings.HasSuffix(overlay, "cert-manager") {
				components = append(components, "bind-hook-cert-manager")
			}
			objects, err := render.Overlay(repo, overlay, components...)
			if err != nil {
				t.Fatal(err)
			}
			test(t, overlay, objects)
		})
	}
}

// The hook never refuses, is asked behind its guard, and neither is asked about what a cluster is repaired with. The guard
// is asked about nothing but Bindings of strangers with marks.
func TestBindHookIsAskedLittle(t *testing.T) {
	eachWithBindHook(t, func(t *testing.T, _ string, objects []render.Object) {
		hooks := all[registration.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration")[webhook].Webhooks
		var names []string
		for _, h := range hooks {
			names = append(names, h.Name)
		}
		if d := cmp.Diff([]string{"pod.berth.dev", "marks.bind.berth.dev", "bind.berth.dev"}, names); d != "" {
			t.Fatal(d)
		}
		guard, hook := hooks[1], hooks[2]
		if *hook.FailurePolicy != registration.Ignore || *guard.FailurePolicy != registration.Fail {
			t.Errorf("failurePolicy %s, of the guard %s", *hook.FailurePolicy, *guard.FailurePolicy)
		}
		for _, h := range hooks[1:] {
			if *h.TimeoutSeconds != 1 || *h.ReinvocationPolicy != registration.NeverReinvocationPolicy || len(h.MatchConditions) != 1 {
				t.Errorf("%s: %d s, reinvoked %s, %d conditions", h.Name, *h.TimeoutSeconds, *h.ReinvocationPolicy, len(h.MatchConditions))
			}
		}
		if d := cmp.Diff([]string{"pods/binding"}, hook.Rules[0].Resources); d != "" {
			t.Error(d)
		}
		policy := all[registration.ValidatingAdmissionPolicy](t, objects, "ValidatingAdmissionPolicy")["berth-pod-binding"]
		if d := cmp.Diff(policy.Spec.MatchConstraints.ResourceRules[0].Resources, guard.Rules[0].Resources); d != "" {
			t.Errorf("policy and guard look at different requests: %s", d)
		}
		if d := cmp.Diff(policy.Spec.MatchConstraints.NamespaceSelector, guard.NamespaceSelector); d != "" {
			t.Errorf("policy and guard look at different namespaces: %s", d)
		}
		for namespace, want := range map[string]bool{"kube-system": false, system: false, "shop": true} {
			set := labels.Set{corev1.LabelMetadataName: namespace, "berth.dev/inject": "enabled"}
			if got := matches(t, hook.NamespaceSelector, set); got != want {
				t.Errorf("the hook is asked about %s: %v", namespace, got)
			}
		}
	})
}

// The Service is nobody's but the leader's; port, NetworkPolicy and the certificate's name fit together.
func TestBindHookFits(t *testing.T) {
	eachWithBindHook(t, func(t *testing.T, overlay string, objects []render.Object) {
		hooks := all[registration.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration")[webhook].Webhooks
		services := all[corev1.Service](t, objects, "Service")
		d := all[appsv1.Deployment](t, objects, "Deployment")[worker]
		for _, h := range hooks[1:] {
			ref := h.ClientConfig.Service
			s := services[ref.Name]
			if s.Namespace != ref.Namespace || s.Spec.Ports[0].Port != *ref.Port || s.Spec.Selector != nil {
				t.Errorf("%s is called at %v, there is %v", h.Name, ref, s.Spec)
			}
		}
		if argument(d, "bind-hook") != "true" {
			t.Error("the worker doesn't know of it")
		}
		var ports []string
		for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
			if p.Name == "bind" && itoa(p.ContainerPort) != argument(d, "bind-hook-port") {
				t.Errorf("port %d, argument %s", p.ContainerPort, argument(d, "bind-hook-port"))
			}
			ports = append(ports, p.Name)
		}
		var open []string
		for _, rule := range all[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy")[worker].Spec.Ingress {
			for _, p := range rule.Ports {
				open = append(open, p.Port.StrVal)
			}
		}
		slices.Sort(ports)
		slices.Sort(open)
		if diff := cmp.Diff(ports, open); diff != "" {
			t.Errorf("ports and NetworkPolicy: %s", diff)
		}
		if !slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Env, func(e corev1.EnvVar) bool {
			return e.Name == "POD_IP" && e.ValueFrom.FieldRef.FieldPath == "status.podIP"
		}) {
			t.Error("the worker doesn't know its address")
		}
		if !strings.HasSuffix(overlay, "cert-manager") {
			return
		}
		if argument(d, "cert-source") != "files" || d.Spec.Template.Spec.Volumes[0].Secret.SecretName != "berth-webhook-tls" {
			t.Errorf("certificate: %v", d.Spec.Template.Spec.Volumes)
		}
		for _, o := range objects {
			if o.Kind() == "Certificate" && o.Name() == webhook && !slices.Contains(o["spec"].(map[string]any)["dnsNames"].([]any), any("berth-worker-leader."+system+".svc")) {
				t.Errorf("the certificate is not the worker's: %v", o["spec"])
			}
		}
	})
}

// It is given no more rights than it needs: nothing everywhere but one policy to read, and Secrets by name.
func TestBindHookRights(t *testing.T) {
	eachWithBindHook(t, func(t *testing.T, overlay string, objects []render.Object) {
		plain, err := render.Overlay(repo, overlay)
		if err != nil {
			t.Fatal(err)
		}
		before := rights(t, plain)
		more := slices.DeleteFunc(rights(t, objects), func(line string) bool { return slices.Contains(before, line) })
		want := []string{
			"berth-worker everywhere: validatingadmissionpolicies.admissionregistration.k8s.io named berth-pod-binding get",
			"berth-worker in berth-system: endpointslices.discovery.k8s.io create",
			"berth-worker in berth-system: endpointslices.discovery.k8s.io named berth-worker-leader-ipv4,berth-worker-leader-ipv6 get",
			"berth-worker in berth-system: endpointslices.discovery.k8s.io named berth-worker-leader-ipv4,berth-worker-leader-ipv6 update",
			"berth-worker in berth-system: services named berth-worker-leader get",
		}
		if !strings.HasSuffix(overlay, "cert-manager") {
			for _, right := range []string{"create", "named berth-webhook-tls get", "named berth-webhook-tls list", "named berth-webhook-tls update", "named berth-webhook-tls watch"} {
				want = append(want, "berth-worker in berth-system: secrets "+right)
			}
		}
		slices.Sort(want)
		if d := cmp.Diff(want, more); d != "" {
			t.Error(d)
		}
	})
}

// The API server adds nothing to it.
func TestBindHookDefaultsAreStated(t *testing.T) {
	eachWithBindHook(t, func(t *testing.T, _ string, objects []render.Object) {
		for _, o := range objects {
			if foreign()[o.Kind()] {
				continue
			}
			applied := typed(t, o)
			stored := applied.DeepCopyObject()
			legacyscheme.Scheme.Default(stored)
			if d := cmp.Diff(applied, stored, cmpopts.IgnoreTypes(corev1.NamespaceStatus{})); d != "" {
				t.Errorf("%s: the API server would add\n%s", o.Key(), d)
			}
		}
	})
}
