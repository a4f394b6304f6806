package ovn

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Options of a port that Berth sets, and that decide on which chassis it is.
const (
	optionChassis    = "requested-chassis"
	optionActivation = "activation-strategy"
	activationRARP   = "rarp"
)

// Migration is a live migration of a virtual machine between two nodes.
type Migration struct {
	// Source and Target are nodes.
	Source, Target string
	// Phase tells how far it is.
	Phase MigrationPhase
}

// MigrationPhase is how far a live migration is.
type MigrationPhase string

// The phases.
const (
	// MigrationRunning: both nodes have the port, and the target's is silent until its first packet.
	MigrationRunning MigrationPhase = "running"
	// MigrationSucceeded: the target has it.
	MigrationSucceeded MigrationPhase = "succeeded"
	// MigrationFailed: the source keeps it.
	MigrationFailed MigrationPhase = "failed"
)

func podPort(in PodInput, i InterfaceInput) nb.LogicalSwitchPort {
	addresses := portAddresses(i.MAC, i.Addresses)
	ids := map[string]string{
		nb.Vendor:    nb.VendorKubeOVN,
		nb.KeySwitch: i.Subnet.Name,
		nb.KeyPod:    in.Namespace + "/" + in.Name,
	}
	set := func(key, value string) {
		if value != "" {
			ids[key] = value
		}
	}
	set(nb.KeyClaim, in.Claim)
	set(nb.KeyPodUID, in.UID)
	groups := securityGroups(i)
	set(nb.KeySecurityGroups, strings.Join(groups, "/"))
	for _, sg := range groups {
		ids[nb.PrefixAssociated+sg] = "true"
	}
	custom := i.Subnet.Vpc != "" && i.Subnet.Vpc != in.Config.ClusterRouter
	if custom && !slices.Contains(groups, DefaultSecurityGroup) {
		ids[nb.PrefixAssociated+DefaultSecurityGroup] = "false"
	}
	vips := vipList(i.Vips)
	if len(vips) > 0 {
		ids[nb.KeyVips], ids[nb.KeyAttachVips] = strings.Join(vips, ","), "true"
	}
	options := portOptions(in, i)
	set(nb.KeyOptions, strings.Join(slices.Sorted(maps.Keys(options)), ","))
	row := nb.LogicalSwitchPort{
		Name:        network.PortName(in.Name, in.Namespace, i.Provider),
		Addresses:   []string{addresses},
		ExternalIDs: ids,
		Options:     options,
	}
	if i.Layer2Forward {
		row.Addresses = append(row.Addresses, "unknown")
	}
	if i.PortSecurity {
		row.PortSecurity = []string{strings.Join(append([]string{addresses}, vips...), " ")}
	}
	return row
}

// securityGroups gives the names without the blanks that people write around commas.
func securityGroups(i InterfaceInput) []string {
	out := []string{}
	for _, sg := range i.SecurityGroups {
		if sg = strings.TrimSpace(sg); sg != "" && !slices.Contains(out, sg) {
			out = append(out, sg)
		}
	}
	return out
}

func vipList(addrs []netip.Addr) []string {
	var out []string
	for _, a := range addrs {
		if text := a.String(); !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// portOptions say on which node the port is, while that isn't plain.
func portOptions(in PodInput, i InterfaceInput) map[string]string {
	switch m := in.Migration; {
	case m != nil && m.Phase == MigrationRunning:
		return map[string]string{optionChassis: m.Source + "," + m.Target, optionActivation: activationRARP}
	case m != nil && m.Phase == MigrationSucceeded:
		return map[string]string{optionChassis: m.Target}
	case m != nil && m.Phase == MigrationFailed:
		return map[string]string{optionChassis: m.Source}
	case i.Activation && in.Node != nil:
		return map[string]string{optionChassis: in.Node.Name + "," + in.Node.Name, optionActivation: activationRARP}
	}
	return nil
}

// portDHCP is, for each family that the port has an address of, a row of its own or that of the switch.
func portDHCP(in PodInput, i InterfaceInput) *nb.DHCP {
	pick := func(written string, own, shared *nb.DHCPOptions, is4 bool) *nb.DHCPOptions {
		if !slices.ContainsFunc(i.Addresses, func(a netip.Addr) bool { return a.Is4() == is4 }) {
			return nil
		}
		if options := nb.ParseDHCPOptions(written); len(options) > 0 && own != nil {
			row := nb.DHCPOptions{CIDR: own.CIDR, Options: map[string]string{}, ExternalIDs: hangingMarks(in, i)}
			maps.Copy(row.Options, own.Options)
			maps.Copy(row.Options, options)
			maps.Copy(row.ExternalIDs, own.ExternalIDs)
			return &row
		}
		if i.Subnet.EnableDHCP {
			return shared
		}
		return nil
	}
	return &nb.DHCP{
		V4: pick(i.DHCPv4, i.Subnet.PortDHCP.V4, i.Subnet.DHCP.V4, true),
		V6: pick(i.DHCPv6, i.Subnet.PortDHCP.V6, i.Subnet.DHCP.V6, false),
	}
}

// hangingMarks are on rows that go with an interface's port.
func hangingMarks(in PodInput, i InterfaceInput) map[string]string {
	ids := map[string]string{
		nb.Vendor:  nb.VendorKubeOVN,
		nb.KeyPort: network.PortName(in.Name, in.Namespace, i.Provider),
		nb.KeyPod:  in.Namespace + "/" + in.Name,
	}
	if in.UID != "" {
		ids[nb.KeyPodUID] = in.UID
	}
	return ids
}

// virtualPort is the port of a Vip that moves between the pods that may use it.
func virtualPort(sw string, v Virtual) nb.Port {
	return nb.Port{Switch: sw, Row: nb.LogicalSwitchPort{
		Name: v.Name, Type: nb.TypeVirtual, Options: map[string]string{nb.OptionVirtualIP: v.Address.String()},
		ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: sw, nb.KeyVip: v.Name},
	}}
}
