package network

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// ValidateSubnet judges a change of a Subnet: old is nil for a new one, now is nil for one that is to be deleted. What was
// wrong before is no reason, and neither is anything when nothing changes that matters here.
func ValidateSubnet(now, old *kubeovnv1.Subnet, w World) (warnings []string, errs field.ErrorList) {
	if now == nil {
		held := w.holds(old.Name, func(ipam.Held) bool { return true })
		if len(held) == 0 || old.DeletionTimestamp != nil {
			return nil, nil
		}
		return nil, field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
			holders(held)+": delete what holds them first, the subnet can go after its last address is free")}
	}
	if old != nil && (now.DeletionTimestamp != nil || SameSubnet(now, old)) {
		return nil, nil
	}
	warnings, errs = judgeSubnet(now, w)
	if old == nil {
		return warnings, errs
	}
	_, before := judgeSubnet(old, w)
	errs = onlyNew(errs, before)
	errs = append(errs, subnetChange(now, old, w)...)
	if old.Labels[LabelManaged] == "true" && now.Labels[LabelManaged] != "true" {
		if held := w.holds(now.Name, func(ipam.Held) bool { return true }); len(held) > 0 {
			warnings = append(warnings, fmt.Sprintf("without the label %s=true kube-ovn-controller may give addresses of this subnet as well once they are no longer in spec.excludeIps, and %s",
				LabelManaged, holders(held)))
		}
	}
	return warnings, errs
}

// SameSubnet tells whether nothing changes that a Subnet is judged by.
func SameSubnet(a, b *kubeovnv1.Subnet) bool {
	return reflect.DeepEqual(a.Spec, b.Spec) && a.Labels[LabelManaged] == b.Labels[LabelManaged] && a.Annotations[ExcludeKey] == b.Annotations[ExcludeKey]
}

// minMTUIPv6 is the smallest MTU that IPv6 works with (RFC 8200).
const minMTUIPv6 = 1280

// judgeSubnet tells what is wrong with a Subnet as it is.
func judgeSubnet(s *kubeovnv1.Subnet, w World) (warnings []string, errs field.ErrorList) {
	spec := field.NewPath("spec")
	add := func(path *field.Path, value any, err error) {
		if err != nil {
			errs = append(errs, field.Invalid(path, value, detail(path, err)))
		}
	}
	if router := w.routerOf(s); router == s.Name {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "name"), s.Name, "it is the name of the subnet's VPC: switch and router need different names"))
	}
	prefixes, err := parsePrefixes(s.Spec)
	add(spec.Child("cidrBlock"), s.Spec.CIDRBlock, err)
	for _, p := range prefixes {
		add(spec.Child("cidrBlock"), s.Spec.CIDRBlock, w.prefixFault(s, p))
	}
	if strings.ContainsAny(s.Spec.CIDRBlock, "ABCDEF") {
		warnings = append(warnings, "spec.cidrBlock has capitals: kube-ovn-controller takes IPv6 in small letters only")
	}
	if err == nil {
		gateways, gerr := parseGateways(s.Spec.Gateway, prefixes)
		add(spec.Child("gateway"), s.Spec.Gateway, gerr)
		for i, g := range gateways {
			add(spec.Child("gateway"), s.Spec.Gateway, gatewayFault(g, prefixes[i]))
		}
		errs = append(errs, w.overlaps(s, prefixes)...)
	}
	if small := s.Spec.Mtu; small > 0 && small < minMTUIPv6 && slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Addr().Is6() }) {
		add(spec.Child("mtu"), small, fmt.Errorf("IPv6 needs at least %d: raise it, or leave it away", minMTUIPv6))
	}
	for i, item := range s.Spec.ExcludeIps {
		_, err := ParseRanges([]string{item})
		add(spec.Child("excludeIps").Index(i), item, err)
	}
	if own, ok := s.Annotations[ExcludeKey]; ok {
		_, err := ParseRanges(strings.Split(own, ","))
		add(annotationPath(ExcludeKey), own, err)
		if s.Labels[LabelManaged] != "true" {
			warnings = append(warnings, fmt.Sprintf("annotation %s counts in subnets labelled %s=true only: ignored", ExcludeKey, LabelManaged))
		}
	}
	more, fence := w.fence(s)
	return append(warnings, more...), append(errs, fence...)
}

// prefixFault tells why a subnet can't have a CIDR.
func (w World) prefixFault(s *kubeovnv1.Subnet, p netip.Prefix) error {
	a := p.Addr()
	if a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() {
		return fmt.Errorf("%s is in a range that can't be routed: loopback, link-local, multicast or unspecified", p)
	}
	if w.APIServer.IsValid() && p.Contains(w.APIServer) {
		return fmt.Errorf("%s has the address %s of the API server's Service in it: pods would look for it among themselves", p, w.APIServer)
	}
	if s.Spec.Vlan != "" || !isOVN(s) || w.routerOf(s) != w.Config.ClusterRouter {
		return nil
	}
	nodes := slices.SortedFunc(maps.Keys(w.Nodes), netip.Addr.Compare)
	for _, n := range nodes {
		if p.Contains(n) {
			return fmt.Errorf("%s has the address %s of node %s in it: pods could not reach the nodes", p, n, w.Nodes[n])
		}
	}
	return nil
}

// gatewayFault tells why a gateway can't be one.
func gatewayFault(g netip.Addr, p netip.Prefix) error {
	if p.Addr().BitLen()-p.Bits() <= 1 {
		return nil
	}
	switch {
	case g == p.Addr():
		return fmt.Errorf("%s is the network address of %s: take a host address", g, p)
	case g.Is4() && g == netipx.PrefixLastIP(p):
		return fmt.Errorf("%s is the broadcast address of %s: take a host address", g, p)
	}
	return nil
}

// overlaps finds other subnets of the same router and VLAN that have some of the addresses.
func (w World) overlaps(s *kubeovnv1.Subnet, prefixes []netip.Prefix) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(w.Catalog.Subnets)) {
		other := w.Catalog.Subnets[name].Object
		if other == nil || name == s.Name || other.Spec.Vlan != s.Spec.Vlan || w.realm(other) != w.realm(s) {
			continue
		}
		theirs, err := parsePrefixes(other.Spec)
		if err != nil {
			continue // it is said of that one
		}
		for _, p := range prefixes {
			for _, q := range theirs {
				if p.Overlaps(q) {
					errs = append(errs, field.Invalid(field.NewPath("spec", "cidrBlock"), s.Spec.CIDRBlock,
						fmt.Sprintf("it overlaps %s of subnet %s in the same network: choose another range", q, name)))
				}
			}
		}
	}
	return errs
}

// isOVN tells whether pods are on the subnet by a port of a logical switch.
func isOVN(s *kubeovnv1.Subnet) bool {
	p := s.Spec.Provider
	parts := strings.Split(p, ".")
	return p == "" || p == DefaultProvider || len(parts) == 3 && parts[2] == DefaultProvider
}

// routerOf is the VPC of a subnet; empty when it has none.
func (w World) routerOf(s *kubeovnv1.Subnet) string {
	if !isOVN(s) {
		return ""
	}
	return cmp.Or(s.Spec.Vpc, w.Config.ClusterRouter)
}

// realm is where an address must be of one subnet only.
func (w World) realm(s *kubeovnv1.Subnet) string {
	if r := w.routerOf(s); r != "" {
		return "vpc " + r
	}
	return "provider " + s.Spec.Provider
}

// fence holds that a fenced subnet serves namespaces only that have opted in: nobody gives the pods of others anything.
func (w World) fence(s *kubeovnv1.Subnet) (warnings []string, errs field.ErrorList) {
	if s.Labels[LabelManaged] != "true" {
		return nil, nil
	}
	if s.Name == w.Config.DefaultSubnet {
		warnings = append(warnings, fmt.Sprintf("the default subnet is fenced: pods of namespaces without label %s get no address", LabelInject))
	}
	there := map[string]bool{}
	for _, ns := range w.Namespaces {
		there[ns.Name] = true
		if ns.OptedIn() || !binds(s, ns) {
			continue
		}
		path := field.NewPath("spec", "namespaceSelectors")
		if slices.Contains(s.Spec.Namespaces, ns.Name) {
			path = field.NewPath("spec", "namespaces")
		}
		errs = append(errs, field.Invalid(path, ns.Name, fmt.Sprintf(
			"a subnet labelled %s=true serves namespaces only that have opted in: label namespace %s %s=%s, or unbind it", LabelManaged, ns.Name, LabelInject, InjectEnabled)))
	}
	for _, name := range s.Spec.Namespaces {
		if !there[name] {
			warnings = append(warnings, fmt.Sprintf("spec.namespaces: there is no namespace %s; label it %s=%s when you make it", name, LabelInject, InjectEnabled))
		}
	}
	return warnings, errs
}

// subnetChange tells what a change would take from under those who hold addresses.
func subnetChange(now, old *kubeovnv1.Subnet, w World) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	was, wasErr := parsePrefixes(old.Spec)
	is, isErr := parsePrefixes(now.Spec)
	if wasErr == nil && isErr == nil && (len(was) == 0) != (len(is) == 0) {
		errs = append(errs, field.Forbidden(spec.Child("cidrBlock"), "a subnet of MACs alone can't get addresses, nor lose them: make another subnet"))
	}
	if a, b := w.routerOf(old), w.routerOf(now); a != b && isOVN(old) && isOVN(now) {
		errs = append(errs, field.Forbidden(spec.Child("vpc"), fmt.Sprintf("a subnet stays in its VPC %s: make another subnet", a)))
	}
	all := w.holds(now.Name, func(ipam.Held) bool { return true })
	if len(all) == 0 || wasErr != nil {
		return errs
	}
	if isErr == nil && len(is) > 0 {
		lost := slices.DeleteFunc(slices.Clone(all), func(l ipam.Held) bool { return !within(was, l.Address) || within(is, l.Address) })
		if len(lost) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("cidrBlock"), "outside the new range "+holders(lost)+": free them first, or keep the range"))
		}
		errs = append(errs, gatewayChange(now, old, was, is, all)...)
	}
	if now.Spec.Vlan != old.Spec.Vlan {
		errs = append(errs, field.Forbidden(spec.Child("vlan"), holders(all)+", and their pods are wired to another network: free them first"))
	}
	if cmp.Or(now.Spec.Provider, DefaultProvider) != cmp.Or(old.Spec.Provider, DefaultProvider) {
		errs = append(errs, field.Forbidden(spec.Child("provider"), holders(all)+" under the old provider: free them first"))
	}
	return errs
}

// gatewayChange refuses another gateway for a family of which addresses are held: running pods keep their route.
func gatewayChange(now, old *kubeovnv1.Subnet, was, is []netip.Prefix, all []ipam.Held) (errs field.ErrorList) {
	before, err1 := parseGateways(old.Spec.Gateway, was)
	after, err2 := parseGateways(now.Spec.Gateway, is)
	if err1 != nil || err2 != nil {
		return nil
	}
	for _, g := range after {
		i := slices.IndexFunc(before, func(b netip.Addr) bool { return b.Is4() == g.Is4() })
		if i < 0 || before[i] == g {
			continue
		}
		held := slices.DeleteFunc(slices.Clone(all), func(l ipam.Held) bool { return l.Address.Is4() != g.Is4() })
		if len(held) > 0 {
			errs = append(errs, field.Forbidden(field.NewPath("spec", "gateway"),
				fmt.Sprintf("%s instead of %s: %s, and their pods have the old route: free them first", g, before[i], holders(held))))
		}
	}
	return errs
}

func within(prefixes []netip.Prefix, a netip.Addr) bool {
	return slices.ContainsFunc(prefixes, func(p netip.Prefix) bool { return p.Contains(a) })
}
