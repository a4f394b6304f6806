package network

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func TestAnnotations(t *testing.T) {
	cat := catalog(subnet("s", "10.0.0.0/24,fd00::/64", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v"; s.Spec.LogicalGateway = true }))
	cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
	cat.Vlans["v"] = &kubeovnv1.Vlan{Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "net"}}
	planned, errs := Plan(annotated(ls, "s", "ovn.kubernetes.io/pod_nic_type", "internal-port"), Namespace{}, cat, config())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	r := planned.Request(claimA, true)
	if r.Claim != claimA || !r.Existing || len(r.Interfaces) != 1 || r.Interfaces[0].Candidates[0].Subnet != cat.Subnets["s"].Set {
		t.Errorf("request %+v", r)
	}
	lease := func(a string) ipam.Held { return ipam.Held{Lease: ipam.Lease{Address: netip.MustParseAddr(a)}} }
	got := Annotations(planned, &ipam.Allocation{Claim: claimA, Interfaces: []ipam.Assignment{{Provider: "ovn", Subnet: cat.Subnets["s"].Set,
		Leases: []ipam.Held{lease("10.0.0.5"), lease("fd00::5")}, MAC: ipam.MAC{0x0a, 0x58, 10, 0, 0, 5}}}}, cat, config())
	want := map[string]string{ClaimKey: claimA, RequestedKey: `{"ovn":{"logical_switch":"s","pod_nic_type":"internal-port"}}`,
		ip: "10.0.0.5,fd00::5", mac: "0a:58:0a:00:00:05", ls: "s", "ovn.kubernetes.io/cidr": "10.0.0.0/24,fd00::/64",
		"ovn.kubernetes.io/gateway": "10.0.0.1,fd00::1", "ovn.kubernetes.io/pod_nic_type": "internal-port",
		"ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/vlan_id": "7", "ovn.kubernetes.io/provider_network": "net"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	carried := Carried(got)
	if len(carried) != 1 || carried[0].Subnet != "s" || join(carried[0].Addresses) != got[ip] || carried[0].MAC.String() != got[mac] {
		t.Errorf("carried %+v", carried)
	}
	got["app"] = "x"
	kept, dropped := Strip(got)
	if d := cmp.Diff([]string{"app", RequestedKey}, slices.Sorted(maps.Keys(kept))); d != "" || len(dropped) != 10 {
		t.Error(d, dropped)
	}
}

func TestCarried(t *testing.T) {
	got := Carried(map[string]string{ip: "x, fd00::1,10.0.0.1,10.0.0.2", mac: "zz", "net1.default.ovn.kubernetes.io/ip_address": "10.1.0.1",
		"a.b.kubernetes.io/mac_address": "02:00:00:00:00:01", "kubernetes.io/ip_address": "10.0.0.9", "e.kubernetes.io/ip_address": ""})
	var texts []string
	for _, c := range got {
		texts = append(texts, c.Provider+" "+join(c.Addresses)+" "+c.MAC.String())
	}
	want := []string{"ovn 10.0.0.1,fd00::1 ", "a.b  02:00:00:00:00:01", "net1.default.ovn 10.1.0.1 "}
	if d := cmp.Diff(want, texts); d != "" {
		t.Error(d)
	}
	if _, ok := ClaimOf(map[string]string{ClaimKey: ClaimPreview}); ok {
		t.Error("a preview was taken for a claim")
	}
}

// several is what a pod carries of three networks, with a request and annotations of others.
func several() map[string]string {
	return map[string]string{"app": "x", NetworksKey: "n1,n1@net2", ClaimKey: claimA, RequestedKey: `{"ovn":{"ip_address":"10.16.0.9"}}`,
		ip: "10.16.0.9", mac: "0a:58:0a:10:00:09", ls: "ovn-default", "ovn.kubernetes.io/cidr": "10.16.0.0/16", "ovn.kubernetes.io/routed": "true", poolKey: "p",
		n1IP: "fd00:31::9,10.30.0.9", n1MAC: "02:00:00:00:00:01", "n1.default.ovn.kubernetes.io/logical_switch": "s1", "n1.default.ovn.kubernetes.io/pod_nic_type": "veth-pair", "n1.default.ovn.kubernetes.io/allocated": "true",
		"n1.default.ovn.net2.kubernetes.io/ip_address": "10.30.0.10", "n1.default.ovn.net2.kubernetes.io/mac_address": "02:00:00:00:00:02",
		"n1.default.kubernetes.io/ip_address.net2": "10.30.0.10", "mv.default.kubernetes.io/ip_address": "10.32.0.9", "mv.default.kubernetes.io/cidr": "10.32.0.0/24",
		"n1.default.ovn.kubernetes.io/ingress_rate": "3", "bare.default.kubernetes.io/logical_switch": "s9"}
}

// Of a copy stays what its author wrote, of every network.
func TestB57StripOfSeveralNetworks(t *testing.T) {
	kept, dropped := Strip(several())
	if d := cmp.Diff([]string{"app", RequestedKey, NetworksKey, "n1.default.kubernetes.io/ip_address.net2", "n1.default.ovn.kubernetes.io/ingress_rate", poolKey}, slices.Sorted(maps.Keys(kept))); d != "" {
		t.Error(d)
	}
	if len(kept)+len(dropped) != len(several()) || !slices.IsSorted(dropped) {
		t.Errorf("dropped %q", dropped)
	}
	for _, k := range dropped {
		if !Output(k) {
			t.Errorf("%s is none of ours", k)
		}
	}
}

// The request of a copy is honoured, its answer is not: in another namespace it gets an address of that.
func TestB57CopyIsPlannedAnew(t *testing.T) {
	answer := map[string]string{ClaimKey: claimA, ip: "10.16.0.9", mac: "0a:58:0a:10:00:09", ls: "ovn-default", "ovn.kubernetes.io/cidr": "10.16.0.0/16", n1IP: "10.30.0.9", "n1.default.ovn.kubernetes.io/cidr": "10.30.0.0/24"}
	asked := maps.Clone(answer)
	asked[RequestedKey] = `{"ovn":{"ip_address":"10.16.0.9"}}`
	for name, c := range map[string]struct {
		have map[string]string
		want result
	}{
		"nothing was asked for": {answer, result{Networks: []string{"ovn from red", "n1.default.ovn from s1"}}},
		"an address was":        {asked, result{Errors: []string{`metadata.annotations[berth.dev/requested].ovn.ip_address: Invalid value: "10.16.0.9"`}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := attached(annotated(), nad("n1"))
			w.pod.Annotations, _ = Strip(c.have)
			w.pod.Namespace, w.ns.Name = "red", "red"
			delete(w.cat.Subnets, "broken")
			delete(w.cat.Subnets, "lost")
			w.check(t, c.want)
		})
	}
}

func TestGivenByNetwork(t *testing.T) {
	for provider, want := range map[string]bool{"ovn": true, "n1.default.ovn": true, "n1.default.ovn.net2": false, "mv.default": true, "bare.default": false, "n9.default.ovn": false} {
		if got := Given(several(), provider); got != want {
			t.Errorf("%s: %v", provider, got)
		}
	}
}

func TestCarriedOfSeveralNetworks(t *testing.T) {
	var texts []string
	for _, c := range Carried(several()) {
		texts = append(texts, strings.Join([]string{c.Provider, c.Subnet, join(c.Addresses), c.MAC.String()}, " "))
	}
	want := []string{"ovn ovn-default 10.16.0.9 0a:58:0a:10:00:09", "bare.default s9  ", "mv.default  10.32.0.9 ", "n1.default.ovn s1 10.30.0.9,fd00:31::9 02:00:00:00:00:01",
		"n1.default.ovn.net2  10.30.0.10 02:00:00:00:00:02"}
	if d := cmp.Diff(want, texts); d != "" {
		t.Error(d)
	}
}

// What several networks carry is written by each one's provider, and of an attachment that another CNI plugs in the
// address alone.
func TestAnnotationsOfSeveralNetworks(t *testing.T) {
	w := attached(annotated(n1IP, "10.30.0.9"), nad("n1"), nad("mv"))
	planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	got := Annotations(planned, answerTo(planned), w.cat, w.cfg)
	want := map[string]string{ClaimKey: claimA, RequestedKey: `{"n1.default.ovn":{"ip_address":"10.30.0.9"}}`,
		ip: "10.16.0.2", mac: "0a:58:0a:10:00:02", ls: "ovn-default", "ovn.kubernetes.io/cidr": "10.16.0.0/16", "ovn.kubernetes.io/gateway": "10.16.0.1",
		"ovn.kubernetes.io/pod_nic_type": "veth-pair", "ovn.kubernetes.io/logical_router": "ovn-cluster",
		n1IP: "10.30.0.9", n1MAC: "0a:58:0a:1e:00:09", "n1.default.ovn.kubernetes.io/logical_switch": "s1", "n1.default.ovn.kubernetes.io/cidr": "10.30.0.0/24",
		"n1.default.ovn.kubernetes.io/gateway": "10.30.0.1", "n1.default.ovn.kubernetes.io/pod_nic_type": "veth-pair", "n1.default.ovn.kubernetes.io/logical_router": "ovn-cluster",
		"mv.default.kubernetes.io/ip_address": "10.32.0.2", "mv.default.kubernetes.io/cidr": "10.32.0.0/24", "mv.default.kubernetes.io/gateway": "10.32.0.1"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// The router and the Vlan are told of by the subnet's kind.
func TestAnnotationsByTopology(t *testing.T) {
	cases := map[string]struct {
		change                 func(*kubeovnv1.Subnet)
		router, vlan, provider string
	}{
		"overlay":         {func(*kubeovnv1.Subnet) {}, "ovn-cluster", "", ""},
		"custom VPC":      {func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "v1" }, "v1", "", ""},
		"underlay":        {func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v" }, "", "7", "net"},
		"logical gateway": {func(s *kubeovnv1.Subnet) { s.Spec.Vlan, s.Spec.LogicalGateway = "v", true }, "ovn-cluster", "7", "net"},
		"interconnected":  {func(s *kubeovnv1.Subnet) { s.Spec.Vlan, s.Spec.U2OInterconnection = "v", true }, "ovn-cluster", "7", "net"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(ls, "s"), subnet("s", "10.0.0.0/24", c.change))
			w.cat.Vpcs["v1"] = &kubeovnv1.Vpc{}
			w.cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
			w.cat.Vlans["v"] = &kubeovnv1.Vlan{Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "net"}}
			planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
			if len(errs) > 0 {
				t.Fatal(errs)
			}
			got := Annotations(planned, answerTo(planned), w.cat, w.cfg)
			if d := cmp.Diff([]string{c.router, c.vlan, c.provider}, []string{got[Key("ovn", SuffixRouter)], got[Key("ovn", SuffixVlanID)], got[Key("ovn", SuffixProviderNetwork)]}); d != "" {
				t.Error(d)
			}
		})
	}
}
