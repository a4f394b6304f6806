package cluster

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Family says which addresses a cluster has.
type Family string

const (
	// Dual has IPv4 for machines and Services, and both families for pods.
	Dual Family = "dual"
	// IPv6 has no IPv4 address at all: neither machines nor Services, neither the nodes' network nor the pods'.
	IPv6 Family = "v6"
)

// chooseFamily settles the family.
func (o *Options) chooseFamily() error {
	switch o.Family {
	case "":
		o.Family = Dual
	case Dual, IPv6:
	default:
		return fmt.Errorf("family %q is not known; take %s or %s", o.Family, Dual, IPv6)
	}
	return nil
}

// ranges are what a family has for Services and for the nodes on the pods' network.
func (f Family) ranges() (services, nodes string) {
	if f == IPv6 {
		return "fd00:10:96::/112", "fd00:100:64::/112"
	}
	return "10.96.0.0/16", "100.64.0.0/16,fd00:100:64::/112"
}

// machines is one of 256 networks of a family for the machine network. The tunnels get the one of the same number that
// address makes of it, which exists inside the nodes only.
func (f Family) machines(n int) netip.Prefix {
	if f == IPv6 {
		return netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, 0, 0, 0x30, 0, 0, 0, byte(n)}), 64)
	}
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{172, 30, byte(n), 0}), 24)
}

// address is one of the machine network, or of the tunnels' network, the next in the last byte of the range.
func (s *state) address(network, last int) string {
	if s.Subnet.Addr().Is6() {
		bytes := s.Subnet.Addr().As16()
		bytes[3] += byte(network)
		bytes[15] = byte(last)
		return netip.AddrFrom16(bytes).String()
	}
	bytes := s.Subnet.Addr().As4()
	bytes[1] += byte(network)
	bytes[3] = byte(last)
	return netip.AddrFrom4(bytes).String()
}

// at is a port of the host, as URLs and OVSDB remotes have it.
func (s *state) at(port int) string { return net.JoinHostPort(s.hostIP(), strconv.Itoa(port)) }

// listen is an OVSDB remote that listens at a port of the host.
func (s *state) listen(port int) string {
	if s.Subnet.Addr().Is6() {
		return fmt.Sprintf("ptcp:%d:[%s]", port, s.hostIP())
	}
	return fmt.Sprintf("ptcp:%d:%s", port, s.hostIP())
}

// nodad spares an IPv6 address the search for its duplicates, during which nobody can use it.
func (s *state) nodad() string {
	if s.Subnet.Addr().Is6() {
		return "nodad"
	}
	return ""
}

// serviceIP is the API server's own Service.
func (o *Options) serviceIP() string {
	services, _ := o.Family.ranges()
	return netip.MustParsePrefix(services).Addr().Next().String()
}

// networkPatches turn the local cluster's subnets into those of the family.
func (o *Options) networkPatches() string {
	if o.Family != IPv6 {
		return ""
	}
	patches := ""
	for _, s := range []struct{ name, cidr, gateway string }{
		{"ovn-default", "fd00:10:16::/112", "fd00:10:16::1"}, {"web", "fd00:10:17::/120", "fd00:10:17::1"},
	} {
		patches += fmt.Sprintf(`- target: {kind: Subnet, name: %s}
  patch: |-
    - {op: replace, path: /spec/protocol, value: IPv6}
    - {op: replace, path: /spec/cidrBlock, value: %q}
    - {op: replace, path: /spec/gateway, value: %q}
    - {op: replace, path: /spec/excludeIps, value: [%q]}
`, s.name, s.cidr, s.gateway, s.gateway)
	}
	return patches
}

// familyArgs are what the worker is told about the family.
func (o *Options) familyArgs() []string {
	if o.Family != IPv6 {
		return nil
	}
	services, nodes := o.Family.ranges()
	return []string{"--service-cluster-ip-range=" + services, "--node-switch-cidr=" + nodes}
}
