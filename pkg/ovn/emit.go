package ovn

import (
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// emit composes a change that has passed its check.
func (c *composer) emit(ch Change) {
	for _, r := range ch.Ensure.Routers {
		c.ensureRouter(r)
	}
	for _, s := range ch.Ensure.Switches {
		c.ensureSwitch(s)
	}
	for _, g := range ch.Ensure.Groups {
		c.ensureGroup(g, ch.Ensure.Whole)
	}
	for _, a := range ch.Ensure.ACLs {
		c.ensureACLs(a)
	}
	for _, p := range ch.Ensure.RouterPorts {
		c.ensureRouterPort(p)
	}
	for _, d := range ch.Ensure.DHCP {
		c.ensureDHCP(d)
	}
	for _, v := range ch.Ensure.Virtuals {
		c.ensureVirtual(v)
	}
	for _, p := range ch.Ensure.Ports {
		c.ensurePort(p)
	}
	c.remove(ch)
	c.ensureOptions(ch.Ensure.Options)
	c.ensureTopology(ch.Ensure)
	c.virtual.sync(c)
	c.members.sync(c)
}

// ensureOptions sets options of the whole database. Without its only row nothing is written anyway.
func (c *composer) ensureOptions(want map[string]string) {
	if len(want) == 0 {
		return
	}
	if g, ok := c.view.global(); ok {
		c.emitRows(alter(tableGlobal, g.UUID, nil, mapDifference(colOptions, g.Options, want))...)
	}
}

func (c *composer) ensureSwitch(s nb.LogicalSwitch) {
	if rows := c.view.switchesNamed(s.Name); len(rows) > 0 {
		m := mapDifference(colExternalIDs, rows[0].ExternalIDs, s.ExternalIDs, nb.Vendor)
		m = append(m, mapDifference(colOtherConfig, rows[0].OtherConfig, s.OtherConfig)...)
		c.emitRows(alter(tableSwitch, rows[0].UUID, nil, m)...)
		return
	}
	c.guards = append(c.guards, noneNamed(tableSwitch, s.Name))
	c.make(tableSwitch, s.Name, s.ExternalIDs, map[string]any{
		colName: s.Name, colExternalIDs: s.ExternalIDs, colOtherConfig: s.OtherConfig,
	})
}

func (c *composer) ensureRouter(r nb.LogicalRouter) {
	if rows := c.view.routersNamed(r.Name); len(rows) > 0 {
		m := mapDifference(colExternalIDs, rows[0].ExternalIDs, r.ExternalIDs, nb.Vendor)
		m = append(m, mapDifference(colOptions, rows[0].Options, r.Options)...)
		c.emitRows(alter(tableRouter, rows[0].UUID, nil, m)...)
		return
	}
	c.guards = append(c.guards, noneNamed(tableRouter, r.Name))
	c.make(tableRouter, r.Name, r.ExternalIDs, map[string]any{
		colName: r.Name, colExternalIDs: r.ExternalIDs, colOptions: r.Options,
	})
}

func (c *composer) ensureGroup(g nb.Group, whole bool) {
	if c.made[rowKey{tableGroup, g.Name}] != nil {
		return
	}
	if row, ok := c.view.group(g.Name); ok && whole && followsNode(row.ExternalIDs) && !sameNode(row.ExternalIDs, g.ExternalIDs) {
		c.handOverGroup(row, g)
	} else if ok {
		m := mapDifference(colExternalIDs, row.ExternalIDs, g.ExternalIDs)
		c.emitRows(alter(tableGroup, row.UUID, nil, m)...)
	} else {
		c.make(tableGroup, g.Name, g.ExternalIDs, map[string]any{colName: g.Name, colExternalIDs: g.ExternalIDs})
	}
	if isSecurityGroup(g.ExternalIDs) {
		c.members.asked[g.ExternalIDs[nb.KeySecurityGroup]] = true
	}
}

// ensureRouterPort keeps the MAC of a port that exists: routers and hosts around it have learned it. A fixed one is
// somebody's wish.
func (c *composer) ensureRouterPort(p nb.RouterPort) {
	row, ok := c.view.routerPort(p.Row.Name)
	if ok {
		set := ovsdb.Row{}
		if !sameSet(row.Networks, p.Row.Networks) {
			set[colNetworks] = strSet(p.Row.Networks)
		}
		if !slices.Equal(pointed(row.Peer), pointed(p.Row.Peer)) {
			set[colPeer] = strSet(pointed(p.Row.Peer))
		}
		if p.FixedMAC && row.MAC != p.Row.MAC {
			set[colMAC] = p.Row.MAC
		}
		m := mapDifference(colExternalIDs, row.ExternalIDs, p.Row.ExternalIDs, nb.Vendor, nb.KeyRouter, nb.KeyPurpose)
		m = append(m, mapDifference(colOptions, row.Options, p.Row.Options, nb.OptionRouteTable)...)
		c.emitRows(alter(tableRouterPort, row.UUID, set, m)...)
		c.ensureChassis(row, p)
		return
	}
	named := c.make(tableRouterPort, p.Row.Name, p.Row.ExternalIDs, map[string]any{
		colName: p.Row.Name, colMAC: p.Row.MAC, colNetworks: p.Row.Networks, colExternalIDs: p.Row.ExternalIDs,
		colOptions: p.Row.Options, colPeer: pointed(p.Row.Peer),
		colChassis: refSet(c.makeChassis(p.Row.Name, p.Chassis, allPlaces(p.Chassis))),
	})
	c.refer(tableRouter, c.routerRef(p.Router), []string{named}, nil)
}

func (c *composer) ensurePort(p nb.Port) {
	row, ok := c.view.port(p.Row.Name)
	stays := ok && row.ExternalIDs[nb.KeySwitch] == p.Switch
	if ok {
		c.virtual.left(row)
		c.members.left(row)
	}
	c.virtual.joined(p)
	c.members.joined(row, p)
	dhcp := c.ensurePortDHCP(p)
	c.ensureRouting(p)
	if stays {
		c.updatePort(row, p, dhcp)
		if p.Groups != nil {
			c.regroup(row.UUID, c.following[row.UUID], p.Groups)
		}
		if p.SecurityGroups != nil {
			c.regroup(row.UUID, c.secure[row.UUID], c.secureGroups(p.SecurityGroups))
		}
		return
	}
	if ok {
		c.takeOff(row)
	}
	if p.Row.Type == nb.TypeVirtual {
		c.makeVirtual(p)
		return
	}
	named := c.make(tablePort, p.Row.Name, p.Row.ExternalIDs, map[string]any{
		colName: p.Row.Name, colType: p.Row.Type, colAddresses: p.Row.Addresses, colPortSecurity: p.Row.PortSecurity,
		colExternalIDs: p.Row.ExternalIDs, colOptions: p.Row.Options, colDHCPv4: refSet(dhcp[0]), colDHCPv6: refSet(dhcp[1]),
		colTag: tagSet(p.Row.Tag),
	})
	c.refer(tableSwitch, c.switchRef(p.Switch), []string{named}, nil)
	for _, g := range append(slices.Clone(p.Groups), c.secureGroups(p.SecurityGroups)...) {
		c.refer(tableGroup, c.groupRef(g), []string{named}, nil)
	}
}

func (c *composer) updatePort(have nb.LogicalSwitchPort, p nb.Port, dhcp [2][]string) {
	want := p.Row
	set := ovsdb.Row{}
	if have.Type != want.Type {
		set[colType] = want.Type
	}
	if !sameSet(have.Addresses, want.Addresses) {
		set[colAddresses] = strSet(want.Addresses)
	}
	if !sameSet(have.PortSecurity, want.PortSecurity) {
		set[colPortSecurity] = strSet(want.PortSecurity)
	}
	if want.Type == nb.TypeLocalnet && !slices.Equal(pointed(have.Tag), pointed(want.Tag)) {
		set[colTag] = tagSet(want.Tag)
	}
	if p.DHCP != nil {
		for i, column := range []string{colDHCPv4, colDHCPv6} {
			if old := pointed([]*string{have.DHCPv4, have.DHCPv6}[i]); !slices.Equal(old, dhcp[i]) {
				set[column] = refSet(dhcp[i])
			}
		}
	}
	owned := []string{nb.Vendor, nb.KeySwitch, nb.KeyPod, nb.KeyClaim, nb.KeyPodUID, nb.KeyVips, nb.KeyAttachVips, nb.KeyOptions,
		nb.KeyIPv4Network, nb.KeyIPv6Network}
	if p.SecurityGroups != nil {
		owned = append(owned, nb.KeySecurityGroups)
		for k := range have.ExternalIDs {
			if strings.HasPrefix(k, nb.PrefixAssociated) {
				owned = append(owned, k)
			}
		}
	}
	m := mapDifference(colExternalIDs, have.ExternalIDs, want.ExternalIDs, owned...)
	options := splitList(have.ExternalIDs[nb.KeyOptions])
	if want.Type == nb.TypeRouter {
		options = append(options, nb.OptionNATAddresses)
	}
	m = append(m, mapDifference(colOptions, have.Options, want.Options, options...)...)
	c.emitRows(alter(tablePort, have.UUID, set, m)...)
}

// dropPort ends a port and all that hangs on it.
func (c *composer) dropPort(row nb.LogicalSwitchPort) {
	c.virtual.left(row)
	c.members.left(row)
	// The server takes a port that is gone out of its groups by itself, but not always: one that came up from its log, or
	// whose disk was full, was seen to leave it there.
	c.regroup(row.UUID, slices.Concat(c.following[row.UUID], c.secure[row.UUID]), nil)
	c.takeOff(row)
}

// takeOff takes a port off its switch, which ends it. The switch that the port names is only where it is expected.
func (c *composer) takeOff(row nb.LogicalSwitchPort) {
	if rows := c.view.switchesNamed(row.ExternalIDs[nb.KeySwitch]); len(rows) == 1 {
		c.refer(tableSwitch, rows[0].UUID, nil, []string{row.UUID})
	}
	c.emitRemovals(unrefer(tableSwitch, colPorts, row.UUID))
}

func (c *composer) remove(ch Change) {
	for _, name := range ch.RemovePorts {
		if row, ok := c.view.port(name); ok {
			c.dropPort(row)
		}
		c.dropHanging(name)
	}
	for _, name := range ch.Ensure.Complete {
		c.tidySwitch(name, ch.Ensure)
	}
	for _, name := range ch.RemoveRouterPorts {
		if row, ok := c.view.routerPort(name); ok {
			c.emitRemovals(unrefer(tableRouter, colPorts, row.UUID))
		}
	}
	for _, name := range ch.RemoveGroups {
		if row, ok := c.view.group(name); ok {
			c.emitRemovals(deleteRow(tableGroup, row.UUID))
			c.removeSets(row)
		}
	}
	for _, name := range ch.RemoveSwitches {
		for _, row := range c.view.switchesNamed(name) {
			c.emitRemovals(deleteRow(tableSwitch, row.UUID))
		}
		for _, d := range c.view.dhcpOn(name) {
			if d.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
				c.emitRemovals(deleteRow(tableDHCP, d.UUID))
			}
		}
	}
	for _, name := range ch.RemoveRouters {
		for _, row := range c.view.routersNamed(name) {
			c.emitRemovals(deleteRow(tableRouter, row.UUID))
		}
	}
}

// switchRef, routerRef and groupRef return the UUID of a row that check has found, or what stands for it.
func (c *composer) switchRef(name string) string {
	if rows := c.view.switchesNamed(name); len(rows) > 0 {
		return rows[0].UUID
	}
	return c.made[rowKey{tableSwitch, name}].named
}

func (c *composer) routerRef(name string) string {
	if rows := c.view.routersNamed(name); len(rows) > 0 {
		return rows[0].UUID
	}
	return c.made[rowKey{tableRouter, name}].named
}

func (c *composer) groupRef(name string) string {
	if row, ok := c.view.group(name); ok {
		return row.UUID
	}
	return c.made[rowKey{tableGroup, name}].named
}
