package topology

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// centralized is a subnet of both families whose gateways are named.
func centralized(nodes string, edit ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := subnet("s", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/16,fd00::/64", GatewayType: "centralized", GatewayNode: nodes})
	for _, e := range edit {
		e(s)
	}
	return s
}

func active(name string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Status.ActivateGateway = name }
}

func ecmp(s *kubeovnv1.Subnet) { s.Spec.EnableEcmp = true }

// gatewayNodesOfTest are three nodes with places; n3 is not ready.
func gatewayNodesOfTest() []Node {
	nodes := []Node{node("n1", "", "100.64.0.2", "fd00:100::2"), node("n2", "", "100.64.0.3"), node("n3", "", "100.64.0.4")}
	nodes[0].Labels, nodes[1].Labels = map[string]string{"gw": "yes"}, map[string]string{"gw": "yes"}
	nodes[2].Ready = false
	return nodes
}

// ofSubnet are the lines about a subnet's way out.
func ofSubnet(lines []string) []string {
	return slices.DeleteFunc(lines, func(l string) bool {
		return !strings.Contains(l, " 29000 ") && !strings.Contains(l, " 29400 ") && !strings.Contains(l, " 300") && !strings.Contains(l, "group s.") ||
			strings.Contains(l, "address-family")
	})
}

func TestGateways(t *testing.T) {
	v4 := func(hops, ids string) string {
		return "ovn-cluster 29000 ip4.src == 10.0.0.0/16: reroute " + hops + " " + ids
	}
	v6 := func(hops, ids string) string {
		return "ovn-cluster 29000 ip6.src == fd00::/64: reroute " + hops + " " + ids
	}
	first := []string{v4("100.64.0.2", "n1=100.64.0.2 subnet=s"), v6("fd00:100::2", "n1=fd00:100::2 subnet=s")}
	second := []string{v4("100.64.0.3", "n2=100.64.0.3 subnet=s")}
	both := []string{v4("100.64.0.2,100.64.0.3", "n1=100.64.0.2 n2=100.64.0.3 subnet=s"), first[1]}
	cases := map[string]struct {
		subnet *kubeovnv1.Subnet
		want   []string
		active string
		found  int
	}{
		"the first that is named":           {subnet: centralized("n1, n2:192.168.0.9"), want: first, active: "n1"},
		"the one that is at it":             {subnet: centralized("n1,n2", active("n2")), want: second, active: "n2"},
		"the one that was is named no more": {subnet: centralized("n2", active("n1")), want: second, active: "n2"},
		"the one that was isn't ready":      {subnet: centralized("n3,n2", active("n3")), want: second, active: "n2"},
		"none is ready: the one that was": {subnet: centralized("n3", active("n3")),
			want: []string{v4("100.64.0.4", "n3=100.64.0.4 subnet=s")}, active: "n3"},
		"all of them":     {subnet: centralized("n3,n1,n2", ecmp), want: both},
		"nobody there":    {subnet: centralized("n9"), found: 1},
		"nobody is named": {subnet: centralized(""), found: 1},
		"chosen by labels": {subnet: centralized("", ecmp, func(s *kubeovnv1.Subnet) {
			s.Spec.GatewayNodeSelectors = []metav1.LabelSelector{{}, {MatchLabels: map[string]string{"gw": "yes"}}}
		}), want: both},
		"distributed": {subnet: centralized("n1", func(s *kubeovnv1.Subnet) { s.Spec.GatewayType = "" }), want: []string{
			"ovn-cluster 29000 ip4.src == $s.n1_ip4: reroute 100.64.0.2 node=n1 subnet=s",
			"ovn-cluster 29000 ip4.src == $s.n2_ip4: reroute 100.64.0.3 node=n2 subnet=s",
			"ovn-cluster 29000 ip4.src == $s.n3_ip4: reroute 100.64.0.4 node=n3 subnet=s",
			"ovn-cluster 29000 ip6.src == $s.n1_ip6: reroute fd00:100::2 node=n1 subnet=s",
			"group s.n1 node=n1 np=s/n1 subnet=s", "group s.n2 node=n2 np=s/n2 subnet=s", "group s.n3 node=n3 np=s/n3 subnet=s",
		}},
		"in another VPC": {subnet: centralized("n1", func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "v1" }), active: "n1"},
		"logical gateway": {subnet: centralized("n1", func(s *kubeovnv1.Subnet) { s.Spec.Vlan, s.Spec.LogicalGateway = "v", true }),
			want: first, active: "n1"},
		"underlay": {subnet: centralized("n1", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v" }), active: "n1"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			nodes := gatewayNodesOfTest()
			rows, findings := Rows(Input{Config: testConfig(), Nodes: nodes, Vpcs: []*kubeovnv1.Vpc{vpc("v1")},
				Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16,fd00:100::/64"), tc.subnet},
				Vlans:   []*kubeovnv1.Vlan{vlan("v", 7, "pn")}, ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}}})
			if diff := cmp.Diff(tc.want, ofSubnet(lines(t, rows)), cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if len(findings) != tc.found {
				t.Errorf("findings %v", findings)
			}
			if got := ActiveGateway(tc.subnet, nodes); got != tc.active {
				t.Errorf("active gateway %q, want %q", got, tc.active)
			}
		})
	}
}

func TestGroupsOfOneName(t *testing.T) {
	rows, findings := Rows(Input{Config: testConfig(),
		Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16"), aged(subnet("node", overlay("10.0.0.0/16")), 9),
			aged(subnet("s.1", overlay("10.1.0.0/16")), 2), aged(subnet("s", overlay("10.2.0.0/16")), 1)},
		Nodes: []Node{node("n", "", "100.64.0.2"), node("1-n", "", "100.64.0.3")}})
	groups := map[string]string{}
	for _, g := range rows.Groups {
		groups[g.Name] = g.ExternalIDs["np"]
	}
	want := map[string]string{"node.n": "node/n", "node.1.n": "node/1-n", "s.1.n": "s.1/n", "s.1.1.n": "s.1/1-n", "s.n": "s/n"}
	if diff := cmp.Diff(want, groups); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
	told := map[string]int{}
	for _, f := range findings {
		told[f.Name]++
	}
	if diff := cmp.Diff(map[string]int{"node": 2, "s": 1}, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}

// u2o is an underlay subnet that is joined to the overlay by an address.
func u2o(edit ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := subnet("u", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/16", Gateway: "10.0.0.254", Vlan: "v", U2OInterconnection: true})
	s.Status.U2OInterconnectionIP = "10.0.0.9"
	for _, e := range edit {
		e(s)
	}
	return s
}

func TestU2O(t *testing.T) {
	link := "ovn-cluster port ovn-cluster-u 10.0.0.9/16 lr=ovn-cluster"
	cases := map[string]struct {
		subnet *kubeovnv1.Subnet
		want   []string
		cfg    func(*Config)
	}{
		"to everywhere": {subnet: u2o(), want: []string{
			"ovn-cluster 31000 ip4.dst == {192.168.0.5, 192.168.0.6} && ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 29400 ip4.dst == 10.0.0.0/16: allow isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 29000 ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			link,
		}},
		"to the overlay only": {subnet: u2o(func(s *kubeovnv1.Subnet) { s.Spec.U2OFeatures.OverlayOnlyRouting = true }), want: []string{
			"ovn-cluster 31000 ip4.dst == {192.168.0.5, 192.168.0.6} && ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 30060 ip4.src == 10.0.0.0/16 && ip4.dst == 10.0.0.0/16: allow isU2OOverlayOnlyRoutePolicy=true isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 30050 ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 29400 ip4.src == {10.1.0.0/16, 100.64.0.0/16} && ip4.dst == 10.0.0.0/16: allow isU2OOverlayOnlyRoutePolicy=true isU2ORoutePolicy=true subnet=u",
			link,
		}},
		"Services by the nodes": {subnet: u2o(), cfg: func(c *Config) { c.ServiceCIDRs = []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")} }, want: []string{
			"ovn-cluster 31000 ip4.dst == {192.168.0.5, 192.168.0.6} && ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 29400 ip4.dst == 10.0.0.0/16: allow isU2ORoutePolicy=true subnet=u",
			"ovn-cluster 29400 ip4.src == $u.n1_ip4 && ip4.dst == 10.96.0.0/12: reroute 100.64.0.2 isU2ONoLBRoutePolicy=true isU2ORoutePolicy=true node=n1 subnet=u",
			"ovn-cluster 29400 ip4.src == $u.n2_ip4 && ip4.dst == 10.96.0.0/12: reroute 100.64.0.3 isU2ONoLBRoutePolicy=true isU2ORoutePolicy=true node=n2 subnet=u",
			"ovn-cluster 29000 ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			link,
			"group u.n1 node=n1 np=u/n1 subnet=u", "group u.n2 node=n2 np=u/n2 subnet=u",
		}},
		"in another VPC": {subnet: u2o(func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "v1" }), want: []string{
			"v1 31000 ip4.dst == {192.168.0.5, 192.168.0.6} && ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"v1 29400 ip4.dst == 10.0.0.0/16: allow isU2ORoutePolicy=true subnet=u",
			"v1 29000 ip4.src == 10.0.0.0/16: reroute 10.0.0.254 isU2ORoutePolicy=true subnet=u",
			"v1 port v1-u 10.0.0.9/16 lr=v1",
		}},
		"no address yet": {subnet: u2o(func(s *kubeovnv1.Subnet) { s.Status.U2OInterconnectionIP = "" })},
		"switched off":   {subnet: u2o(func(s *kubeovnv1.Subnet) { s.Spec.U2OInterconnection = false })},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := Input{Config: testConfig(), Nodes: []Node{node("n1", "192.168.0.5", "100.64.0.2"), node("n2", "192.168.0.6", "100.64.0.3")},
				Vpcs: []*kubeovnv1.Vpc{vpc("v1")}, Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16"), subnet("over", overlay("10.1.0.0/16")), tc.subnet},
				Vlans: []*kubeovnv1.Vlan{vlan("v", 7, "pn")}, ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}}}
			if tc.cfg != nil {
				tc.cfg(&in.Config)
			}
			rows, findings := Rows(in)
			got := slices.DeleteFunc(lines(t, rows), func(l string) bool {
				return !strings.Contains(l, "subnet=u") && !strings.Contains(l, "-u ")
			})
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
			if len(findings) > 0 {
				t.Errorf("findings %v", findings)
			}
		})
	}
}
