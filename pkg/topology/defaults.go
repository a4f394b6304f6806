package topology

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	providerOVN        = "ovn"
	gatewayDistributed = "distributed"
	gatewayCentralized = "centralized"

	protocolIPv4 = "IPv4"
	protocolIPv6 = "IPv6"
	protocolDual = "Dual"
	protocolMac  = "Mac"
)

// Defaults returns what a Subnet lacks, or has in another form than everybody expects: a patch that is empty when there
// is nothing to do. The error is an aggregate of *field.Error, and has all that is wrong at once.
func Defaults(subnet *kubeovnv1.Subnet, cfg Config) (SubnetPatch, error) {
	spec := field.NewPath("spec")
	s := &subnet.Spec
	var patch SubnetPatch
	patch.Provider = change(s.Provider, cmp.Or(s.Provider, providerOVN))
	if IsOVN(s.Provider) {
		vpc := cmp.Or(s.Vpc, cfg.ClusterRouter)
		patch.Vpc = change(s.Vpc, vpc)
		if vpc == cfg.ClusterRouter {
			defaultVpc(&patch, subnet, cfg)
		}
	}
	var errs field.ErrorList
	if s.GatewayType != "" && s.GatewayType != gatewayDistributed && s.GatewayType != gatewayCentralized {
		errs = append(errs, field.NotSupported(spec.Child("gatewayType"), s.GatewayType,
			[]string{gatewayCentralized, gatewayDistributed}))
	}
	if strings.TrimSpace(s.CIDRBlock) == "" {
		if s.Vlan == "" || s.LogicalGateway {
			errs = append(errs, field.Required(spec.Child("cidrBlock"), "only a subnet with a vlan and without a logical gateway can do without addresses"))
		}
		patch.Protocol = change(s.Protocol, protocolMac)
		return result(patch, errs)
	}
	cidrs, more := parseCIDRs(spec.Child("cidrBlock"), s.CIDRBlock)
	errs = append(errs, more...)
	gateways, more := parseGateways(spec.Child("gateway"), s.Gateway, cidrs)
	errs = append(errs, more...)
	excluded, more := parseExcluded(spec.Child("excludeIps"), s.ExcludeIps)
	errs = append(errs, more...)
	if len(errs) > 0 {
		return result(patch, errs)
	}
	patch.Protocol = change(s.Protocol, protocolOf(cidrs))
	patch.CIDRBlock = change(s.CIDRBlock, join(cidrs))
	patch.Gateway = change(s.Gateway, join(gateways))
	for _, g := range gateways {
		excluded = append(excluded, addrRange{g, g})
	}
	if want := merge(excluded); !slices.Equal(s.ExcludeIps, want) {
		patch.ExcludeIps = want
	}
	return result(patch, nil)
}

func defaultVpc(patch *SubnetPatch, subnet *kubeovnv1.Subnet, cfg Config) {
	if subnet.Name != cfg.NodeSwitch {
		patch.GatewayType = change(subnet.Spec.GatewayType, cmp.Or(subnet.Spec.GatewayType, gatewayDistributed))
	}
	if subnet.Spec.Default && subnet.Name != cfg.DefaultSubnet {
		no := false
		patch.Default = &no
	}
}

func result(patch SubnetPatch, errs field.ErrorList) (SubnetPatch, error) {
	if err := errs.ToAggregate(); err != nil {
		return SubnetPatch{}, err
	}
	return patch, nil
}

func change(have, want string) *string {
	if have == want {
		return nil
	}
	return &want
}

func splitList(s string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for part := range strings.SplitSeq(s, ",") {
			if part = strings.TrimSpace(part); part != "" && !yield(part) {
				return
			}
		}
	}
}

func join[T interface{ String() string }](values []T) string {
	var out []string
	for _, v := range values {
		out = append(out, v.String())
	}
	return strings.Join(out, ",")
}

func protocolOf(cidrs []netip.Prefix) string {
	switch {
	case len(cidrs) == 2:
		return protocolDual
	case cidrs[0].Addr().Is4():
		return protocolIPv4
	}
	return protocolIPv6
}

// parseCIDRs returns the network of each family, IPv4 first.
func parseCIDRs(path *field.Path, text string) ([]netip.Prefix, field.ErrorList) {
	var cidrs []netip.Prefix
	var errs field.ErrorList
	for part := range splitList(text) {
		c, err := netip.ParsePrefix(part)
		switch {
		case err != nil || c.Addr().Is4In6():
			errs = append(errs, field.Invalid(path, text, part+" is no CIDR, such as 10.16.0.0/16 or fd00::/64"))
			continue
		case c.IsSingleIP():
			errs = append(errs, field.Invalid(path, text, part+" has one address only: no room for a gateway and a pod"))
		case unusable(c.Masked()):
			errs = append(errs, field.Invalid(path, text, part+" is in a range that can't be routed: loopback, link-local, multicast or unspecified"))
		case slices.ContainsFunc(cidrs, func(o netip.Prefix) bool { return o.Addr().Is4() == c.Addr().Is4() }):
			errs = append(errs, field.Invalid(path, text, "there are two CIDRs of one family: give at most one for IPv4 and one for IPv6"))
		}
		cidrs = append(cidrs, c.Masked())
	}
	if len(cidrs) == 0 && len(errs) == 0 {
		errs = append(errs, field.Invalid(path, text, "there is no CIDR in it"))
	}
	slices.SortStableFunc(cidrs, func(a, b netip.Prefix) int { return nb.CompareFamilies(a.Addr(), b.Addr()) })
	return cidrs, errs
}

func unusable(c netip.Prefix) bool {
	a := c.Addr()
	return a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified()
}

// parseGateways returns the gateway of each CIDR: the one given, or the first usable address.
func parseGateways(path *field.Path, text string, cidrs []netip.Prefix) ([]netip.Addr, field.ErrorList) {
	var given []netip.Addr
	var errs field.ErrorList
	for part := range splitList(text) {
		g, err := netip.ParseAddr(part)
		if err != nil || g.Zone() != "" || g.Is4In6() {
			errs = append(errs, field.Invalid(path, text, part+" is no address"))
			continue
		}
		if slices.ContainsFunc(given, func(o netip.Addr) bool { return o.Is4() == g.Is4() }) {
			errs = append(errs, field.Invalid(path, text, "there are two gateways of one family: give at most one for IPv4 and one for IPv6"))
		}
		given = append(given, g)
		if len(cidrs) > 0 {
			errs = append(errs, checkGateway(path, text, g, cidrs)...)
		}
	}
	if len(errs) > 0 {
		return nil, errs
	}
	var gateways []netip.Addr
	for _, c := range cidrs {
		i := slices.IndexFunc(given, func(g netip.Addr) bool { return g.Is4() == c.Addr().Is4() })
		if i >= 0 {
			gateways = append(gateways, given[i])
			continue
		}
		gateways = append(gateways, firstUsable(c))
	}
	return gateways, nil
}

func checkGateway(path *field.Path, text string, g netip.Addr, cidrs []netip.Prefix) field.ErrorList {
	for _, c := range cidrs {
		if !c.Contains(g) {
			continue
		}
		if !pair(c) && (g == c.Addr() || (g.Is4() && g == last(c))) {
			return field.ErrorList{field.Invalid(path, text, g.String()+" is the network or broadcast address of "+c.String())}
		}
		return nil
	}
	return field.ErrorList{field.Invalid(path, text, g.String()+" is outside "+join(cidrs))}
}

// pair tells a network of two addresses, in which both are usable.
func pair(c netip.Prefix) bool { return c.Addr().BitLen()-c.Bits() <= 1 }

func firstUsable(c netip.Prefix) netip.Addr {
	if pair(c) {
		return c.Addr()
	}
	return c.Addr().Next()
}

// last returns the highest address of a network.
func last(c netip.Prefix) netip.Addr {
	b := c.Addr().AsSlice()
	for i := range b {
		if host := (i+1)*8 - c.Bits(); host > 0 {
			b[i] |= byte(1<<min(host, 8) - 1)
		}
	}
	a, _ := netip.AddrFromSlice(b)
	return a
}
