package topology

import (
	"maps"
	"net/netip"
	"strconv"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	// dhcpServer is the address that OVN answers DHCP from.
	dhcpServer = "169.254.0.254"
	// leaseTime is in seconds.
	leaseTime = "3600"
	// mtu of a network, and what the overlay's header takes of it.
	mtu       = 1500
	mtuHeader = 100
)

// DHCP gives the DHCP options of a subnet's switch, by family: the defaults, and over them what the Subnet says. It
// doesn't look at whether the Subnet has DHCP enabled.
func DHCP(s *kubeovnv1.Subnet) nb.DHCP {
	out := PortDHCP(s)
	if out.V4 != nil {
		maps.Copy(out.V4.Options, nb.ParseDHCPOptions(s.Spec.DHCPv4Options))
	}
	if out.V6 != nil {
		maps.Copy(out.V6.Options, nb.ParseDHCPOptions(s.Spec.DHCPv6Options))
	}
	return out
}

// PortDHCP gives the defaults alone: a port with options of its own has nothing of the Subnet's.
func PortDHCP(s *kubeovnv1.Subnet) nb.DHCP {
	var out nb.DHCP
	mac := DefaultMAC("dhcp/" + s.Name)
	row := func(cidr netip.Prefix, protocol string, options map[string]string) *nb.DHCPOptions {
		return &nb.DHCPOptions{CIDR: cidr.String(), Options: options, ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: s.Name, nb.KeyProtocol: protocol,
		}}
	}
	for text := range splitList(s.Spec.CIDRBlock) {
		cidr, err := netip.ParsePrefix(text)
		switch {
		case err != nil:
		case cidr.Addr().Is4() && out.V4 == nil:
			options := map[string]string{"lease_time": leaseTime, "server_id": dhcpServer, "server_mac": mac, "mtu": strconv.Itoa(mtuOf(s))}
			if r := routerOf(s); r != "" {
				options["router"] = r
			}
			out.V4 = row(cidr.Masked(), protocolIPv4, options)
		case cidr.Addr().Is6() && out.V6 == nil:
			out.V6 = row(cidr.Masked(), protocolIPv6, map[string]string{"server_id": mac})
		}
	}
	return out
}

func mtuOf(s *kubeovnv1.Subnet) int {
	switch {
	case s.Spec.Mtu > 0:
		return int(s.Spec.Mtu)
	case s.Spec.Vlan == "":
		return mtu - mtuHeader
	}
	return mtu
}

// routerOf is the IPv4 address that pods send to: the gateway, or the one by which an underlay subnet is joined to the
// overlay.
func routerOf(s *kubeovnv1.Subnet) string {
	lists := []string{s.Spec.Gateway}
	if s.Spec.U2OInterconnection && s.Spec.Vlan != "" && !s.Spec.LogicalGateway {
		lists = []string{s.Status.U2OInterconnectionIP, s.Spec.Gateway}
	}
	for _, list := range lists {
		for text := range splitList(list) {
			if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
				return a.String()
			}
		}
	}
	return ""
}

// addServices adds what a switch has beside its link: DHCP options, and virtual ports of the Subnet's own addresses.
func (b *builder) addServices(s *kubeovnv1.Subnet) {
	b.rows.Complete = append(b.rows.Complete, s.Name)
	if s.Spec.EnableDHCP {
		d := DHCP(s)
		for _, row := range []*nb.DHCPOptions{d.V4, d.V6} {
			if row != nil {
				b.rows.DHCP = append(b.rows.DHCP, *row)
			}
		}
	}
	seen := map[netip.Addr]bool{}
	for _, text := range s.Spec.Vips {
		a, err := netip.ParseAddr(text)
		if err != nil || seen[a] {
			continue
		}
		seen[a] = true
		b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: s.Name, Row: nb.LogicalSwitchPort{
			Name: nb.VirtualPortName(s.Name, a.String()), Type: nb.TypeVirtual,
			Options:     map[string]string{nb.OptionVirtualIP: a.String()},
			ExternalIDs: map[string]string{nb.KeySwitch: s.Name, nb.Vendor: nb.VendorKubeOVN},
		}})
	}
}
