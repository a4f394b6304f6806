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
	// virtualPorts are all ports of type virtual, vipPorts all ports with further addresses.
	virtualPorts() []nb.LogicalSwitchPort
	vipPorts() []nb.LogicalSwitchPort
	// hanging are the rows that are there for the sake of a port.
	hanging(port string) hanging
	// dhcpOn are the DHCP rows of a switch, its own and its ports'.
	dhcpOn(sw string) []nb.DHCPOptions
	policiesMatching(match string) []nb.RouterPolicy
	natsAt(externalIP string) []nb.NAT
	routesTo(prefix string) []nb.StaticRoute
	// eachPort calls f with every port. f must not alter it or keep it.
	eachPort(f func(p *nb.LogicalSwitchPort))
	acl(uuid string) (nb.ACL, bool)
	chassis(uuid string) (nb.GatewayChassis, bool)
	addressSet(name string) (nb.AddressSet, bool)
	// routing is what all routers have.
	routing() routing
	// topologyPorts are the switch ports that are marked as topology's.
	topologyPorts() []nb.LogicalSwitchPort
}

// hanging are rows that go with a port.
type hanging struct {
	dhcp     []nb.DHCPOptions
	policies []nb.RouterPolicy
	nats     []nb.NAT
}

// snapshot is a view that can be written through.
type snapshot interface {
	view
	transact(ctx context.Context, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error)
}

func (s *session) global() (nb.Global, bool) {
	for _, r := range s.tables[tableGlobal].Rows() {
		g := r.(*globalRow)
		return nb.Global{UUID: g.UUID, ExternalIDs: g.ExternalIDs, Options: g.Options}, true
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
	return nb.LogicalSwitch{UUID: r.UUID, Name: r.Name, ExternalIDs: r.ExternalIDs, OtherConfig: r.OtherConfig, ACLs: r.ACLs}
}

func (r *routerRow) plain() nb.LogicalRouter {
	return nb.LogicalRouter{UUID: r.UUID, Name: r.Name, ExternalIDs: r.ExternalIDs, Options: r.Options,
		Policies: r.Policies, NAT: r.NAT, StaticRoutes: r.StaticRoutes}
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
