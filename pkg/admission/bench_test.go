package admission

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/log"
	ctradmission "sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// still is a ledger and a topology that cost nothing: each pod gets the same address.
type still struct {
	*fakeLedger
	view catalog.View
	all  *ipam.Allocation
}

func (s still) Take(_ context.Context, r ipam.Request) (*ipam.Allocation, error) {
	a := *s.all
	a.Claim = r.Claim
	return &a, nil
}

func (s still) For(_ context.Context, pod network.Pod) (catalog.View, error) {
	v := s.view
	v.Pod = pod
	return v, nil
}

func (s still) ForLive(ctx context.Context, pod network.Pod) (catalog.View, error) {
	return s.For(ctx, pod)
}

// zeros is a source of claims.
type zeros struct{}

func (zeros) Read(b []byte) (int, error) { return len(b), nil }

// servers are two that do the same to a pod: the handler, and controller-runtime's typed defaulter.
func servers(t testing.TB) (ours, theirs http.Handler) {
	t.Helper()
	s := still{}
	var err error
	if s.view, err = (fakeTopology{}).For(t.Context(), network.Pod{Namespace: "ns"}); err != nil {
		t.Fatal(err)
	}
	address := netip.MustParseAddr("10.16.0.9")
	s.all = &ipam.Allocation{Interfaces: []ipam.Assignment{{Provider: "ovn", Subnet: s.view.Catalog.Subnets["ovn-default"].Set,
		Leases: []ipam.Held{{Lease: ipam.Lease{Address: address}}}, MAC: ipam.DerivedMAC(address)}}}
	ours, err = NewHandler(Options{Ledger: s, Topology: s, Random: zeros{}, Config: placeConfig()})
	if err != nil {
		t.Fatal(err)
	}
	kinds := runtime.NewScheme()
	if err := corev1.AddToScheme(kinds); err != nil {
		t.Fatal(err)
	}
	log.SetLogger(logr.Discard())
	hook := ctradmission.WithDefaulter(kinds, defaulter{typed{s, s, placeConfig(), zeros{}}})
	theirs, err = ctradmission.StandaloneWebhook(hook, ctradmission.StandaloneOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ours, theirs
}

type defaulter struct{ typed }

func (d defaulter) Default(ctx context.Context, pod *corev1.Pod) error {
	req, err := ctradmission.RequestFromContext(ctx)
	if err != nil {
		return err
	}
	return d.mutate(ctx, req.Namespace, pod)
}

// call sends one review.
func call(t testing.TB, h http.Handler, body []byte) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", bytes.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusOK || !bytes.Contains(w.Body.Bytes(), []byte(`"allowed":true`)) || !bytes.Contains(w.Body.Bytes(), []byte(`"patch"`)) {
		t.Fatalf("HTTP %d: %s", w.Code, w.Body)
	}
	return w
}

// fullReview is a review as an API server sends it.
func fullReview(t testing.TB, containers int) []byte {
	return []byte(reviewOf(string(sized(t, containers)), `"kind":{"group":"","version":"v1","kind":"Pod"},"name":"","userInfo":{"username":"system:serviceaccount:kube-system:replicaset-controller","groups":["system:authenticated"]},"oldObject":null,"dryRun":false,"options":{"apiVersion":"meta.k8s.io/v1","kind":"CreateOptions"},`))
}

// BenchmarkHandler measures one request, with its body's way through HTTP's types, by the pod's size.
func BenchmarkHandler(b *testing.B) {
	ours, theirs := servers(b)
	for _, s := range []struct {
		name    string
		handler http.Handler
	}{{"patch", ours}, {"typed", theirs}} {
		for _, n := range []int{1, 10, 60} {
			b.Run(fmt.Sprintf("%s/containers=%d", s.name, n), func(b *testing.B) {
				body := fullReview(b, n)
				b.SetBytes(int64(len(body)))
				b.ReportAllocs()
				for b.Loop() {
					call(b, s.handler, body)
				}
			})
		}
	}
}

// BenchmarkBesideTyped measures both in turns, and reports how many times as long and as many allocations the typed one
// takes.
func BenchmarkBesideTyped(b *testing.B) {
	ours, theirs := servers(b)
	for _, n := range []int{1, 60} {
		b.Run(fmt.Sprintf("containers=%d", n), func(b *testing.B) {
			body := fullReview(b, n)
			var took [2]time.Duration
			for b.Loop() {
				for i, h := range []http.Handler{ours, theirs} {
					start := time.Now()
					call(b, h, body)
					took[i] += time.Since(start)
				}
			}
			b.ReportMetric(float64(took[1])/float64(took[0]), "time-ratio")
			b.ReportMetric(allocations(b, theirs, body)/allocations(b, ours, body), "alloc-ratio")
		})
	}
}

func allocations(t testing.TB, h http.Handler, body []byte) float64 {
	return testing.AllocsPerRun(20, func() { call(t, h, body) })
}

// What the handler allocates does not grow with a pod's size, and is a fraction of what the typed API takes.
func TestAllocationsByPodSize(t *testing.T) {
	ours, theirs := servers(t)
	small, large := fullReview(t, 1), fullReview(t, 60)
	one, sixty := allocations(t, ours, small), allocations(t, ours, large)
	if sixty > one+20 { // an allocation for each container would be 59 more; some noise is the test server's
		t.Errorf("%v allocations for a pod of one container, %v for one of sixty", one, sixty)
	}
	if other := allocations(t, theirs, large); sixty*4 > other {
		t.Errorf("%v allocations, and the typed API takes %v", sixty, other)
	}
}
