package topology

import (
	"fmt"
	"maps"
	"slices"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// Mode says who realises what is written.
type Mode string

// The modes.
const (
	// Alone: Berth does, with the daemons of the nodes.
	Alone Mode = "alone"
	// Beside: Kube-OVN's controller does, but for pods.
	Beside Mode = "beside"
)

// untold looks whether an object has a field that nobody realises in a mode, and returns the paths of those that it has;
// nil: somebody realises the field in every mode.
type untold[T any] func(o *T, m Mode) []string

// UnrealisedSubnet lists the fields of a Subnet that are set and that nobody realises, by their paths.
func UnrealisedSubnet(s *kubeovnv1.Subnet, m Mode) []string { return unrealised(s, m, subnetFields()) }

// UnrealisedVpc does so with a Vpc.
func UnrealisedVpc(v *kubeovnv1.Vpc, m Mode) []string { return unrealised(v, m, vpcFields()) }

// UnrealisedSecurityGroup does so with a SecurityGroup.
func UnrealisedSecurityGroup(g *kubeovnv1.SecurityGroup, m Mode) []string {
	return unrealised(g, m, securityFields())
}

func unrealised[T any](o *T, m Mode, fields map[string]untold[T]) []string {
	var out []string
	for _, look := range fields {
		if look != nil {
			out = append(out, look(o, m)...)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// fieldsOf completes a table with the fields that somebody realises.
func fieldsOf[T any](told map[string]untold[T], realised ...string) map[string]untold[T] {
	out := maps.Clone(told)
	for _, path := range realised {
		out[path] = nil
	}
	return out
}

// when tells a path under a condition.
func when(is bool, path string) []string {
	if is {
		return []string{path}
	}
	return nil
}

// subnetFields has every field of a Subnet's spec. Where the network isn't OVN's there is no switch and no router,
// whoever runs beside us. Alone there are no load balancers, and nobody announces routers or listens to multicast.
func subnetFields() map[string]untold[kubeovnv1.Subnet] {
	type subnet = kubeovnv1.Subnet
	onSwitch := func(path string, set func(*subnet) bool) untold[subnet] {
		return func(s *subnet, _ Mode) []string { return when(!IsOVN(s.Spec.Provider) && set(s), path) }
	}
	never := func(path string, set func(*subnet) bool) untold[subnet] {
		return func(s *subnet, m Mode) []string { return when((m == Alone || !IsOVN(s.Spec.Provider)) && set(s), path) }
	}
	table := map[string]untold[subnet]{}
	for path, set := range map[string]func(*subnet) bool{
		"spec.private":                        func(s *subnet) bool { return s.Spec.Private },
		"spec.allowSubnets":                   func(s *subnet) bool { return len(s.Spec.AllowSubnets) > 0 },
		"spec.acls":                           func(s *subnet) bool { return len(s.Spec.ACLs) > 0 },
		"spec.allowEWTraffic":                 func(s *subnet) bool { return s.Spec.AllowEWTraffic },
		"spec.gatewayNode":                    func(s *subnet) bool { return s.Spec.GatewayNode != "" },
		"spec.gatewayNodeSelectors":           func(s *subnet) bool { return len(s.Spec.GatewayNodeSelectors) > 0 },
		"spec.enableEcmp":                     func(s *subnet) bool { return s.Spec.EnableEcmp },
		"spec.logicalGateway":                 func(s *subnet) bool { return s.Spec.LogicalGateway },
		"spec.enableDHCP":                     func(s *subnet) bool { return s.Spec.EnableDHCP },
		"spec.dhcpV4Options":                  func(s *subnet) bool { return s.Spec.DHCPv4Options != "" },
		"spec.dhcpV6Options":                  func(s *subnet) bool { return s.Spec.DHCPv6Options != "" },
		"spec.u2oInterconnection":             func(s *subnet) bool { return s.Spec.U2OInterconnection },
		"spec.u2oInterconnectionIP":           func(s *subnet) bool { return s.Spec.U2OInterconnectionIP != "" },
		"spec.u2oFeatures.overlayOnlyRouting": func(s *subnet) bool { return s.Spec.U2OFeatures.OverlayOnlyRouting },
		"spec.routeTable":                     func(s *subnet) bool { return s.Spec.RouteTable != "" },
		"spec.vips":                           func(s *subnet) bool { return len(s.Spec.Vips) > 0 },
	} {
		table[path] = onSwitch(path, set)
	}
	for path, set := range map[string]func(*subnet) bool{
		// The daemon reads these from the status, where they have numbers that nobody gives.
		"spec.natOutgoingPolicyRules":  func(s *subnet) bool { return len(s.Spec.NatOutgoingPolicyRules) > 0 },
		"spec.enableLb":                func(s *subnet) bool { return s.Spec.EnableLb != nil && *s.Spec.EnableLb },
		"spec.enableIPv6RA":            func(s *subnet) bool { return s.Spec.EnableIPv6RA },
		"spec.ipv6RAConfigs":           func(s *subnet) bool { return s.Spec.IPv6RAConfigs != "" },
		"spec.enableMulticastSnoop":    func(s *subnet) bool { return s.Spec.EnableMulticastSnoop },
		"spec.enableExternalLBAddress": func(s *subnet) bool { return s.Spec.EnableExternalLBAddress },
	} {
		table[path] = never(path, set)
	}
	return fieldsOf(table,
		"spec.default", "spec.vpc", "spec.protocol", "spec.namespaces", "spec.namespaceSelectors", "spec.cidrBlock", "spec.gateway",
		"spec.excludeIps", "spec.provider", "spec.gatewayType", "spec.vlan",
		// The daemons do these, by the Subnet alone.
		"spec.natOutgoing", "spec.externalEgressGateway", "spec.policyRoutingPriority", "spec.policyRoutingTableID", "spec.mtu",
		"spec.disableGatewayCheck", "spec.nodeNetwork",
		// Nothing joins clusters, so nothing is to be left out.
		"spec.disableInterConnection",
	)
}

// vpcFields has every field of a Vpc's spec.
func vpcFields() map[string]untold[kubeovnv1.Vpc] {
	type vpc = kubeovnv1.Vpc
	table := map[string]untold[vpc]{}
	for path, set := range map[string]func(*vpc) bool{
		"spec.extraExternalSubnets": func(v *vpc) bool { return len(v.Spec.ExtraExternalSubnets) > 0 },
		"spec.enableBfd":            func(v *vpc) bool { return v.Spec.EnableBfd },
		"spec.bfdPort":              func(v *vpc) bool { return v.Spec.BFDPort != nil && v.Spec.BFDPort.Enabled },
	} {
		table[path] = func(v *vpc, m Mode) []string { return when(m == Alone && set(v), path) }
	}
	table["spec.staticRoutes.bfdId"] = func(v *vpc, m Mode) []string {
		var out []string
		for i, r := range v.Spec.StaticRoutes {
			out = append(out, when(m == Alone && r.BFDID != "", fmt.Sprintf("spec.staticRoutes[%d].bfdId", i))...)
		}
		return out
	}
	return fieldsOf(table,
		"spec.defaultSubnet", "spec.namespaces",
		// What keeps a router from it is found beside its rows.
		"spec.enableExternal",
		"spec.staticRoutes.policy", "spec.staticRoutes.cidr", "spec.staticRoutes.nextHopIP", "spec.staticRoutes.ecmpMode", "spec.staticRoutes.routeTable",
		"spec.policyRoutes.priority", "spec.policyRoutes.match", "spec.policyRoutes.action", "spec.policyRoutes.nextHopIP",
		"spec.vpcPeerings.remoteVpc", "spec.vpcPeerings.localConnectIP",
	)
}

// securityFields has every field of a SecurityGroup's spec. Rules can't pass a packet on, for a second tier needs a newer
// OVN than the oldest that is served: what they would pass on is dropped.
func securityFields() map[string]untold[kubeovnv1.SecurityGroup] {
	type group = kubeovnv1.SecurityGroup
	table := map[string]untold[group]{
		"spec.tier": func(g *group, m Mode) []string { return when(m == Alone && g.Spec.Tier != 0, "spec.tier") },
	}
	var rest []string
	for name, of := range map[string]func(*group) []kubeovnv1.SecurityGroupRule{
		"ingressRules": func(g *group) []kubeovnv1.SecurityGroupRule { return g.Spec.IngressRules },
		"egressRules":  func(g *group) []kubeovnv1.SecurityGroupRule { return g.Spec.EgressRules },
	} {
		table["spec."+name+".policy"] = func(g *group, m Mode) []string {
			var out []string
			for i, r := range of(g) {
				out = append(out, when(m == Alone && r.Policy == policyPass, fmt.Sprintf("spec.%s[%d].policy", name, i))...)
			}
			return out
		}
		for _, f := range []string{"ipVersion", "protocol", "priority", "remoteType", "remoteAddress", "remoteSecurityGroup", "portRangeMin",
			"portRangeMax", "localAddress", "sourcePortRangeMin", "sourcePortRangeMax"} {
			rest = append(rest, "spec."+name+"."+f)
		}
	}
	return fieldsOf(table, append(rest, "spec.allowSameGroupTraffic")...)
}
