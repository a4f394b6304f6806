package ovn

import "github.com/berth-net/berth/pkg/ovn/nb"

// nobody is a value that no row has, since the server takes no null byte. A question by one index must have it in all
// others: where the first finds nothing, the library asks the next, and rows without a key are found by its absence.
const nobody = "\x00"

// portKey asks for ports by type, by pod, or by whether they have further addresses.
func portKey(kind, pod, vips string) *portRow {
	return &portRow{Name: nobody, Type: kind, ExternalIDs: map[string]string{nb.KeyPod: pod, nb.KeyAttachVips: vips, nb.KeyPurpose: nobody}}
}

func (s *session) virtualPorts() []nb.LogicalSwitchPort {
	return s.portsLike(portKey(nb.TypeVirtual, nobody, nobody))
}

func (s *session) vipPorts() []nb.LogicalSwitchPort {
	return s.portsLike(portKey(nobody, nobody, "true"))
}

func (s *session) portsLike(key *portRow) []nb.LogicalSwitchPort {
	var out []nb.LogicalSwitchPort
	for _, r := range byIndex[*portRow](s, tablePort, key) {
		out = append(out, nb.LogicalSwitchPort(*r))
	}
	return out
}

func (s *session) hanging(port string) hanging {
	ids := map[string]string{nb.KeyPort: port, nb.KeySwitch: nobody}
	var h hanging
	for _, r := range byIndex[*dhcpRow](s, tableDHCP, &dhcpRow{ExternalIDs: ids}) {
		h.dhcp = append(h.dhcp, nb.DHCPOptions(*r))
	}
	for _, r := range byIndex[*policyRow](s, tablePolicy, &policyRow{Match: nobody, ExternalIDs: ids}) {
		h.policies = append(h.policies, nb.RouterPolicy(*r))
	}
	for _, r := range byIndex[*natRow](s, tableNAT, &natRow{ExternalIP: nobody, ExternalIDs: ids}) {
		h.nats = append(h.nats, nb.NAT(*r))
	}
	return h.ours()
}

// ours leaves away what somebody else has marked with our key.
func (h hanging) ours() hanging {
	var out hanging
	for _, r := range h.dhcp {
		if r.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
			out.dhcp = append(out.dhcp, r)
		}
	}
	for _, r := range h.policies {
		if r.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
			out.policies = append(out.policies, r)
		}
	}
	for _, r := range h.nats {
		if r.ExternalIDs[nb.Vendor] == nb.VendorKubeOVN {
			out.nats = append(out.nats, r)
		}
	}
	return out
}

func (s *session) dhcpOn(sw string) []nb.DHCPOptions {
	var out []nb.DHCPOptions
	for _, r := range byIndex[*dhcpRow](s, tableDHCP, &dhcpRow{ExternalIDs: map[string]string{nb.KeyPort: nobody, nb.KeySwitch: sw}}) {
		out = append(out, nb.DHCPOptions(*r))
	}
	return out
}

func (s *session) policiesMatching(match string) []nb.RouterPolicy {
	var out []nb.RouterPolicy
	for _, r := range byIndex[*policyRow](s, tablePolicy, &policyRow{Match: match, ExternalIDs: map[string]string{nb.KeyPort: nobody}}) {
		out = append(out, nb.RouterPolicy(*r))
	}
	return out
}

func (s *session) natsAt(externalIP string) []nb.NAT {
	var out []nb.NAT
	for _, r := range byIndex[*natRow](s, tableNAT, &natRow{ExternalIP: externalIP, ExternalIDs: map[string]string{nb.KeyPort: nobody}}) {
		out = append(out, nb.NAT(*r))
	}
	return out
}

func (s *session) routesTo(prefix string) []nb.StaticRoute {
	var out []nb.StaticRoute
	for _, r := range byIndex[*staticRow](s, tableRoute, &staticRow{Prefix: prefix}) {
		out = append(out, nb.StaticRoute(*r))
	}
	return out
}
