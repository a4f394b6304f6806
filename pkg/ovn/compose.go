package ovn

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// rowKey names a row.
type rowKey struct{ table, name string }

// plan is the transaction that several changes add up to.
type plan struct {
	// ops is empty when nothing differs.
	ops []ovsdb.Operation
	// fates tells of each change what becomes of it.
	fates []fate
}

// fate is what the composition says of one change.
type fate struct {
	// err: the change can't be applied.
	err error
	// deferred: it touches a row that an earlier change of the batch touches, and has to wait for the next one.
	deferred bool
	// part: it contributed operations. When it isn't set, and neither is anything else, the change holds already.
	part bool
}

// edgeKey names a column of references: of a row by UUID, or by the name of one that is made.
type edgeKey struct{ table, row, column string }

// edges are references that are added to and removed from one column.
type edges struct{ add, drop []string }

// made is a row that the batch makes.
type made struct {
	named string
	ids   map[string]string
	row   map[string]any
}

// composer adds changes up. It reads the view, and lays over it what it has composed so far: which rows it makes, and
// which references it adds to them.
type composer struct {
	view view
	// own are rows that a change asks for or removes, refs rows that one builds on, gone rows that one removes.
	own, refs, gone map[rowKey]bool
	made            map[rowKey]*made
	edges           map[edgeKey]*edges
	// following are the node-following groups that a port is in, secure those of SecurityGroups, by the port's UUID.
	following, secure map[string][]nb.PortGroup
	virtual           *virtuals
	// members keeps the groups and address sets of SecurityGroups.
	members *members
	// routers are read when the first change needs them.
	routers *routers

	guards, rows, removals []ovsdb.Operation
	count                  int
}

// compose adds changes up to one transaction under an epoch.
func compose(v view, epoch int64, changes []Change) plan {
	c := &composer{
		view: newMemo(v), own: map[rowKey]bool{}, refs: map[rowKey]bool{}, gone: map[rowKey]bool{},
		made: map[rowKey]*made{}, edges: map[edgeKey]*edges{},
		following: map[string][]nb.PortGroup{}, secure: map[string][]nb.PortGroup{}, virtual: newVirtuals(),
		members: newMembers(),
	}
	c.findMembers(changes)
	p := plan{fates: make([]fate, len(changes))}
	for i, ch := range changes {
		p.fates[i] = c.add(ch)
	}
	body := c.operations()
	if len(body) == 0 {
		for i := range p.fates {
			p.fates[i].part = false
		}
		return p
	}
	global, ok := c.view.global()
	if !ok {
		for i := range p.fates {
			if p.fates[i].part {
				p.fates[i] = fate{err: fmt.Errorf("%w (the database has no epoch at all)", ErrFenced)}
			}
		}
		return p
	}
	p.ops = append([]ovsdb.Operation{fence(global.UUID, epoch)}, body...)
	return p
}

// add composes one change, as a whole or not at all.
func (c *composer) add(ch Change) fate {
	own, refs, gone, err := touched(ch)
	if err == nil {
		err = touchedRouting(ch.Ensure, own, refs)
	}
	if err != nil {
		return fate{err: err}
	}
	c.touchedHanging(ch, own)
	wait := c.conflicts(own, refs)
	maps.Copy(c.own, own)
	maps.Copy(c.refs, refs)
	if wait {
		// What waits keeps its place: later changes of the same rows wait behind it.
		maps.Copy(c.gone, own)
		return fate{deferred: true}
	}
	if err := c.check(ch); err != nil {
		return fate{err: err}
	}
	maps.Copy(c.gone, gone)
	before := c.count
	c.emit(ch)
	return fate{part: c.count > before}
}

func (c *composer) conflicts(own, refs map[rowKey]bool) bool {
	for k := range own {
		if c.own[k] || c.refs[k] {
			return true
		}
	}
	for k := range refs {
		if c.gone[k] {
			return true
		}
	}
	return false
}

// touched lists the rows of a change. Groups that are asked for count as references: any number of changes may ask for
// the same one.
func touched(ch Change) (own, refs, gone map[rowKey]bool, err error) {
	own, refs, gone = map[rowKey]bool{}, map[rowKey]bool{}, map[rowKey]bool{}
	mine := func(table, name string, removed bool) {
		k := rowKey{table, name}
		switch {
		case err != nil:
		case name == "":
			err = &InvalidRowError{Table: table, Name: name, Reason: "it has no name"}
		case own[k]:
			err = &InvalidRowError{Table: table, Name: name, Reason: "the change names it twice"}
		}
		own[k] = true
		if removed {
			gone[k] = true
		}
	}
	for _, r := range ch.Ensure.Routers {
		mine(tableRouter, r.Name, false)
	}
	for _, s := range ch.Ensure.Switches {
		mine(tableSwitch, s.Name, false)
	}
	for _, p := range ch.Ensure.RouterPorts {
		mine(tableRouterPort, p.Row.Name, false)
		refs[rowKey{tableRouter, p.Router}] = true
	}
	for _, p := range ch.Ensure.Ports {
		mine(tablePort, p.Row.Name, false)
		refs[rowKey{tableSwitch, p.Switch}] = true
		for _, g := range p.Groups {
			refs[rowKey{tableGroup, g}] = true
		}
	}
	for _, g := range ch.Ensure.Groups {
		refs[rowKey{tableGroup, g.Name}] = true
	}
	for _, a := range ch.Ensure.ACLs {
		mine(tableACL, a.Parent(), false)
		refs[aclParent(a)] = true
	}
	for _, d := range ch.Ensure.DHCP {
		mine(tableDHCP, dhcpName(d), false)
	}
	for _, v := range ch.Ensure.Virtuals {
		refs[rowKey{tablePort, v.Row.Name}] = true
		refs[rowKey{tableSwitch, v.Switch}] = true
	}
	for table, names := range ch.removals() {
		for _, name := range names {
			mine(table, name, true)
		}
	}
	for k := range gone {
		if refs[k] && err == nil {
			err = &InvalidRowError{Table: k.table, Name: k.name, Reason: "the change both needs and removes it"}
		}
	}
	return own, refs, gone, err
}

func (ch Change) removals() map[string][]string {
	return map[string][]string{
		tablePort: ch.RemovePorts, tableGroup: ch.RemoveGroups, tableRouterPort: ch.RemoveRouterPorts,
		tableSwitch: ch.RemoveSwitches, tableRouter: ch.RemoveRouters,
	}
}

// operations lines up all that was composed, without the fence.
func (c *composer) operations() []ovsdb.Operation {
	ops := slices.Clone(c.guards)
	c.virtual.fill(c)
	c.members.fill(c)
	for _, k := range sortedKeys(c.made) {
		m := c.made[k]
		for e, refs := range c.edges {
			if e.table == k.table && e.row == m.named {
				m.row[e.column] = refSet(refs.add)
			}
		}
		ops = append(ops, insertRow(k.table, m.named, m.row))
	}
	ops = append(ops, c.rows...)
	ops = append(ops, c.virtual.operations()...)
	ops = append(ops, c.members.operations(c)...)
	for _, k := range slices.SortedFunc(maps.Keys(c.edges), edgeKey.compare) {
		if ovsdb.IsNamedUUID(k.row) {
			continue
		}
		var mutations []ovsdb.Mutation
		if e := c.edges[k]; len(e.drop) > 0 {
			mutations = append(mutations, *ovsdb.NewMutation(k.column, ovsdb.MutateOperationDelete, refSet(e.drop)))
		}
		if e := c.edges[k]; len(e.add) > 0 {
			mutations = append(mutations, *ovsdb.NewMutation(k.column, ovsdb.MutateOperationInsert, refSet(e.add)))
		}
		ops = append(ops, alter(k.table, k.row, nil, mutations)...)
	}
	return append(ops, c.removals...)
}

func sortedKeys[V any](m map[rowKey]V) []rowKey {
	return slices.SortedFunc(maps.Keys(m), func(a, b rowKey) int {
		return cmp.Or(cmp.Compare(a.table, b.table), cmp.Compare(a.name, b.name))
	})
}

func (k edgeKey) compare(o edgeKey) int {
	return cmp.Or(cmp.Compare(k.table, o.table), cmp.Compare(k.row, o.row), cmp.Compare(k.column, o.column))
}

// refer adds or removes a reference in the ports of one row.
func (c *composer) refer(table, parent string, add, drop []string) {
	c.referIn(edgeKey{table, parent, colPorts}, add, drop)
}

// referIn does so in any column.
func (c *composer) referIn(k edgeKey, add, drop []string) {
	if c.edges[k] == nil {
		c.edges[k] = &edges{}
	}
	c.edges[k].add = appendNew(c.edges[k].add, add)
	c.edges[k].drop = appendNew(c.edges[k].drop, drop)
	c.count++
}

// appendNew keeps a set a set: the server refuses one that repeats an element.
func appendNew(set, more []string) []string {
	for _, s := range more {
		if !slices.Contains(set, s) {
			set = append(set, s)
		}
	}
	return set
}

func (c *composer) emitRows(ops ...ovsdb.Operation) {
	c.rows = append(c.rows, ops...)
	c.count += len(ops)
}

func (c *composer) emitRemovals(ops ...ovsdb.Operation) {
	c.removals = append(c.removals, ops...)
	c.count += len(ops)
}

// make plans a new row and returns the name that stands for its UUID.
func (c *composer) make(table, name string, ids map[string]string, row map[string]any) string {
	m := &made{named: fmt.Sprintf("row%d", len(c.made)), ids: ids, row: row}
	c.made[rowKey{table, name}] = m
	c.count++
	return m.named
}
