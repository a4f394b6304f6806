package ovn

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// small is a topology of a join switch, a centralized and a distributed subnet, and two nodes.
func small(gateway string) topology.Input {
	subnet := func(name, cidr, kind string) *kubeovnv1.Subnet {
		return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, GatewayType: kind, GatewayNode: gateway}}
	}
	node := func(name, join, internal string) topology.Node {
		return topology.Node{Name: name, Ready: true, MAC: "0a:58:64:40:00:02", Join: []netip.Addr{netip.MustParseAddr(join)}, Internal: []netip.Addr{netip.MustParseAddr(internal)}}
	}
	return topology.Input{
		Subnets: []*kubeovnv1.Subnet{subnet("join", "100.64.0.0/16", ""), subnet("c", "10.1.0.0/24", "centralized"), subnet("d", "10.2.0.0/24", "")},
		Nodes:   []topology.Node{node("n1", "100.64.0.2", "192.168.0.2"), node("n2", "100.64.0.3", "192.168.0.3")},
	}
}

func (g *ground) find(columns, table string, where ...string) string {
	return strings.TrimSpace(g.s.nbctl(append([]string{"--bare", "--columns=" + columns, "find", table}, where...)...))
}

// TestB95TopologyAmongOthers writes a topology where Kube-OVN had one, and where others have rows of their own.
func TestB95TopologyAmongOthers(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	// What Kube-OVN left: the same rows without our mark, one of them for a gateway that is no more, and twice.
	for range 2 {
		g.s.nbctl("--may-exist", "lr-policy-add", "ovn-cluster", "29000", "ip4.src == 10.1.0.0/24", "reroute", "100.64.0.9")
	}
	policy := g.find("_uuid", "Logical_Router_Policy", "priority=29000")
	g.s.nbctl("set", "Logical_Router_Policy", policy, "external_ids:vendor=kube-ovn", "external_ids:subnet=c", "external_ids:n9=100.64.0.9", "external_ids:note=mine")
	g.s.nbctl("lr-route-add", "ovn-cluster", "0.0.0.0/0", "100.64.0.1")
	route := g.find("_uuid", "Logical_Router_Static_Route", "ip_prefix=0.0.0.0/0")
	g.s.nbctl("set", "Logical_Router_Static_Route", route, "external_ids:vendor=kube-ovn")
	waitUntil(t, g.c, func() bool {
		for _, r := range rowsOf[*staticRow](g.c, tableRoute) {
			if r.UUID == route && r.ExternalIDs[nb.Vendor] != "" {
				return true
			}
		}
		return false
	})
	if n := g.apply(nil, small("n1")); n != 1 {
		t.Errorf("%d transactions, want 1", n)
	}
	if n := g.apply(nil, small("n1")); n != 0 {
		t.Errorf("%d transactions without a change", n)
	}
	if got := g.find("_uuid,nexthops", "Logical_Router_Policy", "priority=29000", `match="ip4.src == 10.1.0.0/24"`); got != policy+"\n100.64.0.2" {
		t.Errorf("policy of the centralized subnet: %q", got)
	}
	ids := g.s.nbctl("get", "Logical_Router_Policy", policy, "external_ids")
	for word, want := range map[string]bool{"n1=": true, "n9=": false, "note=mine": true, "berth-purpose=topology": true} {
		if strings.Contains(ids, word) != want {
			t.Errorf("external_ids %s", ids)
		}
	}
	if got := g.find("_uuid", "Logical_Router_Static_Route", "ip_prefix=0.0.0.0/0"); got != route {
		t.Errorf("default routes %q, want the one that was there", got)
	}
	// A gateway moves in one transaction, and in place.
	if n := g.apply(nil, small("n2")); n != 1 {
		t.Errorf("%d transactions, want 1", n)
	}
	if got := g.find("_uuid,nexthops", "Logical_Router_Policy", "priority=29000", `match="ip4.src == 10.1.0.0/24"`); got != policy+"\n100.64.0.3" {
		t.Errorf("policy of the centralized subnet: %q", got)
	}
	g.apply(nil, topology.Input{})
	ours, others := dumpTopology(g.c)
	if len(ours) != 1 {
		t.Errorf("left over: %v", ours)
	}
	if diff := cmp.Diff(g.others, others); diff != "" {
		t.Errorf("rows of others (-before +after):\n%s", diff)
	}
}

func TestForeignPolicyBlocks(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	want := func(action string) Change {
		return Change{Key: "topology", Ensure: nb.Rows{Policies: []nb.Policy{{Router: "ovn-cluster", Row: nb.RouterPolicy{
			Priority: 28000, Match: "ip4.src == 10.250.0.0/16", Action: action}}}}}
	}
	var foreign *ForeignRowError
	if err := g.w.Apply(t.Context(), want("allow")); !errors.As(err, &foreign) || foreign.Name != "ovn-cluster 28000 ip4.src == 10.250.0.0/16" {
		t.Errorf("error %v", err)
	}
	if n := cost(t, g.w, want("drop")); n != 0 { // theirs says the same
		t.Errorf("%d transactions", n)
	}
	if err := g.w.Apply(t.Context(), Change{Key: "topology", Ensure: nb.Rows{Routes: []nb.Route{{Router: "nowhere", Row: nb.StaticRoute{Prefix: "::/0"}}}}}); err == nil {
		t.Error("a route of a router that doesn't exist was written")
	}
}

// TestNodesAndPodsOfOneName has pods whose ports would be a node's, and a node whose port would be a pod's.
func TestNodesAndPodsOfOneName(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.apply(nil, small("n1"))
	pod := podChange("x", "d")
	pod.Ensure.Ports[0].Row.Name = "node-n1"
	var clash *ClashError
	if err := g.w.Apply(t.Context(), pod); !errors.As(err, &clash) {
		t.Errorf("a pod got a node's port: %v", err)
	}
	pod.Ensure.Ports[0].Row.Name = "node-n3"
	apply(t, g.w, pod)
	rows, _ := topology.Rows(topology.Input{Config: topology.Config{ClusterRouter: "ovn-cluster", NodeSwitch: "join"}, Subnets: small("").Subnets,
		Nodes: []topology.Node{{Name: "n3", MAC: "0a:58:64:40:00:04", Join: []netip.Addr{netip.MustParseAddr("100.64.0.4")}}}})
	if err := g.w.Apply(t.Context(), Change{Key: "topology", Ensure: rows}); !errors.As(err, &clash) || clash.Name != "node-n3" {
		t.Errorf("a node got a pod's port: %v", err)
	}
}

// TestGroupOfANodeThatIsGone has pods in groups of nodes and subnets that go, and of a node whose name makes the same one.
func TestGroupOfANodeThatIsGone(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	in := small("n1")
	in.Nodes[1].Name = "a-b"
	g.apply(nil, in)
	apply(t, g.w, podChange("p1", "d", nb.NodeGroup("a-b"), nb.SubnetNodeGroup("d", "a-b")))
	apply(t, g.w, podChange("p2", "c", nb.NodeGroup("n1"), nb.SubnetNodeGroup("c", "n1")))
	// Nobody asks for the group of the centralized subnet, but a pod is in it.
	if n := g.apply(nil, in); n != 0 {
		t.Errorf("%d transactions", n)
	}
	if diff := cmp.Diff([]string{"c.n1", "node.n1"}, g.c.GroupsOf("p2.default")); diff != "" {
		t.Errorf("groups of a pod (-want +got):\n%s", diff)
	}
	in.Nodes[1].Name = "a.b"
	g.apply(nil, in)
	if got := g.c.GroupsOf("p1.default"); len(got) > 0 {
		t.Errorf("the pod of a node that is gone is in %v", got)
	}
	in.Nodes = in.Nodes[:1]
	g.apply(nil, in)
	for _, group := range g.c.Groups() {
		if followsNode(group.ExternalIDs) && group.ExternalIDs[nb.KeyNode] != "n1" {
			t.Errorf("group %s is left", group.Name)
		}
	}
}

// TestHeldSubnetKeepsItsRows breaks a subnet that has rows: they stay until it can be read again.
func TestHeldSubnetKeepsItsRows(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	g.apply(nil, small("n1"))
	before, _ := dumpTopology(g.c)
	in := small("n1")
	for _, s := range in.Subnets {
		s.Spec.CIDRBlock = "10.1.0.0/99"
	}
	if n := g.apply(nil, in); n != 0 {
		t.Errorf("%d transactions", n)
	}
	after, _ := dumpTopology(g.c)
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("rows (-before +after):\n%s", diff)
	}
}

// TestExternalNetwork connects the cluster router to a physical network where it was connected by hand, has nodes come and
// go, and takes it off again.
func TestExternalNetwork(t *testing.T) {
	t.Parallel()
	g := newGround(t)
	in := topology.Input{
		Subnets: []*kubeovnv1.Subnet{{ObjectMeta: metav1.ObjectMeta{Name: "external"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.90.0.0/24", Vlan: "v"}}},
		Vlans:   []*kubeovnv1.Vlan{{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VlanSpec{Provider: "pn"}}},
		Nodes:   []topology.Node{{Name: "n1", Chassis: "c1"}, {Name: "n2", Chassis: "c2"}},
	}
	g.s.nbctl("lrp-add", "ovn-cluster", "ovn-cluster-external", "02:00:00:00:00:01", "10.90.0.253/24")
	g.s.nbctl("lrp-set-gateway-chassis", "ovn-cluster-external", "c1", "7")
	g.s.nbctl("lrp-set-gateway-chassis", "ovn-cluster-external", "c9", "9")
	kept := g.find("_uuid", "Gateway_Chassis", "chassis_name=c1")
	waitUntil(t, g.c, func() bool {
		p, ok := g.c.RouterPort("ovn-cluster-external")
		return ok && len(p.GatewayChassis) == 2
	})
	say := func(nodes, mac string) {
		t.Helper()
		in.External = topology.ReadExternal(map[string]string{"enable-external-gw": "true", "external-gw-nodes": nodes, "nic-ip": "10.90.0.254/24", "nic-mac": mac})
		if n := g.apply(nil, in); n != 1 {
			t.Errorf("%d transactions, want 1", n)
		}
		if n := g.apply(nil, in); n != 0 {
			t.Errorf("%d transactions without a change", n)
		}
	}
	nodes := func(want ...string) {
		t.Helper()
		var got []string
		for _, r := range rowsOf[*chassisRow](g.c, tableChassis) {
			got = append(got, fmt.Sprint(r.Name, " ", r.ChassisName, " ", r.Priority))
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("chassis (-want +got):\n%s", diff)
		}
	}
	say("n2,n1", "")
	nodes("ovn-cluster-external-c1 c1 99", "ovn-cluster-external-c2 c2 100")
	if got := g.find("_uuid", "Gateway_Chassis", "chassis_name=c1"); got != kept {
		t.Errorf("row of c1: %s, want the one that was there, %s", got, kept)
	}
	mac := func() string { return g.find("mac,networks", "Logical_Router_Port", "name=ovn-cluster-external") }
	if got, want := mac(), "02:00:00:00:00:01\n10.90.0.254/24"; got != want {
		t.Errorf("port %q, want %q", got, want)
	}
	say("n1", "0a:58:0a:5a:00:fe")
	nodes("ovn-cluster-external-c1 c1 100")
	if got, want := mac(), "0a:58:0a:5a:00:fe\n10.90.0.254/24"; got != want {
		t.Errorf("port %q, want %q", got, want)
	}
	in.External = topology.External{}
	g.apply(nil, in)
	nodes()
	for _, name := range []string{"ovn-cluster-external", "external-ovn-cluster"} {
		if got := g.find("name", "Logical_Router_Port", "name="+name) + g.find("name", "Logical_Switch_Port", "name="+name); got != "" {
			t.Errorf("%s is still there", got)
		}
	}
}

func TestChassisPriority(t *testing.T) {
	for place, want := range map[int]int{0: 100, 1: 99, 98: 2, 99: 1, 100: 1, 40000: 1} {
		if got := chassisPriority(place); got != want {
			t.Errorf("place %d: %d, want %d", place, got, want)
		}
	}
}
