package network

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// in is a pod of a namespace in a catalog of these subnets.
func in(namespace string, p Pod, subnets ...*kubeovnv1.Subnet) world {
	p.Namespace = namespace
	return world{pod: p, ns: Namespace{Name: namespace}, cat: catalog(subnets...), cfg: config()}
}

// A broken subnet hides no other, whatever their order: all that can be used are candidates, and the pod goes on from
// one that is full to the next.
func TestB25BrokenSubnetHidesNone(t *testing.T) {
	orphan := func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "gone" }
	each := map[string]*kubeovnv1.Subnet{"ok1": subnet("ok1", "10.1.0.0/24"), "orphan": subnet("orphan", "10.2.0.0/24", orphan), "ok2": subnet("ok2", "10.3.0.0/24")}
	for _, order := range [][]string{{"ok1", "orphan", "ok2"}, {"ok1", "ok2", "orphan"}, {"orphan", "ok1", "ok2"}, {"orphan", "ok2", "ok1"}, {"ok2", "orphan", "ok1"}, {"ok2", "ok1", "orphan"}} {
		t.Run(strings.Join(order, ","), func(t *testing.T) {
			want := slices.DeleteFunc(slices.Clone(order), func(s string) bool { return s == "orphan" })
			w := in("red", annotated(), each["ok1"], each["orphan"], each["ok2"])
			w.ns.Annotations = map[string]string{ls: strings.Join(order, ",")}
			w.check(t, result{Networks: []string{"ovn from " + strings.Join(want, " ")}, Warnings: []string{`subnet "orphan" is in the VPC "gone"`}})
		})
	}
}

func TestB26NamespaceNamesDeletedSubnet(t *testing.T) {
	s1 := subnet("s1", "10.1.0.0/24")
	cases := map[string]struct {
		names string
		s     []*kubeovnv1.Subnet
		want  result
	}{
		"gone":          {"gone,s1", []*kubeovnv1.Subnet{s1}, result{Networks: []string{"ovn from s1"}, Warnings: []string{`subnet "gone" does not exist`}}},
		"gone, last":    {"s1,gone", []*kubeovnv1.Subnet{s1}, result{Networks: []string{"ovn from s1"}, Warnings: []string{`subnet "gone" does not exist`}}},
		"being deleted": {"old,s1", []*kubeovnv1.Subnet{s1, dying(subnet("old", "10.2.0.0/24"))}, result{Networks: []string{"ovn from s1"}, Warnings: []string{`subnet "old" is being deleted`}}},
		"all gone":      {"gone", []*kubeovnv1.Subnet{s1}, result{Warnings: []string{`"gone"`}, Errors: []string{`no subnet serves this namespace (subnet "gone" does not exist`}}},
		"blanks":        {" , s1, ", []*kubeovnv1.Subnet{s1}, result{Networks: []string{"ovn from s1"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(), c.s...)
			w.ns.Annotations = map[string]string{ls: c.names}
			w.check(t, c.want)
		})
	}
}

// A restricted subnet serves the namespaces only that it is bound to, also when it is asked for.
func TestRestrictedSubnet(t *testing.T) {
	restricted := annotate(RestrictedKey, "true")
	labelled := func(s *kubeovnv1.Subnet) {
		s.Spec.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "red"}}}
	}
	cases := map[string]struct {
		subnet *kubeovnv1.Subnet
		ok     bool
	}{
		"bound":          {subnet("s", "10.1.0.0/24", restricted, bound("red")), true},
		"bound by label": {subnet("s", "10.1.0.0/24", restricted, labelled), true},
		"not bound":      {subnet("s", "10.1.0.0/24", restricted, bound("blue")), false},
		"not restricted": {subnet("s", "10.1.0.0/24", bound("blue")), true},
		"switched off":   {subnet("s", "10.1.0.0/24", annotate(RestrictedKey, "false")), true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(ls, "s"), c.subnet)
			w.ns.Labels = map[string]string{"team": "red"}
			want := result{Networks: []string{"ovn from s"}, Requested: `{"ovn":{"logical_switch":"s"}}`}
			if !c.ok {
				want = result{Errors: []string{`subnet "s" is restricted by berth.dev/restricted`}}
			}
			w.check(t, want)
		})
	}
}

// A subnet of MACs alone has no address to ask for.
func TestMACOnlySubnet(t *testing.T) {
	macs := subnet("macs", "", func(s *kubeovnv1.Subnet) { s.Spec.Protocol = "Mac" })
	w := in("red", annotated(ls, "macs", mac, "02:00:00:00:00:01"), macs)
	w.check(t, result{Networks: []string{"ovn from macs, mac 02:00:00:00:00:01"}, Requested: `{"ovn":{"logical_switch":"macs","mac_address":"02:00:00:00:00:01"}}`})
	in("red", annotated(ls, "macs", ip, "10.0.0.1"), macs).check(t, result{Errors: []string{ip + `]: Invalid value: "10.0.0.1"`}})
	in("red", annotated(ls, "macs", fam, "ipv4"), macs).check(t, result{Errors: []string{fam + `]: Invalid value: "ipv4"`}})
	w.pod.Annotations[n1IP] = "" // blank asks for nothing
	planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	a := &ipam.Allocation{Claim: claimA, Interfaces: []ipam.Assignment{{Provider: "ovn", Subnet: w.cat.Subnets["macs"].Set, MAC: ipam.MAC{2, 0, 0, 0, 0, 1}}}}
	got := Annotations(planned, a, w.cat, w.cfg)
	for _, suffix := range []string{SuffixAddress, SuffixCIDR, SuffixGateway} {
		if v, ok := got[Key("ovn", suffix)]; ok {
			t.Errorf("%s=%q", suffix, v)
		}
	}
	if got[mac] != "02:00:00:00:00:01" || !Given(got, "ovn") {
		t.Errorf("%v", got)
	}
}

// An underlay subnet needs its Vlan, and that its ProviderNetwork.
func TestUnderlaySubnet(t *testing.T) {
	underlay := func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v" }
	for name, c := range map[string]struct {
		provider string // of the Vlan; "-": there is none
		err      string
	}{
		"usable": {"net", ""}, "no Vlan": {"-", `on the Vlan "v", which does not exist`}, "no ProviderNetwork": {"gone", `ProviderNetwork "gone", which does not exist`}, "none named": {"", `ProviderNetwork "", which does not exist`},
	} {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(ls, "s"), subnet("s", "10.1.0.0/24", underlay))
			w.cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
			if c.provider != "-" {
				w.cat.Vlans["v"] = &kubeovnv1.Vlan{Spec: kubeovnv1.VlanSpec{Provider: c.provider}}
			}
			want := result{Networks: []string{"ovn from s"}, Requested: `{"ovn":{"logical_switch":"s"}}`}
			if c.err != "" {
				want = result{Errors: []string{c.err}}
			}
			w.check(t, want)
		})
	}
}

// A gateway is the same address in whatever spelling, and can't be asked for.
func TestB12Gateway(t *testing.T) {
	v6 := subnet("s", "2001:db8::/64,10.1.0.0/24", gw("2001:0db8::0001,10.1.0.254"))
	for name, address := range map[string]string{"canonical": "2001:db8::1", "long": "2001:0DB8:0:0:0:0:0:1", "v4": "10.1.0.254", "mapped": "::ffff:10.1.0.254"} {
		t.Run(name, func(t *testing.T) {
			in("red", annotated(ls, "s", ip, address), v6).check(t, result{Errors: []string{"is the gateway of subnet s"}})
			in("red", annotated(ls, "s", poolKey, address), v6).check(t, result{Errors: []string{"is the gateway of subnet s"}})
		})
	}
	in("red", annotated(ls, "s", ip, "10.1.0.1"), v6).check(t, result{Networks: []string{"ovn from s, asks 10.1.0.1"}, Requested: `{"ovn":{"ip_address":"10.1.0.1","logical_switch":"s"}}`})
}

// Addresses are numbers, and written back in one spelling.
func TestB13Spelling(t *testing.T) {
	obj := subnet("s", "FD00:0000::/120", exclude("FD00::00E0..fd00::e9"))
	in("red", annotated(ls, "s", ip, "FD00:0::00EA"), obj).check(t, result{Networks: []string{"ovn from s, asks fd00::ea"}, Requested: `{"ovn":{"ip_address":"fd00::ea","logical_switch":"s"}}`})
	in("red", annotated(ls, "s", poolKey, "FD00::EA;fd00::00ea"), obj).check(t, result{Errors: []string{"fd00::ea is listed twice"}})
	s := NewSubnet(obj, Around{Pools: []*kubeovnv1.IPPool{pool(1, "p", "s", "", "FD00::00F0..fd00::F7")}})
	if s.Err != nil || s.CIDR != "fd00::/120" || s.Gateway != "fd00::1" {
		t.Fatalf("%+v", s)
	}
	for address, pool := range map[string]string{"fd00::f0": "p", "fd00::f7": "p", "fd00::f8": "", "fd00::e0": ""} {
		as, err := ParseAddresses(strings.ToUpper(address))
		if err != nil || !s.Set.InPool(pool, as[0]) {
			t.Errorf("%s is not in pool %q (%v)", address, pool, err)
		}
	}
}

// In a dual subnet one family may be asked for; the other is left to the ledger unless ip_family says otherwise.
func TestB34OneFamilyAsked(t *testing.T) {
	asks := func(ip string) string { return `{"ovn":{"ip_address":"` + ip + `","logical_switch":"dual"}}` }
	usually(annotated(ls, "dual", ip, "10.17.0.9")).check(t, result{Networks: []string{"ovn from dual, asks 10.17.0.9"}, Requested: asks("10.17.0.9")})
	usually(annotated(ls, "dual", ip, "10.17.0.9", fam, "ipv4")).check(t, result{Networks: []string{"ovn from dual, asks 10.17.0.9, only IPv4"}, Requested: asks("10.17.0.9")})
	usually(annotated(ls, "dual", ip, "fd00:17::9", fam, "ipv4")).check(t, result{Errors: []string{"of the other family"}})
}
