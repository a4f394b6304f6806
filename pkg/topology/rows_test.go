package topology

import (
	"errors"
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func vpc(name string) *kubeovnv1.Vpc {
	return &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
}

func vendor(more ...string) map[string]string {
	m := map[string]string{"vendor": "kube-ovn"}
	for i := 0; i < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// topo are the marks of a row that follows from topology.
func topo(more ...string) map[string]string {
	return vendor(append(more, "berth-purpose", "topology")...)
}

func tag(id int) *int { return &id }

func vlan(name string, id int, provider string) *kubeovnv1.Vlan {
	return &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{ID: id, Provider: provider}}
}

func router(name, learn string) nb.LogicalRouter {
	return nb.LogicalRouter{Name: name, ExternalIDs: topo(), Options: map[string]string{
		"mac_binding_age_threshold": "300", "dynamic_neigh_routers": "true", "always_learn_from_arp_request": learn,
	}}
}

func TestRows(t *testing.T) {
	in := Input{
		Config: testConfig(),
		Vpcs:   []*kubeovnv1.Vpc{vpc("v1"), vpc("ovn-cluster")},
		Subnets: []*kubeovnv1.Subnet{
			subnet("dual", kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64,10.16.0.0/16"}),
			subnet("private", kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Vpc: "v1", Gateway: "10.16.0.9"}),
			subnet("underlay", kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/16", Vlan: "v", U2OInterconnection: true}),
			subnet("lgw", kubeovnv1.SubnetSpec{CIDRBlock: "10.18.0.0/16", Vlan: "v", LogicalGateway: true}),
			subnet("macvlan", kubeovnv1.SubnetSpec{CIDRBlock: "10.19.0.0/16", Provider: "macvlan.default"}),
			subnet("attached", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/16", Provider: "n.default.ovn", Vpc: "v1"}),
		},
		Vlans:            []*kubeovnv1.Vlan{vlan("v", 7, "pn")},
		ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}},
		MAC:              func(seed string) string { return "mac of " + seed },
	}
	want := nb.Rows{Routers: []nb.LogicalRouter{router("ovn-cluster", "true"), router("v1", "false")}, Whole: true, Options: globalOptions()}
	for _, name := range []string{"attached", "dual", "lgw", "private", "underlay"} {
		want.Switches = append(want.Switches, nb.LogicalSwitch{Name: name, ExternalIDs: topo()})
	}
	want.Complete = []string{"attached", "dual", "lgw", "private", "underlay"}
	for _, name := range want.Complete {
		want.ACLs = append(want.ACLs, nb.ACLs{Switch: name})
	}
	link := func(r, s string, networks ...string) {
		want.RouterPorts = append(want.RouterPorts, nb.RouterPort{Router: r, Row: nb.LogicalRouterPort{
			Name: r + "-" + s, MAC: "mac of " + r + "/" + s, Networks: networks, ExternalIDs: topo("lr", r)}})
	}
	port := func(s, r string) {
		want.Ports = append(want.Ports, nb.Port{Switch: s, Row: nb.LogicalSwitchPort{
			Name: s + "-" + r, Type: "router", Addresses: []string{"router"},
			Options: map[string]string{"router-port": r + "-" + s}, ExternalIDs: topo("ls", s)}})
	}
	link("ovn-cluster", "dual", "10.16.0.1/16", "fd00::1/64")
	link("ovn-cluster", "lgw", "10.18.0.1/16")
	link("v1", "attached", "10.20.0.1/16")
	link("v1", "private", "10.16.0.9/16")
	localnet := func(s, cidr string) {
		want.Ports = append(want.Ports, nb.Port{Switch: s, Row: nb.LogicalSwitchPort{
			Name: "localnet." + s, Type: "localnet", Addresses: []string{"unknown"}, Tag: tag(7),
			Options: map[string]string{"network_name": "pn"}, ExternalIDs: topo("ls", s, "ipv4_network", cidr)}})
	}
	port("attached", "v1")
	port("dual", "ovn-cluster")
	port("lgw", "ovn-cluster")
	localnet("lgw", "10.18.0.0/16")
	localnet("underlay", "10.17.0.0/16")
	port("private", "v1")
	allow := func(router, match, subnet string) {
		want.Policies = append(want.Policies, nb.Policy{Router: router, Row: nb.RouterPolicy{
			Priority: 31000, Match: match, Action: "allow", ExternalIDs: topo("subnet", subnet)}})
	}
	allow("ovn-cluster", "ip4.dst == 10.16.0.0/16", "dual")
	allow("ovn-cluster", "ip4.dst == 10.18.0.0/16", "lgw")
	allow("ovn-cluster", "ip6.dst == fd00::/64", "dual")
	allow("v1", "ip4.dst == 10.16.0.0/16", "private")
	allow("v1", "ip4.dst == 10.20.0.0/16", "attached")
	got, findings := Rows(in)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if len(findings) != 0 {
		t.Errorf("findings %v", findings)
	}
}

func TestRowsOfNothing(t *testing.T) {
	got, findings := Rows(Input{Config: testConfig()})
	if diff := cmp.Diff(nb.Rows{Routers: []nb.LogicalRouter{router("ovn-cluster", "false")}, Whole: true, Options: globalOptions()}, got); diff != "" {
		t.Error(diff)
	}
	if len(findings) != 0 {
		t.Errorf("findings %v", findings)
	}
}

func aged(s *kubeovnv1.Subnet, hours int) *kubeovnv1.Subnet {
	s.CreationTimestamp = metav1.NewTime(time.Unix(0, 0).Add(-time.Duration(hours) * time.Hour))
	return s
}

func overlay(cidr string) kubeovnv1.SubnetSpec { return kubeovnv1.SubnetSpec{CIDRBlock: cidr} }

func inVpc(vpc, cidr string) kubeovnv1.SubnetSpec {
	return kubeovnv1.SubnetSpec{CIDRBlock: cidr, Vpc: vpc}
}

func inVlan(vlan string) kubeovnv1.SubnetSpec {
	return kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/16", Vlan: vlan}
}

// findingCase is a topology that can't be realised as a whole, and what becomes of it.
type findingCase struct {
	vpcs    []*kubeovnv1.Vpc
	subnets []*kubeovnv1.Subnet
	// found is the object of the only finding, of the type of as; nil as: there is none.
	found string
	as    any
	links []string
}

func findingCases() map[string]findingCase {
	var (
		overlap *OverlapError
		missing *MissingVpcError
		clash   *NameClashError
	)
	return map[string]findingCase{
		"overlap: the older one stays": {
			subnets: []*kubeovnv1.Subnet{
				aged(subnet("a", overlay("10.0.0.0/16")), 1),
				aged(subnet("b", overlay("10.0.9.0/24")), 2),
			},
			found: "a", as: &overlap, links: []string{"ovn-cluster-b"},
		},
		"no overlap between VPCs": {
			vpcs: []*kubeovnv1.Vpc{vpc("v1")},
			subnets: []*kubeovnv1.Subnet{
				subnet("a", overlay("10.0.0.0/16")),
				subnet("b", inVpc("v1", "10.0.0.0/16")),
			},
			links: []string{"ovn-cluster-a", "v1-b"},
		},
		"no overlap between VLANs without a common router": {
			subnets: []*kubeovnv1.Subnet{
				subnet("a", inVlan("1")),
				subnet("b", inVlan("2")),
				subnet("c", overlay("10.0.0.0/16")),
			},
			links: []string{"ovn-cluster-c"},
		},
		"overlap on one VLAN": {
			subnets: []*kubeovnv1.Subnet{
				subnet("a", inVlan("1")),
				subnet("b", inVlan("1")),
			},
			found: "b", as: &overlap,
		},
		"no such VPC": {
			subnets: []*kubeovnv1.Subnet{
				subnet("a", inVpc("nowhere", "10.0.0.0/16")),
				subnet("b", overlay("10.0.0.0/16")),
			},
			found: "a", as: &missing, links: []string{"ovn-cluster-b"},
		},
		"one name for two router ports": {
			vpcs: []*kubeovnv1.Vpc{vpc("x"), vpc("x-y")},
			subnets: []*kubeovnv1.Subnet{
				subnet("y-z", inVpc("x", "10.0.0.0/16")),
				subnet("z", inVpc("x-y", "10.1.0.0/16")),
			},
			found: "z", as: &clash, links: []string{"x-y-z"},
		},
		"VPC and subnet of one name": {
			vpcs:    []*kubeovnv1.Vpc{vpc("x")},
			subnets: []*kubeovnv1.Subnet{subnet("x", inVpc("x", "10.0.0.0/16"))},
			found:   "x", as: &clash, links: []string{"x-x"},
		},
	}
}

func TestFindings(t *testing.T) {
	for name, tc := range findingCases() {
		t.Run(name, func(t *testing.T) {
			rows, findings := Rows(Input{Config: testConfig(), Vpcs: tc.vpcs, Subnets: tc.subnets,
				Vlans:            []*kubeovnv1.Vlan{vlan("1", 1, "pn"), vlan("2", 2, "pn")},
				ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}}})
			if len(rows.Switches) != len(tc.subnets) {
				t.Errorf("%d switches, want %d", len(rows.Switches), len(tc.subnets))
			}
			var links []string
			for _, p := range rows.RouterPorts {
				links = append(links, p.Row.Name)
			}
			if diff := cmp.Diff(tc.links, links); diff != "" {
				t.Errorf("router ports (-want +got):\n%s", diff)
			}
			if tc.as == nil {
				if len(findings) > 0 {
					t.Errorf("findings %v", findings)
				}
				return
			}
			if len(findings) != 1 || findings[0].Name != tc.found || !errors.As(findings[0].Err, tc.as) {
				t.Errorf("findings %v, want one of %s, %T", findings, tc.found, tc.as)
			}
		})
	}
}

func TestBrokenSubnetKeepsItsSwitch(t *testing.T) {
	rows, findings := Rows(Input{Config: testConfig(), Subnets: []*kubeovnv1.Subnet{
		subnet("broken", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/99"}),
		subnet("sound", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/16"}),
	}})
	if len(findings) != 1 || findings[0].Kind != KindSubnet || findings[0].Name != "broken" {
		t.Errorf("findings %v", findings)
	}
	if len(rows.Switches) != 2 || len(rows.RouterPorts) != 1 {
		t.Errorf("%d switches and %d router ports, want 2 and 1", len(rows.Switches), len(rows.RouterPorts))
	}
}

func TestRowsDoNotDependOnOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := Input{Config: testConfig(), Vpcs: []*kubeovnv1.Vpc{vpc("v1"), vpc("v2")}}
		for i, spec := range rapid.SliceOfN(genSpec(), 0, 6).Draw(t, "specs") {
			in.Subnets = append(in.Subnets, aged(subnet(fmt.Sprintf("s%d", i), spec), rapid.IntRange(0, 2).Draw(t, "age")))
		}
		rows, findings := Rows(in)
		shuffle := rand.New(rand.NewSource(rapid.Int64().Draw(t, "seed")))
		shuffle.Shuffle(len(in.Subnets), func(i, j int) { in.Subnets[i], in.Subnets[j] = in.Subnets[j], in.Subnets[i] })
		in.Vpcs[0], in.Vpcs[1] = in.Vpcs[1], in.Vpcs[0]
		rows2, findings2 := Rows(in)
		if diff := cmp.Diff(rows, rows2); diff != "" {
			t.Fatalf("rows:\n%s", diff)
		}
		if a, b := fmt.Sprint(findings), fmt.Sprint(findings2); a != b {
			t.Fatalf("findings %s and %s", a, b)
		}
	})
}

func TestDefaultMACIsNobodyElses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mac := DefaultMAC(rapid.String().Draw(t, "seed"))
		if len(mac) != 17 || mac[:3] != "02:" {
			t.Fatalf("MAC %q", mac)
		}
	})
}

func TestIsOVN(t *testing.T) {
	cases := map[string]bool{
		"": true, "ovn": true, "net1.default.ovn": true, "net1.default": false, "net1.default.ovn.net2": false, "..ovn": false,
	}
	for provider, want := range cases {
		if got := IsOVN(provider); got != want {
			t.Errorf("IsOVN(%q) = %v, want %v", provider, got, want)
		}
	}
}

func TestHasPort(t *testing.T) {
	cases := map[string]bool{
		"": true, "ovn": true, "net1.default.ovn": true, "net1.default.ovn.net2": true, "net1.default.ovn.eth0.100": true,
		"net1.default": false, "net1.default.net2": false, "net1.default.eth0.100": false, "..ovn.net2": false,
	}
	for provider, want := range cases {
		if got := HasPort(provider); got != want {
			t.Errorf("HasPort(%q) = %v, want %v", provider, got, want)
		}
	}
}
