package objects

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	flowcontrolv1 "k8s.io/api/flowcontrol/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-net/berth/tools/ship/render"
)

func podWebhook(t *testing.T, objects []render.Object) registration.MutatingWebhook {
	t.Helper()
	hooks := all[registration.MutatingWebhookConfiguration](t, objects, "MutatingWebhookConfiguration")[webhook].Webhooks
	if len(hooks) != 1 {
		t.Fatalf("%d webhooks change objects", len(hooks))
	}
	return hooks[0]
}

// matches evaluates a selector on labels.
func matches(t *testing.T, s *metav1.LabelSelector, on labels.Set) bool {
	t.Helper()
	selector, err := metav1.LabelSelectorAsSelector(s)
	if err != nil {
		t.Fatal(err)
	}
	return selector.Matches(on)
}

// With every replica away, also under failurePolicy Fail, nothing that a cluster is repaired with meets the webhook:
// no pod of kube-system, none of our own, whatever label somebody puts there, and none on the network of its node.
func TestB44SystemPodsNeverMeetTheWebhook(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []render.Object) {
		hook := podWebhook(t, objects)
		for namespace, served := range map[string]bool{"kube-system": false, system: false, "shop": true} {
			for label, enabled := range map[string]bool{"": false, "enabled": true, "late": false, "no": false} {
				set := labels.Set{corev1.LabelMetadataName: namespace}
				if label != "" {
					set["berth.dev/inject"] = label
				}
				if got, want := matches(t, hook.NamespaceSelector, set), served && enabled; got != want {
					t.Errorf("a pod of %s labelled %q meets the webhook: %v", namespace, label, got)
				}
			}
		}
		for label, want := range map[string]bool{"": true, "disabled": false, "enabled": true} {
			set := labels.Set{}
			if label != "" {
				set["berth.dev/inject"] = label
			}
			if got := matches(t, hook.ObjectSelector, set); got != want {
				t.Errorf("a pod labelled %q meets the webhook: %v", label, got)
			}
		}
		var conditions []string
		for _, c := range hook.MatchConditions {
			conditions = append(conditions, c.Name)
		}
		if d := cmp.Diff([]string{"own-network", "not-mirror"}, conditions); d != "" {
			t.Error(d)
		}
		want := registration.Ignore
		if strings.HasSuffix(overlay, "-fail") {
			want = registration.Fail
		}
		if *hook.FailurePolicy != want {
			t.Errorf("failurePolicy %s, want %s", *hook.FailurePolicy, want)
		}
		for _, d := range deployments(t, objects) {
			if len(d.Spec.Template.Spec.SchedulingGates) != 0 || d.Spec.Template.Labels["berth.dev/inject"] != "" {
				t.Errorf("%s asks for a network by us", d.Name)
			}
		}
	})
}

// Several webhooks in a row stay below a client's patience, and a request that is accepted at the end of a drain is
// answered.
func TestB47Timeouts(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		grace := duration(t, deployments(t, objects)[webhook], "shutdown-grace")
		check := func(name string, seconds *int32) {
			if seconds == nil || *seconds < 1 || *seconds > 5 {
				t.Errorf("%s: timeout %v", name, seconds)
			} else if time.Duration(*seconds)*time.Second > grace {
				t.Errorf("%s: answers may take %d s, a replica that ends allows %s", name, *seconds, grace)
			}
		}
		check("pod", podWebhook(t, objects).TimeoutSeconds)
		for _, h := range all[registration.ValidatingWebhookConfiguration](t, objects, "ValidatingWebhookConfiguration")[webhook].Webhooks {
			check(h.Name, h.TimeoutSeconds)
			if *h.FailurePolicy != registration.Ignore {
				t.Errorf("%s refuses while no replica answers", h.Name)
			}
		}
	})
}

// Only CREATE of pods is asked about: no update, no status, no eviction, no ephemeral container, no removal of a
// finalizer.
func TestB54OnlyCreationOfPods(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		hook, scope := podWebhook(t, objects), registration.NamespacedScope
		want := []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
			Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}, Scope: &scope}}}
		if d := cmp.Diff(want, hook.Rules); d != "" {
			t.Error(d)
		}
		if *hook.SideEffects != registration.SideEffectClassNoneOnDryRun || *hook.ReinvocationPolicy != registration.IfNeededReinvocationPolicy {
			t.Errorf("side effects %s, reinvocation %s", *hook.SideEffects, *hook.ReinvocationPolicy)
		}
	})
}

func duration(t *testing.T, d appsv1.Deployment, flag string) time.Duration {
	t.Helper()
	v, err := time.ParseDuration(argument(d, flag))
	if err != nil {
		t.Fatalf("%s: --%s: %v", d.Name, flag, err)
	}
	return v
}

// A rollout or a drained node takes no replica before another one is ready, and who leaves says so first and has time to
// finish. Host ports forbid the first: there one of three leaves.
func TestB50RolloutsDropNoCall(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []render.Object) {
		all := deployments(t, objects)
		d := all[webhook]
		away := 0
		if strings.HasPrefix(overlay, "alone") {
			away = 1
		}
		if *d.Spec.Replicas != 3 || *all[worker].Spec.Replicas != 2 {
			t.Errorf("%d webhooks, %d workers", *d.Spec.Replicas, *all[worker].Spec.Replicas)
		}
		r := d.Spec.Strategy.RollingUpdate
		if r.MaxUnavailable.IntValue() != away || r.MaxSurge.IntValue() != 1-away {
			t.Errorf("rollout: %v away, %v more", r.MaxUnavailable, r.MaxSurge)
		}
		pod := d.Spec.Template.Spec
		grace := time.Duration(*pod.TerminationGracePeriodSeconds) * time.Second
		drain, finish := duration(t, d, "drain-delay"), duration(t, d, "shutdown-grace")
		if drain < 2*time.Second || drain+finish > grace-5*time.Second {
			t.Errorf("a drain of %s and %s does not fit into %s", drain, finish, grace)
		}
		probe := pod.Containers[0].LivenessProbe
		if patience := time.Duration(probe.PeriodSeconds*probe.FailureThreshold) * time.Second; patience < grace {
			t.Errorf("liveness kills after %s, within a drain of %s", patience, grace)
		}
	})
}

// Probes, Service, NetworkPolicy and flags name the ports that there are.
func TestPorts(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		policies := all[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy")
		for name, d := range deployments(t, objects) {
			ports := map[string]int32{}
			for _, p := range d.Spec.Template.Spec.Containers[0].Ports {
				ports[p.Name] = p.ContainerPort
			}
			c := d.Spec.Template.Spec.Containers[0]
			if ":"+itoa(ports["health"]) != argument(d, "health-probe-bind-address") || ":"+itoa(ports["metrics"]) != argument(d, "metrics-bind-address") {
				t.Errorf("%s: ports %v, arguments %v", name, ports, c.Args)
			}
			for path, probe := range map[string]*corev1.Probe{"/readyz": c.ReadinessProbe, "/healthz": c.LivenessProbe} {
				if probe == nil || probe.HTTPGet.Path != path || probe.HTTPGet.Port.StrVal != "health" {
					t.Errorf("%s: probe of %s is %v", name, path, probe)
				}
			}
			var open []string
			policy := policies[name]
			if !matches(t, &policy.Spec.PodSelector, d.Spec.Template.Labels) {
				t.Errorf("the NetworkPolicy of %s is of other pods", name)
			}
			for _, rule := range policy.Spec.Ingress {
				for _, p := range rule.Ports {
					open = append(open, p.Port.StrVal)
					if anybody := len(rule.From) == 0; anybody != (p.Port.StrVal != "metrics") {
						t.Errorf("%s: anybody may call %s: %v", name, p.Port.StrVal, anybody)
					}
				}
			}
			slices.Sort(open)
			if d := cmp.Diff(slices.Sorted(mapKeys(ports)), open); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
		for name, s := range all[corev1.Service](t, objects, "Service") {
			d := deployments(t, objects)[strings.TrimSuffix(name, "-metrics")]
			if !matches(t, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, d.Spec.Template.Labels) {
				t.Errorf("Service %s has no pods", name)
			}
			for _, p := range s.Spec.Ports {
				if !slices.ContainsFunc(d.Spec.Template.Spec.Containers[0].Ports, func(c corev1.ContainerPort) bool { return c.Name == p.TargetPort.StrVal }) {
					t.Errorf("Service %s: no port %s", name, p.TargetPort.StrVal)
				}
			}
		}
		ref := podWebhook(t, objects).ClientConfig.Service
		s := all[corev1.Service](t, objects, "Service")[ref.Name]
		if ref.Namespace != s.Namespace || *ref.Port != s.Spec.Ports[0].Port || *ref.Path != "/mutate" || argument(deployments(t, objects)[webhook], "service-name") != s.Name {
			t.Errorf("the webhook is called at %v", ref)
		}
	})
}

func itoa(n int32) string { return strconv.Itoa(int(n)) }

// One replica may go at a time, never all; replicas stand on different nodes, and in different zones where there are any.
func TestDisruption(t *testing.T) {
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		budgets := all[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget")
		for name, d := range deployments(t, objects) {
			b := budgets[name]
			if b.Spec.Selector == nil || !matches(t, b.Spec.Selector, d.Spec.Template.Labels) || !matches(t, d.Spec.Selector, d.Spec.Template.Labels) {
				t.Errorf("%s: the budget or the Deployment is of other pods", name)
			}
			if b.Spec.MaxUnavailable == nil || b.Spec.MaxUnavailable.IntValue() != 1 || *d.Spec.Replicas < 2 {
				t.Errorf("%s: %v of %d may go", name, b.Spec.MaxUnavailable, *d.Spec.Replicas)
			}
			spread := map[string]corev1.UnsatisfiableConstraintAction{}
			for _, c := range d.Spec.Template.Spec.TopologySpreadConstraints {
				if matches(t, c.LabelSelector, d.Spec.Template.Labels) && c.MaxSkew == 1 {
					spread[c.TopologyKey] = c.WhenUnsatisfiable
				}
			}
			want := map[string]corev1.UnsatisfiableConstraintAction{corev1.LabelHostname: corev1.DoNotSchedule, corev1.LabelTopologyZone: corev1.ScheduleAnyway}
			if d := cmp.Diff(want, spread); d != "" {
				t.Errorf("%s: %s", name, d)
			}
		}
	})
}

// What the webhook writes within an admission does not queue behind the requests that wait for it.
func TestFlowControl(t *testing.T) {
	const ofAllAccounts = 9000 // precedence of the API server's own service-accounts
	eachOverlay(t, func(t *testing.T, _ string, objects []render.Object) {
		levels := all[flowcontrolv1.PriorityLevelConfiguration](t, objects, "PriorityLevelConfiguration")
		for name, account := range map[string]string{"berth-admission": webhook, "berth-worker": worker} {
			f := all[flowcontrolv1.FlowSchema](t, objects, "FlowSchema")[name]
			if f.Spec.MatchingPrecedence >= ofAllAccounts || len(f.Spec.Rules) != 1 {
				t.Fatalf("%s is looked at too late: %v", name, f.Spec)
			}
			want := []flowcontrolv1.Subject{{Kind: "ServiceAccount", ServiceAccount: &flowcontrolv1.ServiceAccountSubject{Namespace: system, Name: account}}}
			if d := cmp.Diff(want, f.Spec.Rules[0].Subjects); d != "" {
				t.Errorf("%s: %s", name, d)
			}
			_, ours := levels[f.Spec.PriorityLevelConfiguration.Name]
			if own := account == webhook; own != ours {
				t.Errorf("%s goes to %s", name, f.Spec.PriorityLevelConfiguration.Name)
			}
			if deployments(t, objects)[account].Spec.Template.Spec.ServiceAccountName != account {
				t.Errorf("%s runs under another account", account)
			}
		}
		if l := levels["berth-admission"].Spec.Limited; *l.LendablePercent != 0 || *l.NominalConcurrencyShares < 10 || l.LimitResponse.Type != flowcontrolv1.LimitResponseTypeQueue {
			t.Errorf("seats: %v", l)
		}
	})
}

// The bundle has one owner: cert-manager where it makes the certificate, else the webhook. Both trust the same names.
func TestB45OneOwnerOfTheBundle(t *testing.T) {
	eachOverlay(t, func(t *testing.T, overlay string, objects []render.Object) {
		manager := strings.HasSuffix(overlay, "cert-manager")
		d := deployments(t, objects)[webhook]
		injected := 0
		for _, o := range objects {
			if c, ok := typed(t, o).(metav1.Object); ok && c.GetAnnotations()["cert-manager.io/inject-ca-from"] == system+"/"+webhook {
				injected++
			}
		}
		if want := map[bool]int{true: 2}[manager]; injected != want {
			t.Errorf("cert-manager writes %d configurations, want %d", injected, want)
		}
		source, own := "self-managed", webhook
		if manager {
			source, own = "files", ""
		}
		if argument(d, "cert-source") != source || argument(d, "webhook-configuration") != own {
			t.Errorf("arguments %v", d.Spec.Template.Spec.Containers[0].Args)
		}
		if !manager {
			return
		}
		pod := d.Spec.Template.Spec
		mount := pod.Containers[0].VolumeMounts[0]
		if argument(d, "cert-dir") != mount.MountPath || mount.Name != pod.Volumes[0].Name || pod.Volumes[0].Secret.SecretName != "berth-webhook-tls" || !mount.ReadOnly {
			t.Errorf("mount %v of %v", mount, pod.Volumes)
		}
		for _, o := range objects {
			if o.Kind() == "Certificate" && o.Name() == webhook {
				names := o["spec"].(map[string]any)["dnsNames"].([]any)
				if o["spec"].(map[string]any)["secretName"] != "berth-webhook-tls" || !slices.Contains(names, any(webhook+"."+system+".svc")) {
					t.Errorf("certificate of %v", names)
				}
			}
		}
	})
}
