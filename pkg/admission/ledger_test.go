package admission

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/network"
)

const (
	ipKey      = "ovn.kubernetes.io/ip_address"
	networkKey = network.NetworksKey
)

// named is a bare pod.
func named(name, annotations string) []byte {
	return []byte(`{"metadata":{"name":"` + name + `","annotations":{` + annotations + `}},"spec":{"containers":[{"name":"a"}]}}`)
}

// A static address that is in use is refused at once, with its holder, and nothing else is taken.
func TestB117HolderIsNamed(t *testing.T) {
	p := newPlace(t)
	if resp, _ := p.review(t, named("first", `"ovn.kubernetes.io/ip_address":"10.20.0.9"`), ""); !resp.Allowed {
		t.Fatal(resp.Result)
	}
	p.review(t, []byte(`{"metadata":{"name":"db-0","annotations":{"ovn.kubernetes.io/ip_address":"10.20.0.10"},"ownerReferences":[{"apiVersion":"apps/v1","kind":"StatefulSet","name":"db","uid":"u","controller":true}]}}`), "")
	for address, holder := range map[string]string{"10.20.0.9": "a pod of namespace ns", "10.20.0.10": "StatefulSet ns/db-0"} {
		resp, _ := p.review(t, named("second", `"ovn.kubernetes.io/ip_address":"`+address+`"`), "")
		if resp.Allowed || resp.Result.Code != 409 {
			t.Fatalf("%s: %+v", address, resp)
		}
		for _, part := range []string{address, holder, "ns/second"} {
			if !strings.Contains(resp.Result.Message, part) {
				t.Errorf("%q has no %q", resp.Result.Message, part)
			}
		}
	}
	if n := len(p.ledger.Leases()); n != 2 {
		t.Errorf("%d leases of 2", n)
	}
}

// Another webhook adds a network to a pod that has its addresses: that one is added, as asked, and all else stays.
func TestB43NetworkAddedLater(t *testing.T) {
	cases := map[string]struct {
		before, after string // of the pod's networks
		wish          string // annotations that come with the change
		want          map[string]string
	}{
		"added":             {``, `default/n1`, ``, nil},
		"added with a wish": {``, `default/n1`, `"n1.default.ovn.kubernetes.io/ip_address":"10.30.0.9",`, map[string]string{"n1.default.ovn.kubernetes.io/ip_address": "10.30.0.9", network.RequestedKey: `{"n1.default.ovn":{"ip_address":"10.30.0.9"}}`}},
		"by selection":      {``, `[{\"name\":\"n1\",\"namespace\":\"default\",\"ips\":[\"10.30.0.9\"]}]`, ``, map[string]string{"n1.default.ovn.kubernetes.io/ip_address": "10.30.0.9"}},
		"the same twice":    {`default/n1`, `default/n1,default/n1`, ``, nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p := newPlace(t)
			_, first := p.review(t, named("web", `"k8s.v1.cni.cncf.io/networks":"`+c.before+`"`), "")
			before := metaOf(t, string(first)).Annotations
			changed := strings.Replace(string(first), `"`+networkKey+`":"`+c.before+`"`, c.wish+`"`+networkKey+`":"`+c.after+`"`, 1)
			resp, second := p.review(t, []byte(changed), "")
			if !resp.Allowed || resp.AuditAnnotations[auditOutcome] != outcomeKept || len(resp.Warnings) > 0 {
				t.Fatalf("%+v %q", resp.AuditAnnotations, resp.Warnings)
			}
			after := metaOf(t, string(second)).Annotations
			for k, v := range before {
				if k != networkKey && k != network.PluggedKey && after[k] != v {
					t.Errorf("%s was %q and is %q", k, v, after[k])
				}
			}
			if got := after[network.PluggedKey]; got != after[networkKey] {
				t.Errorf("it was planned by %q, and says %q", after[networkKey], got)
			}
			for k, v := range c.want {
				if after[k] != v {
					t.Errorf("%s is %q, want %q", k, after[k], v)
				}
			}
			if n := len(network.Carried(after)) - len(network.Carried(before)); n != 1 {
				t.Errorf("%d networks were added", n)
			}
			claim, _ := network.ClaimOf(after)
			if held := p.ledger.ByClaim(claim); len(held) != len(network.Carried(after)) {
				t.Errorf("%d leases of %d networks", len(held), len(network.Carried(after)))
			}
		})
	}
}

// A restored pod gets an address of its own when its former one is another's, and no other pod's is touched.
func TestB57RestoredPod(t *testing.T) {
	p := newPlace(t)
	_, old := p.review(t, named("old", ``), "")
	had := metaOf(t, string(old)).Annotations
	claim, _ := network.ClaimOf(had)
	for _, h := range p.ledger.ByClaim(claim) {
		if err := p.ledger.Free(t.Context(), h.Ref()); err != nil {
			t.Fatal(err)
		}
	}
	_, other := p.review(t, named("other", `"ovn.kubernetes.io/ip_address":"`+had[ipKey]+`"`), "")
	resp, restored := p.review(t, old, "")
	now := metaOf(t, string(restored)).Annotations
	if !resp.Allowed || now[ipKey] == had[ipKey] || now[ipKey] == "" || now[network.ClaimKey] == had[network.ClaimKey] || len(resp.Warnings) != 1 {
		t.Errorf("%v, %q", now, resp.Warnings)
	}
	holder, _ := network.ClaimOf(metaOf(t, string(other)).Annotations)
	var addresses []string
	for _, h := range p.ledger.ByClaim(holder) {
		addresses = append(addresses, h.Address.String())
	}
	if d := cmp.Diff([]string{had[ipKey]}, addresses); d != "" {
		t.Error(d)
	}
}
