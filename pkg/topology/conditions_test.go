package topology

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// leaf is a field that can be told by itself, and how to set it.
type leaf struct {
	path string
	set  func(spec reflect.Value)
}

// leaves walks a spec: into structs of this API and into lists of them, but not into what is one value to people.
func leaves(t reflect.Type, path string, at func(reflect.Value) reflect.Value) []leaf {
	var out []leaf
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		here := path + "." + name
		field := func(v reflect.Value) reflect.Value { return at(v).Field(i) }
		inner := f.Type
		list := inner.Kind() == reflect.Slice && inner.Elem().Kind() == reflect.Struct
		if list {
			inner = inner.Elem()
		}
		known := slices.Contains([]string{"StaticRoute", "PolicyRoute", "VpcPeering", "SecurityGroupRule", "U2OFeatures"}, inner.Name())
		switch {
		case inner.Kind() == reflect.Struct && known && list:
			out = append(out, leaves(inner, here, func(v reflect.Value) reflect.Value {
				l := field(v)
				if l.Len() == 0 {
					l.Set(reflect.MakeSlice(l.Type(), 1, 1))
				}
				return l.Index(0)
			})...)
		case inner.Kind() == reflect.Struct && known:
			out = append(out, leaves(inner, here, field)...)
		default:
			out = append(out, leaf{here, func(v reflect.Value) { fillIn(field(v)) }})
		}
	}
	return out
}

// fillIn gives a value something that isn't empty, throughout.
func fillIn(v reflect.Value) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString(policyPass)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(1)
	case reflect.Uint32:
		v.SetUint(1)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillIn(v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fillIn(v.Index(0))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				fillIn(v.Field(i))
			}
		}
	}
}

// index leaves away places in lists.
func noIndex(paths []string) []string {
	var out []string
	for _, p := range paths {
		out = append(out, strings.ReplaceAll(p, "[0]", ""))
	}
	return out
}

// everyField fails for a field of a spec that isn't in the table, for a path in the table that is no field, and for one
// that is never told though the table has it so.
func everyField[T any](t *testing.T, fields map[string]untold[T], prepare func(*T), look func(*T, Mode) []string) {
	t.Helper()
	spec := func(o *T) reflect.Value { return reflect.ValueOf(o).Elem().FieldByName("Spec") }
	all := leaves(spec(new(T)).Type(), "spec", func(v reflect.Value) reflect.Value { return v })
	var paths []string
	for _, l := range all {
		paths = append(paths, l.path)
		o := new(T)
		prepare(o)
		l.set(spec(o))
		told, known := fields[l.path]
		if !known {
			t.Errorf("%s is neither realised nor told", l.path)
			continue
		}
		want := when(told != nil, l.path)
		if diff := cmp.Diff(want, noIndex(look(o, Alone))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", l.path, diff)
		}
	}
	for _, path := range slices.Sorted(maps.Keys(fields)) {
		if !slices.Contains(paths, path) {
			t.Errorf("%s is no field", path)
		}
	}
	if len(look(new(T), Alone))+len(look(new(T), Beside)) > 0 {
		t.Error("an empty object has something to tell")
	}
}

func TestEveryFieldIsRealisedOrTold(t *testing.T) {
	t.Run("Subnet", func(t *testing.T) {
		everyField(t, subnetFields(), func(s *kubeovnv1.Subnet) { s.Spec.Provider = "macvlan.default" }, UnrealisedSubnet)
	})
	t.Run("Vpc", func(t *testing.T) { everyField(t, vpcFields(), func(*kubeovnv1.Vpc) {}, UnrealisedVpc) })
	t.Run("Vip", func(t *testing.T) { everyField(t, vipFields(), func(*kubeovnv1.Vip) {}, UnrealisedVip) })
	t.Run("SecurityGroup", func(t *testing.T) {
		everyField(t, securityFields(), func(*kubeovnv1.SecurityGroup) {}, UnrealisedSecurityGroup)
	})
}

func TestUnrealisedSubnet(t *testing.T) {
	yes, no := true, false
	type spec = kubeovnv1.SubnetSpec
	cases := map[string]struct {
		spec          spec
		alone, beside []string
	}{
		"nothing":                {},
		"ours":                   {spec: spec{Private: true, ACLs: []kubeovnv1.ACL{{}}, EnableDHCP: true, Vips: []string{"10.0.0.9"}}},
		"the daemons'":           {spec: spec{NatOutgoing: true, Mtu: 1400, ExternalEgressGateway: "10.0.0.1"}},
		"load balancer":          {spec: spec{EnableLb: &yes}, alone: []string{"spec.enableLb"}},
		"no load balancer":       {spec: spec{EnableLb: &no}},
		"several":                {spec: spec{EnableMulticastSnoop: true, EnableIPv6RA: true}, alone: []string{"spec.enableIPv6RA", "spec.enableMulticastSnoop"}},
		"a switch that isn't":    {spec: spec{Provider: "macvlan.default", Private: true}, alone: []string{"spec.private"}, beside: []string{"spec.private"}},
		"an attachment's switch": {spec: spec{Provider: "n.default.ovn", Private: true}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := subnet("s", tc.spec)
			for m, want := range map[Mode][]string{Alone: tc.alone, Beside: tc.beside} {
				if diff := cmp.Diff(want, UnrealisedSubnet(s, m)); diff != "" {
					t.Errorf("%s (-want +got):\n%s", m, diff)
				}
			}
		})
	}
}

func TestUnrealisedRules(t *testing.T) {
	pass := rule(func(r *kubeovnv1.SecurityGroupRule) { r.Policy = "pass" })
	g := securityGroup("web", func(s *kubeovnv1.SecurityGroupSpec) {
		s.Tier, s.IngressRules, s.EgressRules = 1, []kubeovnv1.SecurityGroupRule{rule(nil), pass}, []kubeovnv1.SecurityGroupRule{pass}
	})
	want := []string{"spec.egressRules[0].policy", "spec.ingressRules[1].policy", "spec.tier"}
	if diff := cmp.Diff(want, UnrealisedSecurityGroup(g, Alone)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if got := UnrealisedSecurityGroup(g, Beside); got != nil {
		t.Errorf("beside: %v", got)
	}
}
