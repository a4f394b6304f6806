package ovn

import (
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// routing is what the routers of a view have.
type routing struct {
	routers     []nb.LogicalRouter
	routerPorts []nb.LogicalRouterPort
	// policies and routes by UUID.
	policies map[string]nb.RouterPolicy
	routes   map[string]nb.StaticRoute
}

// routing reads the rows without copying what they hold: nobody alters it.
func (s *session) routing() routing {
	r := routing{policies: map[string]nb.RouterPolicy{}, routes: map[string]nb.StaticRoute{}}
	for _, row := range s.tables[tableRouter].RowsShallow() {
		r.routers = append(r.routers, row.(*routerRow).plain())
	}
	for _, row := range s.tables[tableRouterPort].RowsShallow() {
		r.routerPorts = append(r.routerPorts, nb.LogicalRouterPort(*row.(*routerPortRow)))
	}
	for uuid, row := range s.tables[tablePolicy].RowsShallow() {
		r.policies[uuid] = nb.RouterPolicy(*row.(*policyRow))
	}
	for uuid, row := range s.tables[tableRoute].RowsShallow() {
		r.routes[uuid] = nb.StaticRoute(*row.(*staticRow))
	}
	return r
}

func (s *session) topologyPorts() []nb.LogicalSwitchPort {
	key := portKey(nobody, nobody, nobody)
	key.ExternalIDs[nb.KeyPurpose] = nb.PurposeTopology
	var out []nb.LogicalSwitchPort
	for _, p := range s.portsLike(key) {
		if nb.OfTopology(p.ExternalIDs) {
			out = append(out, p)
		}
	}
	return out
}

// TopologyPorts returns the switch ports that follow from topology.
func (c *Client) TopologyPorts() []nb.LogicalSwitchPort {
	if s := c.latest(); s != nil {
		return s.topologyPorts()
	}
	return nil
}

// MissingGroups returns those of the groups that don't exist yet, or are another node's or subnet's still.
func (c *Client) MissingGroups(groups []nb.Group) []nb.Group {
	s := c.latest()
	if s == nil {
		return groups
	}
	there := map[string]map[string]string{}
	s.eachGroup(func(g *nb.PortGroup) { there[g.Name] = g.ExternalIDs })
	var missing []nb.Group
	for _, g := range groups {
		if ids, ok := there[g.Name]; !ok || !sameNode(ids, g.ExternalIDs) {
			missing = append(missing, g)
		}
	}
	return missing
}

// Shared tells whether a router has anything that doesn't follow from topology.
func (c *Client) Shared(router string) bool {
	s := c.latest()
	if s == nil {
		return true
	}
	r := s.routing()
	for _, row := range r.routers {
		if row.Name != router {
			continue
		}
		if len(row.NAT) > 0 {
			return true
		}
		for _, uuid := range row.Policies {
			if !nb.OfTopology(r.policies[uuid].ExternalIDs) {
				return true
			}
		}
		for _, uuid := range row.StaticRoutes {
			if !nb.OfTopology(r.routes[uuid].ExternalIDs) {
				return true
			}
		}
	}
	return slices.ContainsFunc(r.routerPorts, func(p nb.LogicalRouterPort) bool {
		return p.ExternalIDs[nb.KeyRouter] == router && !nb.OfTopology(p.ExternalIDs)
	})
}
