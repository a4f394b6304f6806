package topology

import (
	"net/netip"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// The policies of a Vpc's static routes.
const (
	policyDst = "policyDst"
	policySrc = "policySrc"
)

// routeKey says what a route is the only one of.
type routeKey struct{ router, table, policy, prefix, nexthop string }

func (b *builder) addRoute(router string, row nb.StaticRoute) {
	k := routeKey{router, row.Table, *row.Policy, row.Prefix, row.Nexthop}
	if !b.routes[k] {
		b.routes[k] = true
		b.rows.Routes = append(b.rows.Routes, nb.Route{Router: router, Row: row})
	}
}

// addStaticRoutes adds the routes of a Vpc. Several to one network share its traffic.
func (b *builder) addStaticRoutes(v *kubeovnv1.Vpc) {
	for i, r := range v.Spec.StaticRoutes {
		path := field.NewPath("spec", "staticRoutes").Index(i)
		row, err := staticRoute(path, r)
		if err != nil {
			b.find(KindVpc, v.Name, err)
			continue
		}
		b.addRoute(v.Name, row)
	}
}

func staticRoute(path *field.Path, r kubeovnv1.StaticRoute) (nb.StaticRoute, error) {
	policy := nb.RouteByDestination
	switch r.Policy {
	case "", policyDst:
	case policySrc:
		policy = nb.RouteBySource
	default:
		return nb.StaticRoute{}, field.NotSupported(path.Child("policy"), r.Policy, []string{policyDst, policySrc})
	}
	if strings.ContainsRune(r.RouteTable, 0) {
		return nb.StaticRoute{}, field.Invalid(path.Child("routeTable"), r.RouteTable, "contains a null byte")
	}
	prefix, network, ok := parseNetwork(r.CIDR)
	if !ok {
		return nb.StaticRoute{}, field.Invalid(path.Child("cidr"), r.CIDR, "give an address or a CIDR, such as 10.0.0.0/8")
	}
	nexthop, err := netip.ParseAddr(strings.TrimSpace(r.NextHopIP))
	switch {
	case err != nil:
		return nb.StaticRoute{}, field.Invalid(path.Child("nextHopIP"), r.NextHopIP, "give one address")
	case nexthop.Is4() != network.Is4():
		return nb.StaticRoute{}, field.Invalid(path.Child("nextHopIP"), r.NextHopIP, "is of another family than "+prefix)
	}
	return nb.StaticRoute{Prefix: prefix, Table: r.RouteTable, Policy: &policy, Nexthop: nexthop.String(), ExternalIDs: marks()}, nil
}

// parseNetwork reads an address or a CIDR, in the form that rows have it.
func parseNetwork(text string) (prefix string, network netip.Addr, ok bool) {
	text = strings.TrimSpace(text)
	if a, err := netip.ParseAddr(text); err == nil && a.Zone() == "" && !a.Is4In6() {
		return a.String(), a, true
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || p.Addr().Is4In6() {
		return "", netip.Addr{}, false
	}
	return p.Masked().String(), p.Addr(), true
}
