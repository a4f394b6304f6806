package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// node is a ready node with one address in the physical network, and places on the join switch.
func node(name, internal string, join ...string) Node {
	n := Node{Name: name, Ready: true, MAC: "0A:58:64:40:00:02"}
	for _, text := range join {
		n.Join = append(n.Join, netip.MustParseAddr(text))
	}
	if internal != "" {
		n.Internal = []netip.Addr{netip.MustParseAddr(internal)}
	}
	return n
}

// ids writes the marks of a row that not every row of topology has.
func ids(m map[string]string) string {
	var out []string
	for k, v := range m {
		if k != nb.Vendor && k != nb.KeyPurpose {
			out = append(out, k+"="+v)
		}
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// lines writes the rows that route, one a line. Marks that all rows must have are checked.
func lines(t *testing.T, rows nb.Rows) []string {
	t.Helper()
	var out []string
	add := func(marks map[string]string, format string, args ...any) {
		if !nb.OfTopology(marks) {
			t.Errorf("%s is not marked", fmt.Sprintf(format, args...))
		}
		out = append(out, strings.TrimSpace(fmt.Sprintf(format, args...)+" "+ids(marks)))
	}
	for _, p := range rows.Policies {
		hops := ""
		if len(p.Row.Nexthops) > 0 {
			hops = " " + strings.Join(p.Row.Nexthops, ",")
		}
		add(p.Row.ExternalIDs, "%s %d %s: %s%s", p.Router, p.Row.Priority, p.Row.Match, p.Row.Action, hops)
	}
	for _, r := range rows.Routes {
		add(r.Row.ExternalIDs, "%s route %q %s %s via %s", r.Router, r.Row.Table, *r.Row.Policy, r.Row.Prefix, r.Row.Nexthop)
	}
	for _, p := range rows.RouterPorts {
		more := ""
		if p.Row.Peer != nil {
			more += " peer " + *p.Row.Peer
		}
		if len(p.Row.Options) > 0 {
			more += " table " + p.Row.Options[nb.OptionRouteTable]
		}
		add(p.Row.ExternalIDs, "%s port %s %s%s", p.Router, p.Row.Name, strings.Join(p.Row.Networks, ","), more)
	}
	for _, p := range rows.Ports {
		if p.Row.Type == "" {
			add(p.Row.ExternalIDs, "%s port %s %s", p.Switch, p.Row.Name, strings.Join(p.Row.Addresses, ","))
		}
	}
	for _, g := range rows.Groups {
		out = append(out, strings.TrimSpace("group "+g.Name+" "+ids(g.ExternalIDs)))
	}
	return out
}

// routeCase is a topology and the rows by which it routes.
type routeCase struct {
	in   Input
	want []string
	// found are the names of objects with findings, each with a part of what is said.
	found []string
}

func (tc routeCase) check(t *testing.T) {
	t.Helper()
	tc.in.Config = testConfig()
	rows, findings := Rows(tc.in)
	if diff := cmp.Diff(tc.want, lines(t, rows)); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	if len(findings) != len(tc.found) {
		t.Fatalf("findings %v, want %v", findings, tc.found)
	}
	for i, f := range findings {
		name, text, _ := strings.Cut(tc.found[i], ": ")
		if f.Kind+" "+f.Name != name || !strings.Contains(f.Err.Error(), text) {
			t.Errorf("finding %v, want %s", f, tc.found[i])
		}
	}
}

func nodeCases() map[string]routeCase {
	return map[string]routeCase{
		"two families, one of a node": {
			in: Input{Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16,fd00:100::/64")},
				Nodes: []Node{node("n-1", "192.168.0.5", "100.64.0.2", "fd00:100::2"), node("n2", "fd01::5", "fd00:100::3")}},
			want: []string{
				"ovn-cluster 31000 ip4.dst == 100.64.0.0/16: allow subnet=join",
				"ovn-cluster 31000 ip6.dst == fd00:100::/64: allow subnet=join",
				"ovn-cluster 30000 ip4.dst == 192.168.0.5: reroute 100.64.0.2 address-family=4 node=n-1",
				"ovn-cluster 30000 ip6.dst == fd01::5: reroute fd00:100::3 address-family=6 node=n2",
				`ovn-cluster route "" dst-ip 0.0.0.0/0 via 100.64.0.1 subnet=join`,
				`ovn-cluster route "" dst-ip ::/0 via fd00:100::1 subnet=join`,
				"ovn-cluster port ovn-cluster-join 100.64.0.1/16,fd00:100::1/64 lr=ovn-cluster",
				"join port node-n-1 0a:58:64:40:00:02 100.64.0.2 fd00:100::2 ls=join",
				"join port node-n2 0a:58:64:40:00:02 fd00:100::3 ls=join",
				"group node.n.1 node=n-1 np=node/n-1",
				"group node.n2 node=n2 np=node/n2",
			},
		},
		"a node without a place has a group": {
			in: Input{Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16")}, Nodes: []Node{node("n1", "192.168.0.5")}},
			want: []string{
				"ovn-cluster 31000 ip4.dst == 100.64.0.0/16: allow subnet=join",
				`ovn-cluster route "" dst-ip 0.0.0.0/0 via 100.64.0.1 subnet=join`,
				"ovn-cluster port ovn-cluster-join 100.64.0.1/16 lr=ovn-cluster",
				"group node.n1 node=n1 np=node/n1",
			},
		},
		"no join switch": {
			in:   Input{Nodes: []Node{node("n1", "192.168.0.5", "100.64.0.2")}},
			want: []string{"group node.n1 node=n1 np=node/n1"},
		},
		"a join switch that can't be read keeps the way to nodes": {
			in: Input{Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/99")}, Nodes: []Node{node("n1", "192.168.0.5", "100.64.0.2")}},
			want: []string{
				"ovn-cluster 30000 ip4.dst == 192.168.0.5: reroute 100.64.0.2 address-family=4 node=n1",
				"join port node-n1 0a:58:64:40:00:02 100.64.0.2 ls=join",
				"group node.n1 node=n1 np=node/n1",
			},
			found: []string{"Subnet join: CIDR"},
		},
		"names that have one group: the older node has it": {
			in:    Input{Nodes: []Node{{Name: "a.b", Created: time.Unix(2, 0)}, {Name: "a-b", Created: time.Unix(1, 0)}}},
			want:  []string{"group node.a.b node=a-b np=node/a-b"},
			found: []string{"Node a.b: port group node.a.b is already that of node a-b"},
		},
		"two nodes with one address": {
			in: Input{Subnets: []*kubeovnv1.Subnet{joinSubnet("100.64.0.0/16")},
				Nodes: []Node{node("n1", "192.168.0.5", "100.64.0.2"), node("n2", "192.168.0.5", "100.64.0.3")}},
			want: []string{
				"ovn-cluster 31000 ip4.dst == 100.64.0.0/16: allow subnet=join",
				"ovn-cluster 30000 ip4.dst == 192.168.0.5: reroute 100.64.0.2 address-family=4 node=n1",
				`ovn-cluster route "" dst-ip 0.0.0.0/0 via 100.64.0.1 subnet=join`,
				"ovn-cluster port ovn-cluster-join 100.64.0.1/16 lr=ovn-cluster",
				"join port node-n1 0a:58:64:40:00:02 100.64.0.2 ls=join",
				"join port node-n2 0a:58:64:40:00:02 100.64.0.3 ls=join",
				"group node.n1 node=n1 np=node/n1",
				"group node.n2 node=n2 np=node/n2",
			},
			found: []string{"Node n2: 192.168.0.5 is already that of node n1"},
		},
	}
}

func TestNodes(t *testing.T) {
	for name, tc := range nodeCases() {
		t.Run(name, tc.check)
	}
}

// vpcWith is a Vpc with a spec.
func vpcWith(name string, edit func(*kubeovnv1.VpcSpec)) *kubeovnv1.Vpc {
	v := vpc(name)
	edit(&v.Spec)
	return v
}

func vpcRouteCases() map[string]routeCase {
	return map[string]routeCase{
		"static routes": {
			in: Input{Vpcs: []*kubeovnv1.Vpc{vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
				s.StaticRoutes = []kubeovnv1.StaticRoute{
					{Policy: "policySrc", CIDR: "10.0.0.9/24", NextHopIP: "10.0.0.1", RouteTable: "t1"},
					{CIDR: "0.0.0.0/0", NextHopIP: "10.0.0.1"},
					{Policy: "policyDst", CIDR: "0.0.0.0/0", NextHopIP: "10.0.0.2"}, // equal cost
					{Policy: "policyDst", CIDR: "0.0.0.0/0", NextHopIP: "10.0.0.1"}, // the second one again
					{CIDR: "FD00::9", NextHopIP: "FD00::1"},
				}
			})}},
			want: []string{
				`v1 route "" dst-ip 0.0.0.0/0 via 10.0.0.1`,
				`v1 route "" dst-ip 0.0.0.0/0 via 10.0.0.2`,
				`v1 route "" dst-ip fd00::9 via fd00::1`,
				`v1 route "t1" src-ip 10.0.0.0/24 via 10.0.0.1`,
			},
		},
		"static routes that can't be": {
			in: Input{Vpcs: []*kubeovnv1.Vpc{vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
				s.StaticRoutes = []kubeovnv1.StaticRoute{
					{Policy: "dst", CIDR: "0.0.0.0/0", NextHopIP: "10.0.0.1"}, {CIDR: "x", NextHopIP: "10.0.0.1"},
					{CIDR: "0.0.0.0/0", NextHopIP: "10.0.0.1/24"}, {CIDR: "::/0", NextHopIP: "10.0.0.1"},
					{CIDR: "10.1.0.0/16", NextHopIP: "10.0.0.1"},
				}
			})}},
			want: []string{`v1 route "" dst-ip 10.1.0.0/16 via 10.0.0.1`},
			found: []string{"Vpc v1: staticRoutes[0].policy", "Vpc v1: staticRoutes[1].cidr", "Vpc v1: staticRoutes[2].nextHopIP",
				"Vpc v1: another family"},
		},
		"policy routes": {
			in: Input{Vpcs: []*kubeovnv1.Vpc{vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
				s.PolicyRoutes = []kubeovnv1.PolicyRoute{
					{Priority: 10, Match: " ip4.src == 10.0.0.0/24 ", Action: "reroute", NextHopIP: "10.0.0.3, 10.0.0.2"},
					{Priority: 11, Match: "ip4", Action: "drop", NextHopIP: "10.0.0.2"},
					{Priority: 12, Match: "ip6", Action: "allow"},
				}
			})}},
			want: []string{
				"v1 12 ip6: allow",
				"v1 11 ip4: drop",
				"v1 10 ip4.src == 10.0.0.0/24: reroute 10.0.0.2,10.0.0.3",
			},
		},
		"policy routes that can't be": {
			in: Input{Subnets: []*kubeovnv1.Subnet{subnet("s", inVpc("v1", "10.0.0.0/24"))},
				Vpcs: []*kubeovnv1.Vpc{vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
					s.PolicyRoutes = []kubeovnv1.PolicyRoute{
						{Priority: 40000, Match: "ip4", Action: "drop"}, {Priority: 1, Action: "drop"}, {Priority: 1, Match: "ip4", Action: "jump"},
						{Priority: 1, Match: "ip4", Action: "reroute"}, {Priority: 1, Match: "ip4", Action: "reroute", NextHopIP: "gw"},
						{Priority: 31000, Match: "ip4.dst == 10.0.0.0/24", Action: "drop"},
					}
				})}},
			want: []string{"v1 31000 ip4.dst == 10.0.0.0/24: allow subnet=s", "v1 port v1-s 10.0.0.1/24 lr=v1"},
			found: []string{"Vpc v1: 32767", "Vpc v1: match", "Vpc v1: action", "Vpc v1: nextHopIP", "Vpc v1: gw is no address",
				"Vpc v1: already that of subnet s"},
		},
	}
}

func peeringCases() map[string]routeCase {
	return map[string]routeCase{
		"peerings": {
			in: Input{Vpcs: []*kubeovnv1.Vpc{
				vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
					s.VpcPeerings = []kubeovnv1.VpcPeering{{RemoteVpc: "v2", LocalConnectIP: "fd0f::1/126,169.254.0.1/30"}}
				}),
				vpcWith("v2", func(s *kubeovnv1.VpcSpec) {
					s.VpcPeerings = []kubeovnv1.VpcPeering{{RemoteVpc: "v1", LocalConnectIP: "169.254.0.2/30,fd0f::2/126"}}
				}),
			}},
			want: []string{
				"v1 port v1-v2 169.254.0.1/30,fd0f::1/126 peer v2-v1 lr=v1",
				"v2 port v2-v1 169.254.0.2/30,fd0f::2/126 peer v1-v2 lr=v2",
			},
		},
		"peerings that can't be": {
			in: Input{Vpcs: []*kubeovnv1.Vpc{vpc("v2"), vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
				s.VpcPeerings = []kubeovnv1.VpcPeering{
					{RemoteVpc: "v1", LocalConnectIP: "169.254.0.1/30"}, {RemoteVpc: "v3", LocalConnectIP: "169.254.0.1/30"},
					{RemoteVpc: "v2"}, {RemoteVpc: "v2", LocalConnectIP: "169.254.0.1"}, {RemoteVpc: "v2", LocalConnectIP: "169.254.0.1/30"},
				}
			})}},
			want:  []string{"v1 port v1-v2 169.254.0.1/30 peer v2-v1 lr=v1"},
			found: []string{"Vpc v1: own peer", "Vpc v1: v3", "Vpc v1: localConnectIP", "Vpc v1: its prefix", "Vpc v1: no peering back"},
		},
		"a subnet's route table": {
			in: Input{Subnets: []*kubeovnv1.Subnet{subnet("s", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", RouteTable: "t1"})}},
			want: []string{
				"ovn-cluster 31000 ip4.dst == 10.0.0.0/24: allow subnet=s",
				"ovn-cluster port ovn-cluster-s 10.0.0.1/24 table t1 lr=ovn-cluster",
			},
		},
	}
}

func TestVpcs(t *testing.T) {
	for _, cases := range []map[string]routeCase{vpcRouteCases(), peeringCases()} {
		for name, tc := range cases {
			t.Run(name, tc.check)
		}
	}
}

func TestLocalnets(t *testing.T) {
	in := Input{
		Config: testConfig(),
		Subnets: []*kubeovnv1.Subnet{
			subnet("tagged", kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64,10.0.0.0/16", Vlan: "v7"}),
			subnet("untagged", kubeovnv1.SubnetSpec{Vlan: "v0"}), // of MACs alone
			subnet("broken", kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/99", Vlan: "v0"}),
			subnet("lost", kubeovnv1.SubnetSpec{Vlan: "nowhere"}),
			subnet("wrong", kubeovnv1.SubnetSpec{Vlan: "v9"}),
		},
		Vlans:            []*kubeovnv1.Vlan{vlan("v7", 7, "pn"), vlan("v0", 0, "away"), vlan("v9", 9999, "pn")},
		ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}},
	}
	rows, findings := Rows(in)
	port := func(s, network string, tag *int, more ...string) nb.Port {
		return nb.Port{Switch: s, Row: nb.LogicalSwitchPort{Name: "localnet." + s, Type: "localnet", Addresses: []string{"unknown"}, Tag: tag,
			Options: map[string]string{"network_name": network}, ExternalIDs: topo(append(more, "ls", s)...)}}
	}
	want := []nb.Port{
		port("broken", "away", nil),
		port("tagged", "pn", tag(7), "ipv4_network", "10.0.0.0/16", "ipv6_network", "fd00::/64"),
		port("untagged", "away", nil),
	}
	if diff := cmp.Diff(want, rows.Ports); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"broken", "lost", "wrong"}, rows.Held); diff != "" {
		t.Errorf("held (-want +got):\n%s", diff)
	}
	told := map[string]int{}
	for _, f := range findings {
		var missing *MissingVlanError
		var id *VlanIDError
		if errors.As(f.Err, &missing) || errors.As(f.Err, &id) {
			told[f.Name]++
		}
	}
	if diff := cmp.Diff(map[string]int{"untagged": 1, "broken": 1, "lost": 1, "wrong": 1}, told); diff != "" {
		t.Errorf("told (-want +got):\n%s", diff)
	}
}
