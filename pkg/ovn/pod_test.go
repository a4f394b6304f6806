package ovn

import (
	"net/netip"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

func addrs(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, t := range texts {
		out = append(out, netip.MustParseAddr(t))
	}
	return out
}

func podRows(t *testing.T, in PodInput) nb.Rows {
	t.Helper()
	rows, err := PodRows(in)
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func podConfig() PodConfig {
	return PodConfig{ClusterRouter: "ovn-cluster", NodeSwitch: "join", EnableLB: true}
}

func TestPodRows(t *testing.T) {
	in := PodInput{
		Namespace: "shop", Name: "web-0", UID: "u1", Claim: "c1", Config: podConfig(),
		Node: &NodeInput{Name: "node-1", JoinIPs: addrs("100.64.0.2")},
		Interfaces: []InterfaceInput{
			{
				Subnet:    SubnetInput{Name: "ovn-default", Vpc: "ovn-cluster", GatewayType: "distributed"},
				Addresses: addrs("fd00::2", "10.16.0.2"), MAC: "0A:58:0A:10:00:02", PortSecurity: true,
			},
			{
				Provider: "net1.shop.ovn", Subnet: SubnetInput{Name: "private", Vpc: "v1"},
				Addresses: addrs("192.168.0.2"), MAC: "0a:58:c0:a8:00:02",
			},
		},
	}
	const first = "0a:58:0a:10:00:02 10.16.0.2 fd00::2"
	ids := func(sw string, more ...string) map[string]string {
		m := map[string]string{"vendor": "kube-ovn", "ls": sw, "pod": "shop/web-0", "berth-claim": "c1", "berth-pod-uid": "u1"}
		for _, key := range more {
			m[key] = "false"
		}
		return m
	}
	want := nb.Rows{
		Ports: []nb.Port{
			{Switch: "ovn-default", Groups: []string{"node.node.1", "ovn.default.node.1"}, Row: nb.LogicalSwitchPort{
				Name: "web-0.shop", Addresses: []string{first}, PortSecurity: []string{first}, ExternalIDs: ids("ovn-default")}},
			{Switch: "private", Groups: []string{}, Row: nb.LogicalSwitchPort{
				Name: "web-0.shop.net1.shop.ovn", Addresses: []string{"0a:58:c0:a8:00:02 192.168.0.2"}, ExternalIDs: ids("private", "associated_sg_default-securitygroup")}},
		},
		Groups: []nb.Group{
			{Name: "node.node.1", ExternalIDs: map[string]string{"vendor": "kube-ovn", "node": "node-1", "np": "node/node-1"}},
			{Name: "ovn.default.node.1", ExternalIDs: map[string]string{
				"vendor": "kube-ovn", "subnet": "ovn-default", "node": "node-1", "np": "ovn-default/node-1"}},
		},
	}
	if diff := cmp.Diff(want, podRows(t, in), cmpopts.IgnoreFields(nb.Port{}, "SecurityGroups", "DHCP", "Routing")); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
	in.Node, in.UID, in.Claim = nil, "", ""
	for _, p := range podRows(t, in).Ports {
		if p.Groups != nil {
			t.Errorf("%s: groups %v of a pod without a node", p.Row.Name, p.Groups)
		}
		for _, key := range []string{nb.KeyClaim, nb.KeyPodUID} {
			if v, ok := p.Row.ExternalIDs[key]; ok {
				t.Errorf("%s: external_ids:%s is %q", p.Row.Name, key, v)
			}
		}
	}
}

// groupsCase is one interface of a pod on node n1, and the groups that its port shall be in.
type groupsCase struct {
	subnet SubnetInput
	addrs  []netip.Addr
	join   []netip.Addr
	snats  []netip.Addr
	north  []netip.Addr
	config func(*PodConfig)
	want   []string
}

// input is the pod, with an IPv4 address and an IPv4 join address unless the case says otherwise.
func (c groupsCase) input() PodInput {
	in := PodInput{Namespace: "d", Name: "p", Config: podConfig(), Node: &NodeInput{Name: "n1", JoinIPs: c.join}}
	if c.join == nil {
		in.Node.JoinIPs = addrs("100.64.0.2")
	}
	if c.addrs == nil {
		c.addrs = addrs("10.0.0.2")
	}
	if c.config != nil {
		c.config(&in.Config)
	}
	in.Interfaces = []InterfaceInput{{Subnet: c.subnet, Addresses: c.addrs, MAC: "0a:58:0a:00:00:02",
		SNATs: c.snats, NorthGateways: c.north}}
	return in
}

func groupsCases() map[string]groupsCase {
	yes, no := true, false
	overlay := SubnetInput{Name: "s", Vpc: "ovn-cluster", GatewayType: "distributed"}
	with := func(f func(*SubnetInput)) SubnetInput { s := overlay; f(&s); return s }
	underlay := func(f func(*SubnetInput)) SubnetInput {
		return with(func(s *SubnetInput) { s.Vlan = "v"; f(s) })
	}
	return map[string]groupsCase{
		"b1, b3: overlay":                 {subnet: overlay, want: []string{"node.n1", "s.n1"}},
		"b3: VPC by default":              {subnet: with(func(s *SubnetInput) { s.Vpc = "" }), want: []string{"node.n1", "s.n1"}},
		"b3: gateway type by default":     {subnet: with(func(s *SubnetInput) { s.GatewayType = "" }), want: []string{"node.n1", "s.n1"}},
		"b3: centralized":                 {subnet: with(func(s *SubnetInput) { s.GatewayType = "centralized" }), want: []string{"node.n1"}},
		"b3: node without join addresses": {subnet: overlay, join: []netip.Addr{}, want: []string{"node.n1"}},
		"b3: families differ":             {subnet: overlay, join: addrs("fd00:64::2"), want: []string{"node.n1"}},
		"b3: one family in common":        {subnet: overlay, addrs: addrs("10.0.0.2", "fd00::2"), join: addrs("fd00:64::2"), want: []string{"node.n1", "s.n1"}},
		"b2: external address": {subnet: overlay, snats: addrs("172.16.0.9"), config: func(c *PodConfig) {
			c.EnableEIPSNAT, c.External.Gateways = true, addrs("172.16.0.1")
		}, want: []string{"node.n1"}},
		"b2: external addresses off":     {subnet: overlay, snats: addrs("172.16.0.9"), want: []string{"node.n1", "s.n1"}},
		"b4: north gateway":              {subnet: overlay, north: addrs("10.0.0.254"), want: []string{"node.n1"}},
		"b: no address":                  {subnet: overlay, addrs: []netip.Addr{}, want: []string{}},
		"b: another VPC":                 {subnet: with(func(s *SubnetInput) { s.Vpc = "v1" }), want: []string{}},
		"b: underlay":                    {subnet: underlay(func(*SubnetInput) {}), want: []string{}},
		"b: logical gateway":             {subnet: underlay(func(s *SubnetInput) { s.LogicalGateway = true }), want: []string{"node.n1", "s.n1"}},
		"a: U2O without load balancers":  {subnet: underlay(func(s *SubnetInput) { s.U2OInterconnection = true }), want: []string{"s.n1"}},
		"a: U2O, load balancers refused": {subnet: underlay(func(s *SubnetInput) { s.U2OInterconnection, s.EnableLB = true, &no }), want: []string{"s.n1"}},
		"a: U2O with load balancers":     {subnet: underlay(func(s *SubnetInput) { s.U2OInterconnection, s.EnableLB = true, &yes }), want: []string{}},
		"a: U2O, load balancers off": {subnet: underlay(func(s *SubnetInput) { s.U2OInterconnection, s.EnableLB = true, &yes }),
			config: func(c *PodConfig) { c.EnableLB = false }, want: []string{"s.n1"}},
		"a: U2O in another VPC": {subnet: underlay(func(s *SubnetInput) { s.U2OInterconnection, s.Vpc = true, "v1" }), want: []string{}},
		"join switch":           {subnet: with(func(s *SubnetInput) { s.Name = "join" }), want: []string{}},
	}
}

func TestB87PodGroups(t *testing.T) {
	for name, tc := range groupsCases() {
		t.Run(name, func(t *testing.T) {
			rows := podRows(t, tc.input())
			if diff := cmp.Diff(tc.want, rows.Ports[0].Groups); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
			if len(rows.Groups) != len(tc.want) {
				t.Errorf("group rows %v", rows.Groups)
			}
		})
	}
}
