package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// verdict is what a validation says: the errors' fields with a part of what they say, and parts of the warnings.
type verdict struct {
	Errors   []string // "<field>: <part>"
	Warnings []string
}

func (v verdict) check(t *testing.T, warnings []string, errs field.ErrorList) {
	t.Helper()
	if len(errs) != len(v.Errors) {
		t.Fatalf("errors %v, want %q", errs, v.Errors)
	}
	for i, want := range v.Errors {
		at, part, _ := strings.Cut(want, ": ")
		if errs[i].Field != at || !strings.Contains(errs[i].Detail, part) {
			t.Errorf("error %v, want %q", errs[i], want)
		}
	}
	has(t, "warning", warnings, v.Warnings)
}

// held is a lease of a pod.
func held(subnet, address, pod string) ipam.Held {
	return ipam.Held{Subnet: subnet, Lease: ipam.Lease{Address: netip.MustParseAddr(address), Owner: ipam.PodOwner("apps"), PodName: pod}}
}

func owned(h ipam.Held, o ipam.Owner) ipam.Held { h.Owner, h.PodName = o, ""; return h }

func labelled(name string, pairs ...string) Namespace {
	ns := Namespace{Name: name, Labels: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		ns.Labels[pairs[i]] = pairs[i+1]
	}
	return ns
}

// surroundings are two namespaces, one of which has opted in, two nodes, and some subnets.
func surroundings(leases ...ipam.Held) World {
	return World{Catalog: catalog(subnet("ovn-default", "10.16.0.0/16"), subnet("dual", "10.17.0.0/16,fd00:17::/64"),
		subnet("side", "10.16.0.0/16", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "side" }),
		subnet("macvlan", "10.30.0.0/24", serving("mv.default")), subnet("broken", "10.99.0.0/33")),
		Config: config(), Namespaces: []Namespace{labelled("apps", LabelInject, InjectEnabled, "team", "red"), labelled("old", "team", "blue")},
		Nodes: map[netip.Addr]string{netip.MustParseAddr("192.168.0.11"): "n1"}, APIServer: netip.MustParseAddr("10.96.0.1"), Leases: leases}
}

func TestHolders(t *testing.T) {
	for want, ls := range map[string][]ipam.Held{
		"1 address is held: 10.0.0.1 (pod apps/a)": {held("s", "10.0.0.1", "a")},
		"2 addresses are held: 10.0.0.1 (StatefulSet db/pg-0), 10.0.0.2 (Vip v)": {
			owned(held("s", "10.0.0.1", ""), ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "db", Name: "pg-0"}),
			owned(held("s", "10.0.0.2", ""), vipOwner("v"))},
		"5 addresses are held: 10.0.0.1 (a pod of namespace apps that is being created), 10.0.0.2 (pod apps/b), 10.0.0.3 (pod apps/c) and 2 more": {
			held("s", "10.0.0.1", ""), held("s", "10.0.0.2", "b"), held("s", "10.0.0.3", "c"), held("s", "10.0.0.4", "d"), held("s", "10.0.0.5", "e")},
	} {
		if d := cmp.Diff(want, holders(ls)); d != "" {
			t.Error(d)
		}
	}
}

// However an object is, one that is wrong in the same way may be changed otherwise.
func TestNoWorseIsNoReason(t *testing.T) {
	at := field.NewPath("spec", "cidrBlock")
	before := field.ErrorList{field.Invalid(at, "a", "bad"), field.Invalid(at, "a", "worse")}
	now := field.ErrorList{field.Invalid(at, "b", "bad"), field.Invalid(field.NewPath("spec", "gateway"), "b", "bad"), field.Forbidden(at, "bad"), field.Invalid(at, "b", "other")}
	var got []string
	for _, e := range onlyNew(now, before) {
		got = append(got, fmt.Sprintf("%s %s %s", e.Type, e.Field, e.Detail))
	}
	want := []string{"Invalid value spec.gateway bad", "Forbidden spec.cidrBlock bad", "Invalid value spec.cidrBlock other"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
