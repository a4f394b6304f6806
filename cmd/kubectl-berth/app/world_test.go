package app

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	random "math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/network"
)

func now() time.Time { return time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC) }

// world is an API server, and a ledger that writes to it.
type world struct {
	t          testing.TB
	ctx        context.Context
	kube       *memkube.Server
	client     client.Client
	ledger     *ipam.Ledger
	kubeconfig string
	// intercept hears of every request, when it is set: see hear.
	intercept atomic.Pointer[func(memkube.Request)]
	// uids names those that the server made up, for golden files.
	uids []string
}

// hear has f called with every request from now on, also with several at once; nil ends it.
func (w *world) hear(f func(memkube.Request)) {
	if f == nil {
		w.intercept.Store(nil)
		return
	}
	w.intercept.Store(&f)
}

func newWorld(t testing.TB, namespaces ...string) *world {
	t.Helper()
	w := &world{t: t, ctx: t.Context(), kubeconfig: filepath.Join(t.TempDir(), "config")}
	clk := clocktesting.NewFakeClock(now())
	var err error
	w.kube, err = memkube.Start(memkube.Options{Namespaces: append(namespaces, "berth-system"), Clock: clk,
		Intercept: func(r memkube.Request) memkube.Fault {
			if hear := w.intercept.Load(); hear != nil {
				(*hear)(r)
			}
			return memkube.Fault{}
		}})
	w.must(err)
	t.Cleanup(w.kube.Close)
	raw, err := w.kube.Kubeconfig()
	w.must(err)
	w.must(os.WriteFile(w.kubeconfig, raw, 0o600))
	w.must(catalog.AddToScheme(scheme.Scheme))
	w.client, err = client.New(w.kube.Config(), client.Options{Scheme: scheme.Scheme})
	w.must(err)
	store, err := blockstore.New(w.kube.Config())
	w.must(err)
	w.ledger, err = ipam.New(ipam.Options{Store: store, Replica: "test", Clock: clk, Random: ones{}})
	w.must(err)
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) create(objs ...client.Object) {
	w.t.Helper()
	for _, o := range objs {
		w.must(w.client.Create(w.ctx, o))
	}
}

// run runs the command, as a shell would.
func (w *world) run(args ...string) (code int, out, errs string) {
	w.t.Helper()
	return w.raw(append(args, "--kubeconfig="+w.kubeconfig)...)
}

// raw runs the command with these arguments alone.
func (w *world) raw(args ...string) (code int, out, errs string) {
	w.t.Helper()
	var o, e bytes.Buffer
	code = Run(w.ctx, args, genericiooptions.IOStreams{In: strings.NewReader(""), Out: &o, ErrOut: &e},
		clocktesting.NewFakeClock(now().Add(10*time.Minute)))
	return code, strings.NewReplacer(w.uids...).Replace(o.String()), e.String()
}

// serve has a namespace served.
func (w *world) serve(name string) {
	w.t.Helper()
	var ns corev1.Namespace
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &ns))
	ns.Labels[network.LabelInject] = network.InjectEnabled
	w.must(w.client.Update(w.ctx, &ns))
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, Annotations: map[string]string{}},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func at(address string) func(*corev1.Pod) { return annotated("ovn.kubernetes.io/ip_address", address) }

func in(subnet string) func(*corev1.Pod) {
	return annotated("ovn.kubernetes.io/logical_switch", subnet)
}

func onNode(p *corev1.Pod) { p.Spec.NodeName = "n1" }

func gated(p *corev1.Pod) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
}

func finalized(p *corev1.Pod) { p.Finalizers = append(p.Finalizers, network.Finalizer) }

// put stores a pod as it is.
func (w *world) put(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	w.create(p)
	w.uids = append(w.uids, string(p.UID), fmt.Sprintf("uid-of-%s%s", p.Name, strings.Repeat("-", len(p.UID)-len("uid-of-"+p.Name))))
	return p
}

// admit stores a pod as admission would have it, with leases.
func (w *world) admit(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	cfg := network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}
	view, err := catalog.New(catalog.Options{Cache: w.client, Live: w.client}).For(w.ctx, network.PodOf(p))
	w.must(err)
	plan, bad := network.Plan(view.Pod, view.Namespace, view.Catalog, cfg)
	w.must(bad.ToAggregate())
	claim, err := ipam.NewClaim(random.NewChaCha8([32]byte([]byte(fmt.Sprintf("%-32s", p.Name)))))
	w.must(err)
	a, err := w.ledger.Take(w.ctx, plan.Request(claim, false))
	w.must(err)
	maps.Copy(p.Annotations, network.Annotations(plan, a, view.Catalog, cfg))
	finalized(p)
	return w.put(p)
}

// bind binds the pod's leases to a UID.
func (w *world) bind(p *corev1.Pod, uid string) {
	w.t.Helper()
	var refs []ipam.Ref
	for _, h := range w.ledger.ByClaim(ipam.Claim(p.Annotations[network.ClaimKey])) {
		refs = append(refs, h.Ref())
	}
	_, err := w.ledger.Bind(w.ctx, uid, p.Name, refs...)
	w.must(err)
}

// wire marks the pod as connected, and running.
func (w *world) wire(p *corev1.Pod) {
	w.t.Helper()
	p.Annotations["ovn.kubernetes.io/allocated"], p.Annotations["ovn.kubernetes.io/routed"] = "true", "true"
	w.must(w.client.Update(w.ctx, p))
	p.Status.Phase = corev1.PodRunning
	p.Status.PodIPs = []corev1.PodIP{{IP: "10.16.0.20"}}
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	w.must(w.client.Status().Update(w.ctx, p))
}

func subnet(name, cidr string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Provider: "ovn", Vpc: "ovn-cluster"}}
	for _, c := range change {
		c(s)
	}
	return s
}

func deployment(namespace, name string, ready int32, args ...string) *appsv1.Deployment {
	two := int32(2)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &two,
		Template: corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: name + ":1", Args: args}}}}},
		Status: appsv1.DeploymentStatus{Replicas: ready, ReadyReplicas: ready}}
}

// install makes Berth's own objects. The memory of the API server drops status at creation.
func (w *world) install(topology string) {
	w.t.Helper()
	for _, d := range []*appsv1.Deployment{deployment("berth-system", webhookName, 2, "--cert-secret=berth-webhook-tls"),
		deployment("berth-system", workerName, 1, "--topology="+topology, "--default-ls=ovn-default")} {
		status := d.Status
		w.create(d)
		d.Status = status
		w.must(w.client.Status().Update(w.ctx, d))
	}
	holder, seconds, renewed := "worker-1", int32(15), metav1.NewMicroTime(now().Add(10*time.Minute-2*time.Second))
	ignore, none, path := admissionv1.Ignore, admissionv1.SideEffectClassNoneOnDryRun, "/mutate"
	w.create(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: leaseName},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, LeaseDurationSeconds: &seconds, RenewTime: &renewed}},
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: webhookName}, Webhooks: []admissionv1.MutatingWebhook{{
			Name: "pod.berth.dev", FailurePolicy: &ignore, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
			ClientConfig: admissionv1.WebhookClientConfig{CABundle: []byte("x"), Service: &admissionv1.ServiceReference{Namespace: "berth-system", Name: webhookName, Path: &path}}}}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: secretName}, Data: map[string][]byte{"tls.crt": w.certificate()}})
}

func (w *world) certificate() []byte {
	w.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: now(), NotAfter: now().AddDate(0, 1, 0)}
	raw, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	w.must(err)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: raw})
}

// shop fills the world with something of everything.
func shop(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, "shop", "plain")
	w.serve("shop")
	w.create(
		subnet("ovn-default", "10.16.0.0/24,fd00:16::/64", func(s *kubeovnv1.Subnet) { s.Spec.ExcludeIps = []string{"10.16.0.1..10.16.0.10"} }),
		subnet("tiny", "10.17.0.0/30"), subnet("broken", "nonsense"),
		&kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "printers"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "ovn-default", IPs: []string{"10.16.0.100..10.16.0.109"}}},
		&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "printer"}, Spec: kubeovnv1.IPSpec{Subnet: "ovn-default", V4IPAddress: "10.16.0.50", IPAddress: "10.16.0.50"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}},
	)
	web := w.admit(pod("web-0", at("10.16.0.20,fd00:16::20"), onNode))
	w.bind(web, string(web.UID))
	w.wire(web)
	w.admit(pod("web-1", at("10.16.0.101,fd00:16::21"), annotated("ovn.kubernetes.io/ip_pool", "printers")))
	first := w.admit(pod("first", in("tiny"), onNode))
	w.bind(first, string(first.UID))
	first.Finalizers = nil // stripped by hand
	w.must(w.client.Update(w.ctx, first))
	w.put(pod("queue", in("tiny"), gated, finalized, annotated(network.ClaimKey, "00000000000000000000000000000001"),
		annotated(network.RequestedKey, `{"ovn":{"logical_switch":"tiny"}}`)))
	w.put(pod("late"))
	w.put(pod("other", func(p *corev1.Pod) { p.Namespace = "plain" }))
	w.put(pod("bad", at("10.99.0.1")))
	gone := w.admit(pod("gone", at("10.16.0.30,fd00:16::30"), func(p *corev1.Pod) { p.Namespace = "shop" }))
	w.bind(gone, string(gone.UID))
	gone.Finalizers = nil
	w.must(w.client.Update(w.ctx, gone))
	w.must(w.client.Delete(w.ctx, gone, client.GracePeriodSeconds(0)))
	w.create(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "gone.shop", Labels: map[string]string{network.ClaimKey: gone.Annotations[network.ClaimKey],
		"ovn.kubernetes.io/ip_reserved": "false"}, Annotations: map[string]string{"berth.dev/pod-uid": string(gone.UID)}},
		Spec: kubeovnv1.IPSpec{PodName: "gone", Namespace: "shop", Subnet: "ovn-default", V4IPAddress: "10.16.0.30", IPAddress: "10.16.0.30"}})
	w.create(&corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "queue.1"}, Type: "Warning", Reason: "WaitingForAddress",
		Message: "no address is free", Count: 3, InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "shop", Name: "queue"},
		LastTimestamp: metav1.NewTime(now().Add(5 * time.Minute)), ReportingController: "berth-worker"})
	return w
}

// stop takes away what puts finalizers on pods.
func (w *world) stop() {
	w.t.Helper()
	var d appsv1.Deployment
	w.must(w.client.Get(w.ctx, client.ObjectKey{Namespace: "berth-system", Name: workerName}, &d))
	none := int32(0)
	d.Spec.Replicas = &none
	w.must(w.client.Update(w.ctx, &d))
	d.Status = appsv1.DeploymentStatus{}
	w.must(w.client.Status().Update(w.ctx, &d))
	w.must(w.client.Delete(w.ctx, &admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: webhookName}}))
}

// ones is randomness that is the same whoever reads first: generations stand in golden files.
type ones struct{}

func (ones) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 1
	}
	return len(p), nil
}
