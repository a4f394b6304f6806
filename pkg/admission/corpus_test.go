package admission

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// hostile is bad input and the right answer to it: an HTTP error, or a refusal by a code, or an outcome.
type hostile struct {
	// Body is all of a call; Pod is its pod, with More in front; Now and Old are what a change is about.
	Body, Pod, More               string
	Resource, Operation, Now, Old string
	Held                          []string

	// HTTP is the status of a call that is not answered by a review.
	HTTP int
	// Code is a refusal's. Says must be in its message, or in the HTTP error.
	Code int32
	Says []string
	// Outcome is that of a pod that is not refused, Address begins what it gets, Warns is in one of its warnings.
	Outcome, Address, Warns string
	// Warnings are those of a change that is not refused.
	Warnings int
}

// corpus reads a file of cases by name.
func corpus(t *testing.T, file string) map[string]hostile {
	t.Helper()
	text, err := os.ReadFile("testdata/corpus/" + file)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]hostile{}
	if err := yaml.UnmarshalStrict(text, &out); err != nil {
		t.Fatal(err)
	}
	return out
}

// longest is what no answer exceeds, however long the question was.
const longest = 128 << 10

// check holds an answer to what is right.
func (c hostile) check(t *testing.T, w *httptest.ResponseRecorder) *admissionv1.AdmissionResponse {
	t.Helper()
	body := w.Body.String()
	if w.Body.Len() > longest {
		t.Errorf("the answer has %d bytes: %s ...", w.Body.Len(), body[:500])
	}
	if c.HTTP != 0 {
		if w.Code != c.HTTP {
			t.Errorf("HTTP %d, want %d: %s", w.Code, c.HTTP, body)
		}
		c.said(t, body)
		return nil
	}
	if w.Code != http.StatusOK {
		t.Fatalf("HTTP %d: %s", w.Code, body)
	}
	var r admissionv1.AdmissionReview
	if err := json.Unmarshal([]byte(body), &r); err != nil || r.Response == nil || r.Response.UID == "" {
		t.Fatalf("%v: %s", err, body)
	}
	resp := r.Response
	code := int32(0)
	if resp.Result != nil {
		code = resp.Result.Code
		c.said(t, resp.Result.Message)
	}
	if resp.Allowed != (c.Code == 0) || code != c.Code || !resp.Allowed && len(resp.Patch) > 0 {
		t.Errorf("allowed: %v, code %d, want %d: %s", resp.Allowed, code, c.Code, body)
	}
	return resp
}

func (c hostile) said(t *testing.T, text string) {
	t.Helper()
	for _, s := range c.Says {
		if !strings.Contains(text, s) {
			t.Errorf("no %q in %s", s, text)
		}
	}
}

// checkPod posts a review of a pod, or what comes instead.
func (c hostile) checkPod(t *testing.T, e http.Handler) {
	t.Helper()
	body := c.Body
	if c.Pod != "" {
		body = reviewOf(c.Pod, c.More)
	}
	w := httptest.NewRecorder()
	r := httptest.NewRequest(http.MethodPost, "/mutate?timeout=30s", strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	e.ServeHTTP(w, r)
	resp := c.check(t, w)
	if resp == nil || c.Code != 0 {
		return
	}
	if got := resp.AuditAnnotations[auditOutcome]; got != c.Outcome {
		t.Errorf("outcome %q, want %q", got, c.Outcome)
	}
	if warned := strings.Join(resp.Warnings, "\n"); !strings.Contains(warned, c.Warns) {
		t.Errorf("no %q in the warnings %q", c.Warns, warned)
	}
	if c.Pod == "" || len(resp.Patch) == 0 {
		return
	}
	patch, err := jsonpatch.DecodePatch(resp.Patch)
	if err != nil {
		t.Fatal(err)
	}
	after, err := patch.Apply([]byte(c.Pod))
	if err != nil {
		t.Fatalf("%v: %s", err, resp.Patch)
	}
	m := metaOf(t, string(after))
	if got := m.Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)]; !strings.HasPrefix(got, c.Address) {
		t.Errorf("address %q, want %s", got, c.Address)
	}
	for k := range m.Annotations {
		if network.Progress(k) {
			t.Errorf("%s is left", k)
		}
	}
}

// Bad input of every kind gets the right answer.
func TestB28Corpus(t *testing.T) {
	cases := map[string]hostile{}
	for _, file := range []string{"bodies.yaml", "pods.yaml"} {
		for name, c := range corpus(t, file) {
			cases[strings.TrimSuffix(file, ".yaml")+": "+name] = c
		}
	}
	for name, c := range large(t) {
		cases["large: "+name] = c
	}
	for name, c := range truncated() {
		cases["truncated: "+name] = c
	}
	changes := corpus(t, "objects.yaml")
	for name, c := range largeObjects() {
		changes["large: "+name] = c
	}
	if n := len(cases) + len(changes); n < 200 {
		t.Errorf("only %d cases", n)
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			c.checkPod(t, newPlace(t))
			// The other handler understands the same reviews, and has no opinion on pods.
			if c.Body != "" && c.HTTP != 0 && !strings.Contains(strings.Join(c.Says, ""), "no pod") {
				c.checkChange(t, c.Body)
			}
		})
	}
	for name, c := range changes {
		t.Run("objects: "+name, func(t *testing.T) {
			c.checkChange(t, about(c.Resource, c.Operation, nameIn(c), c.Now, c.Old))
		})
	}
}

// nameIn is the name of what a change is about.
func nameIn(c hostile) string {
	for _, text := range []string{c.Now, c.Old} {
		var o struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		}
		if json.Unmarshal([]byte(text), &o) == nil && o.Metadata.Name != "" {
			return o.Metadata.Name
		}
	}
	return "x"
}

// checkChange posts a review of a change of the topology.
func (c hostile) checkChange(t *testing.T, body string) {
	t.Helper()
	v := newValidation(t)
	for _, a := range c.Held {
		subnet := "a"
		if c.Resource == "subnets" {
			subnet = nameIn(c)
		}
		v.book.live = append(v.book.live, leaseOf(subnet, a))
	}
	if c.Body != "" {
		c.Says = nil // it says the same in words of its own
	}
	resp := c.check(t, v.post(body))
	if resp == nil || c.Code != 0 {
		return
	}
	if len(resp.Patch) > 0 || len(resp.Warnings) != c.Warnings {
		t.Errorf("patch %s, warnings %q, want %d", resp.Patch, resp.Warnings, c.Warnings)
	}
}

// annotated is a pod with one annotation.
func annotated(key, value string) string {
	text, err := json.Marshal(map[string]any{"metadata": map[string]any{"name": "a", "annotations": map[string]string{key: value}}})
	if err != nil {
		return "" // strings can always be written
	}
	return string(text)
}

// many joins n texts.
func many(n int, separator string, text func(int) string) string {
	parts := make([]string, n)
	for i := range parts {
		parts[i] = text(i)
	}
	return strings.Join(parts, separator)
}

func same(text string) func(int) string { return func(int) string { return text } }

// nested is text with so many brackets around it.
func nested(depth int, left, text, right string) string {
	return strings.Repeat(left, depth) + text + strings.Repeat(right, depth)
}

const quarter = 256 << 10 // what all annotations of a pod may have

// large are pods that are too much of something.
func large(t *testing.T) map[string]hostile {
	t.Helper()
	const address, pool, networks = "ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/ip_pool", "k8s.v1.cni.cncf.io/networks"
	fine := hostile{Outcome: outcomeAllocated, Address: "10.20.0."}
	with := func(c hostile, pod string) hostile { c.Pod = pod; return c }
	refusedFor := func(says ...string) hostile { return hostile{Code: 422, Says: says} }
	filled := func(n int) string { return strings.Repeat(" ", n) }
	return map[string]hostile{
		"a body above the limit":         {Body: filled(bodyLimit + 1), HTTP: 413, Says: []string{"more than"}},
		"a body at the limit, of blanks": {Body: filled(bodyLimit), HTTP: 400, Says: []string{"not an AdmissionReview"}},
		"a good body at the limit":       {Body: reviewOf(`{"metadata":{}}`, "") + filled(bodyLimit-len(reviewOf(`{"metadata":{}}`, ""))), Outcome: outcomeAllocated},
		"brackets beyond depth":          {Body: strings.Repeat("[", 100_000), HTTP: 400},
		"a body of open objects":         {Body: strings.Repeat(`{"a":`, 100_000), HTTP: 400},
		"an unknown field, deep":         with(fine, `{"metadata":{},"x":`+nested(5000, "[", "", "]")+`}`),
		"an unknown field, too deep":     {Pod: `{"metadata":{},"x":` + nested(10_001, "[", "", "]") + `}`, HTTP: 400},
		"a spec of objects, deep":        with(fine, `{"metadata":{},"spec":{"x":`+nested(4000, `{"a":`, "1", "}")+`}}`),
		"a number of a million digits":   with(fine, `{"metadata":{},"x":`+strings.Repeat("9", 1<<20)+`}`),
		"a name of a mebibyte":           with(refusedFor(), `{"metadata":{"name":"`+strings.Repeat("n", 1<<20)+`"}}`),
		"a uid of a mebibyte":            with(fine, `{"metadata":{"uid":"`+strings.Repeat("n", 1<<20)+`"}}`),
		"ten thousand finalizers":        with(fine, `{"metadata":{"finalizers":[`+many(10_000, ",", func(i int) string { return fmt.Sprintf(`"f.example/%d"`, i) })+`]}}`),
		"a hundred thousand labels":      with(fine, `{"metadata":{"labels":{`+many(100_000, ",", func(i int) string { return fmt.Sprintf(`"l%d":"v"`, i) })+`}}}`),
		"ten thousand annotations":       with(fine, `{"metadata":{"annotations":{`+many(10_000, ",", func(i int) string { return fmt.Sprintf(`"a%d":"v"`, i) })+`}}}`),
		"ten thousand owners": with(fine, `{"metadata":{"ownerReferences":[`+many(10_000, ",", func(i int) string {
			return fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"r%d","uid":"%d"}`, i, i)
		})+`]}}`),
		"ten thousand gates":                  {Pod: `{"metadata":{},"spec":{"schedulingGates":[` + many(10_000, ",", func(i int) string { return fmt.Sprintf(`{"name":"g%d"}`, i) }) + `]}}`, Outcome: outcomeGated},
		"ten thousand containers":             with(fine, `{"metadata":{},"spec":{"containers":[`+many(10_000, ",", same(`{"name":"c","image":"i"}`))+`]}}`),
		"another's annotation of 256 KiB":     with(fine, annotated("other", strings.Repeat("x", quarter))),
		"256 KiB for an address":              with(refusedFor(address), annotated(address, strings.Repeat("x", quarter))),
		"256 KiB of commas":                   with(fine, annotated(address, strings.Repeat(",", quarter))),
		"256 KiB of addresses":                with(refusedFor(address), annotated(address, strings.Repeat("10.20.0.9,", quarter/10))),
		"256 KiB for a MAC":                   with(refusedFor("mac_address"), annotated("ovn.kubernetes.io/mac_address", strings.Repeat("0", quarter))),
		"256 KiB for a subnet":                with(refusedFor("logical_switch"), annotated("ovn.kubernetes.io/logical_switch", strings.Repeat("s", quarter))),
		"256 KiB for a pool":                  with(refusedFor("ip_pool"), annotated(pool, strings.Repeat("p", quarter))),
		"a pool of addresses outside":         with(refusedFor("ip_pool"), annotated(pool, many(15_000, ";", func(i int) string { return fmt.Sprintf("10.99.%d.%d", i/250, i%250) }))),
		"256 KiB for a Vip":                   with(refusedFor("vip"), annotated("ovn.kubernetes.io/vip", strings.Repeat("v", quarter))),
		"256 KiB for a family":                with(refusedFor("ip_family"), annotated("ovn.kubernetes.io/ip_family", strings.Repeat("4", quarter))),
		"256 KiB for a claim":                 with(fine, annotated(network.ClaimKey, strings.Repeat("0", quarter))),
		"256 KiB for what was asked":          with(refusedFor(network.RequestedKey), annotated(network.RequestedKey, strings.Repeat("{", quarter))),
		"what was asked, deep":                with(refusedFor(network.RequestedKey), annotated(network.RequestedKey, nested(50_000, `{"ovn":`, "1", "}"))),
		"routes of 256 KiB":                   with(refusedFor("routes"), annotated("ovn.kubernetes.io/routes", "["+many(8000, ",", same(`{"dst":"x","gw":"10.20.0.1"}`))+"]")),
		"routes, deep":                        with(refusedFor("routes"), annotated("ovn.kubernetes.io/routes", nested(100_000, "[", "", "]"))),
		"ten thousand security groups":        with(refusedFor("security_groups"), annotated("ovn.kubernetes.io/security_groups", many(10_000, ",", func(i int) string { return fmt.Sprintf("sg%d", i) }))),
		"ten thousand networks":               with(refusedFor(networks), annotated(networks, many(10_000, ",", func(i int) string { return fmt.Sprintf("default/n%d", i) }))),
		"one network, ten thousand times":     with(refusedFor(networks), annotated(networks, many(10_000, ",", same("default/n1")))),
		"networks, deep":                      with(refusedFor(networks), annotated(networks, nested(50_000, "[", "", "]"))),
		"ten thousand keys of ours":           {Pod: `{"metadata":{"annotations":{` + many(10_000, ",", func(i int) string { return fmt.Sprintf(`"m%d.kubernetes.io/ip_address":"10.20.0.9"`, i) }) + `}}}`, Outcome: outcomeAllocated, Address: "10.20.0.", Warns: "which the pod has not"},
		"ten thousand faults":                 with(refusedFor("ingress_rate"), `{"metadata":{"annotations":{`+many(10_000, ",", func(i int) string { return fmt.Sprintf(`"m%d.kubernetes.io/ingress_rate":"-1"`, i) })+`}}}`),
		"a label of ours, a hundred thousand": with(fine, annotated("berth.dev/requested", `{"ovn":{`+many(5000, ",", func(i int) string { return fmt.Sprintf(`"x%d":"y"`, i) })+`}}`)),
	}
}

// truncated is one good review, cut off at many places.
func truncated() map[string]hostile {
	good := reviewOf(`{"metadata":{"name":"a","annotations":{"ovn.kubernetes.io/ip_address":"10.20.0.9"}},"spec":{"containers":[{"name":"c"}]}}`, "")
	out := map[string]hostile{}
	for n := 1; n < len(good); n += 17 {
		out[fmt.Sprintf("after %d bytes", n)] = hostile{Body: good[:n], HTTP: 400, Says: []string{"not an AdmissionReview"}}
	}
	return out
}

// largeObjects are changes that are too much of something.
func largeObjects() map[string]hostile {
	subnet := func(more string) string {
		return `{"metadata":{"name":"s"},"spec":{"cidrBlock":"10.20.0.0/16",` + more + `}}`
	}
	list := func(n int, text func(int) string) string { return "[" + many(n, ",", text) + "]" }
	held := make([]string, 0, 5000)
	for i := range cap(held) {
		held = append(held, fmt.Sprintf("10.20.%d.%d", i/250, i%250))
	}
	return map[string]hostile{
		"ten thousand exclusions":     {Resource: "subnets", Operation: "CREATE", Now: subnet(`"excludeIps":` + list(10_000, func(i int) string { return fmt.Sprintf(`"10.20.%d.%d"`, i/250, i%250) }))},
		"ten thousand bad exclusions": {Resource: "subnets", Operation: "CREATE", Now: subnet(`"excludeIps":` + list(10_000, same(`"foo"`))), Code: 422, Says: []string{"spec.excludeIps[0]"}},
		"a range of 256 KiB":          {Resource: "subnets", Operation: "CREATE", Now: `{"metadata":{"name":"s"},"spec":{"cidrBlock":"` + strings.Repeat("1", quarter) + `"}}`, Code: 422, Says: []string{"spec.cidrBlock"}},
		"ten thousand ranges":         {Resource: "subnets", Operation: "CREATE", Now: `{"metadata":{"name":"s"},"spec":{"cidrBlock":"` + many(10_000, ",", same("10.20.0.0/24")) + `"}}`, Code: 422, Says: []string{"spec.cidrBlock"}},
		"ten thousand namespaces":     {Resource: "subnets", Operation: "CREATE", Now: subnet(`"namespaces":` + list(10_000, func(i int) string { return fmt.Sprintf(`"n%d"`, i) }))},
		"shrunk below five thousand pods": {Resource: "subnets", Operation: "UPDATE", Old: subnet(`"mtu":1400`), Now: strings.Replace(subnet(`"mtu":1400`), "/16", "/30", 1), Held: held,
			Code: 422, Says: []string{"addresses are held", "more"}},
		"ten thousand bad addresses of a pool": {Resource: "ippools", Operation: "CREATE", Now: `{"metadata":{"name":"p"},"spec":{"subnet":"a","ips":` + list(10_000, same(`"foo"`)) + `}}`, Code: 422, Says: []string{"spec.ips[0]"}},
		"ten thousand subnets of a Vip":        {Resource: "vips", Operation: "CREATE", Now: `{"metadata":{"name":"v"},"spec":{"subnet":"a","attachSubnets":` + list(10_000, same(`"nowhere"`)) + `}}`, Code: 422, Says: []string{"spec.attachSubnets[0]"}},
		"a spec, deep":                         {Resource: "subnets", Operation: "CREATE", Now: subnet(`"x":` + nested(9000, "[", "", "]"))},
	}
}

// By another method or of another type nothing is read at all.
func TestB28CorpusOfCalls(t *testing.T) {
	good := reviewOf(`{"metadata":{}}`, "")
	for name, c := range map[string]struct {
		method, kind string
		code         int
	}{
		"GET": {"GET", "application/json", 405}, "PUT": {"PUT", "application/json", 405}, "DELETE": {"DELETE", "application/json", 405},
		"HEAD": {"HEAD", "application/json", 405}, "a method of its own": {"BREW", "application/json", 405}, "no type": {"POST", "", 415},
		"YAML": {"POST", "application/yaml", 415}, "protobuf": {"POST", "application/vnd.kubernetes.protobuf", 415}, "a form": {"POST", "multipart/form-data; boundary=x", 415},
		"a broken type": {"POST", "application/json; charset", 415}, "a list of types": {"POST", "application/json, text/plain", 415},
		"JSON in capitals": {"POST", "Application/JSON", 200}, "JSON of a set": {"POST", "application/json; charset=latin1", 200},
	} {
		t.Run(name, func(t *testing.T) {
			w, r := httptest.NewRecorder(), httptest.NewRequest(c.method, "/mutate?timeout=x&timeout=-1s&a=%zz", strings.NewReader(good))
			r.Header.Set("Content-Type", c.kind)
			if newPlace(t).ServeHTTP(w, r); w.Code != c.code {
				t.Errorf("HTTP %d, want %d: %s", w.Code, c.code, w.Body)
			}
		})
	}
}

// What was refused took nothing, and what was taken was taken once.
func TestB28CorpusLeavesNoLease(t *testing.T) {
	p := newPlace(t)
	for _, c := range corpus(t, "pods.yaml") {
		if c.HTTP == 0 && c.Code == 0 {
			continue
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(http.MethodPost, "/mutate", strings.NewReader(reviewOf(c.Pod, "")))
		r.Header.Set("Content-Type", "application/json")
		p.ServeHTTP(w, r)
	}
	if d := cmp.Diff([]ipam.Held(nil), p.ledger.Leases()); d != "" {
		t.Error(d)
	}
}
