package ovn

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// text writes a map with its keys in order.
func text(m map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, k+"="+m[k])
	}
	return "{" + strings.Join(out, " ") + "}"
}

// rowsOf copies a table of the mirror.
func rowsOf[R any](c *Client, table string) []R {
	var out []R
	for _, r := range c.latest().tables[table].Rows() {
		if row, ok := r.(R); ok {
			out = append(out, row)
		}
	}
	return out
}

// dump writes all rows that pods have to do with as lines, without UUIDs. Empty groups of nodes are left away: they stay.
func dump(c *Client) []string {
	var out []string
	line := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	dhcp, ports := map[string]string{}, map[string]string{}
	for _, r := range rowsOf[*dhcpRow](c, tableDHCP) {
		dhcp[r.UUID] = fmt.Sprintf("%s %s %s", r.CIDR, text(r.Options), text(r.ExternalIDs))
		line("dhcp %s", dhcp[r.UUID])
	}
	for _, r := range rowsOf[*portRow](c, tablePort) {
		ports[r.UUID] = r.Name
		refs := ""
		for _, ref := range append(pointed(r.DHCPv4), pointed(r.DHCPv6)...) {
			refs += " <" + dhcp[ref] + ">"
		}
		line("port %s %s %q %q %s %s%s", r.Name, r.Type, slices.Sorted(slices.Values(r.Addresses)), r.PortSecurity, text(r.ExternalIDs), text(r.Options), refs)
	}
	for _, r := range rowsOf[*groupRow](c, tableGroup) {
		var members []string
		for _, uuid := range r.Ports {
			members = append(members, ports[uuid])
		}
		slices.Sort(members)
		if len(members) > 0 || !followsNode(r.ExternalIDs) {
			line("group %s %s %s", r.Name, text(r.ExternalIDs), members)
		}
	}
	on := map[string]string{}
	for _, r := range c.Routers() {
		for _, uuid := range slices.Concat(r.Policies, r.NAT, r.StaticRoutes) {
			on[uuid] += r.Name
		}
	}
	for _, r := range rowsOf[*policyRow](c, tablePolicy) {
		line("policy %s: %d %s %s %s %s", on[r.UUID], r.Priority, r.Match, r.Action, r.Nexthops, text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*natRow](c, tableNAT) {
		line("nat %s: %s %s %s %s %s %s %s", on[r.UUID], r.Type, r.ExternalIP, r.LogicalIP, pointed(r.LogicalPort), pointed(r.ExternalMAC), text(r.Options), text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*staticRow](c, tableRoute) {
		line("route %s: %s %s via %s %s", on[r.UUID], r.Table, r.Prefix, r.Nexthop, text(r.ExternalIDs))
	}
	for _, sw := range c.Switches() {
		for _, uuid := range sw.ACLs {
			on[uuid] += sw.Name
		}
	}
	for _, g := range c.Groups() {
		for _, uuid := range g.ACLs {
			on[uuid] += g.Name
		}
	}
	for _, r := range rowsOf[*aclRow](c, tableACL) {
		line("acl %s: %s %d %s %s %v %s %s %s %s", on[r.UUID], r.Direction, r.Priority, r.Match, r.Action, r.Log, pointed(r.Name), pointed(r.Severity), text(r.Options), text(r.ExternalIDs))
	}
	for _, r := range rowsOf[*setRow](c, tableSet) {
		line("set %s %s %s", r.Name, slices.Sorted(slices.Values(r.Addresses)), text(r.ExternalIDs))
	}
	slices.Sort(out)
	return out
}

// linesWith are those lines of a dump that have all of the words.
func linesWith(c *Client, words ...string) []string {
	var out []string
	for _, l := range dump(c) {
		if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(l, w) }) {
			out = append(out, l)
		}
	}
	return out
}

// world is the topology under the pods: the cluster router, and switches of three kinds, s1 with DHCP and a virtual port.
func world() Change {
	vendor := map[string]string{nb.Vendor: nb.VendorKubeOVN}
	sw, _ := subnetDHCP()
	for _, row := range []*nb.DHCPOptions{sw.V4, sw.V6} {
		row.ExternalIDs[nb.KeySwitch] = "s1"
	}
	return Change{Key: "topology", Ensure: nb.Rows{
		Routers:  []nb.LogicalRouter{{Name: "ovn-cluster", ExternalIDs: vendor}, {Name: "v1", ExternalIDs: vendor}},
		Switches: []nb.LogicalSwitch{vendorSwitch("s1"), vendorSwitch("s2"), vendorSwitch("s3")},
		DHCP:     []nb.DHCPOptions{*sw.V4, *sw.V6},
		Ports: []nb.Port{{Switch: "s1", Row: nb.LogicalSwitchPort{Name: "s1-vip-10.0.0.100", Type: nb.TypeVirtual,
			Options: map[string]string{nb.OptionVirtualIP: "10.0.0.100"}, ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s1"}}}},
		Complete: []string{"s1", "s2", "s3"},
	}}
}

// worldPod is a pod d/<name> on node n1 in s1, with the address 10.0.0.<host> and EIPs switched on.
func worldPod(name string, host int, edit func(*PodInput, *InterfaceInput)) PodInput {
	in := PodInput{Namespace: "d", Name: name, UID: "u-" + name, Claim: "c-" + name, Config: podConfig(),
		Node: &NodeInput{Name: "n1", JoinIPs: addrs("100.64.0.2")}}
	in.Config.EnableEIPSNAT, in.Config.External.Gateways = true, addrs("172.16.0.1", "fd16::1")
	i := InterfaceInput{Subnet: SubnetInput{Name: "s1"}, Addresses: addrs(fmt.Sprintf("10.0.0.%d", host), fmt.Sprintf("fd00::%x", host)),
		MAC: fmt.Sprintf("0a:58:0a:00:00:%02x", host)}
	i.Subnet.DHCP, i.Subnet.PortDHCP = subnetDHCP()
	for _, d := range []nb.DHCP{i.Subnet.DHCP, i.Subnet.PortDHCP} {
		d.V4.ExternalIDs[nb.KeySwitch], d.V6.ExternalIDs[nb.KeySwitch] = "s1", "s1"
	}
	if edit != nil {
		edit(&in, &i)
	}
	in.Interfaces = []InterfaceInput{i}
	return in
}
