package ovn

import (
	"maps"
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// heldBy are the switches that stay as they are, and the router ports that lead to them.
func (c *composer) heldBy(rows nb.Rows) map[rowKey]bool {
	held := map[rowKey]bool{}
	for _, name := range rows.Held {
		held[rowKey{tableSwitch, name}] = true
	}
	if len(held) == 0 {
		return held
	}
	for _, p := range c.topology().ports {
		if to := p.Options[nb.OptionRouterPort]; to != "" && held[rowKey{tableSwitch, p.ExternalIDs[nb.KeySwitch]}] {
			held[rowKey{tableRouterPort, to}] = true
		}
	}
	return held
}

// tidyRouters removes topology's policies, routes and router ports that nothing asks for any more.
func (c *composer) tidyRouters(rows nb.Rows, used map[string]bool) {
	t := c.topology()
	held := c.heldBy(rows)
	stale := func(uuid string, ids map[string]string) bool {
		return nb.OfTopology(ids) && !used[uuid] && !held[rowKey{tableSwitch, ids[nb.KeySubnet]}]
	}
	for _, r := range t.routers {
		for _, uuid := range slices.Sorted(slices.Values(r.Policies)) {
			if p, ok := t.policies[uuid]; ok && stale(uuid, p.ExternalIDs) {
				c.emitRemovals(unrefer(tableRouter, colPolicies, uuid))
			}
		}
		for _, uuid := range slices.Sorted(slices.Values(r.StaticRoutes)) {
			if s, ok := t.routes[uuid]; ok && stale(uuid, s.ExternalIDs) {
				c.emitRemovals(unrefer(tableRouter, colRoutes, uuid))
			}
		}
	}
	keep := map[string]bool{}
	for _, p := range rows.RouterPorts {
		keep[p.Row.Name] = true
	}
	for _, p := range t.routerPorts {
		k := rowKey{tableRouterPort, p.Name}
		if nb.OfTopology(p.ExternalIDs) && !keep[p.Name] && !held[k] && !c.gone[k] {
			c.gone[k] = true
			c.emitRemovals(unrefer(tableRouter, colPorts, p.UUID))
		}
	}
}

// tidyPorts removes topology's switch ports that nothing asks for any more.
func (c *composer) tidyPorts(rows nb.Rows) {
	keep := map[string]bool{}
	for _, p := range rows.Ports {
		keep[p.Row.Name] = true
	}
	held := c.heldBy(rows)
	for _, p := range c.topology().ports {
		k := rowKey{tablePort, p.Name}
		if !keep[p.Name] && !held[rowKey{tableSwitch, p.ExternalIDs[nb.KeySwitch]}] && !c.gone[k] {
			c.gone[k] = true
			c.dropPort(p)
		}
	}
}

// tidyGroups removes the groups of nodes and subnets that are gone. One whose node and subnet are there may be a pod's
// wish: it goes when it is empty.
func (c *composer) tidyGroups(rows nb.Rows) {
	keep, nodes, subnets := map[string]bool{}, map[string]bool{}, map[string]bool{}
	for _, g := range rows.Groups {
		keep[g.Name] = true
		nodes[g.ExternalIDs[nb.KeyNode]] = true
	}
	for _, s := range rows.Switches {
		subnets[s.Name] = true
	}
	held := c.heldBy(rows)
	stale := map[string]string{}
	c.view.eachGroup(func(g *nb.PortGroup) {
		sw := g.ExternalIDs[nb.KeySubnet]
		if !followsNode(g.ExternalIDs) || keep[g.Name] || held[rowKey{tableSwitch, sw}] {
			return
		}
		if len(g.Ports) > 0 && nodes[g.ExternalIDs[nb.KeyNode]] && (sw == "" || subnets[sw]) {
			return
		}
		stale[g.Name] = g.UUID
	})
	for _, name := range slices.Sorted(maps.Keys(stale)) {
		k := rowKey{tableGroup, name}
		if c.refs[k] || c.own[k] { // an earlier change of the batch puts a port into it
			continue
		}
		c.gone[k] = true
		c.emitRemovals(deleteRow(tableGroup, stale[name]))
	}
}
