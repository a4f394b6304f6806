package ovn

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// ground is a database with rows of others on the cluster router.
type ground struct {
	t      *testing.T
	s      *server
	c      *Client
	w      *Writer
	others []string
}

func newGround(t *testing.T) *ground {
	t.Helper()
	s := startServer(t, installedSchema)
	g := &ground{t: t, s: s, c: s.connect()}
	g.w = s.writer(g.c)
	g.apply(nil, topology.Input{})
	for _, args := range [][]string{
		{"lr-policy-add", "ovn-cluster", "29500", "ip4.dst == 10.250.0.0/16", "allow"},
		{"set", "Logical_Router_Policy", ".", "external_ids:vendor=kube-ovn"},
		{"lr-policy-add", "ovn-cluster", "28000", "ip4.src == 10.250.0.0/16", "drop"},
		{"lr-route-add", "ovn-cluster", "10.250.0.0/16", "100.64.0.250"},
		{"lr-nat-add", "ovn-cluster", "snat", "172.16.0.8", "10.9.0.0/24"},
		{"lrp-add", "ovn-cluster", "ovn-cluster-theirs", "02:00:00:00:00:09", "10.250.0.1/16"},
		{"ls-add", "theirs"},
		{"lsp-add", "theirs", "localnet.theirs"},
		{"pg-add", "node.theirs"},
		{"set", "Port_Group", "node.theirs", "external_ids:node=theirs"},
	} {
		if args[0] == "set" && args[2] == "." {
			args[2] = strings.Fields(s.nbctl("--bare", "--columns=_uuid", "find", args[1], "priority=29500"))[0]
		}
		s.nbctl(args...)
	}
	waitUntil(t, g.c, func() bool {
		_, ok := g.c.Port("localnet.theirs")
		return ok && len(g.c.Groups()) == 1 && len(g.c.Groups()[0].ExternalIDs) == 1
	})
	_, g.others = dumpTopology(g.c)
	return g
}

// apply brings the rows of a topology into the database, and retires the switches and routers of what is gone. It returns
// how many transactions that took.
func (g *ground) apply(r *rapid.T, in topology.Input) int64 {
	in.Config = landConfig()
	rows, _ := topology.Rows(in)
	ch := Change{Key: "topology", Ensure: rows}
	for _, sw := range g.c.Switches() {
		if nb.OfTopology(sw.ExternalIDs) && !slices.ContainsFunc(rows.Switches, func(s nb.LogicalSwitch) bool { return s.Name == sw.Name }) {
			ch.RemoveSwitches = append(ch.RemoveSwitches, sw.Name)
		}
	}
	for _, lr := range g.c.Routers() {
		if nb.OfTopology(lr.ExternalIDs) && !slices.ContainsFunc(rows.Routers, func(r nb.LogicalRouter) bool { return r.Name == lr.Name }) {
			ch.RemoveRouters = append(ch.RemoveRouters, lr.Name)
		}
	}
	before := g.w.Transactions()
	if err := g.w.Apply(g.t.Context(), ch); err != nil {
		if r == nil {
			g.t.Fatal(err)
		}
		r.Fatal(err)
	}
	return g.w.Transactions() - before
}

// land is a topology that is edited.
type land struct {
	subnets map[string]*kubeovnv1.Subnet
	vpcs    map[string]*kubeovnv1.Vpc
	nodes   map[string]topology.Node
	vlans   map[string]*kubeovnv1.Vlan
	// external is how the cluster router gets to the subnet of that name.
	external topology.External
}

func landConfig() topology.Config {
	return topology.Config{ClusterRouter: "ovn-cluster", DefaultSubnet: "ovn-default", NodeSwitch: "join", ExternalSubnet: "external"}
}

func (l *land) input() topology.Input {
	in := topology.Input{ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}}}
	in.Subnets = slices.Collect(maps.Values(l.subnets))
	in.Vpcs = slices.Collect(maps.Values(l.vpcs))
	in.Nodes = slices.Collect(maps.Values(l.nodes))
	in.Vlans = slices.Collect(maps.Values(l.vlans))
	in.External = l.external
	return in
}

func (l *land) editSubnet(r *rapid.T) {
	pick := func(what string, choices ...string) string { return rapid.SampledFrom(choices).Draw(r, what) }
	name := pick("subnet", "join", "join", "s1", "s-2", "s.2", "u1", "u1")
	if rapid.IntRange(0, 4).Draw(r, "fate") == 0 {
		delete(l.subnets, name)
		return
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.NewTime(time.Unix(int64(rapid.IntRange(1, 3).Draw(r, "age")), 0))}}
	s.Spec.CIDRBlock = pick("cidr", "10.1.0.0/24", "10.2.0.0/24", "fd01::/64", "10.3.0.0/24,fd03::/64", "10.0.0.0/99")
	if name == "join" {
		s.Spec.CIDRBlock = pick("join", "100.64.0.0/16", "100.64.0.0/16,fd00:100::/64", "100.64.0.0/99")
		l.subnets[name] = s
		return
	}
	s.Spec.Vpc = pick("vpc", "", "", "v1")
	s.Spec.GatewayType = pick("gateway", "", "distributed", "centralized")
	s.Spec.GatewayNode = pick("nodes", "", "n1", "n1,a-b")
	s.Spec.EnableEcmp = rapid.Bool().Draw(r, "ecmp")
	s.Spec.RouteTable = pick("table", "", "", "t1")
	if name == "u1" {
		s.Spec.Vlan = pick("vlan", "v1", "v2")
		s.Spec.LogicalGateway, s.Spec.U2OInterconnection = rapid.Bool().Draw(r, "logical"), rapid.Bool().Draw(r, "u2o")
		s.Spec.U2OFeatures.OverlayOnlyRouting = rapid.Bool().Draw(r, "overlay only")
		s.Status.U2OInterconnectionIP = pick("u2o address", "", "10.1.0.9", "fd01::9")
	}
	l.subnets[name] = s
}

func (l *land) editVpc(r *rapid.T) {
	pick := func(what string, choices ...string) string { return rapid.SampledFrom(choices).Draw(r, what) }
	name := pick("vpc", "ovn-cluster", "v1", "v2")
	if rapid.IntRange(0, 4).Draw(r, "fate") == 0 {
		delete(l.vpcs, name)
		return
	}
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i := range rapid.IntRange(0, 2).Draw(r, "routes") {
		v.Spec.StaticRoutes = append(v.Spec.StaticRoutes, kubeovnv1.StaticRoute{Policy: pick("policy", "", "policySrc", "wrong"), RouteTable: pick("table", "", "t1"),
			CIDR: pick("to", "0.0.0.0/0", "10.8.0.0/16"), NextHopIP: fmt.Sprintf("10.1.0.%d", 2+i)})
	}
	for i := range rapid.IntRange(0, 2).Draw(r, "policies") {
		v.Spec.PolicyRoutes = append(v.Spec.PolicyRoutes, kubeovnv1.PolicyRoute{Priority: 10 + i, Match: pick("match", "ip4", "ip6"),
			Action: pick("action", "allow", "drop", "reroute", "jump"), NextHopIP: pick("hop", "10.1.0.2", "10.1.0.3,10.1.0.4")})
	}
	if remote := pick("remote", "", "v1", "v2"); remote != "" {
		v.Spec.VpcPeerings = []kubeovnv1.VpcPeering{{RemoteVpc: remote, LocalConnectIP: pick("connect", "169.254.0.1/30", "169.254.0.2/30")}}
	}
	l.vpcs[name] = v
}

func (l *land) editNode(r *rapid.T) {
	name := rapid.SampledFrom([]string{"n1", "a-b", "a.b"}).Draw(r, "node")
	if rapid.IntRange(0, 3).Draw(r, "fate") == 0 {
		delete(l.nodes, name)
		return
	}
	host := map[string]int{"n1": 2, "a-b": 3, "a.b": 4}[name]
	n := topology.Node{Name: name, MAC: fmt.Sprintf("0a:58:64:40:00:%02x", host), Ready: rapid.Bool().Draw(r, "ready"),
		Created:  time.Unix(int64(rapid.IntRange(1, 2).Draw(r, "age")), 0),
		Internal: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(host)})}}
	for _, text := range rapid.SampledFrom([][]string{nil, {"100.64.0.%d"}, {"100.64.0.%d", "fd00:100::%d"}}).Draw(r, "join") {
		n.Join = append(n.Join, netip.MustParseAddr(fmt.Sprintf(text, host)))
	}
	n.Chassis = rapid.SampledFrom([]string{"", "c-" + name, "c-" + name}).Draw(r, "chassis")
	n.Labels = rapid.SampledFrom([]map[string]string{nil, {topology.LabelExternalGateway: "true"}}).Draw(r, "labels")
	l.nodes[name] = n
}

// editExternal changes the external network, or how the cluster router gets there.
func (l *land) editExternal(r *rapid.T) {
	pick := func(what string, choices ...string) string { return rapid.SampledFrom(choices).Draw(r, what) }
	l.external = topology.ReadExternal(map[string]string{
		"enable-external-gw": pick("external", "true", "true", "false"), "type": pick("type", "centralized", "distributed"),
		"external-gw-nodes": pick("nodes", "", "n1", "a-b,n1"), "nic-ip": pick("networks", "10.9.0.254/24", "10.9.0.253/24,fd09::fe/64", "none"),
		// As it is kept, a MAC must be the same whatever was before.
		"nic-mac": topology.DefaultMAC("ovn-cluster/external"),
	})
	delete(l.subnets, "external")
	if rapid.IntRange(0, 4).Draw(r, "fate") == 0 {
		return
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "external"}}
	s.Spec.CIDRBlock, s.Spec.Vlan, s.Spec.LogicalGateway = "10.9.0.0/24", pick("vlan", "", "v1", "v1"), rapid.IntRange(0, 3).Draw(r, "logical") == 0
	l.subnets["external"] = s
}

func (l *land) editVlan(r *rapid.T) {
	name := rapid.SampledFrom([]string{"v1", "v2"}).Draw(r, "vlan")
	l.vlans[name] = &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.VlanSpec{ID: rapid.IntRange(0, 2).Draw(r, "id"), Provider: rapid.SampledFrom([]string{"pn", "other"}).Draw(r, "network")}}
}

// mend takes away what can't be realised, so that nothing is held.
func (l *land) mend(r *rapid.T) {
	for range 10 {
		in := l.input()
		in.Config = landConfig()
		rows, _ := topology.Rows(in)
		if len(rows.Held) == 0 {
			return
		}
		for _, name := range rows.Held {
			delete(l.subnets, name)
		}
	}
	r.Fatal("something is held for ever")
}

// TestTopologyIsWhatAFreshOneWouldBe edits a topology in any way: after each edit a second pass writes nothing, in the end
// the rows are those of a database that never had another topology, and rows of others are as they were.
func TestTopologyIsWhatAFreshOneWouldBe(t *testing.T) {
	t.Parallel()
	var free []*ground
	take := func() *ground {
		if n := len(free); n > 0 {
			g := free[n-1]
			free = free[:n-1]
			return g
		}
		return newGround(t)
	}
	rapid.Check(t, func(r *rapid.T) {
		g := take()
		l := &land{subnets: map[string]*kubeovnv1.Subnet{}, vpcs: map[string]*kubeovnv1.Vpc{}, nodes: map[string]topology.Node{}, vlans: map[string]*kubeovnv1.Vlan{}}
		pass := func() {
			g.apply(r, l.input())
			if n := g.apply(r, l.input()); n != 0 {
				r.Fatalf("the second pass took %d transactions", n)
			}
		}
		act := func(edit func(*rapid.T)) func(*rapid.T) {
			return func(r *rapid.T) {
				for range rapid.IntRange(1, 4).Draw(r, "edits") {
					edit(r)
				}
				pass()
			}
		}
		r.Repeat(map[string]func(*rapid.T){
			"subnets": act(l.editSubnet), "vpcs": act(l.editVpc), "nodes": act(l.editNode), "vlans": act(l.editVlan), "external": act(l.editExternal),
		})
		l.mend(r)
		pass()
		fresh := take()
		fresh.apply(r, l.input())
		want, _ := dumpTopology(fresh.c)
		got, others := dumpTopology(g.c)
		if diff := cmp.Diff(want, got); diff != "" {
			r.Fatalf("rows (-fresh +edited):\n%s", diff)
		}
		if diff := cmp.Diff(g.others, others); diff != "" {
			r.Fatalf("rows of others (-before +after):\n%s", diff)
		}
		for _, back := range []*ground{g, fresh} {
			back.apply(r, topology.Input{})
			left, _ := dumpTopology(back.c)
			if len(left) != 1 {
				r.Fatalf("without a topology there are %v", left)
			}
			free = append(free, back)
		}
	})
}
