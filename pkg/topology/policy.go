package topology

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Priorities of policies, which are Kube-OVN's. The highest goes first.
const (
	prioritySubnet     = 31000
	priorityU2OSame    = 30060
	priorityU2OGateway = 30050
	priorityNode       = 30000
	priorityU2O        = 29400
	priorityGateway    = 29000
	maxPriority        = 32767
)

// policyKey says what a policy is the only one of.
type policyKey struct {
	router   string
	priority int
	match    string
}

// addPolicy adds a policy of a router for an object. It returns whose the policy is when another object has it.
func (b *builder) addPolicy(router, object string, row nb.RouterPolicy) (other string, ok bool) {
	k := policyKey{router, row.Priority, row.Match}
	if other, taken := b.policies[k]; taken {
		return other, false
	}
	b.policies[k] = object
	b.rows.Policies = append(b.rows.Policies, nb.Policy{Router: router, Row: row})
	return "", true
}

// addPolicyRoutes adds the policies that a Vpc names itself.
func (b *builder) addPolicyRoutes(v *kubeovnv1.Vpc) {
	for i, r := range v.Spec.PolicyRoutes {
		path := field.NewPath("spec", "policyRoutes").Index(i)
		row, err := policyRoute(path, r)
		if err == nil {
			if other, ok := b.addPolicy(v.Name, path.String(), row); !ok {
				err = &NameClashError{Row: strconv.Itoa(row.Priority) + " " + row.Match, Other: other}
			}
		}
		if err != nil {
			b.find(KindVpc, v.Name, err)
		}
	}
}

func policyRoute(path *field.Path, r kubeovnv1.PolicyRoute) (nb.RouterPolicy, error) {
	row := nb.RouterPolicy{Priority: r.Priority, Match: strings.TrimSpace(r.Match), Action: r.Action, ExternalIDs: marks()}
	switch {
	case r.Priority < 0 || r.Priority > maxPriority:
		return row, field.Invalid(path.Child("priority"), r.Priority, "give a number from 0 to 32767")
	case row.Match == "" || strings.ContainsRune(row.Match, 0):
		return row, field.Required(path.Child("match"), "such as ip4.src == 10.0.0.0/24")
	case !slices.Contains([]string{nb.ActionAllow, nb.ActionDrop, nb.ActionReroute}, r.Action):
		return row, field.NotSupported(path.Child("action"), r.Action, []string{nb.ActionAllow, nb.ActionDrop, nb.ActionReroute})
	case r.Action != nb.ActionReroute:
		return row, nil
	}
	for text := range splitList(r.NextHopIP) {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			return row, field.Invalid(path.Child("nextHopIP"), r.NextHopIP, text+" is no address")
		}
		row.Nexthops = append(row.Nexthops, a.String())
	}
	if len(row.Nexthops) == 0 {
		return row, field.Required(path.Child("nextHopIP"), "traffic that is rerouted needs an address to go to")
	}
	slices.Sort(row.Nexthops)
	row.Nexthops = slices.Compact(row.Nexthops)
	return row, nil
}

// family is how matches name the family of an address: ip4 or ip6.
func family(a netip.Addr) string {
	if a.Is4() {
		return "ip4"
	}
	return "ip6"
}

// ofFamily returns the address of a family.
func ofFamily(list []netip.Addr, like netip.Addr) (netip.Addr, bool) {
	i := slices.IndexFunc(list, func(a netip.Addr) bool { return a.Is4() == like.Is4() })
	if i < 0 {
		return netip.Addr{}, false
	}
	return list[i], true
}

// parseList reads addresses, IPv4 first. What is none is left away.
func parseList(text string) []netip.Addr {
	var out []netip.Addr
	for part := range splitList(text) {
		if a, err := netip.ParseAddr(part); err == nil {
			out = append(out, a)
		}
	}
	slices.SortStableFunc(out, nb.CompareFamilies)
	return out
}
