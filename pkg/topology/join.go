package topology

import (
	"net/netip"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// addDefaultRoutes sends what nobody else routes to the gateway of the join switch.
func (b *builder) addDefaultRoutes(join plannedSubnet) {
	policy := nb.RouteByDestination
	for _, gw := range join.gateways {
		zero := netip.IPv4Unspecified()
		if gw.Is6() {
			zero = netip.IPv6Unspecified()
		}
		b.addRoute(b.in.Config.ClusterRouter, nb.StaticRoute{
			Prefix: netip.PrefixFrom(zero, 0).String(), Policy: &policy, Nexthop: gw.String(), ExternalIDs: marks(nb.KeySubnet, join.Name),
		})
	}
}
