package ovn

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

const installedSouthbound = "/usr/share/ovn/ovn-sb.ovsschema"

// tracer is a northbound database that ovn-northd translates, so that ovn-trace can say what becomes of a packet.
type tracer struct {
	*server
	south *server
}

func newTracer(t *testing.T) (*tracer, *Client, *Writer) {
	t.Helper()
	s, c, w := setup(t)
	tr := &tracer{server: s, south: newServer(t)}
	tr.south.run("ovsdb-tool", "create", tr.south.path("nb.db"), installedSouthbound)
	tr.south.startAs("OVN_Southbound")
	northd := exec.CommandContext(t.Context(), "ovn-northd", "--ovnnb-db="+s.endpoint(), "--ovnsb-db="+tr.south.endpoint(),
		"--unixctl="+s.path("northd.ctl"), "-vconsole:off", "--log-file="+s.path("northd.log"))
	if err := northd.Start(); err != nil {
		t.Fatalf("%v: run `apt-get install ovn-central`", err)
	}
	t.Cleanup(func() {
		_ = northd.Process.Kill()
		_ = northd.Wait()
	})
	return tr, c, w
}

// passes tells whether a packet that opens a connection from one pod of worldPod's to another arrives.
func (tr *tracer) passes(from, to packetEnd, what string) bool {
	tr.t.Helper()
	ip, src, dst := "ip4", fmt.Sprintf("10.0.0.%d", from.host), fmt.Sprintf("10.0.0.%d", to.host)
	if strings.Contains(what, "6") {
		ip, src, dst = "ip6", fmt.Sprintf("fd00::%x", from.host), fmt.Sprintf("fd00::%x", to.host)
	}
	flow := fmt.Sprintf(`inport == "%s.d" && eth.src == 0a:58:0a:00:00:%02x && eth.dst == 0a:58:0a:00:00:%02x && %s.src == %s && %s.dst == %s && ip.ttl == 64 && %s`,
		from.pod, from.host, to.host, ip, src, ip, dst, strings.TrimSuffix(what, " v6"))
	tr.nbctl("--wait=sb", "sync")
	out, err := exec.CommandContext(tr.t.Context(), "ovn-trace", "--db="+tr.south.endpoint(), "--no-leader-only", "--ct=new", "--ct=new", "--ct=new",
		"--summary", "s1", flow).CombinedOutput()
	if err != nil || strings.Contains(string(out), "parsing expression failed") || strings.Contains(string(out), "error") {
		tr.t.Fatalf("%v: %s", err, out)
	}
	return strings.Contains(string(out), fmt.Sprintf("output to %q", to.pod+".d"))
}

type packetEnd struct {
	pod  string
	host int
}

func ruleTo(edit func(*kubeovnv1.SecurityGroupRule)) kubeovnv1.SecurityGroupRule {
	r := kubeovnv1.SecurityGroupRule{IPVersion: "ipv4", Protocol: "all", Priority: 100, RemoteType: "address", RemoteAddress: "0.0.0.0/0", Policy: "allow"}
	edit(&r)
	return r
}

// tracedGroups have rules of all kinds.
func tracedGroups() []*kubeovnv1.SecurityGroup {
	type r = *kubeovnv1.SecurityGroupRule
	web := groupObject("web")
	web.Spec.EgressRules = []kubeovnv1.SecurityGroupRule{
		ruleTo(func(r r) { r.IPVersion, r.RemoteAddress = "ipv6", "::/0" }),
		ruleTo(func(r r) { r.RemoteType, r.RemoteSecurityGroup, r.LocalAddress = "securityGroup", "db", "10.0.0.2/31" }),
	}
	web.Spec.IngressRules = []kubeovnv1.SecurityGroupRule{
		ruleTo(func(r r) {
			r.Protocol, r.PortRangeMin, r.PortRangeMax = "tcp", 80, 90
			r.SourcePortRangeMin, r.SourcePortRangeMax = 1000, 2000
		}),
		ruleTo(func(r r) {
			r.Protocol, r.PortRangeMin, r.PortRangeMax, r.RemoteAddress, r.Policy, r.Priority = "tcp", 85, 85, "10.0.0.4", "drop", 99
		}),
		ruleTo(func(r r) { r.Protocol, r.IPVersion, r.RemoteAddress = "icmp", "ipv6", "fd00::/64" }),
		ruleTo(func(r r) { r.Protocol, r.PortRangeMin, r.PortRangeMax, r.LocalAddress = "udp", 53, 53, "10.0.0.2" }),
	}
	db := groupObject("db", ruleTo(func(r r) { r.Protocol, r.RemoteType, r.RemoteSecurityGroup = "icmp", "securityGroup", "web" }))
	db.Spec.AllowSameGroupTraffic = false
	return []*kubeovnv1.SecurityGroup{web, db}
}

// OVN itself reads the rules, all kinds of them, and does what they say.
func TestOVNObeysSecurityGroups(t *testing.T) {
	tr, _, w := newTracer(t)
	apply(t, w, world())
	apply(t, w, denyAll())
	all := tracedGroups()
	for _, g := range all {
		rows, findings := topology.SecurityRows(g, all)
		if len(findings) > 0 {
			t.Fatal(findings)
		}
		apply(t, w, Change{Key: g.Name, Ensure: rows})
	}
	p1, p2, p3, p4, p5 := packetEnd{"p1", 2}, packetEnd{"p2", 3}, packetEnd{"p3", 4}, packetEnd{"p4", 5}, packetEnd{"p5", 6}
	for p, groups := range map[packetEnd][]string{p1: {"web"}, p2: {"web"}, p3: nil, p4: {"db"}, p5: {"nobody"}} {
		apply(t, w, securedPod(t, p.pod, p.host, groups...))
	}
	const icmp, icmp6 = "icmp4.type == 8", "icmp6.type == 128 && icmp6.code == 0 v6"
	tcp := func(from, to int) string { return fmt.Sprintf("tcp.src == %d && tcp.dst == %d", from, to) }
	cases := map[string]struct {
		from, to packetEnd
		what     string
		want     bool
	}{
		"same group":                           {p1, p2, icmp, true},
		"same group, IPv6":                     {p1, p2, icmp6, true},
		"from no group":                        {p3, p1, icmp, false},
		"to no group":                          {p1, p3, icmp, false},
		"to no group, IPv6: egress":            {p1, p3, icmp6, true},
		"from no group, IPv6: ingress":         {p3, p1, icmp6, true},
		"TCP port":                             {p3, p1, tcp(1500, 80), true},
		"TCP port outside":                     {p3, p1, tcp(1500, 91), false},
		"TCP source port outside":              {p3, p1, tcp(999, 80), false},
		"TCP port, stricter rule":              {p3, p1, tcp(1500, 85), false},
		"TCP port, stricter rule for others":   {p5, p1, tcp(1500, 85), true},
		"UDP to the local address":             {p3, p1, "udp.src == 9 && udp.dst == 53", true},
		"UDP to another local address":         {p3, p2, "udp.src == 9 && udp.dst == 53", false},
		"to a remote group":                    {p1, p4, icmp, true},
		"to a remote group, other protocol":    {p1, p4, tcp(1500, 80), false},
		"remote group's own members":           {p4, p4, icmp, false},
		"a group that there isn't":             {p3, p5, icmp, true},
		"from an unknown group to a known one": {p5, p4, icmp, false},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := tr.passes(tc.from, tc.to, tc.what); got != tc.want {
				t.Errorf("passes: %v, want %v", got, tc.want)
			}
		})
	}
}

// So it does with a private subnet, and with ACLs of the Subnet's own.
func TestOVNObeysSubnets(t *testing.T) {
	tr, _, w := newTracer(t)
	apply(t, w, world())
	p1, p2 := packetEnd{"p1", 2}, packetEnd{"p2", 3}
	for _, p := range []packetEnd{p1, p2} {
		apply(t, w, securedPod(t, p.pod, p.host))
	}
	cases := map[string]struct {
		spec   kubeovnv1.SubnetSpec
		v4, v6 bool
	}{
		"open":                    {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24"}, true, true},
		"private, same subnet":    {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,fd00::/64", Private: true}, true, true},
		"private, other subnet":   {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/31,fd00::/127", Private: true}, false, false},
		"private, subnet allowed": {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.2/31,fd00::2/127", Private: true, AllowSubnets: []string{"10.0.0.0/30", "fd01::/64"}}, true, true},
		"own ACL": {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", ACLs: []kubeovnv1.ACL{
			{Direction: "from-lport", Priority: 7, Match: "ip4.dst == 10.0.0.3", Action: "drop"}}}, false, true},
		"own ACL, but east and west": {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", AllowEWTraffic: true, ACLs: []kubeovnv1.ACL{
			{Direction: "from-lport", Priority: 7, Match: "ip4.dst == 10.0.0.3", Action: "drop"}}}, true, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := &kubeovnv1.Subnet{Spec: tc.spec}
			s.Name = "s1"
			rows, _ := topology.Rows(topology.Input{Subnets: []*kubeovnv1.Subnet{s}, Config: topology.Config{ClusterRouter: "ovn-cluster"}})
			apply(t, w, Change{Ensure: nb.Rows{ACLs: rows.ACLs}})
			if got := tr.passes(p1, p2, "icmp4.type == 8"); got != tc.v4 {
				t.Errorf("IPv4 passes: %v, want %v", got, tc.v4)
			}
			if got := tr.passes(p1, p2, "icmp6.type == 128 && icmp6.code == 0 v6"); got != tc.v6 {
				t.Errorf("IPv6 passes: %v, want %v", got, tc.v6)
			}
		})
	}
}
