package ovn

import (
	"fmt"
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// dumpTopology writes the rows that follow from topology as lines, without UUIDs, and all others of the same tables.
func dumpTopology(c *Client) (ours, others []string) {
	line := func(mine bool, format string, args ...any) {
		text := fmt.Sprintf(format, args...)
		if mine {
			ours = append(ours, text)
		} else {
			others = append(others, text)
		}
	}
	on := map[string]string{}
	for _, r := range rowsOf[*routerRow](c, tableRouter) {
		line(nb.OfTopology(r.ExternalIDs), "router %s %s %s", r.Name, text(r.Options), text(r.ExternalIDs))
		for _, uuid := range slices.Concat(r.Policies, r.StaticRoutes) {
			on[uuid] += r.Name
		}
	}
	for _, r := range rowsOf[*switchRow](c, tableSwitch) {
		line(nb.OfTopology(r.ExternalIDs), "switch %s %s %s", r.Name, text(r.OtherConfig), text(r.ExternalIDs))
	}
	chassis := map[string]string{}
	for _, r := range rowsOf[*chassisRow](c, tableChassis) {
		chassis[r.UUID] = fmt.Sprintf("%s %s %d", r.Name, r.ChassisName, r.Priority)
	}
	for _, r := range rowsOf[*routerPortRow](c, tableRouterPort) {
		var gateways []string
		for _, uuid := range r.GatewayChassis {
			gateways = append(gateways, chassis[uuid])
		}
		slices.Sort(gateways)
		line(nb.OfTopology(r.ExternalIDs), "router port %s %s %q %s %s %s %s", r.Name, r.MAC, slices.Sorted(slices.Values(r.Networks)), text(r.Options),
			pointed(r.Peer), text(r.ExternalIDs), gateways)
	}
	for _, r := range rowsOf[*portRow](c, tablePort) {
		line(nb.OfTopology(r.ExternalIDs), "port %s %s %q %d %s %s", r.Name, r.Type, slices.Sorted(slices.Values(r.Addresses)), pointed(r.Tag),
			text(r.Options), text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*policyRow](c, tablePolicy) {
		line(nb.OfTopology(r.ExternalIDs), "policy %s: %d %s %s %s %s", on[r.UUID], r.Priority, r.Match, r.Action,
			slices.Sorted(slices.Values(r.Nexthops)), text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*staticRow](c, tableRoute) {
		line(nb.OfTopology(r.ExternalIDs), "route %s: %q %s %s via %s %s", on[r.UUID], r.Table, pointed(r.Policy), r.Prefix, r.Nexthop, text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*groupRow](c, tableGroup) {
		line(followsNode(r.ExternalIDs), "group %s %s %d", r.Name, text(r.ExternalIDs), len(r.Ports))
	}
	for _, r := range rowsOf[*natRow](c, tableNAT) {
		line(false, "nat %s %s %s", r.Type, r.ExternalIP, r.LogicalIP)
	}
	slices.Sort(ours)
	slices.Sort(others)
	return ours, others
}
