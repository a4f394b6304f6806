package topology

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func securityGroup(name string, edit func(*kubeovnv1.SecurityGroupSpec)) *kubeovnv1.SecurityGroup {
	g := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if edit != nil {
		edit(&g.Spec)
	}
	return g
}

// rule is a rule about all traffic with 10.9.0.0/16, unless it is edited.
func rule(edit func(*kubeovnv1.SecurityGroupRule)) kubeovnv1.SecurityGroupRule {
	r := kubeovnv1.SecurityGroupRule{IPVersion: "ipv4", Protocol: "all", Priority: 1, RemoteType: "address", RemoteAddress: "10.9.0.0/16", Policy: "allow"}
	if edit != nil {
		edit(&r)
	}
	return r
}

func baseLines() []string {
	return []string{
		"from-lport 2005 inport == @ovn.sg.web && arp: allow-related",
		"from-lport 2005 inport == @ovn.sg.web && icmp6.type == {130, 133, 135, 136} && icmp6.code == 0 && ip.ttl == 255: allow-related",
		"from-lport 2005 inport == @ovn.sg.web && ip.proto == 112: allow-related",
		"from-lport 2005 inport == @ovn.sg.web && udp.src == 546 && udp.dst == 547 && ip6: allow-related",
		"from-lport 2005 inport == @ovn.sg.web && udp.src == 68 && udp.dst == 67 && ip4: allow-related",
		"to-lport 2005 outport == @ovn.sg.web && arp: allow-related",
		"to-lport 2005 outport == @ovn.sg.web && icmp6.type == {130, 134, 135, 136} && icmp6.code == 0 && ip.ttl == 255: allow-related",
		"to-lport 2005 outport == @ovn.sg.web && ip.proto == 112: allow-related",
		"to-lport 2005 outport == @ovn.sg.web && udp.src == 547 && udp.dst == 546 && ip6: allow-related",
		"to-lport 2005 outport == @ovn.sg.web && udp.src == 67 && udp.dst == 68 && ip4: allow-related",
	}
}

// ruleCase is a rule, and the ACL that it becomes at ingress and egress, or what is wrong with it.
type ruleCase struct {
	edit            func(*kubeovnv1.SecurityGroupRule)
	ingress, egress string
	found           string
}

func ruleCases() map[string]ruleCase {
	type r = *kubeovnv1.SecurityGroupRule
	return map[string]ruleCase{
		"all": {
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16: allow-related",
		},
		"no protocol, last priority, drop, address": {
			edit:    func(r r) { r.Protocol, r.Priority, r.Policy, r.RemoteAddress = "", 16384, "drop", "10.9.0.1" },
			ingress: "to-lport 2100 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.1: drop",
			egress:  "from-lport 2100 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.1: drop",
		},
		"a host part doesn't count": {
			edit:    func(r r) { r.RemoteAddress = " 10.9.3.4/16" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16: allow-related",
		},
		"IPv6 ICMP": {
			edit:    func(r r) { r.IPVersion, r.Protocol, r.RemoteAddress = "ipv6", "icmp", "FD00::/64" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip6 && ip6.src == fd00::/64 && icmp6: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip6 && ip6.dst == fd00::/64 && icmp6: allow-related",
		},
		"ICMP": {
			edit:    func(r r) { r.Protocol = "icmp" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16 && icmp4: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16 && icmp4: allow-related",
		},
		"TCP": {
			edit:    func(r r) { r.Protocol, r.PortRangeMin, r.PortRangeMax = "tcp", 80, 443 },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16 && 80 <= tcp.dst <= 443: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16 && 80 <= tcp.dst <= 443: allow-related",
		},
		"UDP, local address, source ports": {
			edit: func(r r) {
				r.Protocol, r.PortRangeMin, r.PortRangeMax = "udp", 53, 53
				r.LocalAddress, r.SourcePortRangeMin, r.SourcePortRangeMax = "10.16.0.0/24", 1024, 65535
			},
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16 && ip4.dst == 10.16.0.0/24 && 53 <= udp.dst <= 53 && 1024 <= udp.src <= 65535: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16 && ip4.src == 10.16.0.0/24 && 53 <= udp.dst <= 53 && 1024 <= udp.src <= 65535: allow-related",
		},
		"remote group": {
			edit:    func(r r) { r.RemoteType, r.RemoteAddress, r.RemoteSecurityGroup = "securityGroup", "", "db-1" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == $ovn.sg.db.1.associated.v4: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == $ovn.sg.db.1.associated.v4: allow-related",
		},
		"remote group, IPv6": {
			edit:    func(r r) { r.IPVersion, r.RemoteType, r.RemoteSecurityGroup = "ipv6", "securityGroup", "web" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip6 && ip6.src == $ovn.sg.web.associated.v6: allow-related",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip6 && ip6.dst == $ovn.sg.web.associated.v6: allow-related",
		},
		"pass drops, for there is nothing behind it": {
			edit:    func(r r) { r.Policy = "pass" },
			ingress: "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16: drop",
			egress:  "from-lport 18483 inport == @ovn.sg.web && ip4 && ip4.dst == 10.9.0.0/16: drop",
		},
	}
}

// brokenRules are rules that there can't be, and what is told of them.
func brokenRules() map[string]ruleCase {
	type r = *kubeovnv1.SecurityGroupRule
	return map[string]ruleCase{
		"missing remote group":    {edit: func(r r) { r.RemoteType, r.RemoteSecurityGroup = "securityGroup", "nobody" }, found: "remoteSecurityGroup: Not found"},
		"group under another one": {edit: func(r r) { r.RemoteType, r.RemoteSecurityGroup = "securityGroup", "db.1" }, found: "remoteSecurityGroup: Not found"},
		"another family":          {edit: func(r r) { r.RemoteAddress = "fd00::/64" }, found: "remoteAddress"},
		"no address":              {edit: func(r r) { r.RemoteAddress = "" }, found: "remoteAddress"},
		"local address":           {edit: func(r r) { r.LocalAddress = "x" }, found: "localAddress"},
		"IP version":              {edit: func(r r) { r.IPVersion = "" }, found: "ipVersion"},
		"remote type":             {edit: func(r r) { r.RemoteType = "" }, found: "remoteType"},
		"protocol":                {edit: func(r r) { r.Protocol = "sctp" }, found: "protocol"},
		"no ports":                {edit: func(r r) { r.Protocol = "tcp" }, found: "portRangeMin"},
		"ports the wrong way":     {edit: func(r r) { r.Protocol, r.PortRangeMin, r.PortRangeMax = "tcp", 9, 8 }, found: "portRangeMin"},
		"port too high":           {edit: func(r r) { r.Protocol, r.PortRangeMin, r.PortRangeMax = "tcp", 9, 65536 }, found: "portRangeMin"},
		"source ports": {edit: func(r r) {
			r.Protocol, r.PortRangeMin, r.PortRangeMax, r.SourcePortRangeMax = "tcp", 8, 9, 9
		}, found: "sourcePortRangeMin"},
		"priority 0":    {edit: func(r r) { r.Priority = 0 }, found: "priority"},
		"priority high": {edit: func(r r) { r.Priority = 16385 }, found: "priority"},
		"policy":        {edit: func(r r) { r.Policy = "reject" }, found: "policy"},
	}
}

// others are SecurityGroups beside web. The younger one of the last two has no port group.
func others() []*kubeovnv1.SecurityGroup {
	young := securityGroup("db.1", nil)
	young.CreationTimestamp = metav1.NewTime(time.Unix(9, 0))
	return []*kubeovnv1.SecurityGroup{securityGroup("db-1", nil), young}
}

func TestSecurityRules(t *testing.T) {
	cases := ruleCases()
	maps.Copy(cases, brokenRules())
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			g := securityGroup("web", func(s *kubeovnv1.SecurityGroupSpec) {
				s.IngressRules, s.EgressRules = []kubeovnv1.SecurityGroupRule{rule(tc.edit)}, []kubeovnv1.SecurityGroupRule{rule(tc.edit)}
			})
			rows, findings := SecurityRows(g, append(others(), g))
			want, found := baseLines(), []string(nil)
			if tc.found == "" {
				want = slices.Insert(slices.Insert(want, 5, tc.ingress), 0, tc.egress)
			} else {
				found = []string{"spec.ingressRules[0]." + tc.found, "spec.egressRules[0]." + tc.found}
			}
			if diff := cmp.Diff(want, aclLines(rows.ACLs[0].Rows)); diff != "" {
				t.Errorf("ACLs (-want +got):\n%s", diff)
			}
			contains(t, findingTexts(findings), found)
			status := SecurityStatus(g, findings)
			if ok := tc.found == ""; status.IngressLastSyncSuccess != ok || status.EgressLastSyncSuccess != ok {
				t.Errorf("status %+v", status)
			}
		})
	}
}

func TestSecurityGroupRows(t *testing.T) {
	g := securityGroup("web", func(s *kubeovnv1.SecurityGroupSpec) { s.AllowSameGroupTraffic = true })
	rows, findings := SecurityRows(g, []*kubeovnv1.SecurityGroup{g})
	want := slices.Insert(baseLines(), 10,
		"to-lport 2004 outport == @ovn.sg.web && ip4 && ip4.src == $ovn.sg.web.associated.v4: allow-related",
		"to-lport 2004 outport == @ovn.sg.web && ip6 && ip6.src == $ovn.sg.web.associated.v6: allow-related")
	want = slices.Insert(want, 5,
		"from-lport 2004 inport == @ovn.sg.web && ip4 && ip4.dst == $ovn.sg.web.associated.v4: allow-related",
		"from-lport 2004 inport == @ovn.sg.web && ip6 && ip6.dst == $ovn.sg.web.associated.v6: allow-related")
	if diff := cmp.Diff(want, aclLines(rows.ACLs[0].Rows)); diff != "" {
		t.Errorf("ACLs (-want +got):\n%s", diff)
	}
	ids := map[string]string{"vendor": "kube-ovn", "type": "security_group", "sg": "web"}
	if diff := cmp.Diff([]nb.Group{{Name: "ovn.sg.web", ExternalIDs: ids}}, rows.Groups); diff != "" {
		t.Error(diff)
	}
	if len(findings) > 0 {
		t.Errorf("findings %v", findings)
	}
}

func TestDenyAllRows(t *testing.T) {
	rows := DenyAllRows()
	want := []string{
		"from-lport 2003 inport == @ovn.sg.kubeovn_deny_all && ip: drop",
		"to-lport 2003 outport == @ovn.sg.kubeovn_deny_all && ip: drop",
	}
	if diff := cmp.Diff(want, aclLines(rows.ACLs[0].Rows)); diff != "" {
		t.Errorf("ACLs (-want +got):\n%s", diff)
	}
	if len(rows.Groups) != 1 || rows.Groups[0].Name != rows.ACLs[0].Group {
		t.Errorf("groups %v", rows.Groups)
	}
}

// The second tier is only reached by rules that pass a packet on. Nothing of it is allowed.
func TestSecondTierAllowsNothing(t *testing.T) {
	g := securityGroup("web", func(s *kubeovnv1.SecurityGroupSpec) {
		s.Tier, s.AllowSameGroupTraffic, s.IngressRules = 1, true, []kubeovnv1.SecurityGroupRule{rule(nil)}
	})
	rows, _ := SecurityRows(g, nil)
	if diff := cmp.Diff(baseLines(), aclLines(rows.ACLs[0].Rows)); diff != "" {
		t.Errorf("ACLs (-want +got):\n%s", diff)
	}
}

// Of two rules that say different things of the same traffic the stricter one holds.
func TestContradictingRules(t *testing.T) {
	g := securityGroup("web", func(s *kubeovnv1.SecurityGroupSpec) {
		s.IngressRules = []kubeovnv1.SecurityGroupRule{rule(nil), rule(func(r *kubeovnv1.SecurityGroupRule) { r.Policy = "drop" })}
	})
	rows, findings := SecurityRows(g, nil)
	if got := aclLines(rows.ACLs[0].Rows)[5]; got != "to-lport 18483 outport == @ovn.sg.web && ip4 && ip4.src == 10.9.0.0/16: drop" {
		t.Errorf("ACL %s", got)
	}
	contains(t, findingTexts(findings), []string{"spec.ingressRules[1]: Duplicate"})
}

// Two SecurityGroups whose names differ only in dashes would share a port group: the older one has it.
func TestSecurityGroupsOfOneName(t *testing.T) {
	all := others()
	rows, findings := SecurityRows(all[1], all)
	if len(rows.Groups)+len(rows.ACLs) > 0 {
		t.Errorf("rows %v", rows)
	}
	contains(t, findingTexts(findings), []string{"db.1: northbound name port group ovn.sg.db.1 is already that of SecurityGroup db-1"})
	if s := SecurityStatus(all[1], findings); s.PortGroup != "" || s.IngressLastSyncSuccess || s.EgressLastSyncSuccess {
		t.Errorf("status %+v", s)
	}
	if _, findings := SecurityRows(all[0], all); len(findings) > 0 {
		t.Errorf("findings %v", findings)
	}
}

func TestSecurityStatus(t *testing.T) {
	g := securityGroup("a-b", func(s *kubeovnv1.SecurityGroupSpec) { s.AllowSameGroupTraffic = true })
	g.Status.Conditions = []kubeovnv1.Condition{{Type: "Ready"}}
	first := SecurityStatus(g, nil)
	want := kubeovnv1.SecurityGroupStatus{PortGroup: "ovn.sg.a.b", AllowSameGroupTraffic: true, IngressMd5: first.IngressMd5, EgressMd5: first.IngressMd5,
		IngressLastSyncSuccess: true, EgressLastSyncSuccess: true, Conditions: g.Status.Conditions}
	if diff := cmp.Diff(want, first); diff != "" || len(first.IngressMd5) != 32 {
		t.Errorf("status (-want +got):\n%s", diff)
	}
	g.Spec.EgressRules = []kubeovnv1.SecurityGroupRule{rule(nil)}
	if s := SecurityStatus(g, nil); s.IngressMd5 != first.IngressMd5 || s.EgressMd5 == first.EgressMd5 {
		t.Errorf("the sum doesn't follow the rules: %+v", s)
	}
}
