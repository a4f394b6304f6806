package manifests_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	registration "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	finalizerworker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhook "github.com/berth-net/berth/cmd/webhook/app"
	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/memnb"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

const (
	webhookAccount, workerAccount = "berth-webhook", "berth-worker"
	system                        = "berth-system"
)

// call is a request to the API server as RBAC looks at it.
type call struct{ who, verb, group, resource, namespace, name string }

func (c call) String() string {
	return fmt.Sprintf("%s: %s %s.%s %s/%s", c.who, c.verb, c.resource, c.group, c.namespace, c.name)
}

// grant is one rule that a program is given, everywhere or in one namespace.
type grant struct {
	who, role, namespace string
	rule                 rbacv1.PolicyRule
}

func (g grant) String() string {
	return fmt.Sprintf("%s: %s: %s", g.role, strings.Join(g.rule.Resources, ","), strings.Join(g.rule.Verbs, ","))
}

// allows tells whether the rule allows a call.
func (g grant) allows(c call) bool {
	return g.who == c.who && (g.namespace == "" || g.namespace == c.namespace) && slices.Contains(g.rule.Verbs, c.verb) &&
		slices.Contains(g.rule.APIGroups, c.group) && slices.Contains(g.rule.Resources, c.resource) &&
		(len(g.rule.ResourceNames) == 0 || slices.Contains(g.rule.ResourceNames, c.name))
}

// grants are those of an install file.
func grants(t *testing.T) (out []grant) {
	t.Helper()
	rules := map[string][]rbacv1.PolicyRule{}
	var bindings []rbacv1.RoleBinding
	for _, doc := range strings.Split(read(t, "manifests/dist/alone/install.yaml"), "\n---\n") {
		var kind metav1.TypeMeta
		var role rbacv1.Role
		var binding rbacv1.RoleBinding
		if err := yaml.Unmarshal([]byte(doc), &kind); err != nil {
			t.Fatal(err)
		}
		switch kind.Kind {
		case "ClusterRole", "Role":
			if err := yaml.Unmarshal([]byte(doc), &role); err != nil {
				t.Fatal(err)
			}
			rules[kind.Kind+role.Name] = role.Rules
		case "ClusterRoleBinding", "RoleBinding":
			if err := yaml.Unmarshal([]byte(doc), &binding); err != nil {
				t.Fatal(err)
			}
			bindings = append(bindings, binding)
		}
	}
	for _, b := range bindings {
		for _, r := range rules[b.RoleRef.Kind+b.RoleRef.Name] {
			out = append(out, grant{who: b.Subjects[0].Name, role: b.RoleRef.Kind + " " + b.RoleRef.Name, namespace: b.Namespace, rule: r})
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d rules are found", len(out))
	}
	return out
}

// unused are the rules that nothing in TestRights needs, and when they are needed.
func unused() map[string]string {
	return map[string]string{
		"ClusterRole berth-webhook: subnets: patch":                                         "leases are lost",
		"ClusterRole berth-webhook: pods: list":                                             "creations fail behind the webhook",
		"ClusterRole berth-worker: virtualmachines,virtualmachineinstances: get,list,watch": "KubeVirt is there",
	}
}

// The programs run with the rights that they are given, and with every rule taken away, one at a time, something that they
// do is refused. What it would be is told with -v.
func TestRights(t *testing.T) {
	w := newRightsWorld(t)
	w.work()
	all := grants(t)
	denied := func(without int) (out []string) {
		for _, c := range w.called() {
			allowed := false
			for i, g := range all {
				allowed = allowed || i != without && g.allows(c)
			}
			if !allowed {
				out = append(out, c.String())
			}
		}
		return out
	}
	if d := denied(-1); len(d) > 0 {
		t.Fatalf("the programs may not do what they do:\n%s", strings.Join(d, "\n"))
	}
	for i, g := range all {
		missed := denied(i)
		if when, listed := unused()[g.String()]; len(missed) == 0 && !listed {
			t.Errorf("nothing needs %s", g)
		} else if len(missed) == 0 {
			t.Logf("without %s nothing is refused, unless %s", g, when)
		} else {
			t.Logf("without %s these are refused: %s", g, strings.Join(missed, "; "))
		}
	}
}

// rightsWorld is both programs, and what they ask the API server for.
type rightsWorld struct {
	t    *testing.T
	kube *memkube.Server
	api  client.Client
	page string

	mu    sync.Mutex
	calls map[call]bool
}

// note remembers what the programs ask for.
func (w *rightsWorld) note(r memkube.Request) memkube.Fault {
	c := call{verb: r.Verb, group: r.Group, resource: r.Resource, namespace: r.Namespace, name: r.Name}
	switch agent := r.HTTP.UserAgent(); {
	case strings.Contains(agent, webhookAccount):
		c.who = webhookAccount
	case strings.Contains(agent, workerAccount), strings.Contains(agent, "leader-election"):
		c.who = workerAccount
	default:
		return memkube.Fault{}
	}
	if r.Subresource != "" {
		c.resource += "/" + r.Subresource
	}
	if s, err := fields.ParseSelector(r.HTTP.URL.Query().Get("fieldSelector")); err == nil && c.name == "" {
		c.name, _ = s.RequiresExactMatch(metav1.ObjectNameField) // so the API server does
	}
	w.add(c)
	return memkube.Fault{}
}

func (w *rightsWorld) add(c call) {
	if !slices.Contains([]string{"secrets", "configmaps", "mutatingwebhookconfigurations", "validatingwebhookconfigurations"}, c.resource) {
		c.name = "" // nothing hangs on it
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.calls[c] = true
}

func (w *rightsWorld) called() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.SortedFunc(maps.Keys(w.calls), func(a, b call) int { return strings.Compare(a.String(), b.String()) })
}

// roundTrip answers what the API in memory has no kinds for: who a viewer of the page is, and what that may do.
func (w *rightsWorld) roundTrip(next http.RoundTripper, req *http.Request) (*http.Response, error) {
	for resource, group := range map[string]string{"tokenreviews": "authentication.k8s.io", "subjectaccessreviews": "authorization.k8s.io"} {
		if !strings.HasSuffix(req.URL.Path, "/"+resource) {
			continue
		}
		w.add(call{who: workerAccount, verb: "create", group: group, resource: resource})
		var review map[string]any
		if err := json.NewDecoder(req.Body).Decode(&review); err != nil {
			return nil, err
		}
		review["status"] = map[string]any{"authenticated": true, "allowed": true, "user": map[string]any{"username": "viewer"}}
		raw, err := json.Marshal(review)
		return &http.Response{StatusCode: http.StatusCreated, Request: req, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(bytes.NewReader(raw))}, err
	}
	return next.RoundTrip(req)
}

type tripper func(*http.Request) (*http.Response, error)

func (f tripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (w *rightsWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *rightsWorld) listen() net.Listener {
	w.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(w.t.Context(), "tcp", "127.0.0.1:0")
	w.must(err)
	return l
}

// until waits for something to come true.
func (w *rightsWorld) until(what string, ok func() error) {
	w.t.Helper()
	err := await.Until(w.t.Context(), what, 20*time.Millisecond, time.Minute, func(context.Context) error { return ok() })
	w.must(err)
}

func newRightsWorld(t *testing.T) *rightsWorld {
	t.Helper()
	w := &rightsWorld{t: t, calls: map[call]bool{}}
	dir, err := os.MkdirTemp("", "rights") // a socket's path must be short
	w.must(err)
	t.Cleanup(func() { w.must(os.RemoveAll(dir)) })
	nb, err := memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(dir, "nb.sock")})
	w.must(err)
	t.Cleanup(func() { w.must(nb.Close()) })
	admission := w.listen()
	w.kube, err = memkube.Start(memkube.Options{Namespaces: []string{system}, Intercept: w.note,
		ServiceURL: map[string]string{system + "/berth-webhook": "https://" + admission.Addr().String()}, Kinds: []memkube.Kind{
			{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition", Resource: "network-attachment-definitions", Namespaced: true, Custom: true}}})
	w.must(err)
	t.Cleanup(w.kube.Close)
	types := runtime.NewScheme()
	w.must(errors.Join(scheme.AddToScheme(types), kubeovnv1.AddToScheme(types)))
	w.api, err = client.New(w.kube.Config(), client.Options{Scheme: types})
	w.must(err)
	w.objects()
	w.start(admission, nb.Endpoint())
	return w
}

// start runs the programs, the webhook first: both set the logger of a library that they share.
func (w *rightsWorld) start(admission net.Listener, northbound string) {
	w.t.Helper()
	hook := webhook.DefaultOptions()
	hook.Config, hook.Listener, hook.OpsListener, hook.Replica, hook.Serve.DrainDelay = w.kube.Config(), admission, w.listen(), "a", 0
	hook.Config.UserAgent, hook.Topology = webhookAccount, webhook.TopologyEnsure
	w.run(hook.OpsListener, func(ctx context.Context) error { return webhook.Run(ctx, hook) })
	work := finalizerworker.DefaultOptions()
	work.Config, work.OpsListener, work.PageListener, work.Namespace, work.OVN.Addr = w.kube.Config(), w.listen(), w.listen(), system, northbound
	work.Config.UserAgent, work.Topology = workerAccount, webhook.TopologyEnsure
	work.Config.WrapTransport = func(next http.RoundTripper) http.RoundTripper {
		return tripper(func(r *http.Request) (*http.Response, error) { return w.roundTrip(next, r) })
	}
	work.Serve.MetricsAddr, work.Serve.LogLevel, work.Page.Addr, work.SweepPeriod, work.PendingAge = "0", "error", "127.0.0.1:0", 200*time.Millisecond, 500*time.Millisecond
	w.page = fmt.Sprintf("http://%s/berth/api/subnets", work.PageListener.Addr())
	w.run(work.OpsListener, func(ctx context.Context) error { return finalizerworker.Run(ctx, work) })
}

// run runs a program until the test ends, and waits until it is ready.
func (w *rightsWorld) run(ops net.Listener, program func(context.Context) error) {
	w.t.Helper()
	ctx, stop := context.WithCancel(w.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- program(ctx) }()
	w.t.Cleanup(func() {
		stop()
		w.must(<-ended)
	})
	w.until("the program is ready", func() error { return w.get("http://" + ops.Addr().String() + "/readyz") })
}

func (w *rightsWorld) get(url string) error {
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer viewer")
	answer, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if body, err := io.ReadAll(answer.Body); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s %w", answer.Status, body, err)
	}
	return nil
}

// objects are what an operator has. The worker makes the Vpc and the subnets that a cluster begins with.
func (w *rightsWorld) objects() {
	w.t.Helper()
	none, path := registration.SideEffectClassNoneOnDryRun, "/mutate"
	attachment := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"namespace": "shop", "name": "net1"}, "spec": map[string]any{"config": `{"cniVersion":"0.3.1","type":"kube-ovn","provider":"net1.shop.ovn"}`}}}
	subnet := func(name, cidr, gateway, provider string) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Gateway: gateway, Provider: provider, Vpc: "ovn-cluster"}}
	}
	two := int32(2)
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Labels: map[string]string{network.LabelInject: network.InjectEnabled}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "later", Labels: map[string]string{network.LabelInject: network.InjectLate}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-external-gw-config"}},
		subnet("net1", "10.30.0.0/24", "10.30.0.1", "net1.shop.ovn"), subnet("tiny", "10.31.0.0/30", "10.31.0.1", "ovn"), attachment,
		&kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "web"}},
		&kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: kubeovnv1.VipSpec{Namespace: "shop", Subnet: "net1"}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}, Spec: appsv1.StatefulSetSpec{Replicas: &two}},
		&registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"}, Webhooks: []registration.MutatingWebhook{{
			Name: "pod.berth.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none,
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{network.LabelInject: network.InjectEnabled}},
			ClientConfig:      registration.WebhookClientConfig{Service: &registration.ServiceReference{Namespace: system, Name: "berth-webhook", Path: &path}},
			Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
				Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}},
	} {
		w.must(w.api.Create(w.t.Context(), o))
	}
}

// pod makes one, of a controller if it is to have one.
func (w *rightsWorld) pod(namespace, name, kind, owner string, annotations map[string]string) *corev1.Pod {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	if kind != "" {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: kind, Name: owner, UID: "uid-of-the-owner", Controller: &yes}}
	}
	w.must(w.api.Create(w.t.Context(), p))
	return p
}

// work has pods come, wait, and go.
func (w *rightsWorld) work() {
	w.t.Helper()
	ctx := w.t.Context()
	w.until("the subnets are made", func() error {
		return w.api.Get(ctx, client.ObjectKey{Name: "ovn-default"}, &kubeovnv1.Subnet{})
	})
	in := map[string]string{"ovn.kubernetes.io/logical_switch": "tiny"}
	pods := []*corev1.Pod{
		w.pod("shop", "db-0", "StatefulSet", "db", map[string]string{"ovn.kubernetes.io/ip_pool": "10.16.0.50,10.16.0.51"}),
		w.pod("shop", "attached", "", "", map[string]string{network.NetworksKey: "shop/net1", "ovn.kubernetes.io/security_groups": "web"}),
		w.pod("shop", "first", "ReplicaSet", "web", maps.Clone(in)),
		w.pod("later", "late", "", "", map[string]string{network.NetworksKey: "shop/net1"}),
		w.pod("shop", "queued", "ReplicaSet", "web", maps.Clone(in)),
	}
	if queued := pods[4]; len(queued.Spec.SchedulingGates) == 0 {
		w.t.Errorf("the last pod does not wait: %v", queued.Annotations)
	}
	for _, p := range pods[:4] {
		w.until(p.Name+" has an address", func() error { return w.carries(p, "ip_address") })
		w.must(w.api.SubResource("binding").Create(ctx, p, &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}))
		w.until(p.Name+" is routed", func() error { return w.carries(p, "routed") })
	}
	w.until("the page answers", func() error { return w.get(w.page) })
	w.until("the pod that waits is told", func() error {
		var p corev1.Pod
		if err := w.api.Get(ctx, client.ObjectKeyFromObject(pods[4]), &p); err != nil || len(p.Status.Conditions) == 0 {
			return errors.Join(err, errors.New("it has no condition"))
		}
		return nil
	})
	for _, p := range pods {
		w.must(w.api.Delete(ctx, p, client.GracePeriodSeconds(0)))
	}
	w.must(w.api.Delete(ctx, &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "db"}}))
	w.until("all is taken back", func() error {
		var left corev1.PodList
		var records kubeovnv1.IPList
		if err := errors.Join(w.api.List(ctx, &left), w.api.List(ctx, &records)); err != nil || len(left.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d pods and %d records are left", len(left.Items), len(records.Items)))
		}
		if !slices.Contains(w.called(), call{who: workerAccount, verb: "get", group: "apps", resource: "statefulsets", namespace: "shop"}) {
			return errors.New("nobody has asked whether the StatefulSet wants its address")
		}
		return nil
	})
}

// carries tells what a pod lacks.
func (w *rightsWorld) carries(p *corev1.Pod, suffix string) error {
	if err := w.api.Get(w.t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		return err
	}
	if p.Annotations["ovn.kubernetes.io/"+suffix] == "" {
		return fmt.Errorf("it has annotations %v", p.Annotations)
	}
	return nil
}
