package admission

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-net/berth/internal/catalog"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

// place is a handler over a real ledger and a real catalog. Its clock stands, and its randomness is the same each time.
type place struct {
	*Handler
	ledger *ipam.Ledger
	random io.Reader
}

// seeded is a source of randomness that several may read from at once.
type seeded struct {
	mu   sync.Mutex
	from *rand.ChaCha8
}

func (s *seeded) Read(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.from.Read(b)
}

func newPlace(t testing.TB) place {
	t.Helper()
	return newPlaceOver(t, memstore.New(), clocktesting.NewFakeClock(time.Unix(1_800_000_000, 0)))
}

func newPlaceOver(t testing.TB, store ipam.Store, at clock.Clock) place {
	t.Helper()
	random := &seeded{from: rand.NewChaCha8([32]byte{1})}
	ledger, err := ipam.New(ipam.Options{Store: store, Replica: "one", Clock: at, Random: random})
	if err != nil {
		t.Fatal(err)
	}
	live := shop(t)
	h, err := NewHandler(Options{Ledger: ledger, Topology: catalog.New(catalog.Options{Cache: live, Live: live, Changes: func() uint64 { return 1 }}),
		Config: placeConfig(), Random: random, Clock: at})
	if err != nil {
		t.Fatal(err)
	}
	return place{Handler: h, ledger: ledger, random: random}
}

func placeConfig() network.Config {
	return network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}
}

// shop is a cluster whose namespace ns has a subnet of its own.
func shop(t testing.TB) client.Client {
	t.Helper()
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{catalog.AddToScheme, appsv1.AddToScheme} {
		if err := add(kinds); err != nil {
			t.Fatal(err)
		}
	}
	subnet := func(name, cidr, provider string, namespaces ...string) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Provider: provider, Namespaces: namespaces}}
	}
	full := subnet("full", "10.22.0.0/30", "")
	full.Spec.ExcludeIps = []string{"10.22.0.2"}
	nad := &netv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "n1"},
		Spec: netv1.NetworkAttachmentDefinitionSpec{Config: `{"type":"kube-ovn","provider":"n1.default.ovn"}`}}
	foreign := &netv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "flannel"},
		Spec: netv1.NetworkAttachmentDefinitionSpec{Config: `{"type":"flannel"}`}}
	return fake.NewClientBuilder().WithScheme(kinds).WithObjects(nad, foreign, subnet("ovn-default", "10.16.0.0/16", ""), subnet("shop", "10.20.0.0/24", "", "ns"),
		subnet("dual", "10.21.0.0/24,fd00:21::/64", ""), subnet("n1", "10.30.0.0/24", "n1.default.ovn"), full, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "ns"}},
		&appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "db"}}).Build()
}

// review posts a pod and gives the answer, and the pod with the patch applied.
func (p place) review(t *testing.T, pod []byte, more string) (*admissionv1.AdmissionResponse, []byte) {
	t.Helper()
	w := env{Handler: p.Handler}.post(reviewOf(string(pod), more))
	var r admissionv1.AdmissionReview
	if w.Code != http.StatusOK || json.Unmarshal(w.Body.Bytes(), &r) != nil || r.Response == nil {
		t.Fatalf("HTTP %d: %s", w.Code, w.Body)
	}
	if len(r.Response.Patch) == 0 {
		return r.Response, pod
	}
	patch, err := jsonpatch.DecodePatch(r.Response.Patch)
	if err != nil {
		t.Fatal(err)
	}
	out, err := patch.Apply(pod)
	if err != nil {
		t.Fatalf("%v: %s", err, r.Response.Patch)
	}
	return r.Response, out
}

// typed does to a typed pod what the handler does by its patch.
type typed struct {
	ledger   Ledger
	topology catalog.Reader
	config   network.Config
	random   io.Reader
}

func (d typed) mutate(ctx context.Context, namespace string, pod *corev1.Pod) error {
	p := network.PodOf(pod)
	p.Namespace = namespace
	if _, skip := network.Skip(p); skip {
		return nil
	}
	view, err := d.topology.For(ctx, p)
	if err != nil {
		return err
	}
	have := pod.Annotations
	if _, copied := have[network.ClaimKey]; copied { // an earlier call is none in this one's place
		have, _ = network.Strip(have)
		view.Pod.Annotations = have
	}
	plan, errs := network.Plan(view.Pod, view.Namespace, view.Catalog, d.config)
	if len(errs) > 0 {
		return errs.ToAggregate()
	}
	gated := slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name != network.AddressGate })
	out := map[string]string{}
	for k, v := range have {
		if network.Progress(k) || !gated && (k == network.RequestedKey || network.Output(k) && k[:3] == "ovn") {
			continue
		}
		out[k] = v
	}
	pod.Annotations = out
	if gated || len(plan.Interfaces) == 0 {
		return nil
	}
	claim, err := ipam.NewClaim(d.random)
	if err != nil {
		return err
	}
	a, err := d.ledger.Take(ctx, plan.Request(claim, false))
	r, refused := ipam.AsRefusal(err)
	switch {
	case refused && r.Unavailable() && network.Waits(view.Pod, view.Namespace, plan):
		maps.Copy(out, have)
		if plan.Requested != "" {
			out[network.RequestedKey] = plan.Requested
		}
		if len(pod.Spec.SchedulingGates) == 0 {
			pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
		}
	case err != nil:
		return fmt.Errorf("taking: %w", err)
	default:
		maps.Copy(out, network.Annotations(plan, a, view.Catalog, d.config))
	}
	if !slices.Contains(pod.Finalizers, network.Finalizer) {
		pod.Finalizers = append(pod.Finalizers, network.Finalizer)
	}
	return nil
}

// Kube-OVN's own gateways are its controller's to connect; without it they are refused, and the answer says why.
func TestGatewaysOfKubeOVN(t *testing.T) {
	for name, labels := range map[string]string{
		"egress":        `{"app":"vpc-egress-gateway","ovn.kubernetes.io/vpc-egress-gateway":"g"}`,
		"NAT":           `{"app":"vpc-nat-gw-g","ovn.kubernetes.io/vpc-nat-gw":"true"}`,
		"load balancer": `{"app":"lb-svc-web","namespace":"ns","service":"web"}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			pod := []byte(`{"metadata":{"name":"g","namespace":"ns","labels":` + labels + `},"spec":{"containers":[{"name":"a"}]}}`)
			if r, after := p.review(t, pod, ""); !r.Allowed || string(after) != string(pod) {
				t.Errorf("beside Kube-OVN: %+v, %s", r, after)
			}
			p.Config.Alone = true
			r, _ := p.review(t, pod, "")
			if r.Allowed || !strings.Contains(r.Result.Message, "run kube-ovn-controller") {
				t.Errorf("alone: %+v", r.Result)
			}
		})
	}
}

// A pod that asks for what was made a moment ago is not refused by a cache that lags behind.
func TestRefusedOnlyByALiveRead(t *testing.T) {
	p := newPlace(t)
	live := shop(t)
	lagging := fake.NewClientBuilder().WithScheme(live.Scheme()).Build()
	p.Topology = catalog.New(catalog.Options{Cache: lagging, Live: live, Changes: func() uint64 { return 1 }})
	pod := []byte(`{"metadata":{"name":"a","namespace":"ns","annotations":{"ovn.kubernetes.io/logical_switch":"shop"}},"spec":{"containers":[{"name":"a"}]}}`)
	r, after := p.review(t, pod, "")
	if !r.Allowed || !strings.Contains(string(after), "10.20.0.") || len(r.Warnings) > 0 {
		t.Errorf("%+v, %s", r, after)
	}
	gone := []byte(`{"metadata":{"name":"a","namespace":"ns","annotations":{"ovn.kubernetes.io/logical_switch":"nowhere"}},"spec":{"containers":[{"name":"a"}]}}`)
	if r, _ := p.review(t, gone, ""); r.Allowed || !strings.Contains(r.Result.Message, `subnet "nowhere" does not exist`) {
		t.Errorf("%+v", r)
	}
}
