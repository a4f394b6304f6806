package ovn

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// members keeps the ports and the address sets of SecurityGroups: both follow from what all ports say.
type members struct {
	// base are the ports of the mirror that are in any SecurityGroup, and known the UUIDs of all ports that are ours. They
	// are read at the first question.
	base  []nb.LogicalSwitchPort
	known map[string]bool
	// ports are those that the batch makes, changes or removes (nil).
	ports map[string]*nb.LogicalSwitchPort
	// asked are the groups that the change at hand asks for, before the ports that it changes as they were.
	asked  map[string]bool
	before map[string]nb.LogicalSwitchPort
	// whole are the groups whose members are written as a whole: those that any change has asked for.
	whole map[string]bool
	// stale are the sets that are written, by name: as a whole, or by what more says, which is cheaper where nothing leaves
	// them. have is what sets of the mirror have.
	stale map[string]memberSet
	more  map[string][]string
	have  map[string]map[string]bool
}

// memberSet is the address set of a SecurityGroup and a family.
type memberSet struct{ sg, protocol string }

func (s memberSet) name() string { return nb.SecurityGroupSet(s.sg, s.protocol) }

func setsOf(sg string) []memberSet {
	return []memberSet{{sg, nb.ProtocolIPv4}, {sg, nb.ProtocolIPv6}}
}

func newMembers() *members {
	return &members{ports: map[string]*nb.LogicalSwitchPort{}, asked: map[string]bool{}, before: map[string]nb.LogicalSwitchPort{},
		whole: map[string]bool{}, stale: map[string]memberSet{}, more: map[string][]string{}, have: map[string]map[string]bool{}}
}

// groupsOf lists the SecurityGroups that a port is in, whether they exist or not.
func groupsOf(ids map[string]string) []string {
	var out []string
	for k, v := range ids {
		if sg, ok := strings.CutPrefix(k, nb.PrefixAssociated); ok && v == "true" {
			out = append(out, sg)
		}
	}
	return out
}

// left and joined note that a port is no longer, or from now on, as the row has it.
func (m *members) left(row nb.LogicalSwitchPort) {
	if len(groupsOf(row.ExternalIDs)) > 0 {
		m.before[row.Name], m.ports[row.Name] = row, nil
	}
}

func (m *members) joined(have nb.LogicalSwitchPort, p nb.Port) {
	row := p.Row
	if p.SecurityGroups == nil { // it stays in those that it is in
		row.ExternalIDs = have.ExternalIDs
	}
	if len(groupsOf(row.ExternalIDs)) > 0 {
		m.before[row.Name], m.ports[row.Name] = have, &row
	}
}

func (m *members) read(c *composer) {
	if m.known != nil {
		return
	}
	m.known = map[string]bool{}
	c.view.eachPort(func(p *nb.LogicalSwitchPort) {
		if p.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
			return
		}
		m.known[p.UUID] = true
		if p.ExternalIDs[nb.KeySecurityGroups] != "" || len(groupsOf(p.ExternalIDs)) > 0 {
			m.base = append(m.base, *p)
		}
	})
}

// sync brings groups and sets up to date with the change at hand.
func (m *members) sync(c *composer) {
	if len(m.asked) > 0 {
		m.asked[nb.DenyAll] = true
	}
	for _, sg := range slices.Sorted(maps.Keys(m.asked)) {
		m.whole[sg] = true
		if add, drop := m.difference(c, sg); len(add)+len(drop) > 0 {
			c.count++
		}
		if sg != nb.DenyAll {
			m.ensureSets(c, sg)
		}
	}
	for name, before := range m.before {
		m.compare(c, before, m.ports[name])
	}
	clear(m.asked)
	clear(m.before)
}

// compare looks whether the sets have what a port says now, and no longer what it alone said before.
func (m *members) compare(c *composer, before nb.LogicalSwitchPort, after *nb.LogicalSwitchPort) {
	groups := groupsOf(before.ExternalIDs)
	if after != nil {
		groups = append(groups, groupsOf(after.ExternalIDs)...)
	}
	for _, sg := range groups {
		for _, s := range setsOf(sg) {
			have, ok := m.addressesIn(c, s)
			if !ok {
				continue
			}
			var now, once []string
			if after != nil && m.isIn(c, *after, sg) {
				now = portIPs(*after, s.protocol)
			}
			if m.isIn(c, before, sg) {
				once = without(portIPs(before, s.protocol), now)
			}
			in := func(a string) bool { return have[a] }
			now = slices.DeleteFunc(now, in)
			switch leaves := slices.ContainsFunc(once, in); {
			case leaves || have == nil && len(now) > 0:
				m.stale[s.name()] = s
				c.count++
			case len(now) > 0:
				m.more[s.name()] = append(m.more[s.name()], now...)
				c.count++
			}
		}
	}
}

// addressesIn returns what a set of ours has. One that the batch makes has nothing yet.
func (m *members) addressesIn(c *composer, s memberSet) (map[string]bool, bool) {
	if made := c.made[rowKey{tableSet, s.name()}]; made != nil {
		return nil, made.ids[nb.KeySecurityGroup] == s.sg
	}
	row, ok := c.view.addressSet(s.name())
	if !ok || !oursSet(row, s.sg) {
		return nil, false
	}
	have := m.have[row.Name]
	if have == nil {
		have = map[string]bool{}
		for _, a := range row.Addresses {
			have[a] = true
		}
		m.have[row.Name] = have
	}
	return have, true
}

// isIn tells whether a port belongs into a SecurityGroup's port group. The one that denies all has every port that is in
// a SecurityGroup that exists.
func (m *members) isIn(c *composer, p nb.LogicalSwitchPort, sg string) bool {
	if sg != nb.DenyAll {
		return p.ExternalIDs[nb.PrefixAssociated+sg] == "true"
	}
	return p.Type == "" && slices.ContainsFunc(strings.Split(p.ExternalIDs[nb.KeySecurityGroups], "/"), c.secured)
}

// secured tells whether a SecurityGroup has a port group, when the batch is written.
func (c *composer) secured(sg string) bool {
	name := nb.SecurityGroupName(sg)
	if m := c.made[rowKey{tableGroup, name}]; m != nil {
		return m.ids[nb.KeySecurityGroup] == sg
	}
	row, ok := c.view.group(name)
	return ok && !c.gone[rowKey{tableGroup, name}] && isSecurityGroup(row.ExternalIDs) && row.ExternalIDs[nb.KeySecurityGroup] == sg
}

// each calls f with every port that is in any SecurityGroup when the batch is written, and what refers to it.
func (m *members) each(c *composer, f func(ref string, p nb.LogicalSwitchPort)) {
	m.read(c)
	for _, p := range m.base {
		if _, changed := m.ports[p.Name]; !changed {
			f(p.UUID, p)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.ports)) {
		p := m.ports[name]
		if p == nil {
			continue
		}
		if made := c.made[rowKey{tablePort, name}]; made != nil {
			f(made.named, *p)
		} else if row, ok := c.view.port(name); ok {
			f(row.UUID, *p)
		}
	}
}

// difference tells which ports say that they are in a group and aren't, and which are and don't say so. What isn't ours
// stays.
func (m *members) difference(c *composer, sg string) (add, drop []string) {
	if !c.secured(sg) {
		return nil, nil
	}
	row, _ := c.view.group(nb.SecurityGroupName(sg))
	have, want := map[string]bool{}, map[string]bool{}
	for _, uuid := range row.Ports {
		have[uuid] = true
	}
	m.each(c, func(ref string, p nb.LogicalSwitchPort) {
		if m.isIn(c, p, sg) {
			want[ref] = true
			if !have[ref] {
				add = append(add, ref)
			}
		}
	})
	for _, uuid := range row.Ports {
		if m.known[uuid] && !want[uuid] {
			drop = append(drop, uuid)
		}
	}
	return add, drop
}

// ensureSets makes the address sets of a SecurityGroup, or completes them. A set of that name that is another's is left
// alone.
func (m *members) ensureSets(c *composer, sg string) {
	for _, s := range setsOf(sg) {
		name := s.name()
		if row, ok := c.view.addressSet(name); ok {
			if oursSet(row, sg) && !sameSet(row.Addresses, m.addresses(c, s)) {
				m.stale[name] = s
				c.count++
			}
			continue
		}
		m.stale[name] = s
		if c.made[rowKey{tableSet, name}] == nil {
			ids := map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySecurityGroup: sg}
			c.make(tableSet, name, ids, map[string]any{colName: name, colExternalIDs: ids})
		}
	}
}

func oursSet(s nb.AddressSet, sg string) bool {
	return s.ExternalIDs[nb.KeySecurityGroup] == sg && ours(tableSet, s.Name, s.ExternalIDs) == nil
}

// addresses lists what the members of a SecurityGroup may send from, by the mirror and by what the batch has changed.
func (m *members) addresses(c *composer, s memberSet) []string {
	var out []string
	m.each(c, func(_ string, p nb.LogicalSwitchPort) {
		if m.isIn(c, p, s.sg) {
			out = append(out, portIPs(p, s.protocol)...)
		}
	})
	slices.Sort(out)
	return slices.Compact(out)
}

// portIPs are a port's addresses of one family, with its further ones where its port security lists them.
func portIPs(p nb.LogicalSwitchPort, protocol string) []string {
	texts := p.PortSecurity
	if len(texts) == 0 {
		texts = p.Addresses
	}
	var out []string
	for _, text := range texts {
		for i, field := range strings.Fields(text) {
			if i > 0 && strings.Contains(field, ":") == (protocol == nb.ProtocolIPv6) {
				out = append(out, field)
			}
		}
	}
	return out
}

// fill gives new sets their addresses, and groups that were asked for their ports: ports and groups that meet in one
// batch find each other in whatever order they come.
func (m *members) fill(c *composer) {
	for name, s := range m.stale {
		if made := c.made[rowKey{tableSet, name}]; made != nil && made.ids[nb.KeySecurityGroup] == s.sg {
			made.row[colAddresses] = m.addresses(c, s)
		}
	}
	for sg := range m.whole {
		if add, drop := m.difference(c, sg); c.secured(sg) {
			c.edges[edgeKey{tableGroup, c.groupRef(nb.SecurityGroupName(sg)), colPorts}] = &edges{add: add, drop: drop}
		}
	}
}

// operations write the addresses of sets that are there.
func (m *members) operations(c *composer) []ovsdb.Operation {
	add, drop := map[string][]string{}, map[string][]string{}
	for name, more := range m.more {
		add[name] = appendNew(nil, more)
	}
	for name, s := range m.stale {
		row, _ := c.view.addressSet(name)
		want := m.addresses(c, s)
		add[name], drop[name] = without(want, row.Addresses), without(row.Addresses, want)
	}
	var ops []ovsdb.Operation
	for _, name := range slices.Sorted(maps.Keys(add)) {
		row, ok := c.view.addressSet(name)
		if !ok || c.gone[rowKey{tableSet, name}] {
			continue
		}
		var mutations []ovsdb.Mutation
		if out := drop[name]; len(out) > 0 {
			mutations = append(mutations, *ovsdb.NewMutation(colAddresses, ovsdb.MutateOperationDelete, strSet(out)))
		}
		if in := add[name]; len(in) > 0 {
			mutations = append(mutations, *ovsdb.NewMutation(colAddresses, ovsdb.MutateOperationInsert, strSet(in)))
		}
		ops = append(ops, alter(tableSet, row.UUID, nil, mutations)...)
	}
	return ops
}

// without lists what of a set isn't in another.
func without(set, other []string) []string {
	in := make(map[string]bool, len(other))
	for _, s := range other {
		in[s] = true
	}
	return slices.DeleteFunc(slices.Clone(set), func(s string) bool { return in[s] })
}

// removeSets takes the address sets of a SecurityGroup away with its port group, and its ports out of the one that
// denies all.
func (c *composer) removeSets(group nb.PortGroup) {
	if !isSecurityGroup(group.ExternalIDs) {
		return
	}
	sg := group.ExternalIDs[nb.KeySecurityGroup]
	for _, s := range setsOf(sg) {
		if row, ok := c.view.addressSet(s.name()); ok && oursSet(row, sg) {
			c.gone[rowKey{tableSet, row.Name}] = true
			c.emitRemovals(deleteRow(tableSet, row.UUID))
		}
	}
	if sg != nb.DenyAll {
		c.members.asked[nb.DenyAll] = true
	}
}
