package ovn

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// dhcpName names what a DHCP row is for: a family on a switch, or on one port.
func dhcpName(d nb.DHCPOptions) string {
	return d.ExternalIDs[nb.KeySwitch] + "/" + d.ExternalIDs[nb.KeyProtocol] + "/" + d.ExternalIDs[nb.KeyPort]
}

// switchDHCP are Kube-OVN's rows for a family on a switch as such. There should be one at most.
func (c *composer) switchDHCP(sw, protocol string) []nb.DHCPOptions {
	var out []nb.DHCPOptions
	for _, d := range c.view.dhcpOn(sw) {
		ids := d.ExternalIDs
		if ids[nb.Vendor] == nb.VendorKubeOVN && ids[nb.KeyPort] == "" && ids[nb.KeyProtocol] == protocol {
			out = append(out, d)
		}
	}
	slices.SortFunc(out, func(a, b nb.DHCPOptions) int { return strings.Compare(a.UUID, b.UUID) })
	return out
}

// ensureDHCP writes the options of a switch.
func (c *composer) ensureDHCP(d nb.DHCPOptions) {
	if rows := c.switchDHCP(d.ExternalIDs[nb.KeySwitch], d.ExternalIDs[nb.KeyProtocol]); len(rows) > 0 {
		c.updateDHCP(rows[0], d)
		return
	}
	if c.made[rowKey{tableDHCP, dhcpName(d)}] == nil {
		c.makeDHCP(d)
	}
}

func (c *composer) makeDHCP(d nb.DHCPOptions) string {
	return c.make(tableDHCP, dhcpName(d), d.ExternalIDs, map[string]any{
		colCIDR: d.CIDR, colOptions: d.Options, colExternalIDs: d.ExternalIDs,
	})
}

func (c *composer) updateDHCP(have, want nb.DHCPOptions) {
	set := ovsdb.Row{}
	if have.CIDR != want.CIDR {
		set[colCIDR] = want.CIDR
	}
	m := mapDifference(colOptions, have.Options, want.Options, slices.Collect(maps.Keys(have.Options))...)
	m = append(m, mapDifference(colExternalIDs, have.ExternalIDs, want.ExternalIDs,
		nb.Vendor, nb.KeySwitch, nb.KeyProtocol, nb.KeyPort, nb.KeyPod, nb.KeyPodUID)...)
	c.emitRows(alter(tableDHCP, have.UUID, set, m)...)
}

// ensurePortDHCP writes the options that are a port's own and returns, by family, which row the port shall refer to.
func (c *composer) ensurePortDHCP(p nb.Port) [2][]string {
	var refs [2][]string
	if p.DHCP == nil {
		return refs
	}
	have := c.view.hanging(p.Row.Name).dhcp
	for i, want := range []*nb.DHCPOptions{p.DHCP.V4, p.DHCP.V6} {
		switch {
		case want == nil:
		case want.ExternalIDs[nb.KeyPort] == "":
			refs[i] = c.switchDHCPRef(*want)
		default:
			at := slices.IndexFunc(have, func(d nb.DHCPOptions) bool {
				return d.ExternalIDs[nb.KeyProtocol] == want.ExternalIDs[nb.KeyProtocol]
			})
			if at < 0 {
				refs[i] = []string{c.makeDHCP(*want)}
				continue
			}
			c.updateDHCP(have[at], *want)
			refs[i] = []string{have[at].UUID}
			have = slices.Concat(have[:at], have[at+1:])
		}
	}
	for _, d := range have {
		c.emitRemovals(deleteRow(tableDHCP, d.UUID))
	}
	return refs
}

// switchDHCPRef refers to the options of the switch; to nothing when somebody else is to make them and hasn't yet.
func (c *composer) switchDHCPRef(want nb.DHCPOptions) []string {
	if rows := c.switchDHCP(want.ExternalIDs[nb.KeySwitch], want.ExternalIDs[nb.KeyProtocol]); len(rows) > 0 {
		return []string{rows[0].UUID}
	}
	if m := c.made[rowKey{tableDHCP, dhcpName(want)}]; m != nil {
		return []string{m.named}
	}
	if want.Options == nil {
		return nil
	}
	return []string{c.makeDHCP(want)}
}

// tidySwitch removes what a switch has beyond what is asked for.
func (c *composer) tidySwitch(sw string, rows nb.Rows) {
	for _, protocol := range []string{nb.ProtocolIPv4, nb.ProtocolIPv6} {
		have := c.switchDHCP(sw, protocol)
		if slices.ContainsFunc(rows.DHCP, func(d nb.DHCPOptions) bool {
			return d.ExternalIDs[nb.KeySwitch] == sw && d.ExternalIDs[nb.KeyProtocol] == protocol
		}) && len(have) > 0 {
			have = have[1:]
		}
		for _, d := range have {
			c.emitRemovals(deleteRow(tableDHCP, d.UUID))
		}
	}
	for _, row := range c.view.virtualPorts() {
		ids := row.ExternalIDs
		if ids[nb.Vendor] != nb.VendorKubeOVN || ids[nb.KeySwitch] != sw || row.Name != nb.VirtualPortName(sw, row.Options[nb.OptionVirtualIP]) {
			continue
		}
		if !slices.ContainsFunc(rows.Ports, func(p nb.Port) bool { return p.Row.Name == row.Name }) {
			c.gone[rowKey{tablePort, row.Name}] = true
			c.takeOff(row)
		}
	}
}
