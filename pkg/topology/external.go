package topology

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// LabelExternalGateway marks nodes that may do the cluster router's work on the external network.
const LabelExternalGateway = "ovn.kubernetes.io/external-gw"

// Keys of the ConfigMap that describes the external network, and values.
const (
	keyExternal         = "enable-external-gw"
	keyExternalType     = "type"
	keyExternalNodes    = "external-gw-nodes"
	keyExternalNetworks = "nic-ip"
	keyExternalMAC      = "nic-mac"
	externalDistributed = "distributed"
)

// External is how the cluster router is to be connected to the external network.
type External struct {
	// Enabled tells that it shall be, whatever the Vpc says.
	Enabled bool
	// Networks are the router's addresses there with their prefixes; MAC is its own, empty: any.
	Networks []netip.Prefix
	MAC      string
	// Nodes may do the work, besides those that are labelled for it.
	Nodes []string
	// Err tells what is wrong with what is asked for. What there is stays.
	Err error
}

// ReadExternal reads the ConfigMap's data. When every node translates for itself, the list of nodes isn't looked at.
func ReadExternal(data map[string]string) External {
	e := External{Enabled: data[keyExternal] == "true"}
	if data[keyExternalType] != externalDistributed {
		e.Nodes = slices.Collect(splitList(data[keyExternalNodes]))
	}
	for text := range splitList(data[keyExternalNetworks]) {
		p, err := netip.ParsePrefix(text)
		clash := slices.ContainsFunc(e.Networks, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() })
		if err != nil || p.Addr().Is4In6() || clash {
			e.Err = &ExternalConfigError{Key: keyExternalNetworks, Value: data[keyExternalNetworks], Want: "an address with its prefix, such as 10.90.0.254/24, at most one of each family"}
			return e
		}
		e.Networks = append(e.Networks, p)
	}
	slices.SortFunc(e.Networks, func(a, b netip.Prefix) int { return nb.CompareFamilies(a.Addr(), b.Addr()) })
	if text := strings.TrimSpace(data[keyExternalMAC]); text != "" {
		mac, err := net.ParseMAC(text)
		if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
			e.Err = &ExternalConfigError{Key: keyExternalMAC, Value: text, Want: "the MAC of one interface, such as 0a:58:0a:5a:00:fe"}
			return e
		}
		e.MAC = mac.String()
	}
	return e
}

// ExternalConfigError tells that the ConfigMap of the external network can't be read.
type ExternalConfigError struct{ Key, Value, Want string }

// Error implements error.
func (e *ExternalConfigError) Error() string {
	return fmt.Sprintf("ConfigMap ovn-external-gw-config: %s: %q is not %s", e.Key, e.Value, e.Want)
}

// ExternalSubnetError tells that the external network isn't a subnet that the router can be connected to.
type ExternalSubnetError struct {
	Subnet string
	// Linked tells that the subnet is on its router like a pods' network.
	Linked bool
}

// Error implements error.
func (e *ExternalSubnetError) Error() string {
	if e.Linked {
		return fmt.Sprintf("subnet %s is on its router as a pods' network: for the external network give it a spec.vlan, "+
			"and neither logicalGateway nor u2oInterconnection", e.Subnet)
	}
	return fmt.Sprintf("the external network has no subnet %s: create it with a spec.vlan, or name another by --external-gateway-switch", e.Subnet)
}

// ExternalRouterError tells that a VPC other than the default one asks for the external network.
type ExternalRouterError struct{ Vpc, ClusterRouter string }

// Error implements error.
func (e *ExternalRouterError) Error() string {
	return fmt.Sprintf("spec.enableExternal is realised for VPC %s alone: take it off VPC %s", e.ClusterRouter, e.Vpc)
}

// What keeps the cluster router off the external network.
var (
	errNoExternalAddress = errors.New("the router has no address on the external network: set " + keyExternalNetworks +
		" in the ConfigMap ovn-external-gw-config, such as 10.90.0.254/24")
	errNoExternalNode = errors.New("no node with a chassis may do the work on the external network: label nodes " + LabelExternalGateway +
		"=true, or name them under " + keyExternalNodes + " in the ConfigMap ovn-external-gw-config")
)

// WantsExternal tells that the cluster router shall be connected to the external network.
func WantsExternal(in Input) bool {
	return in.External.Enabled || slices.ContainsFunc(in.Vpcs, func(v *kubeovnv1.Vpc) bool {
		return v.Name == in.Config.ClusterRouter && v.Spec.EnableExternal
	})
}

// ExternalSubnet finds the subnet that the cluster router is connected to as to a foreign network.
func ExternalSubnet(in Input) (*kubeovnv1.Subnet, error) {
	i := slices.IndexFunc(in.Subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == in.Config.ExternalSubnet })
	if i < 0 || !IsOVN(in.Subnets[i].Spec.Provider) {
		return nil, &ExternalSubnetError{Subnet: in.Config.ExternalSubnet}
	}
	if s := in.Subnets[i]; s.Spec.Vlan == "" || s.Spec.LogicalGateway || s.Spec.U2OInterconnection {
		return nil, &ExternalSubnetError{Subnet: s.Name, Linked: true}
	}
	return in.Subnets[i], nil
}

// addExternal connects the cluster router to the external network, with one node after the other that may do its work
// there. What is wrong is told of the router's Vpc.
func (b *builder) addExternal() {
	for _, v := range b.in.Vpcs {
		if v.Spec.EnableExternal && v.Name != b.in.Config.ClusterRouter {
			b.find(KindVpc, v.Name, &ExternalRouterError{Vpc: v.Name, ClusterRouter: b.in.Config.ClusterRouter})
		}
	}
	if !WantsExternal(b.in) {
		return
	}
	s, err := ExternalSubnet(b.in)
	if err == nil {
		if err = b.addExternalLink(s.Name); err != nil {
			b.rows.Held = append(b.rows.Held, s.Name)
		}
	}
	if err != nil {
		b.find(KindVpc, b.in.Config.ClusterRouter, err)
	}
}

func (b *builder) addExternalLink(external string) error {
	e, router := b.in.External, b.in.Config.ClusterRouter
	chassis := b.externalChassis()
	switch {
	case e.Err != nil:
		return e.Err
	case len(e.Networks) == 0:
		return errNoExternalAddress
	case len(chassis) == 0: // without one, every node would answer for the router
		return errNoExternalNode
	}
	routerPort, switchPort := router+"-"+external, external+"-"+router
	for _, row := range []string{"router port " + routerPort, "switch port " + switchPort} {
		if err := b.claim(row, "the external network"); err != nil {
			return err
		}
	}
	row := nb.LogicalRouterPort{Name: routerPort, MAC: cmp.Or(e.MAC, b.in.MAC(router+"/"+external)), ExternalIDs: marks(nb.KeyRouter, router)}
	for _, p := range e.Networks {
		row.Networks = append(row.Networks, p.String())
	}
	b.rows.RouterPorts = append(b.rows.RouterPorts, nb.RouterPort{Router: router, Row: row, Chassis: chassis, FixedMAC: e.MAC != ""})
	b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: external, Row: nb.LogicalSwitchPort{
		Name: switchPort, Type: nb.TypeRouter, Addresses: []string{"router"},
		// When the work moves to another node, that one tells the network where the addresses are now.
		Options:     map[string]string{nb.OptionRouterPort: routerPort, nb.OptionNATAddresses: "router"},
		ExternalIDs: marks(nb.KeySwitch, external),
	}})
	return nil
}

// externalChassis are the chassis of the nodes that may do the work, those first that are named, in that order.
func (b *builder) externalChassis() []string {
	var out []string
	add := func(n Node) {
		if n.Chassis != "" && !slices.Contains(out, n.Chassis) {
			out = append(out, n.Chassis)
		}
	}
	for _, name := range b.in.External.Nodes {
		for _, n := range b.nodes {
			if n.Name == name {
				add(n)
			}
		}
	}
	for _, n := range slices.SortedFunc(slices.Values(b.nodes), func(x, y Node) int { return cmp.Compare(x.Name, y.Name) }) {
		if n.Labels[LabelExternalGateway] == "true" {
			add(n)
		}
	}
	return out
}
