package ovn

import (
	"maps"
	"slices"
	"strconv"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// aclParent names the row that ACLs are on.
func aclParent(a nb.ACLs) rowKey {
	if a.Switch != "" {
		return rowKey{tableSwitch, a.Switch}
	}
	return rowKey{tableGroup, a.Group}
}

// aclName says what an ACL is the only one of on its parent.
func aclName(r nb.ACL) string {
	return r.Direction + " " + strconv.Itoa(r.Priority) + " " + r.Match
}

// oursACL tells an ACL that the Subnet or SecurityGroup behind a row decides about: Berth's, or one that Kube-OVN made
// for the same object before. Those that Kube-OVN made for a NetworkPolicy name other groups as their parents, and what
// somebody else made names none.
func oursACL(r nb.ACL, parent string) bool {
	ids := r.ExternalIDs
	return ids[nb.KeyParent] == parent && ids[nb.KeyNP] == "" && ours(tableACL, parent, ids) == nil
}

// checkACLs tells why ACLs can't be written.
func (c *composer) checkACLs(ch Change) error {
	for _, a := range ch.Ensure.ACLs {
		if (a.Switch == "") == (a.Group == "") {
			return &InvalidRowError{Table: tableACL, Name: a.Parent(), Reason: "they are on a switch or on a group"}
		}
		seen := map[string]bool{}
		for _, r := range a.Rows {
			if seen[aclName(r)] {
				return &InvalidRowError{Table: tableACL, Name: a.Parent(), Reason: "two of them are " + aclName(r)}
			}
			seen[aclName(r)] = true
			if err := checkACL(a.Parent(), r); err != nil {
				return err
			}
		}
		if err := c.checkACLParent(ch, a); err != nil {
			return err
		}
	}
	return nil
}

// checkACL refuses what the database would refuse, together with all that is in the transaction.
func checkACL(parent string, r nb.ACL) error {
	bad := func(reason string) error { return &InvalidRowError{Table: tableACL, Name: parent, Reason: reason} }
	actions := []string{nb.ActionAllow, nb.ActionAllowRelated, nb.ActionAllowStateless, nb.ActionDrop, nb.ActionReject}
	switch {
	case r.Direction != nb.ToLport && r.Direction != nb.FromLport:
		return bad("direction " + r.Direction)
	case r.Priority < 0 || r.Priority > nb.MaxACLPriority:
		return bad("priority " + strconv.Itoa(r.Priority))
	case !slices.Contains(actions, r.Action):
		return bad("action " + r.Action)
	}
	return nil
}

func (c *composer) checkACLParent(ch Change, a nb.ACLs) error {
	k := aclParent(a)
	if k.table == tableSwitch {
		for _, row := range c.view.switchesNamed(a.Switch) {
			if err := ours(tableSwitch, a.Switch, row.ExternalIDs); err != nil {
				return err
			}
		}
		asked := slices.ContainsFunc(ch.Ensure.Switches, func(s nb.LogicalSwitch) bool { return s.Name == a.Switch })
		return c.parent(tableSwitch, a.Switch, len(c.view.switchesNamed(a.Switch)), asked)
	}
	asked := slices.ContainsFunc(ch.Ensure.Groups, func(g nb.Group) bool { return g.Name == a.Group })
	rows := 0
	if row, ok := c.view.group(a.Group); ok {
		rows = 1
		if err := ours(tableGroup, a.Group, row.ExternalIDs); err != nil {
			return err
		}
	}
	return c.parent(tableGroup, a.Group, rows, asked)
}

// ensureACLs gives a switch or a group its ACLs, and takes away what it has of ours beyond them.
func (c *composer) ensureACLs(a nb.ACLs) {
	k := aclParent(a)
	parent, uuids := c.aclsOn(k)
	have := map[string][]nb.ACL{}
	var drop []string
	for _, uuid := range uuids {
		row, ok := c.view.acl(uuid)
		switch {
		case !ok || !oursACL(row, k.name):
		case row.ExternalIDs[nb.KeyACL] == "":
			// Kube-OVN's may be in another tier, which isn't looked at: ours takes its place.
			drop = append(drop, uuid)
		default:
			have[aclName(row)] = append(have[aclName(row)], row)
		}
	}
	var add []string
	for _, want := range a.Rows {
		if rows := have[aclName(want)]; len(rows) > 0 {
			c.updateACL(rows[0], want)
			have[aclName(want)] = rows[1:]
			continue
		}
		add = append(add, c.make(tableACL, k.table+" "+k.name+" "+aclName(want), want.ExternalIDs, map[string]any{
			colName: pointed(want.Name), colPriority: want.Priority, colDirection: want.Direction, colMatch: want.Match,
			colAction: want.Action, colLog: want.Log, colSeverity: pointed(want.Severity), colOptions: want.Options,
			colExternalIDs: want.ExternalIDs,
		}))
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		for _, row := range have[name] {
			drop = append(drop, row.UUID)
		}
	}
	if len(add)+len(drop) > 0 {
		c.referIn(edgeKey{k.table, parent, colACLs}, add, drop)
	}
}

// aclsOn returns a parent that check has found, and what is on it.
func (c *composer) aclsOn(k rowKey) (parent string, uuids []string) {
	if k.table == tableSwitch {
		if rows := c.view.switchesNamed(k.name); len(rows) > 0 {
			return rows[0].UUID, rows[0].ACLs
		}
	} else if row, ok := c.view.group(k.name); ok {
		return row.UUID, row.ACLs
	}
	return c.made[k].named, nil
}

func (c *composer) updateACL(have, want nb.ACL) {
	set := ovsdb.Row{}
	if have.Action != want.Action {
		set[colAction] = want.Action
	}
	if have.Log != want.Log {
		set[colLog] = want.Log
	}
	if !slices.Equal(pointed(have.Name), pointed(want.Name)) {
		set[colName] = strSet(pointed(want.Name))
	}
	if !slices.Equal(pointed(have.Severity), pointed(want.Severity)) {
		set[colSeverity] = strSet(pointed(want.Severity))
	}
	m := mapDifference(colOptions, have.Options, want.Options, slices.Collect(maps.Keys(have.Options))...)
	m = append(m, mapDifference(colExternalIDs, have.ExternalIDs, want.ExternalIDs, nb.Vendor, nb.KeyACL, nb.KeySubnet)...)
	c.emitRows(alter(tableACL, have.UUID, set, m)...)
}
