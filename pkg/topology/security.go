package topology

import (
	"cmp"
	"crypto/md5"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// KindSecurityGroup is the kind of findings about SecurityGroups.
const KindSecurityGroup = "SecurityGroup"

// Priorities of a SecurityGroup's ACLs. A rule's own priority counts the other way: 1 goes first.
const (
	priorityRules     = 18484
	priorityBase      = 2005
	prioritySameGroup = 2004
	priorityDenyAll   = 2003

	minRulePriority = 1
	maxRulePriority = 16384
	maxPort         = 65535
)

// Purposes of ACLs on the port groups of SecurityGroups.
const (
	purposeRule      = "rule"
	purposeBase      = "base"
	purposeSameGroup = "same-group"
	purposeDenyAll   = "deny-all"
)

// Values of a rule's fields.
const (
	versionIPv4 = "ipv4"
	versionIPv6 = "ipv6"

	protocolAll  = "all"
	protocolICMP = "icmp"
	protocolTCP  = "tcp"
	protocolUDP  = "udp"

	remoteAddress = "address"
	remoteGroup   = "securityGroup"

	policyAllow = "allow"
	policyDrop  = "drop"
	policyPass  = "pass"
)

// DenyAllRows are the port group that every port in a SecurityGroup is in, and what it drops: all that nothing allows.
func DenyAllRows() nb.Rows {
	name := nb.SecurityGroupName(nb.DenyAll)
	l := aclList{parent: nb.ACLs{Group: name}}
	for _, d := range directions() {
		l.add(purposeDenyAll, nb.ACL{Direction: d.name, Priority: priorityDenyAll, Match: d.port + " == @" + name + " && ip", Action: nb.ActionDrop})
	}
	return nb.Rows{Groups: []nb.Group{securityPortGroup(nb.DenyAll)}, ACLs: []nb.ACLs{l.done()}}
}

// SecurityRows are the port group of a SecurityGroup with its ACLs. All are the SecurityGroups that there are. A rule that
// can't be read, or whose remote group there isn't, is left away and told: nobody gains by it but those whom a rule to
// drop was against.
func SecurityRows(g *kubeovnv1.SecurityGroup, all []*kubeovnv1.SecurityGroup) (nb.Rows, []Finding) {
	if older := clashing(g, all); older != nil {
		err := &NameClashError{Row: "port group " + nb.SecurityGroupName(g.Name), Other: "SecurityGroup " + older.Name}
		return nb.Rows{}, []Finding{{Kind: KindSecurityGroup, Name: g.Name, Err: err}}
	}
	b := &securityBuilder{group: g, name: nb.SecurityGroupName(g.Name), known: map[string]bool{}}
	b.list.parent.Group = b.name
	for _, o := range all {
		b.known[o.Name] = clashing(o, all) == nil
	}
	for _, d := range directions() {
		b.addBase(d)
		// Nothing passes a packet on to the second tier, and the first one drops what it doesn't allow.
		if g.Spec.Tier == 0 {
			b.addSameGroup(d)
			b.addRules(d)
		}
	}
	return nb.Rows{Groups: []nb.Group{securityPortGroup(g.Name)}, ACLs: []nb.ACLs{b.list.done()}}, b.findings
}

// clashing returns the older SecurityGroup that has this one's port group.
func clashing(g *kubeovnv1.SecurityGroup, all []*kubeovnv1.SecurityGroup) *kubeovnv1.SecurityGroup {
	for _, o := range all {
		older := cmp.Or(o.CreationTimestamp.Compare(g.CreationTimestamp.Time), cmp.Compare(o.Name, g.Name)) < 0
		if o.Name != g.Name && older && nb.SecurityGroupName(o.Name) == nb.SecurityGroupName(g.Name) {
			return o
		}
	}
	return nil
}

func securityPortGroup(sg string) nb.Group {
	return nb.Group{Name: nb.SecurityGroupName(sg), ExternalIDs: map[string]string{
		nb.Vendor: nb.VendorKubeOVN, nb.KeyType: nb.TypeSecurityGroup, nb.KeySecurityGroup: sg}}
}

// direction is one way of traffic, seen from the port that a group guards.
type direction struct {
	name, port, local, remote string
	// rules tells where a SecurityGroup has its rules for it.
	rules string
	// dhcp are the ports that DHCP comes from and goes to, of IPv4 and IPv6; icmp6 the messages that a network can't do
	// without.
	dhcp4, dhcp6 [2]string
	icmp6        string
}

func directions() []direction {
	return []direction{
		{name: nb.ToLport, port: "outport", local: "dst", remote: "src", rules: "ingressRules",
			dhcp4: [2]string{"67", "68"}, dhcp6: [2]string{"547", "546"}, icmp6: "{130, 134, 135, 136}"},
		{name: nb.FromLport, port: "inport", local: "src", remote: "dst", rules: "egressRules",
			dhcp4: [2]string{"68", "67"}, dhcp6: [2]string{"546", "547"}, icmp6: "{130, 133, 135, 136}"},
	}
}

type securityBuilder struct {
	group    *kubeovnv1.SecurityGroup
	name     string
	known    map[string]bool
	list     aclList
	findings []Finding
}

func (b *securityBuilder) find(err error) {
	b.findings = append(b.findings, Finding{Kind: KindSecurityGroup, Name: b.group.Name, Err: err})
}

// addBase allows what every network needs: neighbours, DHCP, and VRRP for addresses that move.
func (b *securityBuilder) addBase(d direction) {
	for _, match := range []string{
		"arp",
		"icmp6.type == " + d.icmp6 + " && icmp6.code == 0 && ip.ttl == 255",
		"udp.src == " + d.dhcp4[0] + " && udp.dst == " + d.dhcp4[1] + " && ip4",
		"udp.src == " + d.dhcp6[0] + " && udp.dst == " + d.dhcp6[1] + " && ip6",
		"ip.proto == 112",
	} {
		b.list.add(purposeBase, nb.ACL{Direction: d.name, Priority: priorityBase, Action: nb.ActionAllowRelated,
			Match: d.port + " == @" + b.name + " && " + match})
	}
}

// addSameGroup allows members among each other.
func (b *securityBuilder) addSameGroup(d direction) {
	if !b.group.Spec.AllowSameGroupTraffic {
		return
	}
	for ip, protocol := range map[string]string{"ip4": nb.ProtocolIPv4, "ip6": nb.ProtocolIPv6} {
		b.list.add(purposeSameGroup, nb.ACL{Direction: d.name, Priority: prioritySameGroup, Action: nb.ActionAllowRelated,
			Match: fmt.Sprintf("%s == @%s && %s && %s.%s == $%s", d.port, b.name, ip, ip, d.remote, nb.SecurityGroupSet(b.group.Name, protocol))})
	}
}

func (b *securityBuilder) rulesOf(d direction) []kubeovnv1.SecurityGroupRule {
	if d.name == nb.FromLport {
		return b.group.Spec.EgressRules
	}
	return b.group.Spec.IngressRules
}

func (b *securityBuilder) addRules(d direction) {
	for i, r := range b.rulesOf(d) {
		path := field.NewPath("spec", d.rules).Index(i)
		match, err := b.match(path, d, r)
		if err == nil {
			err = checkRule(path, r)
		}
		if err != nil {
			b.find(err)
			continue
		}
		// There is no second tier to pass a packet on to, and there it would be dropped.
		action := nb.ActionDrop
		if r.Policy == policyAllow {
			action = nb.ActionAllowRelated
		}
		if !b.list.add(purposeRule, nb.ACL{Direction: d.name, Priority: priorityRules - r.Priority, Match: match, Action: action}) {
			b.find(sameACL(path))
		}
	}
}

func checkRule(path *field.Path, r kubeovnv1.SecurityGroupRule) error {
	policies := []string{policyAllow, policyDrop, policyPass}
	switch {
	case r.Priority < minRulePriority || r.Priority > maxRulePriority:
		return field.Invalid(path.Child("priority"), r.Priority, fmt.Sprintf("give one from %d to %d", minRulePriority, maxRulePriority))
	case !slices.Contains(policies, r.Policy):
		return field.NotSupported(path.Child("policy"), r.Policy, policies)
	}
	return nil
}

// match says in OVN's language what a rule is about.
func (b *securityBuilder) match(path *field.Path, d direction, r kubeovnv1.SecurityGroupRule) (string, error) {
	ip, protocol := "ip4", nb.ProtocolIPv4
	switch r.IPVersion {
	case versionIPv4:
	case versionIPv6:
		ip, protocol = "ip6", nb.ProtocolIPv6
	default:
		return "", field.NotSupported(path.Child("ipVersion"), r.IPVersion, []string{versionIPv4, versionIPv6})
	}
	match := fmt.Sprintf("%s == @%s && %s", d.port, b.name, ip)
	switch r.RemoteType {
	case remoteAddress:
		text, err := ruleAddress(path.Child("remoteAddress"), ip, r.RemoteAddress)
		if err != nil {
			return "", err
		}
		match += fmt.Sprintf(" && %s.%s == %s", ip, d.remote, text)
	case remoteGroup:
		if !b.known[r.RemoteSecurityGroup] {
			return "", field.NotFound(path.Child("remoteSecurityGroup"), r.RemoteSecurityGroup)
		}
		match += fmt.Sprintf(" && %s.%s == $%s", ip, d.remote, nb.SecurityGroupSet(r.RemoteSecurityGroup, protocol))
	default:
		return "", field.NotSupported(path.Child("remoteType"), r.RemoteType, []string{remoteAddress, remoteGroup})
	}
	if r.LocalAddress != "" {
		text, err := ruleAddress(path.Child("localAddress"), ip, r.LocalAddress)
		if err != nil {
			return "", err
		}
		match += fmt.Sprintf(" && %s.%s == %s", ip, d.local, text)
	}
	more, err := rulePorts(path, ip, r)
	return match + more, err
}

// ruleAddress writes an address or a network of a rule's family.
func ruleAddress(path *field.Path, ip, text string) (string, error) {
	network, addr, ok := parseNetwork(text)
	if !ok || family(addr) != ip {
		return "", field.Invalid(path, text, "give an address or a CIDR of the rule's ipVersion")
	}
	return network, nil
}

// rulePorts says what protocol and ports a rule is about.
func rulePorts(path *field.Path, ip string, r kubeovnv1.SecurityGroupRule) (string, error) {
	switch r.Protocol {
	case "", protocolAll:
		return "", nil
	case protocolICMP:
		return " && icmp" + ip[2:], nil
	case protocolTCP, protocolUDP:
	default:
		return "", field.NotSupported(path.Child("protocol"), r.Protocol, []string{protocolAll, protocolICMP, protocolTCP, protocolUDP})
	}
	if err := portRange(path.Child("portRangeMin"), r.PortRangeMin, r.PortRangeMax); err != nil {
		return "", err
	}
	match := fmt.Sprintf(" && %d <= %s.dst <= %d", r.PortRangeMin, r.Protocol, r.PortRangeMax)
	if r.SourcePortRangeMin == 0 && r.SourcePortRangeMax == 0 {
		return match, nil
	}
	if err := portRange(path.Child("sourcePortRangeMin"), r.SourcePortRangeMin, r.SourcePortRangeMax); err != nil {
		return "", err
	}
	return match + fmt.Sprintf(" && %d <= %s.src <= %d", r.SourcePortRangeMin, r.Protocol, r.SourcePortRangeMax), nil
}

func portRange(path *field.Path, from, to int) error {
	if from < 1 || to > maxPort || from > to {
		return field.Invalid(path, fmt.Sprintf("%d to %d", from, to), fmt.Sprintf("give a range within 1 to %d, the lower port first", maxPort))
	}
	return nil
}

// SecurityStatus is what the status of a SecurityGroup says when its rows are written: its conditions are as they were.
func SecurityStatus(g *kubeovnv1.SecurityGroup, findings []Finding) kubeovnv1.SecurityGroupStatus {
	out := *g.Status.DeepCopy()
	out.PortGroup, out.AllowSameGroupTraffic = nb.SecurityGroupName(g.Name), g.Spec.AllowSameGroupTraffic
	out.IngressMd5, out.EgressMd5 = rulesSum(g.Spec.IngressRules), rulesSum(g.Spec.EgressRules)
	out.IngressLastSyncSuccess, out.EgressLastSyncSuccess = true, true
	for _, f := range findings {
		var bad *field.Error
		switch {
		case !errors.As(f.Err, &bad):
			out.PortGroup, out.IngressLastSyncSuccess, out.EgressLastSyncSuccess = "", false, false
		case strings.HasPrefix(bad.Field, "spec.egressRules"):
			out.EgressLastSyncSuccess = false
		default:
			out.IngressLastSyncSuccess = false
		}
	}
	return out
}

// rulesSum changes with the rules.
func rulesSum(rules []kubeovnv1.SecurityGroupRule) string {
	text, err := json.Marshal(rules)
	if err != nil { // no value of these types can't be written
		return ""
	}
	sum := md5.Sum(text) // it tells a change, and guards nothing
	return hex.EncodeToString(sum[:])
}
