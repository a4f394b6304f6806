package ovn

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// PolicyName says what a policy is the only one of on its router.
func PolicyName(r nb.RouterPolicy) string { return strconv.Itoa(r.Priority) + " " + r.Match }

// natName says what a translation is the only one of. Of a SNAT address that is an inner address, too: several may share
// the outer one.
func natName(r nb.NAT) string {
	if r.Type == nb.NATSource {
		return r.Type + " " + r.ExternalIP + " " + r.LogicalIP
	}
	return r.Type + " " + r.ExternalIP
}

// touchedHanging adds the rows that hang on a change's ports: those that are there, and those that shall be.
func (c *composer) touchedHanging(ch Change, own map[rowKey]bool) {
	names := slices.Clone(ch.RemovePorts)
	for _, p := range ch.Ensure.Ports {
		if p.Routing == nil {
			continue
		}
		names = append(names, p.Row.Name)
		for _, r := range p.Routing.Policies {
			own[rowKey{tablePolicy, PolicyName(r)}] = true
		}
		for _, t := range p.Routing.NATs {
			own[rowKey{tableNAT, natName(t.Row)}] = true
		}
	}
	for _, name := range names {
		h := c.view.hanging(name)
		for _, r := range h.policies {
			own[rowKey{tablePolicy, PolicyName(r)}] = true
		}
		for _, r := range h.nats {
			own[rowKey{tableNAT, natName(r)}] = true
		}
	}
}

// policiesOn are the policies of a router with one's priority and match.
func (c *composer) policiesOn(r nb.LogicalRouter, want nb.RouterPolicy) []nb.RouterPolicy {
	return slices.DeleteFunc(slices.Clone(c.view.policiesMatching(want.Match)), func(p nb.RouterPolicy) bool {
		return p.Priority != want.Priority || !slices.Contains(r.Policies, p.UUID)
	})
}

// natsOn are the translations of a router that are the same as one, whatever they translate to.
func (c *composer) natsOn(r nb.LogicalRouter, want nb.NAT) []nb.NAT {
	return slices.DeleteFunc(slices.Clone(c.view.natsAt(want.ExternalIP)), func(n nb.NAT) bool {
		return natName(n) != natName(want) || !slices.Contains(r.NAT, n.UUID)
	})
}

// router returns a router that is there. One that the change makes has nothing yet.
func (c *composer) router(name string) nb.LogicalRouter {
	if rows := c.view.routersNamed(name); len(rows) > 0 {
		return rows[0]
	}
	return nb.LogicalRouter{Name: name}
}

// checkRouting tells why what hangs on a change's ports can't be written: a row of somebody else is in the way.
func (c *composer) checkRouting(ch Change) error {
	for _, p := range ch.Ensure.Ports {
		if p.Routing == nil || len(p.Routing.Policies)+len(p.Routing.NATs) == 0 {
			continue
		}
		asked := slices.ContainsFunc(ch.Ensure.Routers, func(r nb.LogicalRouter) bool { return r.Name == p.Routing.Router })
		if err := c.parent(tableRouter, p.Routing.Router, len(c.view.routersNamed(p.Routing.Router)), asked); err != nil {
			return err
		}
		r := c.router(p.Routing.Router)
		for _, want := range p.Routing.Policies {
			for _, have := range c.policiesOn(r, want) {
				if have.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN && !samePolicy(have, want) {
					return &ForeignRowError{Table: tablePolicy, Name: PolicyName(want), Vendor: have.ExternalIDs[nb.Vendor]}
				}
			}
		}
		for _, want := range p.Routing.NATs {
			if err := c.checkNAT(r, p.Row, want); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *composer) checkNAT(r nb.LogicalRouter, port nb.LogicalSwitchPort, want nb.Translation) error {
	for _, have := range c.natsOn(r, want.Row) {
		ids := have.ExternalIDs
		if !oursNAT(have) {
			if !sameNAT(have, want.Row) {
				return &ForeignRowError{Table: tableNAT, Name: natName(want.Row), Vendor: ids[nb.Vendor]}
			}
			continue
		}
		_, alive := c.view.port(ids[nb.KeyPort])
		stranger := ids[nb.KeyPort] != port.Name && ids[nb.KeyPod] != want.Row.ExternalIDs[nb.KeyPod]
		if want.Row.Type == nb.NATBoth && alive && stranger && !slices.Contains(want.From, ids[nb.KeyPod]) {
			return &ClashError{Table: tableNAT, Name: natName(want.Row), Key: nb.KeyPod, Have: ids[nb.KeyPod],
				Want: want.Row.ExternalIDs[nb.KeyPod]}
		}
	}
	return nil
}

// oursNAT tells a translation that hangs on a port. Kube-OVN marks others of its own with the vendor alone.
func oursNAT(n nb.NAT) bool {
	return n.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN && n.ExternalIDs[nb.KeyPort] != ""
}

func samePolicy(a, b nb.RouterPolicy) bool {
	return a.Action == b.Action && sameSet(a.Nexthops, b.Nexthops)
}

// sameNAT doesn't look at options: everybody writes their defaults in another way.
func sameNAT(a, b nb.NAT) bool {
	return a.LogicalIP == b.LogicalIP && slices.Equal(pointed(a.ExternalMAC), pointed(b.ExternalMAC)) &&
		slices.Equal(pointed(a.LogicalPort), pointed(b.LogicalPort))
}

// ensureRouting gives a port's router what it shall have for the port's sake, and takes away what it has beyond that.
func (c *composer) ensureRouting(p nb.Port) {
	if p.Routing == nil {
		return
	}
	r := c.router(p.Routing.Router)
	used := map[string]bool{}
	for _, want := range p.Routing.Policies {
		c.ensurePolicy(r, want, used)
	}
	for _, want := range p.Routing.NATs {
		c.ensureNAT(r, want.Row, used)
	}
	h := c.view.hanging(p.Row.Name)
	h.dhcp = nil
	c.drop(h, used)
	for _, old := range p.Routing.Without {
		for _, have := range c.view.routesTo(old.Prefix) {
			legacy := have.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN && have.Table == old.Table &&
				slices.Contains(r.StaticRoutes, have.UUID) && byDestination(have)
			if legacy {
				c.emitRemovals(unrefer(tableRouter, colRoutes, have.UUID))
			}
		}
	}
}

// byDestination tells a route that looks at where a packet goes, as routes do that say nothing of it.
func byDestination(r nb.StaticRoute) bool { return r.Policy == nil || *r.Policy == "dst-ip" }

func (c *composer) ensurePolicy(r nb.LogicalRouter, want nb.RouterPolicy, used map[string]bool) {
	done := false
	for _, have := range c.policiesOn(r, want) {
		switch {
		case have.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN:
			done = true // it says the same, or check would have refused
		case done:
			used[have.UUID] = true
			c.emitRemovals(unrefer(tableRouter, colPolicies, have.UUID))
		default:
			done, used[have.UUID] = true, true
			set := ovsdb.Row{}
			if have.Action != want.Action {
				set[colAction] = want.Action
			}
			if !sameSet(have.Nexthops, want.Nexthops) {
				set[colNexthops] = strSet(want.Nexthops)
			}
			c.emitRows(alter(tablePolicy, have.UUID, set, hangingIDs(have.ExternalIDs, want.ExternalIDs))...)
		}
	}
	if done {
		return
	}
	named := c.make(tablePolicy, r.Name+" "+PolicyName(want), want.ExternalIDs, map[string]any{
		colPriority: want.Priority, colMatch: want.Match, colAction: want.Action, colNexthops: want.Nexthops,
		colExternalIDs: want.ExternalIDs,
	})
	c.referIn(edgeKey{tableRouter, c.routerRef(r.Name), colPolicies}, []string{named}, nil)
}

func (c *composer) ensureNAT(r nb.LogicalRouter, want nb.NAT, used map[string]bool) {
	done := false
	for _, have := range c.natsOn(r, want) {
		switch {
		case !oursNAT(have):
			done = true
		case done:
			used[have.UUID] = true
			c.emitRemovals(unrefer(tableRouter, colNAT, have.UUID))
		default:
			done, used[have.UUID] = true, true
			c.updateNAT(have, want)
		}
	}
	if done {
		return
	}
	named := c.make(tableNAT, r.Name+" "+natName(want), want.ExternalIDs, map[string]any{
		colType: want.Type, colExternalIP: want.ExternalIP, colLogicalIP: want.LogicalIP, colOptions: want.Options,
		colExternalMAC: pointed(want.ExternalMAC), colLogicalPort: pointed(want.LogicalPort), colExternalIDs: want.ExternalIDs,
	})
	c.referIn(edgeKey{tableRouter, c.routerRef(r.Name), colNAT}, []string{named}, nil)
}

func (c *composer) updateNAT(have, want nb.NAT) {
	set := ovsdb.Row{}
	if have.LogicalIP != want.LogicalIP {
		set[colLogicalIP] = want.LogicalIP
	}
	if !slices.Equal(pointed(have.ExternalMAC), pointed(want.ExternalMAC)) {
		set[colExternalMAC] = strSet(pointed(want.ExternalMAC))
	}
	if !slices.Equal(pointed(have.LogicalPort), pointed(want.LogicalPort)) {
		set[colLogicalPort] = strSet(pointed(want.LogicalPort))
	}
	m := mapDifference(colOptions, have.Options, want.Options, slices.Collect(maps.Keys(have.Options))...)
	m = append(m, hangingIDs(have.ExternalIDs, want.ExternalIDs)...)
	c.emitRows(alter(tableNAT, have.UUID, set, m)...)
}

func hangingIDs(have, want map[string]string) []ovsdb.Mutation {
	return mapDifference(colExternalIDs, have, want, nb.Vendor, nb.KeySubnet, nb.KeyPort, nb.KeyPod, nb.KeyPodUID, nb.KeyPurpose)
}

// dropHanging removes what hangs on a port that is going, or gone.
func (c *composer) dropHanging(port string) { c.drop(c.view.hanging(port), nil) }

func (c *composer) drop(h hanging, used map[string]bool) {
	for _, r := range h.dhcp {
		c.emitRemovals(deleteRow(tableDHCP, r.UUID))
	}
	for _, r := range h.policies {
		if !used[r.UUID] {
			c.emitRemovals(unrefer(tableRouter, colPolicies, r.UUID))
		}
	}
	for _, r := range h.nats {
		if !used[r.UUID] {
			c.emitRemovals(unrefer(tableRouter, colNAT, r.UUID))
		}
	}
}
