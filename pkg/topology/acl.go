package topology

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Priorities of what a switch's ACLs say. Those of SecurityGroups lie between that of the nodes and that of one subnet.
const (
	priorityNodes      = 3000
	priorityAllowed    = 2004
	priorityEastWest   = 1900
	prioritySameSubnet = 1001
	priorityPrivate    = 1000
)

// Purposes of ACLs.
const (
	purposePrivate  = "private"
	purposeEastWest = "allow-east-west"
	purposeSubnet   = "subnet"
)

// maxACLName is how long the name of an ACL may be.
const maxACLName = 63

// addACLs adds the ACLs of a subnet's switch. An entry that can't be read is left away and told.
func (b *builder) addACLs(s *kubeovnv1.Subnet) {
	l := aclList{parent: nb.ACLs{Switch: s.Name}}
	cidrs := prefixesIn(s.Spec.CIDRBlock)
	if s.Spec.Private {
		b.addPrivate(&l, s, cidrs)
	}
	if s.Spec.AllowEWTraffic {
		for _, c := range cidrs {
			for _, direction := range []string{nb.ToLport, nb.FromLport} {
				l.add(purposeEastWest, nb.ACL{Direction: direction, Priority: priorityEastWest, Match: between(family(c.Addr()), c.String(), c.String()), Action: nb.ActionAllow})
			}
		}
	}
	for i, a := range s.Spec.ACLs {
		path := field.NewPath("spec", "acls").Index(i)
		if err := checkSubnetACL(path, a); err != nil {
			b.find(KindSubnet, s.Name, err)
			continue
		}
		if !l.add(purposeSubnet, nb.ACL{Direction: a.Direction, Priority: a.Priority, Match: strings.TrimSpace(a.Match), Action: a.Action}) {
			b.find(KindSubnet, s.Name, sameACL(path))
		}
	}
	b.rows.ACLs = append(b.rows.ACLs, l.done())
}

// addPrivate closes a subnet to all but itself, the nodes and the subnets that it allows.
func (b *builder) addPrivate(l *aclList, s *kubeovnv1.Subnet, cidrs []netip.Prefix) {
	warning := nb.SeverityWarning
	drop := nb.ACL{Direction: nb.ToLport, Priority: priorityPrivate, Match: "ip", Action: nb.ActionDrop, Log: true, Severity: &warning}
	if len(s.Name) <= maxACLName {
		drop.Name = &s.Name
	}
	l.add(purposePrivate, drop)
	allow := func(priority int, match string) {
		l.add(purposePrivate, nb.ACL{Direction: nb.ToLport, Priority: priority, Match: match, Action: nb.ActionAllowRelated})
	}
	allowed, errs := parseAllowed(s.Spec.AllowSubnets)
	for _, err := range errs {
		b.find(KindSubnet, s.Name, err)
	}
	for _, c := range cidrs {
		ip, own := family(c.Addr()), c.String()
		allow(prioritySameSubnet, between(ip, own, own))
		for _, join := range b.joinCIDRs() {
			if family(join.Addr()) == ip {
				allow(priorityNodes, ip+".src == "+join.String())
			}
		}
		for _, other := range allowed[ip] {
			allow(priorityAllowed, "("+between(ip, own, other)+") || ("+between(ip, other, own)+")")
		}
	}
}

// joinCIDRs are the networks of the subnet that joins the nodes.
func (b *builder) joinCIDRs() []netip.Prefix {
	i := slices.IndexFunc(b.in.Subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == b.in.Config.NodeSwitch })
	if i < 0 {
		return nil
	}
	return prefixesIn(b.in.Subnets[i].Spec.CIDRBlock)
}

// prefixesIn reads a list of networks, IPv4 first. What can't be read is left away: Defaults tells it.
func prefixesIn(list string) []netip.Prefix {
	var out []netip.Prefix
	for text := range splitList(list) {
		if c, err := netip.ParsePrefix(text); err == nil {
			out = append(out, c.Masked())
		}
	}
	slices.SortStableFunc(out, func(a, b netip.Prefix) int { return nb.CompareFamilies(a.Addr(), b.Addr()) })
	return out
}

// parseAllowed reads the networks that a private subnet allows, by the name of their family.
func parseAllowed(list []string) (map[string][]string, field.ErrorList) {
	out := map[string][]string{}
	var errs field.ErrorList
	for i, text := range list {
		if strings.TrimSpace(text) == "" {
			continue
		}
		network, addr, ok := parseNetwork(text)
		if !ok {
			errs = append(errs, field.Invalid(field.NewPath("spec", "allowSubnets").Index(i), text, "give a CIDR, such as 10.17.0.0/16 or fd00::/64"))
			continue
		}
		out[family(addr)] = append(out[family(addr)], network)
	}
	return out, errs
}

// between matches what goes from one network to another of its family, as ip names it.
func between(ip, from, to string) string {
	return ip + ".src == " + from + " && " + ip + ".dst == " + to
}

func checkSubnetACL(path *field.Path, a kubeovnv1.ACL) error {
	directions := []string{nb.FromLport, nb.ToLport}
	actions := []string{nb.ActionAllow, nb.ActionAllowRelated, nb.ActionAllowStateless, nb.ActionDrop, nb.ActionReject}
	switch {
	case !slices.Contains(directions, a.Direction):
		return field.NotSupported(path.Child("direction"), a.Direction, directions)
	case a.Priority < 0 || a.Priority > nb.MaxACLPriority:
		return field.Invalid(path.Child("priority"), a.Priority, "give one from 0 to 32767")
	case strings.TrimSpace(a.Match) == "" || strings.ContainsRune(a.Match, 0):
		return field.Required(path.Child("match"), "say what it is about, such as ip4.src == 10.16.0.9")
	case !slices.Contains(actions, a.Action):
		return field.NotSupported(path.Child("action"), a.Action, actions)
	}
	return nil
}

func sameACL(path *field.Path) error {
	return field.Duplicate(path, "another one has the same direction, priority and match, and another action; the stricter one holds: remove one of them")
}

// aclList gathers the ACLs of one parent.
type aclList struct{ parent nb.ACLs }

// add marks an ACL and adds it. Of two that match the same at one priority OVN would take any: the stricter one stays.
// It returns false when they say different things.
func (l *aclList) add(purpose string, a nb.ACL) bool {
	a.ExternalIDs = map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyParent: l.parent.Parent(), nb.KeyACL: purpose}
	if l.parent.Switch != "" && purpose != purposePrivate {
		a.ExternalIDs[nb.KeySubnet] = l.parent.Switch
	}
	for i, o := range l.parent.Rows {
		if o.Direction != a.Direction || o.Priority != a.Priority || o.Match != a.Match {
			continue
		}
		if strictness(a.Action) > strictness(o.Action) {
			l.parent.Rows[i] = a
		}
		return a.Action == o.Action
	}
	l.parent.Rows = append(l.parent.Rows, a)
	return true
}

func strictness(action string) int {
	return slices.Index([]string{nb.ActionAllow, nb.ActionAllowStateless, nb.ActionAllowRelated, nb.ActionReject, nb.ActionDrop}, action)
}

// done returns the ACLs in order: those that go first are first.
func (l *aclList) done() nb.ACLs {
	slices.SortFunc(l.parent.Rows, func(a, b nb.ACL) int {
		return cmp.Or(cmp.Compare(a.Direction, b.Direction), cmp.Compare(b.Priority, a.Priority), cmp.Compare(a.Match, b.Match))
	})
	return l.parent
}
