package ovn

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// check tells why a change can't be applied. What passes can be emitted without further question.
func (c *composer) check(ch Change) error {
	for _, f := range []func(Change) error{
		checkText, checkRoutingText, c.checkSwitches, c.checkRouters, c.checkRouterPorts, c.checkGroups, c.checkACLs, c.checkPorts, c.checkVirtuals, c.checkRouting, c.checkTopology, c.checkRemovals,
	} {
		if err := f(ch); err != nil {
			return err
		}
	}
	return nil
}

func (c *composer) checkSwitches(ch Change) error {
	for _, s := range ch.Ensure.Switches {
		rows := c.view.switchesNamed(s.Name)
		if err := unique(tableSwitch, s.Name, len(rows)); err != nil {
			return err
		}
		for _, row := range rows {
			if err := ours(tableSwitch, s.Name, row.ExternalIDs); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *composer) checkRouters(ch Change) error {
	for _, r := range ch.Ensure.Routers {
		rows := c.view.routersNamed(r.Name)
		if err := unique(tableRouter, r.Name, len(rows)); err != nil {
			return err
		}
		for _, row := range rows {
			if err := ours(tableRouter, r.Name, row.ExternalIDs); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *composer) checkRouterPorts(ch Change) error {
	for _, p := range ch.Ensure.RouterPorts {
		asked := slices.ContainsFunc(ch.Ensure.Routers, func(r nb.LogicalRouter) bool { return r.Name == p.Router })
		if err := c.parent(tableRouter, p.Router, len(c.view.routersNamed(p.Router)), asked); err != nil {
			return err
		}
		row, ok := c.view.routerPort(p.Row.Name)
		if !ok {
			continue
		}
		if err := ours(tableRouterPort, p.Row.Name, row.ExternalIDs); err != nil {
			return err
		}
		if err := same(tableRouterPort, p.Row.Name, nb.KeyRouter, row.ExternalIDs, p.Row.ExternalIDs); err != nil {
			return err
		}
	}
	return nil
}

func (c *composer) checkGroups(ch Change) error {
	for _, g := range ch.Ensure.Groups {
		have := map[string]string{}
		if m := c.made[rowKey{tableGroup, g.Name}]; m != nil {
			have = m.ids
		} else if row, ok := c.view.group(g.Name); ok {
			have = row.ExternalIDs
		}
		if err := ours(tableGroup, g.Name, have); err != nil {
			return err
		}
		if ch.Ensure.Whole && followsNode(have) && followsNode(g.ExternalIDs) {
			continue // topology has decided whose it is
		}
		for _, key := range []string{nb.KeySubnet, nb.KeyNode, nb.KeySecurityGroup} {
			if err := same(tableGroup, g.Name, key, have, g.ExternalIDs); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *composer) checkPorts(ch Change) error {
	for _, p := range ch.Ensure.Ports {
		asked := slices.ContainsFunc(ch.Ensure.Switches, func(s nb.LogicalSwitch) bool { return s.Name == p.Switch })
		if err := c.parent(tableSwitch, p.Switch, len(c.view.switchesNamed(p.Switch)), asked); err != nil {
			return err
		}
		if row, ok := c.view.port(p.Row.Name); ok {
			if err := ours(tablePort, p.Row.Name, row.ExternalIDs); err != nil {
				return err
			}
			if err := same(tablePort, p.Row.Name, nb.KeyPod, row.ExternalIDs, p.Row.ExternalIDs); err != nil {
				return err
			}
		}
		for _, name := range p.Groups {
			asked := slices.ContainsFunc(ch.Ensure.Groups, func(g nb.Group) bool { return g.Name == name })
			_, there := c.view.group(name)
			if !asked && !there && c.made[rowKey{tableGroup, name}] == nil {
				return &MissingRowError{Table: tableGroup, Name: name}
			}
		}
	}
	return nil
}

func (c *composer) checkVirtuals(ch Change) error {
	for _, p := range ch.Ensure.Virtuals {
		asked := slices.ContainsFunc(ch.Ensure.Switches, func(s nb.LogicalSwitch) bool { return s.Name == p.Switch })
		if err := c.parent(tableSwitch, p.Switch, len(c.view.switchesNamed(p.Switch)), asked); err != nil {
			return err
		}
	}
	return nil
}

// checkRemovals protects rows of others. A port may have lost its mark, since its name is ours alone; what is removed
// together with all that hangs on it must have one.
func (c *composer) checkRemovals(ch Change) error {
	for _, name := range ch.RemovePorts {
		if row, ok := c.view.port(name); ok {
			if err := ours(tablePort, name, row.ExternalIDs); err != nil {
				return err
			}
		}
	}
	for _, name := range ch.RemoveGroups {
		if row, ok := c.view.group(name); ok && row.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
			return &ForeignRowError{Table: tableGroup, Name: name, Vendor: row.ExternalIDs[nb.Vendor]}
		}
	}
	for _, name := range ch.RemoveRouterPorts {
		if row, ok := c.view.routerPort(name); ok && row.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
			return &ForeignRowError{Table: tableRouterPort, Name: name, Vendor: row.ExternalIDs[nb.Vendor]}
		}
	}
	for _, name := range ch.RemoveSwitches {
		for _, row := range c.view.switchesNamed(name) {
			if row.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
				return &ForeignRowError{Table: tableSwitch, Name: name, Vendor: row.ExternalIDs[nb.Vendor]}
			}
		}
	}
	for _, name := range ch.RemoveRouters {
		for _, row := range c.view.routersNamed(name) {
			if row.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
				return &ForeignRowError{Table: tableRouter, Name: name, Vendor: row.ExternalIDs[nb.Vendor]}
			}
		}
	}
	return nil
}

// parent checks the one row that others hang on.
func (c *composer) parent(table, name string, rows int, asked bool) error {
	if err := unique(table, name, rows); err != nil {
		return err
	}
	if rows == 0 && !asked && c.made[rowKey{table, name}] == nil {
		return &MissingRowError{Table: table, Name: name}
	}
	return nil
}

func unique(table, name string, count int) error {
	if count > 1 {
		return &AmbiguousRowError{Table: table, Name: name, Count: count}
	}
	return nil
}

func ours(table, name string, ids map[string]string) error {
	if v := ids[nb.Vendor]; v != "" && v != nb.VendorKubeOVN {
		return &ForeignRowError{Table: table, Name: name, Vendor: v}
	}
	return nil
}

func same(table, name, key string, have, want map[string]string) error {
	if have[key] != "" && want[key] != "" && have[key] != want[key] {
		return &ClashError{Table: table, Name: name, Key: key, Have: have[key], Want: want[key]}
	}
	return nil
}

// checkText refuses the one character that makes the server drop the whole connection.
func checkText(ch Change) error {
	bad := func(table, name string, columns []map[string]string, sets ...[]string) error {
		text := []string{name}
		for _, m := range columns {
			text = slices.AppendSeq(text, maps.Keys(m))
			text = slices.AppendSeq(text, maps.Values(m))
		}
		for _, s := range sets {
			text = append(text, s...)
		}
		if slices.ContainsFunc(text, func(s string) bool { return strings.ContainsRune(s, 0) }) {
			return &InvalidRowError{Table: table, Name: name, Reason: "its text contains a null byte"}
		}
		return nil
	}
	type m = []map[string]string
	var errs []error
	for _, s := range ch.Ensure.Switches {
		errs = append(errs, bad(tableSwitch, s.Name, m{s.ExternalIDs, s.OtherConfig}))
	}
	for _, r := range ch.Ensure.Routers {
		errs = append(errs, bad(tableRouter, r.Name, m{r.ExternalIDs, r.Options}))
	}
	for _, p := range ch.Ensure.RouterPorts {
		errs = append(errs, bad(tableRouterPort, p.Row.Name, m{p.Row.ExternalIDs, p.Row.Options}, p.Row.Networks, p.Chassis, []string{p.Row.MAC}))
	}
	for _, p := range ch.Ensure.Ports {
		errs = append(errs, bad(tablePort, p.Row.Name, m{p.Row.ExternalIDs, p.Row.Options},
			p.Row.Addresses, p.Row.PortSecurity, []string{p.Row.Type}))
	}
	for _, p := range ch.Ensure.Virtuals {
		errs = append(errs, bad(tablePort, p.Row.Name, m{p.Row.ExternalIDs, p.Row.Options}))
	}
	for _, g := range ch.Ensure.Groups {
		errs = append(errs, bad(tableGroup, g.Name, m{g.ExternalIDs}))
	}
	for _, a := range ch.Ensure.ACLs {
		for _, r := range a.Rows {
			errs = append(errs, bad(tableACL, a.Parent(), m{r.Options, r.ExternalIDs}, []string{r.Match}, pointed(r.Name)))
		}
	}
	for _, d := range ch.Ensure.DHCP {
		errs = append(errs, bad(tableDHCP, d.CIDR, m{d.Options, d.ExternalIDs}))
	}
	for _, p := range ch.Ensure.Ports {
		if p.DHCP == nil {
			continue
		}
		for _, d := range []*nb.DHCPOptions{p.DHCP.V4, p.DHCP.V6} {
			if d != nil {
				errs = append(errs, bad(tableDHCP, d.CIDR, m{d.Options, d.ExternalIDs}))
			}
		}
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
