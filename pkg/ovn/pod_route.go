package ovn

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// podPriority is the priority of policies of single pods.
const podPriority = 29250

// Keys of the ConfigMap that describes the external network, and a value.
const (
	externalGatewayKey  = "external-gw-addr"
	externalTypeKey     = "type"
	externalDistributed = "distributed"
)

// External is the way out for pods with an EIP or SNAT address.
type External struct {
	// Gateways, at most one per family.
	Gateways []netip.Addr
	// Distributed tells that every node translates for its own pods.
	Distributed bool
}

// NoExternalGatewayError tells that a pod has an outer address, and nobody knows the way out.
type NoExternalGatewayError struct {
	// Family that has none: IPv4 or IPv6; empty: there is none at all.
	Family string
}

// Error implements error.
func (e *NoExternalGatewayError) Error() string {
	family := ""
	if e.Family != "" {
		family = e.Family + " "
	}
	return fmt.Sprintf("the pod has an EIP or SNAT address, and there is no %sexternal gateway: set %s in the ConfigMap "+
		"ovn-external-gw-config, or make the external subnet with a gateway", family, externalGatewayKey)
}

// ReadExternal works out the way out: what the ConfigMap's data say, else the gateway of the external subnet.
func ReadExternal(config map[string]string, subnetGateway string) External {
	out := External{Distributed: config[externalTypeKey] == externalDistributed}
	for _, text := range []string{config[externalGatewayKey], subnetGateway} {
		for part := range strings.SplitSeq(text, ",") {
			word, _, _ := strings.Cut(strings.TrimSpace(part), "/")
			a, err := netip.ParseAddr(word)
			if err == nil && !slices.ContainsFunc(out.Gateways, func(o netip.Addr) bool { return o.Is4() == a.Is4() }) {
				out.Gateways = append(out.Gateways, a)
			}
		}
		if len(out.Gateways) > 0 {
			break
		}
	}
	return out
}

// portRouting is what the cluster router has for an interface's sake.
func portRouting(in PodInput, i InterfaceInput) (*nb.Routing, error) {
	out := &nb.Routing{Router: in.Config.ClusterRouter}
	if !onClusterRouter(i, in.Config) {
		return out, nil
	}
	if external(i, in.Config) {
		return out, externalRouting(out, in, i)
	}
	for _, a := range i.Addresses {
		if gw, ok := ofFamily(i.NorthGateways, a); ok {
			out.Policies = append(out.Policies, podPolicy(in, i, nb.PurposeNorth, a, gw))
		}
		if len(i.NorthGateways) == 0 && in.Config.EnableEIPSNAT {
			out.Without = append(out.Without, nb.StaticRoute{Prefix: a.String(), Table: i.Subnet.RouteTable})
		}
	}
	return out, nil
}

// externalRouting sends a pod with an EIP or SNAT address out through the external gateway, and translates.
func externalRouting(out *nb.Routing, in PodInput, i InterfaceInput) error {
	if len(in.Config.External.Gateways) == 0 {
		return &NoExternalGatewayError{}
	}
	for _, a := range i.Addresses {
		eip, both := ofFamily(i.EIPs, a)
		snats := slices.DeleteFunc(slices.Clone(i.SNATs), func(s netip.Addr) bool { return s.Is4() != a.Is4() })
		if !both && len(snats) == 0 {
			continue
		}
		gw, ok := ofFamily(in.Config.External.Gateways, a)
		if !ok {
			return &NoExternalGatewayError{Family: protocolOf(a)}
		}
		out.Policies = append(out.Policies, podPolicy(in, i, nb.PurposeExternal, a, gw))
		if both {
			out.NATs = append(out.NATs, podEIP(in, i, eip, a))
		}
		for _, s := range snats {
			out.NATs = append(out.NATs, nb.Translation{Row: podNAT(in, i, nb.NATSource, s, a)})
		}
	}
	return nil
}

func protocolOf(a netip.Addr) string {
	if a.Is4() {
		return nb.ProtocolIPv4
	}
	return nb.ProtocolIPv6
}

func ofFamily(list []netip.Addr, a netip.Addr) (netip.Addr, bool) {
	at := slices.IndexFunc(list, func(o netip.Addr) bool { return o.Is4() == a.Is4() })
	if at < 0 {
		return netip.Addr{}, false
	}
	return list[at], true
}

func podPolicy(in PodInput, i InterfaceInput, purpose string, a, gateway netip.Addr) nb.RouterPolicy {
	ids := hangingMarks(in, i)
	ids[nb.KeySubnet], ids[nb.KeyPurpose] = i.Subnet.Name, purpose
	match := "ip4.src == "
	if a.Is6() {
		match = "ip6.src == "
	}
	return nb.RouterPolicy{Priority: podPriority, Match: match + a.String(), Action: nb.ActionReroute,
		Nexthops: []string{gateway.String()}, ExternalIDs: ids}
}

func podNAT(in PodInput, i InterfaceInput, kind string, outer, inner netip.Addr) nb.NAT {
	ids := hangingMarks(in, i)
	ids[nb.KeyPurpose] = nb.PurposeExternal
	return nb.NAT{Type: kind, ExternalIP: outer.String(), LogicalIP: inner.String(), ExternalIDs: ids}
}

func podEIP(in PodInput, i InterfaceInput, eip, inner netip.Addr) nb.Translation {
	row := podNAT(in, i, nb.NATBoth, eip, inner)
	if in.Config.External.Distributed {
		port, mac := row.ExternalIDs[nb.KeyPort], strings.ToLower(i.MAC)
		row.LogicalPort, row.ExternalMAC = &port, &mac
		row.Options = map[string]string{"stateless": "true"}
	}
	return nb.Translation{Row: row, From: i.EIPsFrom}
}
