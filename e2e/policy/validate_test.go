//go:build e2e

package policy

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	webhookapp "github.com/berth-net/berth/cmd/webhook/app"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/network"
)

// warnings collects what the API server hands on to users.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

func (w *warnings) HandleWarningHeader(_ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) take() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := strings.Join(w.texts, "\n")
	w.texts = nil
	return all
}

// validating runs the webhook's program, registered as the manifests say but that the API server calls it by its address
// and lets nothing through when it fails.
func (h *harness) validating(t *testing.T) {
	t.Helper()
	listen := func() net.Listener {
		l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	hook, ops := listen(), listen()
	h.register(t, "https://"+hook.Addr().String())
	o := webhookapp.DefaultOptions()
	o.Config, o.Listener, o.OpsListener = as(h.Config(), program), hook, ops
	o.Replica, o.Namespace, o.Serve.DrainDelay = "a", "berth-system", 0
	o.Certs.Namespace, o.Certs.IPs = "berth-system", []net.IP{net.IPv4(127, 0, 0, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- webhookapp.Run(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ops.Addr().String()+"/readyz", nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil //nolint:nilerr // it does not listen yet
		}
		return resp.StatusCode == http.StatusOK, resp.Body.Close()
	})
	if err != nil {
		t.Fatal(err)
	}
}

// register applies the webhook configurations, with the mutating one matching nothing, and takes them away with the test.
func (h *harness) register(t *testing.T, base string) {
	t.Helper()
	objs, err := h.rendered(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	api, fail, seen := h.Client().AdmissionregistrationV1(), registration.Fail, 0
	validate, mutate := base+"/validate", base+"/mutate"
	for _, u := range objs {
		switch u.GetKind() {
		case "ValidatingWebhookConfiguration":
			var c registration.ValidatingWebhookConfiguration
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c); err != nil {
				t.Fatal(err)
			}
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig = registration.WebhookClientConfig{URL: &validate}
				c.Webhooks[i].FailurePolicy = &fail
			}
			_, err = api.ValidatingWebhookConfigurations().Create(t.Context(), &c, metav1.CreateOptions{})
		case "MutatingWebhookConfiguration":
			var c registration.MutatingWebhookConfiguration
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, &c); err != nil {
				t.Fatal(err)
			}
			for i := range c.Webhooks {
				c.Webhooks[i].ClientConfig = registration.WebhookClientConfig{URL: &mutate}
				c.Webhooks[i].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"none": "at-all"}}
			}
			_, err = api.MutatingWebhookConfigurations().Create(t.Context(), &c, metav1.CreateOptions{})
		default:
			continue
		}
		if seen++; err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := api.ValidatingWebhookConfigurations().Delete(ctx, "berth-webhook", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
		if err := api.MutatingWebhookConfigurations().Delete(ctx, "berth-webhook", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	if seen != 2 {
		t.Fatalf("%d webhook configurations are shipped, want 2", seen)
	}
}

func kubeovn(plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: plural}
}

func topology(kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubeovn.io/v1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": spec}}
}

// lease takes an address as a pod of a namespace would, and gives how to free it.
func (h *harness) lease(t *testing.T, subnet *unstructured.Unstructured, families ...ipam.Family) (address string, free func()) {
	t.Helper()
	store, err := blockstore.New(h.Config())
	if err != nil {
		t.Fatal(err)
	}
	ledger, err := ipam.New(ipam.Options{Store: store, Replica: "test", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	var obj kubeovnv1.Subnet
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(subnet.Object, &obj); err != nil {
		t.Fatal(err)
	}
	a, err := ledger.Take(t.Context(), ipam.Request{Claim: ipam.Claim(oldClaim), Owner: ipam.PodOwner(served), Interfaces: []ipam.InterfaceRequest{{Provider: "ovn",
		Candidates: []ipam.Source{{Subnet: network.NewSubnet(&obj, network.Around{}).Set}}, Families: families}}})
	if err != nil {
		t.Fatal(err)
	}
	held := a.Interfaces[0].Leases[0]
	return held.Address.String(), func() {
		if err := ledger.Free(t.Context(), held.Ref()); err != nil {
			t.Fatal(err)
		}
	}
}

// user is an administrator at the validated kinds, who hears warnings.
type user struct {
	*harness
	t                            *testing.T
	told                         warnings
	subnets, pools, vips, spaces dynamic.ResourceInterface
}

func (h *harness) user(t *testing.T) *user {
	t.Helper()
	u := &user{harness: h, t: t}
	cfg := rest.CopyConfig(h.Config())
	cfg.WarningHandler = &u.told
	d, err := dynamic.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	u.subnets, u.pools, u.vips = d.Resource(kubeovn("subnets")), d.Resource(kubeovn("ippools")), d.Resource(kubeovn("vips"))
	u.spaces = d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "namespaces"})
	return u
}

func (u *user) create(api dynamic.ResourceInterface, obj *unstructured.Unstructured) error {
	_, err := api.Create(u.t.Context(), obj, metav1.CreateOptions{})
	return err
}

func (u *user) patch(api dynamic.ResourceInterface, name, body string, sub ...string) error {
	_, err := api.Patch(u.t.Context(), name, types.MergePatchType, []byte(body), metav1.PatchOptions{}, sub...)
	return err
}

func (u *user) remove(api dynamic.ResourceInterface, name string) error {
	return api.Delete(u.t.Context(), name, metav1.DeleteOptions{})
}

func (u *user) ok(what string, err error) {
	u.t.Helper()
	if err != nil {
		u.t.Errorf("%s: %v", what, err)
	}
}

func (u *user) refused(what string, err error, parts ...string) {
	u.t.Helper()
	for _, part := range append(parts, "denied the request") {
		if err == nil || !strings.Contains(err.Error(), part) {
			u.t.Errorf("%s: %v, want %q in it", what, err, part)
		}
	}
}

// warned wants a part in what was told since the last time.
func (u *user) warned(part string) {
	u.t.Helper()
	if w := u.told.take(); !strings.Contains(w, part) {
		u.t.Errorf("warned of %q, want %q", w, part)
	}
}

// B54: an object that was wrong before there was a webhook gets its finalizers and its status, and can go.
func (u *user) oldAndBad() {
	bad := topology("Subnet", "old-and-bad", map[string]any{"cidrBlock": "10.50.0.0/33"})
	u.ok("make a bad one as an old version did", u.unvalidated(u.t, func() error { return u.create(u.subnets, bad) }))
	u.ok("a finalizer onto it", u.patch(u.subnets, "old-and-bad", `{"metadata":{"finalizers":["example.org/f"]}}`))
	u.ok("its status", u.patch(u.subnets, "old-and-bad", `{"status":{"activateGateway":"n1"}}`, "status"))
	u.ok("its deletion", u.remove(u.subnets, "old-and-bad"))
	u.ok("its finalizer off", u.patch(u.subnets, "old-and-bad", `{"metadata":{"finalizers":null}}`))
}

// The shipped registration and program, under the shipped rights, refuse what they should, warn, and let the rest pass:
// B06, B07, B12, B32, B54.
func TestValidatingWebhook(t *testing.T) {
	h := start(t)
	h.validating(t)
	u := h.user(t)
	u.oldAndBad()
	u.ok("a subnet", u.create(u.subnets, topology("Subnet", "dual", map[string]any{"cidrBlock": "10.51.0.0/24,fd00:51::/64"})))
	u.refused("B12 the gateway", u.create(u.subnets, topology("Subnet", "gw", map[string]any{"cidrBlock": "10.52.0.0/24", "gateway": "10.52.0.255"})), "spec.gateway", "broadcast")
	stored, err := u.subnets.Get(t.Context(), "dual", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	u.ok("the program sees the subnet", wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		err := u.create(u.subnets, topology("Subnet", "overlap", map[string]any{"cidrBlock": "10.51.0.0/25"}))
		return err != nil && strings.Contains(err.Error(), "subnet dual"), nil
	}))
	address, free := h.lease(t, stored, ipam.IPv6)
	u.ok("B07 shrink beside the lease", u.patch(u.subnets, "dual", `{"spec":{"cidrBlock":"10.51.0.0/25,fd00:51::/64"}}`))
	u.refused("B32 take IPv6 away", u.patch(u.subnets, "dual", `{"spec":{"cidrBlock":"10.51.0.0/25"}}`), address, served)
	u.refused("B32 delete under IPv6 alone", u.remove(u.subnets, "dual"), "1 address is held", address)
	u.told.take()
	u.ok("a pool over it", u.create(u.pools, topology("IPPool", "p", map[string]any{"subnet": "dual", "ips": []any{address}})))
	u.warned(address)
	u.refused("B06 the pool goes", u.remove(u.pools, "p"), address)
	u.refused("a Vip there", u.create(u.vips, topology("Vip", "v", map[string]any{"subnet": "dual", "v6ip": address})), "spec.v6ip", address)
	u.told.take()
	u.ok("the label goes", u.patch(u.spaces, served, `{"metadata":{"labels":{"berth.dev/inject":null}}}`))
	u.warned("still held")
	u.ok("the label comes", u.patch(u.spaces, served, fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, network.LabelInject, network.InjectEnabled)))
	free()
	u.ok("the pool goes at last", u.remove(u.pools, "p"))
	u.ok("the subnet goes at last", u.remove(u.subnets, "dual"))
	got, err := h.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(t.Context(), "berth-webhook", metav1.GetOptions{})
	if err != nil || len(got.Webhooks[0].ClientConfig.CABundle) == 0 {
		t.Errorf("there is no CA bundle: %v", err)
	}
}

// unvalidated does something while the validating configuration looks at nothing.
func (h *harness) unvalidated(t *testing.T, do func() error) error {
	t.Helper()
	api := h.Client().AdmissionregistrationV1().ValidatingWebhookConfigurations()
	set := func(policy string) error {
		body := fmt.Sprintf(`[{"op":"replace","path":"/webhooks/0/objectSelector","value":%s}]`, policy)
		_, err := api.Patch(t.Context(), "berth-webhook", types.JSONPatchType, []byte(body), metav1.PatchOptions{})
		return err
	}
	if err := set(`{"matchLabels":{"none":"at-all"}}`); err != nil {
		return err
	}
	var last error
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(context.Context) (bool, error) {
		last = do()
		return last == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%w, lastly %w", err, last)
	}
	if err := set(`{}`); err != nil {
		return err
	}
	bad := topology("Subnet", "probe", map[string]any{"cidrBlock": "x"})
	return wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 30*time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := h.dynamic.Resource(kubeovn("subnets")).Create(ctx, bad, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil && strings.Contains(err.Error(), "denied the request"), nil
	})
}
