package admission

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// leaseBook knows some leases from the beginning, and others after a live read.
type leaseBook struct {
	known, live []ipam.Held
	refreshed   []string
	err         error
}

func (b *leaseBook) Leases() []ipam.Held { return b.known }

func (b *leaseBook) Refresh(_ context.Context, subnets ...string) error {
	b.refreshed = append(b.refreshed, subnets...)
	b.known = b.live
	return b.err
}

type fixedWorld struct{ err error }

func (f fixedWorld) WorldLive(ctx context.Context) (network.World, error) { return f.World(ctx) }

func (f fixedWorld) World(context.Context) (network.World, error) {
	if f.err != nil {
		return network.World{}, f.err
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16"}}
	return network.World{Catalog: network.Catalog{Subnets: map[string]network.Subnet{"a": network.NewSubnet(s, network.Around{})}},
		Namespaces: []network.Namespace{{Name: "ns"}}}, nil
}

type validation struct {
	*ValidateHandler
	book *leaseBook
	reg  *prometheus.Registry
}

func newValidation(t testing.TB, change ...func(*ValidateOptions)) validation {
	t.Helper()
	v := validation{book: &leaseBook{}, reg: prometheus.NewRegistry()}
	o := ValidateOptions{Ledger: v.book, Surroundings: fixedWorld{}, Metrics: v.reg, APIServer: netip.MustParseAddr("10.96.0.1"),
		Config: network.Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join"}}
	for _, c := range change {
		c(&o)
	}
	var err error
	if v.ValidateHandler, err = NewValidateHandler(o); err != nil {
		t.Fatal(err)
	}
	return v
}

func (v validation) post(body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/validate?timeout=5s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	v.ServeHTTP(w, r)
	return w
}

// about writes a review; an empty object is none.
func about(resource, operation, name, now, old string) string {
	group := "kubeovn.io"
	if resource == "namespaces" {
		group = ""
	}
	plural, sub, _ := strings.Cut(resource, "/")
	for _, o := range []*string{&now, &old} {
		if *o == "" {
			*o = "null"
		}
	}
	return fmt.Sprintf(`{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u1","name":%q,"operation":%q,`+
		`"resource":{"group":%q,"version":"v1","resource":%q},"subResource":%q,"object":%s,"oldObject":%s}}`, name, operation, group, plural, sub, now, old)
}

func subnetJSON(cidr, more string) string {
	return fmt.Sprintf(`{"apiVersion":"kubeovn.io/v1","kind":"Subnet","metadata":{"name":"s"%s},"spec":{"cidrBlock":%q,"fieldOfAnother":{"version":1}}}`, more, cidr)
}

func leaseOf(subnet, address string) ipam.Held {
	return ipam.Held{Subnet: subnet, Lease: ipam.Lease{Address: netip.MustParseAddr(address), Owner: ipam.PodOwner("ns"), PodName: "web"}}
}

// told is what an answer says, in short.
type told struct {
	Allowed   bool
	Code      int32
	Fields    []string
	Message   string // a part
	Warnings  int
	Refreshed []string
}

func TestValidate(t *testing.T) {
	pool := func(ips string) string {
		return `{"metadata":{"name":"p"},"spec":{"subnet":"a","ips":["` + ips + `"]}}`
	}
	vip := func(v4 string) string { return `{"metadata":{"name":"v"},"spec":{"subnet":"a","v4ip":"` + v4 + `"}}` }
	ns := func(label string) string {
		return `{"metadata":{"name":"ns","labels":{"berth.dev/inject":"` + label + `"}}}`
	}
	for name, c := range map[string]struct {
		body string
		live []ipam.Held
		want told
	}{
		"a good subnet":   {about("subnets", "CREATE", "s", subnetJSON("10.20.0.0/24", ""), ""), nil, told{Allowed: true}},
		"a bad subnet":    {about("subnets", "CREATE", "s", subnetJSON("10.16.4.0/24", ""), ""), nil, told{Code: 422, Fields: []string{"spec.cidrBlock"}, Message: "Subnet s: spec.cidrBlock"}},
		"a warned subnet": {about("subnets", "CREATE", "s", subnetJSON("FD00::/64", ""), ""), nil, told{Allowed: true, Warnings: 1}},
		"B07 a shrunk subnet": {about("subnets", "UPDATE", "s", subnetJSON("10.20.0.0/25", ""), subnetJSON("10.20.0.0/24", "")), []ipam.Held{leaseOf("s", "10.20.0.200")},
			told{Code: 422, Fields: []string{"spec.cidrBlock"}, Message: "10.20.0.200 (pod ns/web)", Refreshed: []string{"s"}}},
		"B54 finalizers alone": {about("subnets", "UPDATE", "s", subnetJSON("x", ""), subnetJSON("x", `,"finalizers":["f"]`)), nil, told{Allowed: true}},
		"B54 being deleted": {about("subnets", "UPDATE", "s", subnetJSON("x", `,"deletionTimestamp":"2026-01-01T00:00:00Z"`), subnetJSON("10.20.0.0/24", "")), nil,
			told{Allowed: true, Refreshed: []string{"s"}}},
		"a deleted subnet": {about("subnets", "DELETE", "s", "", subnetJSON("10.20.0.0/24", "")), []ipam.Held{leaseOf("s", "10.20.0.200")},
			told{Code: 409, Fields: []string{"metadata.name"}, Message: "1 address is held", Refreshed: []string{"s"}}},
		"a deleted subnet, empty": {about("subnets", "DELETE", "s", "", subnetJSON("10.20.0.0/24", "")), nil, told{Allowed: true, Refreshed: []string{"s"}}},
		"a subnet's status":       {about("subnets/status", "UPDATE", "s", subnetJSON("x", ""), subnetJSON("y", "")), nil, told{Allowed: true}},
		"a good pool":             {about("ippools", "CREATE", "p", pool("10.16.0.9"), ""), nil, told{Allowed: true, Refreshed: []string{"a"}}},
		"a bad pool":              {about("ippools", "CREATE", "p", pool("10.17.0.9"), ""), nil, told{Code: 422, Fields: []string{"spec.ips[0]"}, Message: "IPPool p", Refreshed: []string{"a"}}},
		"B06 a deleted pool": {about("ippools", "DELETE", "p", "", pool("10.16.0.9")), []ipam.Held{leaseOf("a", "10.16.0.9")},
			told{Code: 409, Fields: []string{"metadata.name"}, Message: "1 address is held", Refreshed: []string{"a"}}},
		"a Vip's held address": {about("vips", "CREATE", "v", vip("10.16.0.9"), ""), []ipam.Held{leaseOf("a", "10.16.0.9")},
			told{Code: 422, Fields: []string{"spec.v4ip"}, Message: "held by pod ns/web", Refreshed: []string{"a"}}},
		"a Vip, unchanged":     {about("vips", "UPDATE", "v", vip("x"), vip("x")), nil, told{Allowed: true}},
		"a namespace opts out": {about("namespaces", "UPDATE", "ns", ns(""), ns("enabled")), []ipam.Held{leaseOf("a", "10.16.0.9")}, told{Allowed: true}},
		"a deleted namespace":  {about("namespaces", "DELETE", "ns", "", ns("enabled")), nil, told{Allowed: true}},
		"another resource":     {about("vpcs", "CREATE", "v", `{"spec":7}`, ""), nil, told{Allowed: true}},
		"a connection":         {about("subnets", "CONNECT", "s", "", ""), nil, told{Allowed: true}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newValidation(t)
			v.book.live = c.live
			got, want := v.tell(t, c.body), c.want
			if strings.Contains(got.Message, want.Message) {
				got.Message, want.Message = "", ""
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Error(d)
			}
		})
	}
}

// tell posts a review that has to be answered.
func (v validation) tell(t *testing.T, body string) told {
	t.Helper()
	w := v.post(body)
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(w.Body.Bytes(), &review); err != nil || w.Code != http.StatusOK || review.Response == nil {
		t.Fatalf("%d %s", w.Code, w.Body)
	}
	r := review.Response
	if r.UID != "u1" || len(r.Patch) != 0 {
		t.Errorf("answered %+v", r)
	}
	got := told{Allowed: r.Allowed, Warnings: len(r.Warnings), Refreshed: v.book.refreshed}
	if r.Result != nil {
		got.Code, got.Message = r.Result.Code, r.Result.Message
		for _, cause := range r.Result.Details.Causes {
			got.Fields = append(got.Fields, cause.Field)
		}
	}
	return got
}

// A namespace is warned of what the ledger is known to hold, without a live read: nothing is refused for it.
func TestValidateNamespaceWarns(t *testing.T) {
	v := newValidation(t)
	v.book.known = []ipam.Held{leaseOf("a", "10.16.0.9")}
	w := v.post(about("namespaces", "UPDATE", "ns", `{"metadata":{"name":"ns"}}`, `{"metadata":{"name":"ns","labels":{"berth.dev/inject":"enabled"}}}`))
	if !strings.Contains(w.Body.String(), "1 addresses are still held") || !strings.Contains(w.Body.String(), `"allowed":true`) {
		t.Error(w.Body)
	}
}

// Faults of ours are failed calls, and what can't be understood is the caller's.
func TestValidateFaults(t *testing.T) {
	good := about("subnets", "DELETE", "s", "", subnetJSON("10.20.0.0/24", ""))
	for name, c := range map[string]struct {
		change func(*ValidateOptions)
		body   string
		code   int
		kind   string
		what   string
	}{
		"no topology":               {func(o *ValidateOptions) { o.Surroundings = fixedWorld{errors.New("away")} }, good, 500, kindSubnet, outcomeError},
		"no ledger":                 {func(o *ValidateOptions) { o.Ledger = &leaseBook{err: errors.New("away")} }, good, 500, kindSubnet, outcomeError},
		"a panic":                   {func(o *ValidateOptions) { o.Surroundings = panicking{} }, good, 500, kindSubnet, outcomePanic},
		"no object":                 {nil, about("subnets", "CREATE", "s", "", ""), 500, kindSubnet, outcomeError},
		"an object of another form": {nil, about("subnets", "CREATE", "s", `{"spec":7}`, ""), 500, kindSubnet, outcomeError},
		"no review":                 {nil, `{"kind":"Pod","apiVersion":"v1"}`, 400, kindOther, outcomeBadRequest},
		"no JSON":                   {nil, `{`, 400, kindOther, outcomeBadRequest},
		"no request":                {nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview"}`, 400, kindOther, outcomeBadRequest},
		"no uid":                    {nil, `{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{}}`, 400, kindOther, outcomeBadRequest},
		"too much":                  {nil, strings.Repeat(" ", bodyLimit+1), 413, kindOther, outcomeBadRequest},
	} {
		t.Run(name, func(t *testing.T) {
			if c.change == nil {
				c.change = func(*ValidateOptions) {}
			}
			v := newValidation(t, c.change)
			if w := v.post(c.body); w.Code != c.code {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if n := testutil.ToFloat64(v.requests.WithLabelValues(c.kind, c.what)); n != 1 {
				t.Errorf("%s %s counted %v times", c.kind, c.what, n)
			}
		})
	}
	if _, err := NewValidateHandler(ValidateOptions{}); err == nil {
		t.Error("made of nothing")
	}
	reg := prometheus.NewRegistry()
	for i, want := range []bool{true, false} {
		if _, err := NewValidateHandler(ValidateOptions{Ledger: &leaseBook{}, Surroundings: fixedWorld{}, Metrics: reg}); (err == nil) != want {
			t.Errorf("handler %d: %v", i, err)
		}
	}
}

type panicking struct{}

func (panicking) World(context.Context) (network.World, error) { panic("bug") }

func (panicking) WorldLive(context.Context) (network.World, error) { panic("bug") }

// Outcomes are counted by kind.
func TestValidateCounts(t *testing.T) {
	v := newValidation(t)
	v.post(about("subnets", "CREATE", "s", subnetJSON("10.20.0.0/24", ""), ""))
	v.post(about("subnets", "CREATE", "s", subnetJSON("10.16.0.0/24", ""), ""))
	for outcome, want := range map[string]float64{outcomeAllowed: 1, outcomeRefused: 1, outcomeError: 0} {
		if n := testutil.ToFloat64(v.requests.WithLabelValues(kindSubnet, outcome)); n != want {
			t.Errorf("%s: %v, want %v", outcome, n, want)
		}
	}
	if n, err := testutil.GatherAndCount(v.reg, "berth_validation_duration_seconds"); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

func FuzzValidate(f *testing.F) {
	f.Add(about("subnets", "CREATE", "s", subnetJSON("10.20.0.0/24", ""), ""))
	f.Add(about("subnets", "UPDATE", "s", subnetJSON("x", ""), subnetJSON("y,z", "")))
	f.Add(about("ippools", "DELETE", "p", "", `{"spec":{"ips":["1..2"]}}`))
	f.Add(about("vips", "UPDATE", "v", `{}`, `{"metadata":null}`))
	f.Add(about("namespaces", "UPDATE", "n", `{}`, `{"metadata":{"labels":null}}`))
	f.Fuzz(func(t *testing.T, body string) {
		v := newValidation(t)
		v.book.live = []ipam.Held{leaseOf("s", "10.20.0.200"), leaseOf("a", "10.16.0.9")}
		v.post(body)
		for _, kind := range append(validatedKinds(), kindOther) {
			if testutil.ToFloat64(v.requests.WithLabelValues(kind, outcomePanic)) != 0 {
				t.Errorf("panicked")
			}
		}
	})
}
