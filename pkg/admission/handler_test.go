package admission

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/catalog"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// fakeLedger hands out ascending addresses and remembers claims.
type fakeLedger struct {
	mu        sync.Mutex
	claims    map[ipam.Claim][]ipam.Held
	unseen    map[ipam.Claim][]ipam.Held // known to a live read only
	next      byte
	takes     int
	refreshed []string
	err       error
	block     chan struct{}
	pending   []ipam.Claim
	old       bool // leases are too old to be of a creation under way
}

func (f *fakeLedger) Take(ctx context.Context, r ipam.Request) (*ipam.Allocation, error) {
	if f.block != nil {
		select {
		case <-f.block:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	f.takes++
	a := f.give(r)
	f.claims[r.Claim] = a.Interfaces[0].Leases
	return a, nil
}

func (f *fakeLedger) Preview(_ context.Context, r ipam.Request) (*ipam.Allocation, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.give(r), f.err
}

func (f *fakeLedger) give(r ipam.Request) *ipam.Allocation {
	i := r.Interfaces[0]
	held := f.claims[r.Claim]
	if len(held) == 0 {
		f.next++
		addr := netip.AddrFrom4([4]byte{10, 16, 0, 10 + f.next})
		if len(i.Choices) > 0 {
			addr = i.Choices[0][0]
		}
		held = []ipam.Held{{Lease: ipam.Lease{Address: addr, Claim: r.Claim, Owner: r.Owner, MAC: ipam.DerivedMAC(addr)}}}
	}
	return &ipam.Allocation{Claim: r.Claim, Interfaces: []ipam.Assignment{{Provider: i.Provider, Subnet: i.Candidates[0].Subnet, Leases: held, MAC: held[0].MAC}}}
}

func (f *fakeLedger) ByClaim(c ipam.Claim) []ipam.Held {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.claims[c]
}

func (f *fakeLedger) Refresh(_ context.Context, subnets ...string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.refreshed = append(f.refreshed, subnets...)
	for c, h := range f.unseen {
		f.claims[c] = h
	}
	return nil
}

type fakeTopology struct{ err error }

func (f fakeTopology) For(_ context.Context, pod network.Pod) (catalog.View, error) {
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ovn-default"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16"}}
	return catalog.View{Pod: pod, Namespace: network.Namespace{Name: pod.Namespace},
		Catalog: network.Catalog{Subnets: map[string]network.Subnet{"ovn-default": network.NewSubnet(subnet, network.Around{})}}}, f.err
}

func (f fakeTopology) ForLive(ctx context.Context, pod network.Pod) (catalog.View, error) {
	return f.For(ctx, pod)
}

type env struct {
	*Handler
	ledger *fakeLedger
	reg    *prometheus.Registry
}

func newEnv(t testing.TB, change ...func(*Options)) env {
	t.Helper()
	e := env{ledger: &fakeLedger{claims: map[ipam.Claim][]ipam.Held{}}, reg: prometheus.NewRegistry()}
	o := Options{Ledger: e.ledger, Topology: fakeTopology{}, Random: rand.Reader, Metrics: e.reg,
		Config: network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}}
	for _, c := range change {
		c(&o)
	}
	var err error
	if e.Handler, err = NewHandler(o); err != nil {
		t.Fatal(err)
	}
	return e
}

func reviewOf(pod string, more string) string {
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","namespace":"ns","operation":"CREATE",`+
		`"resource":{"group":"","version":"v1","resource":"pods"},%s"object":%s}}`, more, pod)
}

func (e env) post(body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=5s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	e.ServeHTTP(w, r)
	return w
}

// ask sends a pod and gives the answer and the pod with the patch applied.
func (e env) ask(t *testing.T, pod, more string) (*admissionv1.AdmissionResponse, string) {
	t.Helper()
	w := e.post(reviewOf(pod, more))
	if w.Code != http.StatusOK {
		t.Fatalf("HTTP %d: %s", w.Code, w.Body)
	}
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || review.Response == nil || review.Response.UID != "u1" {
		t.Fatalf("%v in %s", err, w.Body)
	}
	out := pod
	if len(review.Response.Patch) > 0 {
		patch, err := jsonpatch.DecodePatch(review.Response.Patch)
		if err != nil {
			t.Fatal(err)
		}
		patched, err := patch.Apply([]byte(pod))
		if err != nil {
			t.Fatalf("%v: %s", err, review.Response.Patch)
		}
		out = string(patched)
	}
	return review.Response, out
}

func metaOf(t *testing.T, pod string) metav1.ObjectMeta {
	t.Helper()
	var p struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
	}
	if err := json.Unmarshal([]byte(pod), &p); err != nil {
		t.Fatal(err)
	}
	return p.Metadata
}

func injected(claim, ip, mac string) map[string]string {
	return map[string]string{network.ClaimKey: claim, "ovn.kubernetes.io/ip_address": ip, "ovn.kubernetes.io/mac_address": mac,
		"ovn.kubernetes.io/cidr": "10.16.0.0/16", "ovn.kubernetes.io/gateway": "10.16.0.1", "ovn.kubernetes.io/logical_switch": "ovn-default",
		"ovn.kubernetes.io/pod_nic_type": "veth-pair", "ovn.kubernetes.io/logical_router": "ovn-cluster"}
}

func TestB51Patch(t *testing.T) {
	fixed := func(o *Options) { o.Random = bytes.NewReader(make([]byte, 16)) }
	const claim = "00000000000000000000000000000000"
	ours := injected(claim, "10.16.0.11", "0a:58:0a:10:00:0b")
	with := func(m map[string]string, pairs ...string) map[string]string {
		out := map[string]string{}
		for k, v := range m {
			out[k] = v
		}
		for i := 0; i < len(pairs); i += 2 {
			out[pairs[i]] = pairs[i+1]
		}
		return out
	}
	cases := map[string]struct {
		pod         string
		annotations map[string]string
		finalizers  []string
	}{
		"no annotations":     {`{"metadata":{}}`, ours, []string{network.Finalizer}},
		"null annotations":   {`{"metadata":{"annotations":null,"finalizers":null}}`, ours, []string{network.Finalizer}},
		"empty annotations":  {`{"metadata":{"annotations":{},"finalizers":[]}}`, ours, []string{network.Finalizer}},
		"others' stay":       {`{"metadata":{"annotations":{"a/b~c":"d"},"finalizers":["x"]}}`, with(ours, "a/b~c", "d"), []string{"x", network.Finalizer}},
		"already there":      {`{"metadata":{"finalizers":["berth.dev/network"]}}`, ours, []string{network.Finalizer}},
		"other network's":    {`{"metadata":{"annotations":{"net1.a.ovn.kubernetes.io/ip_address":"10.1.0.1"}}}`, with(ours, "net1.a.ovn.kubernetes.io/ip_address", "10.1.0.1"), []string{network.Finalizer}},
		"allocated stripped": {`{"metadata":{"annotations":{"ovn.kubernetes.io/allocated":"true","net1.a.ovn.kubernetes.io/routed":"true"}}}`, ours, []string{network.Finalizer}},
		"stray output":       {`{"metadata":{"annotations":{"ovn.kubernetes.io/vlan_id":"3","ovn.kubernetes.io/cidr":"1.0.0.0/8"}}}`, ours, []string{network.Finalizer}},
		"asked":              {`{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":" 10.16.0.11 ,"}}}`, with(ours, network.RequestedKey, `{"ovn":{"ip_address":"10.16.0.11"}}`), []string{network.Finalizer}},
		"copy":               {`{"metadata":{"annotations":{"berth.dev/claim":"0123456789abcdef0123456789abcdef","ovn.kubernetes.io/ip_address":"10.16.0.99","ovn.kubernetes.io/vlan_id":"3","net1.a.ovn.kubernetes.io/ip_address":"10.1.0.1"}}}`, ours, []string{network.Finalizer}},
		"preview's copy":     {`{"metadata":{"annotations":{"berth.dev/claim":"preview","ovn.kubernetes.io/ip_address":"10.16.0.99","ovn.kubernetes.io/vlan_id":"3"}}}`, ours, []string{network.Finalizer}},
		"copy that asked":    {`{"metadata":{"annotations":{"berth.dev/claim":"0123456789abcdef0123456789abcdef","berth.dev/requested":"{\"ovn\":{\"ip_address\":\"10.16.0.11\"}}","ovn.kubernetes.io/ip_address":"10.16.0.11"}}}`, with(ours, network.RequestedKey, `{"ovn":{"ip_address":"10.16.0.11"}}`), []string{network.Finalizer}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			resp, pod := newEnv(t, fixed).ask(t, c.pod, "")
			if !resp.Allowed {
				t.Fatal(resp.Result)
			}
			m := metaOf(t, pod)
			if d := cmp.Diff(c.annotations, m.Annotations); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(c.finalizers, m.Finalizers); d != "" {
				t.Error(d)
			}
		})
	}
}

// Pods of controllers come without name and namespace: each gets a claim of its own, in the request's namespace.
func TestB41GenerateName(t *testing.T) {
	e := newEnv(t)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if w := e.post(reviewOf(`{"metadata":{"generateName":"web-"}}`, "")); w.Code != http.StatusOK {
				t.Error(w.Body)
			}
		})
	}
	wg.Wait()
	seen := map[netip.Addr]bool{}
	for _, held := range e.ledger.claims {
		if held[0].Owner != ipam.PodOwner("ns") || seen[held[0].Address] {
			t.Errorf("lease %+v", held[0])
		}
		seen[held[0].Address] = true
	}
	if len(seen) != 50 {
		t.Errorf("%d leases of 50", len(seen))
	}
}

// A second call with our patch applied and a sidecar added changes nothing, in this replica and in another one.
func TestB42Reinvocation(t *testing.T) {
	for name, elsewhere := range map[string]bool{"same replica": false, "another replica": true} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			_, pod := e.ask(t, `{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":"10.16.0.77"}},"spec":{"containers":[{"name":"a"}]}}`, "")
			if elsewhere {
				e.ledger.unseen, e.ledger.claims = e.ledger.claims, map[ipam.Claim][]ipam.Held{}
			}
			pod = strings.Replace(pod, `[{"name":"a"}]`, `[{"name":"a"},{"name":"sidecar"}]`, 1)
			resp, again := e.ask(t, pod, "")
			if !resp.Allowed || len(resp.Patch) > 0 || len(resp.Warnings) > 0 || again != pod {
				t.Errorf("patch %s, warnings %q", resp.Patch, resp.Warnings)
			}
			if len(e.ledger.claims) != 1 || resp.AuditAnnotations[auditOutcome] != outcomeKept {
				t.Errorf("%d claims, %v", len(e.ledger.claims), resp.AuditAnnotations)
			}
			if elsewhere != (len(e.ledger.refreshed) > 0) {
				t.Errorf("refreshed %v", e.ledger.refreshed)
			}
		})
	}
}

// Neither a claim that is bound to a pod nor one of another owner is the pod's own.
func TestCopiesOfClaims(t *testing.T) {
	const claim = "0123456789abcdef0123456789abcdef"
	for name, lease := range map[string]ipam.Lease{
		"bound": {Owner: ipam.PodOwner("ns"), PodUID: "p"}, "another namespace": {Owner: ipam.PodOwner("other")},
		"a set's": {Owner: ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "ns", Name: "db-0"}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.ledger.claims[claim] = []ipam.Held{{Lease: lease}}
			resp, pod := e.ask(t, `{"metadata":{"annotations":{"berth.dev/claim":"`+claim+`","ovn.kubernetes.io/ip_address":"10.16.0.9"}}}`, "")
			if got := metaOf(t, pod).Annotations[network.ClaimKey]; got == claim || got == "" || len(resp.Warnings) != 1 {
				t.Errorf("claim %q, warnings %q", got, resp.Warnings)
			}
		})
	}
}

func TestB53HostNetwork(t *testing.T) {
	cases := map[string]struct {
		pod      string
		warnings int
	}{
		"asks":     {`{"metadata":{"annotations":{"ovn.kubernetes.io/ip_address":"10.16.0.9"}},"spec":{"hostNetwork":true}}`, 1},
		"silent":   {`{"metadata":{},"spec":{"hostNetwork":true}}`, 0},
		"disabled": {`{"metadata":{"labels":{"berth.dev/inject":"disabled"}}}`, 0},
		"gate":     {`{"metadata":{},"spec":{"schedulingGates":[{"name":"other"}]}}`, 0},
	}
	for name, c := range cases {
		e := newEnv(t)
		resp, pod := e.ask(t, c.pod, "")
		if !resp.Allowed || pod != c.pod || len(resp.Warnings) != c.warnings || e.ledger.takes != 0 {
			t.Errorf("%s: %+v %s", name, resp, pod)
		}
	}
}

func TestB28Refusals(t *testing.T) {
	held := &ipam.HeldError{Subnet: "ovn-default", Address: netip.MustParseAddr("10.16.0.9"), Holder: ipam.Lease{Owner: ipam.PodOwner("x"), PodName: "p"}}
	cases := map[string]struct {
		annotations string
		err         error
		code        int32
		reason      string
		parts       []string
	}{
		"word":     {annotations: `"ovn.kubernetes.io/ip_address":"foo"`, code: 422, reason: "Invalid", parts: []string{"ovn.kubernetes.io/ip_address", "foo"}},
		"two":      {annotations: `"ovn.kubernetes.io/ip_address":"foo","ovn.kubernetes.io/mac_address":"zz"`, code: 422, reason: "Invalid", parts: []string{"foo", "zz"}},
		"subnet":   {annotations: `"ovn.kubernetes.io/logical_switch":"nope"`, code: 422, reason: "Invalid", parts: []string{"logical_switch", "nope"}},
		"held":     {err: fmt.Errorf("x: %w", held), code: 409, reason: "AddressHeld", parts: []string{"held by pod x/p"}},
		"reserved": {err: &ipam.MACReservedError{}, code: 422, reason: "MACReserved"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t)
			e.ledger.err = c.err
			resp, _ := e.ask(t, `{"metadata":{"name":"web","annotations":{`+c.annotations+`}}}`, "")
			if resp.Allowed || resp.Result.Code != c.code || len(resp.Patch) > 0 {
				t.Fatalf("%+v", resp)
			}
			for _, p := range append(c.parts, "pod ns/web") {
				if !strings.Contains(resp.Result.Message, p) {
					t.Errorf("%q has no %q", resp.Result.Message, p)
				}
			}
			if n := testutil.ToFloat64(e.metrics.refusals.WithLabelValues(c.reason)); n != 1 {
				t.Errorf("%v refusals %s", n, c.reason)
			}
		})
	}
}

func TestDryRun(t *testing.T) {
	e := newEnv(t)
	resp, pod := e.ask(t, `{"metadata":{}}`, `"dryRun":true,`)
	if m := metaOf(t, pod); m.Annotations[network.ClaimKey] != network.ClaimPreview || e.ledger.takes != 0 || len(resp.Warnings) != 1 {
		t.Errorf("%+v %q", m, resp.Warnings)
	}
}

func TestNotPods(t *testing.T) {
	e := newEnv(t)
	for _, more := range []string{`"subResource":"binding",`, `"operation":"UPDATE",`} {
		if resp, _ := e.ask(t, `{"metadata":{}}`, more); !resp.Allowed || len(resp.Patch) > 0 {
			t.Errorf("%s: %+v", more, resp)
		}
	}
}

func TestOurFault(t *testing.T) {
	cases := map[string]struct {
		change func(*Options)
		err    error
	}{
		"ledger":   {err: errors.New("etcd is away")},
		"topology": {change: func(o *Options) { o.Topology = fakeTopology{errors.New("no cache")} }},
		"random":   {change: func(o *Options) { o.Random = strings.NewReader("") }},
		"panic":    {change: func(o *Options) { o.Topology = nilTopology{} }},
	}
	for name, c := range cases {
		e := newEnv(t, func(o *Options) {
			if c.change != nil {
				c.change(o)
			}
		})
		e.ledger.err = c.err
		if w := e.post(reviewOf(`{"metadata":{}}`, "")); w.Code != http.StatusInternalServerError {
			t.Errorf("%s: HTTP %d %s", name, w.Code, w.Body)
		}
		if n := testutil.ToFloat64(e.metrics.panics); (n == 1) != (name == "panic") {
			t.Errorf("%s: %v panics", name, n)
		}
		if len(e.slots) != 0 {
			t.Errorf("%s: a slot was lost", name)
		}
	}
}

type nilTopology struct{}

func (nilTopology) For(context.Context, network.Pod) (catalog.View, error) {
	panic("boom")
}

func (nilTopology) ForLive(context.Context, network.Pod) (catalog.View, error) { panic("boom") }

func TestConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, func(o *Options) { o.Concurrency = 1 })
		e.ledger.block = make(chan struct{})
		first := make(chan int)
		go func() { first <- e.post(reviewOf(`{"metadata":{}}`, "")).Code }()
		synctest.Wait() // the first has the only slot
		resp, _ := e.ask(t, `{"metadata":{}}`, "")
		if resp.Allowed || resp.Result.Code != http.StatusTooManyRequests || resp.Result.Details.RetryAfterSeconds != 1 {
			t.Errorf("%+v", resp.Result)
		}
		close(e.ledger.block)
		if code := <-first; code != http.StatusOK {
			t.Error(code)
		}
	})
}

func TestDeadline(t *testing.T) {
	e := newEnv(t)
	for query, want := range map[string]time.Duration{"timeout=5s": 4500 * time.Millisecond, "timeout=600ms": 300 * time.Millisecond,
		"": 9500 * time.Millisecond, "timeout=x": 9500 * time.Millisecond, "timeout=1h": 29500 * time.Millisecond} {
		if got := e.timeout(httptest.NewRequest(http.MethodPost, "/mutate?"+query, nil)); got != want {
			t.Errorf("%q: %s, want %s", query, got, want)
		}
	}
	e.ledger.block = make(chan struct{})
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/mutate?timeout=20ms", strings.NewReader(reviewOf(`{"metadata":{}}`, "")))
	r.Header.Set("Content-Type", "application/json")
	if e.ServeHTTP(w, r); w.Code != http.StatusInternalServerError {
		t.Errorf("HTTP %d", w.Code)
	}
}

func TestBadRequests(t *testing.T) {
	cases := map[string]struct {
		method, kind, body string
		code               int
	}{
		"GET":       {"GET", "application/json", "", 405},
		"text":      {"POST", "text/plain", "{}", 415},
		"empty":     {"POST", "application/json", "", 400},
		"old":       {"POST", "application/json", `{"apiVersion":"admission.k8s.io/v1beta1","kind":"AdmissionReview","request":{"uid":"a"}}`, 400},
		"no pod":    {"POST", "application/json; charset=utf-8", reviewOf("null", ""), 400},
		"no meta":   {"POST", "application/json", reviewOf("{}", ""), 400},
		"too large": {"POST", "application/json", strings.Repeat(" ", bodyLimit+1), 413},
	}
	for name, c := range cases {
		w, r := httptest.NewRecorder(), httptest.NewRequest(c.method, "/mutate", strings.NewReader(c.body))
		r.Header.Set("Content-Type", c.kind)
		if newEnv(t).ServeHTTP(w, r); w.Code != c.code {
			t.Errorf("%s: HTTP %d %s", name, w.Code, w.Body)
		}
	}
}
