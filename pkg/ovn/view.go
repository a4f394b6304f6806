package ovn

import (
	"context"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// view is what the composition of a transaction reads.
type view interface {
	global() (nb.Global, bool)
	port(name string) (nb.LogicalSwitchPort, bool)
	routerPort(name string) (nb.LogicalRouterPort, bool)
	group(name string) (nb.PortGroup, bool)
	// switchesNamed and routersNamed may return several: the schema doesn't make these names unique.
	switchesNamed(name string) []nb.LogicalSwitch
	routersNamed(name string) []nb.LogicalRouter
	// eachGroup calls f with every port group. f must not alter it or keep it.
	eachGroup(f func(g *nb.PortGroup))
}

// snapshot is a view that can be written through.
type snapshot interface {
	view
	transact(ctx context.Context, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error)
}

func (s *session) global() (nb.Global, bool) {
	for _, r := range s.tables[tableGlobal].Rows() {
		g := r.(*globalRow)
		return nb.Global{UUID: g.UUID, ExternalIDs: g.ExternalIDs}, true
	}
	return nb.Global{}, false
}

func (s *session) port(name string) (nb.LogicalSwitchPort, bool) {
	r, ok := byName[*portRow](s, tablePort, &portRow{Name: name})
	if !ok {
		return nb.LogicalSwitchPort{}, false
	}
	return nb.LogicalSwitchPort(*r), true
}

func (s *session) routerPort(name string) (nb.LogicalRouterPort, bool) {
	r, ok := byName[*routerPortRow](s, tableRouterPort, &routerPortRow{Name: name})
	if !ok {
		return nb.LogicalRouterPort{}, false
	}
	return nb.LogicalRouterPort(*r), true
}

func (s *session) group(name string) (nb.PortGroup, bool) {
	r, ok := byName[*groupRow](s, tableGroup, &groupRow{Name: name})
	if !ok {
		return nb.PortGroup{}, false
	}
	return nb.PortGroup(*r), true
}

func (s *session) switchesNamed(name string) []nb.LogicalSwitch {
	var rows []nb.LogicalSwitch
	for _, r := range byIndex[*switchRow](s, tableSwitch, &switchRow{Name: name}) {
		rows = append(rows, r.plain())
	}
	return rows
}

func (s *session) routersNamed(name string) []nb.LogicalRouter {
	var rows []nb.LogicalRouter
	for _, r := range byIndex[*routerRow](s, tableRouter, &routerRow{Name: name}) {
		rows = append(rows, r.plain())
	}
	return rows
}

func (s *session) eachGroup(f func(*nb.PortGroup)) {
	for _, r := range s.tables[tableGroup].RowsShallow() {
		f((*nb.PortGroup)(r.(*groupRow)))
	}
}

func (r *switchRow) plain() nb.LogicalSwitch {
	return nb.LogicalSwitch{UUID: r.UUID, Name: r.Name, ExternalIDs: r.ExternalIDs, OtherConfig: r.OtherConfig}
}

func (r *routerRow) plain() nb.LogicalRouter {
	return nb.LogicalRouter{UUID: r.UUID, Name: r.Name, ExternalIDs: r.ExternalIDs, Options: r.Options}
}

// byName finds a row by the schema's own index. The row is a copy.
func byName[R model.Model](s *session, table string, key model.Model) (R, bool) {
	_, found, err := s.tables[table].RowByModel(key)
	row, ok := found.(R)
	return row, ok && err == nil
}

// byIndex finds rows by an index of the mirror. The rows are copies.
func byIndex[R model.Model](s *session, table string, key model.Model) []R {
	found, err := s.tables[table].RowsByModels([]model.Model{key})
	if err != nil {
		return nil
	}
	var rows []R
	for _, m := range found {
		if row, ok := m.(R); ok {
			rows = append(rows, row)
		}
	}
	return rows
}

// memo gives the same answer to the same question: the mirror moves while a transaction is composed.
type memo struct {
	view
	ports       map[string]found[nb.LogicalSwitchPort]
	routerPorts map[string]found[nb.LogicalRouterPort]
	groups      map[string]found[nb.PortGroup]
	switches    map[string][]nb.LogicalSwitch
	routers     map[string][]nb.LogicalRouter
}

type found[R any] struct {
	row R
	ok  bool
}

func newMemo(v view) *memo {
	return &memo{
		view: v, ports: map[string]found[nb.LogicalSwitchPort]{}, routerPorts: map[string]found[nb.LogicalRouterPort]{},
		groups: map[string]found[nb.PortGroup]{}, switches: map[string][]nb.LogicalSwitch{},
		routers: map[string][]nb.LogicalRouter{},
	}
}

func (m *memo) port(name string) (nb.LogicalSwitchPort, bool) {
	return recall(m.ports, name, m.view.port)
}

func (m *memo) routerPort(name string) (nb.LogicalRouterPort, bool) {
	return recall(m.routerPorts, name, m.view.routerPort)
}

func (m *memo) group(name string) (nb.PortGroup, bool) { return recall(m.groups, name, m.view.group) }

func (m *memo) switchesNamed(name string) []nb.LogicalSwitch {
	return recallAll(m.switches, name, m.view.switchesNamed)
}

func (m *memo) routersNamed(name string) []nb.LogicalRouter {
	return recallAll(m.routers, name, m.view.routersNamed)
}

func recall[R any](known map[string]found[R], name string, ask func(string) (R, bool)) (R, bool) {
	f, ok := known[name]
	if !ok {
		f.row, f.ok = ask(name)
		known[name] = f
	}
	return f.row, f.ok
}

func recallAll[R any](known map[string][]R, name string, ask func(string) []R) []R {
	rows, ok := known[name]
	if !ok {
		rows = ask(name)
		known[name] = rows
	}
	return rows
}
