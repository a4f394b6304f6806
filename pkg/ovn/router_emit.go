package ovn

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// routers are what topology's rows are compared with, by router and name.
type routers struct {
	routing
	// ports are the switch ports that are topology's.
	ports      []nb.LogicalSwitchPort
	policiesOf map[string]map[string][]nb.RouterPolicy
	routesOf   map[string]map[string][]nb.StaticRoute
}

// topology reads the routers once: a transaction may have many of their rows.
func (c *composer) topology() *routers {
	if c.routers != nil {
		return c.routers
	}
	r := &routers{routing: c.view.routing(), ports: c.view.topologyPorts(),
		policiesOf: map[string]map[string][]nb.RouterPolicy{}, routesOf: map[string]map[string][]nb.StaticRoute{}}
	for _, row := range r.routers {
		policies, routes := map[string][]nb.RouterPolicy{}, map[string][]nb.StaticRoute{}
		for _, uuid := range slices.Sorted(slices.Values(row.Policies)) {
			if p, ok := r.policies[uuid]; ok {
				policies[PolicyName(p)] = append(policies[PolicyName(p)], p)
			}
		}
		for _, uuid := range slices.Sorted(slices.Values(row.StaticRoutes)) {
			if s, ok := r.routes[uuid]; ok {
				routes[routeName(s)] = append(routes[routeName(s)], s)
			}
		}
		// Several routers of one name are refused where a row of theirs is asked for.
		r.policiesOf[row.Name], r.routesOf[row.Name] = policies, routes
	}
	c.routers = r
	return r
}

// routeName says what a route is the only one of on its router.
func routeName(r nb.StaticRoute) string {
	policy := nb.RouteByDestination
	if !byDestination(r) {
		policy = *r.Policy
	}
	return strings.Join([]string{r.Table, policy, r.Prefix, r.Nexthop}, " ")
}

// touchedRouting adds the policies and routes of routers that a change asks for.
func touchedRouting(rows nb.Rows, own, refs map[rowKey]bool) error {
	add := func(table, router, name string) error {
		k := rowKey{table, router + " " + name}
		if own[k] {
			return &InvalidRowError{Table: table, Name: k.name, Reason: "the change names it twice"}
		}
		own[k], refs[rowKey{tableRouter, router}] = true, true
		return nil
	}
	for _, p := range rows.Policies {
		if err := add(tablePolicy, p.Router, PolicyName(p.Row)); err != nil {
			return err
		}
		own[rowKey{tablePolicy, PolicyName(p.Row)}] = true
	}
	for _, r := range rows.Routes {
		if err := add(tableRoute, r.Router, routeName(r.Row)); err != nil {
			return err
		}
	}
	return nil
}

// checkRoutingText is checkText for policies and routes: people write their matches and tables.
func checkRoutingText(ch Change) error {
	for _, p := range ch.Ensure.Policies {
		if name := PolicyName(p.Row); strings.ContainsRune(name, 0) {
			return &InvalidRowError{Table: tablePolicy, Name: name, Reason: "its text contains a null byte"}
		}
	}
	for _, r := range ch.Ensure.Routes {
		if name := routeName(r.Row); strings.ContainsRune(name, 0) {
			return &InvalidRowError{Table: tableRoute, Name: name, Reason: "its text contains a null byte"}
		}
	}
	return nil
}

// mine tells a policy that topology may change. One that hangs on a port is its pod's.
func mine(p nb.RouterPolicy) bool {
	return p.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN && p.ExternalIDs[nb.KeyPort] == ""
}

// checkTopology tells why topology's rows can't be written: a router is missing, or something of somebody else's is in
// the way.
func (c *composer) checkTopology(ch Change) error {
	asked := map[string]bool{}
	for _, r := range ch.Ensure.Routers {
		asked[r.Name] = true
	}
	parents := map[string]bool{}
	for _, p := range ch.Ensure.Policies {
		parents[p.Router] = true
	}
	for _, r := range ch.Ensure.Routes {
		parents[r.Router] = true
	}
	for _, name := range slices.Sorted(maps.Keys(parents)) {
		if err := c.parent(tableRouter, name, len(c.view.routersNamed(name)), asked[name]); err != nil {
			return err
		}
	}
	for _, p := range ch.Ensure.Policies {
		name := PolicyName(p.Row)
		for _, have := range c.topology().policiesOf[p.Router][name] {
			if !mine(have) && !samePolicy(have, p.Row) {
				return &ForeignRowError{Table: tablePolicy, Name: p.Router + " " + name, Vendor: have.ExternalIDs[nb.Vendor]}
			}
		}
	}
	for _, p := range ch.Ensure.Ports {
		row, ok := c.view.port(p.Row.Name)
		if !ok {
			continue
		}
		have, want := row.ExternalIDs, p.Row.ExternalIDs
		if nb.OfTopology(want) && have[nb.KeyPod] != "" {
			return &ClashError{Table: tablePort, Name: p.Row.Name, Key: nb.KeyPod, Have: have[nb.KeyPod], Want: want[nb.KeySwitch]}
		}
		if nb.OfTopology(have) && want[nb.KeyPod] != "" {
			return &ClashError{Table: tablePort, Name: p.Row.Name, Key: nb.KeyPurpose, Have: have[nb.KeyPurpose], Want: want[nb.KeyPod]}
		}
	}
	return nil
}

// ensureTopology gives routers their policies and routes, and takes away what a whole topology has beyond its rows.
func (c *composer) ensureTopology(rows nb.Rows) {
	if len(rows.Policies)+len(rows.Routes) == 0 && !rows.Whole {
		return
	}
	used := map[string]bool{}
	for _, p := range rows.Policies {
		c.ensureRouterPolicy(p, used)
	}
	for _, r := range rows.Routes {
		c.ensureRoute(r, used)
	}
	if rows.Whole {
		c.tidyRouters(rows, used)
		c.tidyPorts(rows)
		c.tidyGroups(rows)
	}
}

func (c *composer) ensureRouterPolicy(p nb.Policy, used map[string]bool) {
	done := false
	for _, have := range c.topology().policiesOf[p.Router][PolicyName(p.Row)] {
		switch {
		case !mine(have):
			done = true // it says the same, or check would have refused
		case done:
			used[have.UUID] = true
			c.emitRemovals(unrefer(tableRouter, colPolicies, have.UUID))
		default:
			done, used[have.UUID] = true, true
			set := ovsdb.Row{}
			if have.Action != p.Row.Action {
				set[colAction] = p.Row.Action
			}
			if !sameSet(have.Nexthops, p.Row.Nexthops) {
				set[colNexthops] = strSet(p.Row.Nexthops)
			}
			c.emitRows(alter(tablePolicy, have.UUID, set, topologyIDs(have.ExternalIDs, p.Row.ExternalIDs))...)
		}
	}
	if done {
		return
	}
	named := c.make(tablePolicy, p.Router+" "+PolicyName(p.Row), p.Row.ExternalIDs, map[string]any{
		colPriority: p.Row.Priority, colMatch: p.Row.Match, colAction: p.Row.Action, colNexthops: p.Row.Nexthops,
		colExternalIDs: p.Row.ExternalIDs,
	})
	c.referIn(edgeKey{tableRouter, c.routerRef(p.Router), colPolicies}, []string{named}, nil)
}

// sameNode tells whether two groups follow the same node, and subnet.
func sameNode(a, b map[string]string) bool {
	return a[nb.KeyNode] == b[nb.KeyNode] && a[nb.KeySubnet] == b[nb.KeySubnet]
}

// handOverGroup gives a group to another node or subnet, whose name makes the same one. Its members were the other's.
func (c *composer) handOverGroup(have nb.PortGroup, want nb.Group) {
	m := mapDifference(colExternalIDs, have.ExternalIDs, want.ExternalIDs, nb.KeyNode, nb.KeySubnet, nb.KeyNP)
	c.emitRows(alter(tableGroup, have.UUID, ovsdb.Row{colPorts: refSet(nil)}, m)...)
}

// topologyIDs changes the marks of a policy or route. Nodes stand there as keys, with their addresses.
func topologyIDs(have, want map[string]string) []ovsdb.Mutation {
	owned := []string{nb.Vendor, nb.KeySubnet, nb.KeyNode, nb.KeyAddressFamily, nb.KeyU2O, nb.KeyU2ONoLB, nb.KeyU2OOverlayOnly, nb.KeyPurpose}
	for k, v := range have {
		if _, err := netip.ParseAddr(v); err == nil {
			owned = append(owned, k)
		}
	}
	return mapDifference(colExternalIDs, have, want, owned...)
}

// ensureRoute adopts a route of Kube-OVN's. Somebody else's that says the same will do.
func (c *composer) ensureRoute(r nb.Route, used map[string]bool) {
	done := false
	for _, have := range c.topology().routesOf[r.Router][routeName(r.Row)] {
		switch {
		case have.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN:
			done = true
		case done:
			used[have.UUID] = true
			c.emitRemovals(unrefer(tableRouter, colRoutes, have.UUID))
		default:
			done, used[have.UUID] = true, true
			c.emitRows(alter(tableRoute, have.UUID, nil, topologyIDs(have.ExternalIDs, r.Row.ExternalIDs))...)
		}
	}
	if done {
		return
	}
	named := c.make(tableRoute, r.Router+" "+routeName(r.Row), r.Row.ExternalIDs, map[string]any{
		colPrefix: r.Row.Prefix, colRouteTable: r.Row.Table, colPolicy: pointed(r.Row.Policy), colNexthop: r.Row.Nexthop,
		colExternalIDs: r.Row.ExternalIDs,
	})
	c.referIn(edgeKey{tableRouter, c.routerRef(r.Router), colRoutes}, []string{named}, nil)
}
