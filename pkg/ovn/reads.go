package ovn

import (
	"cmp"
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/model"
)

// The reads answer from the mirror and return copies. While Ready returns an error they tell what was last known:
// nothing may be concluded from the absence of a row then.

// Port returns a switch port by name.
func (c *Client) Port(name string) (nb.LogicalSwitchPort, bool) {
	if s := c.latest(); s != nil {
		return s.port(name)
	}
	return nb.LogicalSwitchPort{}, false
}

// PodPorts returns the switch ports of a pod, by name.
func (c *Client) PodPorts(namespace, pod string) []nb.LogicalSwitchPort {
	s := c.latest()
	if s == nil {
		return nil
	}
	var ports []nb.LogicalSwitchPort
	key := portKey(nobody, namespace+"/"+pod, nobody)
	for _, r := range byIndex[*portRow](s, tablePort, key) {
		if r.Type == "" && r.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
			ports = append(ports, nb.LogicalSwitchPort(*r))
		}
	}
	slices.SortFunc(ports, func(a, b nb.LogicalSwitchPort) int { return cmp.Compare(a.Name, b.Name) })
	return ports
}

// EIPHolders returns the pods ("namespace/name") that an outer address is translated to, both ways.
func (c *Client) EIPHolders(externalIP string) []string {
	s := c.latest()
	if s == nil {
		return nil
	}
	var pods []string
	for _, n := range s.natsAt(externalIP) {
		if pod := n.ExternalIDs[nb.KeyPod]; n.Type == nb.NATBoth && oursNAT(n) && pod != "" {
			pods = append(pods, pod)
		}
	}
	slices.Sort(pods)
	return slices.Compact(pods)
}

// Orphans returns the names of ports that don't exist, and that rows of Berth's hang on nevertheless. Removing such a
// port removes those.
func (c *Client) Orphans() []string {
	s := c.latest()
	if s == nil {
		return nil
	}
	var names []string
	add := func(ids map[string]string) {
		if ids[nb.Vendor] != nb.VendorKubeOVN || ids[nb.KeyPort] == "" || ids[nb.KeyPodUID] == "" {
			return
		}
		if _, ok := s.port(ids[nb.KeyPort]); !ok {
			names = append(names, ids[nb.KeyPort])
		}
	}
	for _, r := range s.tables[tableDHCP].RowsShallow() {
		add(r.(*dhcpRow).ExternalIDs)
	}
	for _, r := range s.tables[tablePolicy].RowsShallow() {
		add(r.(*policyRow).ExternalIDs)
	}
	for _, r := range s.tables[tableNAT].RowsShallow() {
		add(r.(*natRow).ExternalIDs)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Ports returns all switch ports that carry Kube-OVN's mark, by name.
func (c *Client) Ports() []nb.LogicalSwitchPort {
	rows := all(c.latest(), tablePort, func(r *portRow) (nb.LogicalSwitchPort, bool) {
		return nb.LogicalSwitchPort(*r), r.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN
	})
	slices.SortFunc(rows, func(a, b nb.LogicalSwitchPort) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// EachPort calls f with every switch port that carries Kube-OVN's mark, in no order. f must not alter it or keep it.
func (c *Client) EachPort(f func(*nb.LogicalSwitchPort)) {
	s := c.latest()
	if s == nil {
		return
	}
	s.eachPort(func(p *nb.LogicalSwitchPort) {
		if p.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
			f(p)
		}
	})
}

// Groups returns all port groups, by name.
func (c *Client) Groups() []nb.PortGroup {
	rows := all(c.latest(), tableGroup, func(r *groupRow) (nb.PortGroup, bool) { return nb.PortGroup(*r), true })
	slices.SortFunc(rows, func(a, b nb.PortGroup) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// GroupsOf returns the names of all port groups that a port is in.
func (c *Client) GroupsOf(port string) []string {
	s := c.latest()
	if s == nil {
		return nil
	}
	row, ok := s.port(port)
	if !ok {
		return nil
	}
	var names []string
	s.eachGroup(func(g *nb.PortGroup) {
		if slices.Contains(g.Ports, row.UUID) {
			names = append(names, g.Name)
		}
	})
	slices.Sort(names)
	return names
}

// Switch returns a switch by name.
func (c *Client) Switch(name string) (nb.LogicalSwitch, bool) {
	if s := c.latest(); s != nil {
		if rows := s.switchesNamed(name); len(rows) > 0 {
			return rows[0], true
		}
	}
	return nb.LogicalSwitch{}, false
}

// Switches returns all switches, by name. Their ports aren't mirrored.
func (c *Client) Switches() []nb.LogicalSwitch {
	rows := all(c.latest(), tableSwitch, func(r *switchRow) (nb.LogicalSwitch, bool) { return r.plain(), true })
	slices.SortFunc(rows, func(a, b nb.LogicalSwitch) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// Router returns a router by name.
func (c *Client) Router(name string) (nb.LogicalRouter, bool) {
	if s := c.latest(); s != nil {
		if rows := s.routersNamed(name); len(rows) > 0 {
			return rows[0], true
		}
	}
	return nb.LogicalRouter{}, false
}

// Routers returns all routers, by name. Their ports aren't mirrored.
func (c *Client) Routers() []nb.LogicalRouter {
	rows := all(c.latest(), tableRouter, func(r *routerRow) (nb.LogicalRouter, bool) { return r.plain(), true })
	slices.SortFunc(rows, func(a, b nb.LogicalRouter) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

// RouterPort returns a router port by name.
func (c *Client) RouterPort(name string) (nb.LogicalRouterPort, bool) {
	if s := c.latest(); s != nil {
		return s.routerPort(name)
	}
	return nb.LogicalRouterPort{}, false
}

// RouterPorts returns all router ports, by name.
func (c *Client) RouterPorts() []nb.LogicalRouterPort {
	rows := all(c.latest(), tableRouterPort, func(r *routerPortRow) (nb.LogicalRouterPort, bool) {
		return nb.LogicalRouterPort(*r), true
	})
	slices.SortFunc(rows, func(a, b nb.LogicalRouterPort) int { return cmp.Compare(a.Name, b.Name) })
	return rows
}

func (c *Client) latest() *session {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// all copies those rows of a table that pick accepts.
func all[R model.Model, P any](s *session, table string, pick func(R) (P, bool)) []P {
	if s == nil {
		return nil
	}
	var rows []P
	for _, r := range s.tables[table].RowsShallow() {
		if _, ok := pick(r.(R)); !ok {
			continue
		}
		row, _ := pick(model.Clone(r).(R))
		rows = append(rows, row)
	}
	return rows
}
