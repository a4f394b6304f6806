package ovn

import "github.com/berth-net/berth/pkg/ovn/nb"

// memo gives the same answer to the same question: the mirror moves while a transaction is composed.
type memo struct {
	view
	ports       map[string]found[nb.LogicalSwitchPort]
	routerPorts map[string]found[nb.LogicalRouterPort]
	groups      map[string]found[nb.PortGroup]
	switches    map[string][]nb.LogicalSwitch
	routers     map[string][]nb.LogicalRouter
	hung        map[string]hanging
	dhcp        map[string][]nb.DHCPOptions
	policies    map[string][]nb.RouterPolicy
	nats        map[string][]nb.NAT
	routes      map[string][]nb.StaticRoute
	acls        map[string]found[nb.ACL]
	sets        map[string]found[nb.AddressSet]
	gateways    map[string]found[nb.GatewayChassis]
	// virtual and vip are all such ports, read at the first question.
	virtual, vip map[string][]nb.LogicalSwitchPort
}

type found[R any] struct {
	row R
	ok  bool
}

func newMemo(v view) *memo {
	return &memo{
		view: v, ports: map[string]found[nb.LogicalSwitchPort]{}, routerPorts: map[string]found[nb.LogicalRouterPort]{},
		groups: map[string]found[nb.PortGroup]{}, switches: map[string][]nb.LogicalSwitch{},
		routers: map[string][]nb.LogicalRouter{}, hung: map[string]hanging{}, dhcp: map[string][]nb.DHCPOptions{},
		policies: map[string][]nb.RouterPolicy{}, nats: map[string][]nb.NAT{}, routes: map[string][]nb.StaticRoute{},
		acls: map[string]found[nb.ACL]{}, sets: map[string]found[nb.AddressSet]{}, gateways: map[string]found[nb.GatewayChassis]{},
		virtual: map[string][]nb.LogicalSwitchPort{}, vip: map[string][]nb.LogicalSwitchPort{},
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

func (m *memo) hanging(port string) hanging {
	h, ok := m.hung[port]
	if !ok {
		h = m.view.hanging(port)
		m.hung[port] = h
	}
	return h
}

func (m *memo) dhcpOn(sw string) []nb.DHCPOptions { return recallAll(m.dhcp, sw, m.view.dhcpOn) }

func (m *memo) policiesMatching(match string) []nb.RouterPolicy {
	return recallAll(m.policies, match, m.view.policiesMatching)
}

func (m *memo) natsAt(ip string) []nb.NAT { return recallAll(m.nats, ip, m.view.natsAt) }

func (m *memo) routesTo(prefix string) []nb.StaticRoute {
	return recallAll(m.routes, prefix, m.view.routesTo)
}

func (m *memo) virtualPorts() []nb.LogicalSwitchPort {
	return recallAll(m.virtual, "", func(string) []nb.LogicalSwitchPort { return m.view.virtualPorts() })
}

func (m *memo) vipPorts() []nb.LogicalSwitchPort {
	return recallAll(m.vip, "", func(string) []nb.LogicalSwitchPort { return m.view.vipPorts() })
}

func (m *memo) acl(uuid string) (nb.ACL, bool) { return recall(m.acls, uuid, m.view.acl) }

func (m *memo) addressSet(name string) (nb.AddressSet, bool) {
	return recall(m.sets, name, m.view.addressSet)
}

func (m *memo) chassis(uuid string) (nb.GatewayChassis, bool) {
	return recall(m.gateways, uuid, m.view.chassis)
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
