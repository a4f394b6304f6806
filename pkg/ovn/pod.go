package ovn

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// GatewayDistributed is the gateway type at which every node routes for its own pods.
const GatewayDistributed = "distributed"

// PodInput is all that a pod's rows follow from.
type PodInput struct {
	// Namespace of the pod.
	Namespace string
	// Name of the pod, or of its virtual machine.
	Name string
	// UID of the bound pod.
	UID string
	// Claim of the pod's leases.
	Claim string
	// Node is where the pod runs; nil while it isn't bound.
	Node *NodeInput
	// Interfaces of the pod that have an OVN port.
	Interfaces []InterfaceInput
	// Migration of the pod's virtual machine; nil: there is none.
	Migration *Migration
	// Config of the cluster.
	Config PodConfig
}

// NodeInput is a pod's node.
type NodeInput struct {
	// Name of the node.
	Name string
	// JoinIPs are the node's addresses on the join switch; none while they aren't known.
	JoinIPs []netip.Addr
}

// InterfaceInput is one network of a pod.
type InterfaceInput struct {
	// Provider of the network; empty means ovn.
	Provider string
	// Subnet of the network.
	Subnet SubnetInput
	// Addresses of the interface, at most one per family.
	Addresses []netip.Addr
	// MAC of the interface.
	MAC string
	// PortSecurity lets the port send only from its own addresses and its Vips.
	PortSecurity bool
	// Vips are further addresses that the port may use.
	Vips []netip.Addr
	// Virtuals are the Vips by name whose virtual ports are to be made when there are none.
	Virtuals []Virtual
	// Layer2Forward lets the port receive what is for addresses that nobody has.
	Layer2Forward bool
	// SecurityGroups by name, as they are written.
	SecurityGroups []string
	// Activation makes a port of the pod's node wait for its first packet.
	Activation bool
	// DHCPv4 and DHCPv6 are options of the port's own, as they are written; empty: none.
	DHCPv4, DHCPv6 string
	// EIPs and SNATs are outer addresses, in a subnet of the cluster router.
	EIPs, SNATs []netip.Addr
	// EIPsFrom lists pods ("namespace/name") that still have one of the EIPs and give it up.
	EIPsFrom []string
	// NorthGateways are gateways of the interface's own, at most one per family.
	NorthGateways []netip.Addr
}

// Virtual is a Vip whose address pods may use.
type Virtual struct {
	// Name of the Vip, which is that of its port.
	Name string
	// Address of the Vip.
	Address netip.Addr
}

// SubnetInput is what a pod's rows need to know of a Subnet.
type SubnetInput struct {
	// Name of the subnet, which is its switch.
	Name string
	// Vpc is the router; empty means the cluster router.
	Vpc string
	// Vlan by name; empty means overlay.
	Vlan string
	// GatewayType is distributed or centralized; empty means distributed.
	GatewayType string
	// LogicalGateway puts the gateway of an underlay subnet onto the router.
	LogicalGateway bool
	// U2OInterconnection joins an underlay subnet to the overlay.
	U2OInterconnection bool
	// EnableLB is the subnet's own switch for load balancers.
	EnableLB *bool
	// EnableDHCP makes ports answer DHCP by the rows in DHCP.
	EnableDHCP bool
	// DHCP are the rows of the switch. Without options they are somebody else's to make.
	DHCP nb.DHCP
	// PortDHCP are what rows of single ports begin with.
	PortDHCP nb.DHCP
	// RouteTable is where old routes to pods may be.
	RouteTable string
}

// PodConfig is the part of the configuration that pods' rows depend on.
type PodConfig struct {
	// ClusterRouter is the router of the default VPC.
	ClusterRouter string
	// NodeSwitch is the join switch.
	NodeSwitch string
	// EnableLB turns load balancers on.
	EnableLB bool
	// EnableEIPSNAT turns pods' EIP and SNAT annotations on.
	EnableEIPSNAT bool
	// External is where pods with an EIP or SNAT address send to.
	External External
}

// NodeGroup returns the port group of a node's pods.
func NodeGroup(node string) nb.Group { return nb.NodeGroup(node) }

// SubnetNodeGroup returns the port group of a node's pods in one subnet.
func SubnetNodeGroup(subnet, node string) nb.Group { return nb.SubnetNodeGroup(subnet, node) }

// PodRows returns the rows that a pod shall have: its ports and what hangs on them, and once it has a node, the groups
// and routes that serve it there. Without a node, what there is of these is left alone.
func PodRows(in PodInput) (nb.Rows, error) {
	var rows nb.Rows
	groups := map[string]nb.Group{}
	for _, i := range in.Interfaces {
		port := nb.Port{Switch: i.Subnet.Name, Row: podPort(in, i), SecurityGroups: securityGroups(i), DHCP: portDHCP(in, i)}
		if in.Node != nil {
			port.Groups = []string{}
			for _, g := range interfaceGroups(i, *in.Node, in.Config) {
				port.Groups = append(port.Groups, g.Name)
				groups[g.Name] = g
			}
			slices.Sort(port.Groups)
			var err error
			if port.Routing, err = portRouting(in, i); err != nil {
				return nb.Rows{}, err
			}
		}
		rows.Ports = append(rows.Ports, port)
		for _, v := range i.Virtuals {
			rows.Virtuals = append(rows.Virtuals, virtualPort(i.Subnet.Name, v))
		}
	}
	for _, g := range groups {
		rows.Groups = append(rows.Groups, g)
	}
	slices.SortFunc(rows.Groups, func(a, b nb.Group) int { return strings.Compare(a.Name, b.Name) })
	return rows, nil
}

// portAddresses is OVN's form: the MAC, then the IPv4 and the IPv6 address.
func portAddresses(mac string, addrs []netip.Addr) string {
	words := []string{strings.ToLower(mac)}
	for _, a := range slices.SortedStableFunc(slices.Values(addrs), nb.CompareFamilies) {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// onClusterRouter tells whether the cluster router routes for an interface's subnet itself.
func onClusterRouter(i InterfaceInput, cfg PodConfig) bool {
	s := i.Subnet
	return s.Name != cfg.NodeSwitch && (s.Vpc == "" || s.Vpc == cfg.ClusterRouter) && (s.Vlan == "" || s.LogicalGateway)
}

// interfaceGroups decides as Kube-OVN's route step does, which groups of the node an interface's port is in.
func interfaceGroups(i InterfaceInput, node NodeInput, cfg PodConfig) []nb.Group {
	s := i.Subnet
	if s.Name == cfg.NodeSwitch || (s.Vpc != "" && s.Vpc != cfg.ClusterRouter) {
		return nil
	}
	lb := cfg.EnableLB && s.EnableLB != nil && *s.EnableLB
	if s.Vlan != "" && !s.LogicalGateway {
		if s.U2OInterconnection && !lb {
			return []nb.Group{SubnetNodeGroup(s.Name, node.Name)}
		}
		return nil
	}
	if len(i.Addresses) == 0 {
		return nil
	}
	groups := []nb.Group{NodeGroup(node.Name)}
	distributed := s.GatewayType == "" || s.GatewayType == GatewayDistributed
	if distributed && !external(i, cfg) && len(i.NorthGateways) == 0 && shareFamily(i.Addresses, node.JoinIPs) {
		groups = append(groups, SubnetNodeGroup(s.Name, node.Name))
	}
	return groups
}

// external tells whether an interface has an EIP or SNAT address that counts.
func external(i InterfaceInput, cfg PodConfig) bool {
	return cfg.EnableEIPSNAT && len(i.EIPs)+len(i.SNATs) > 0
}

func shareFamily(a, b []netip.Addr) bool {
	for _, x := range a {
		for _, y := range b {
			if x.Is4() == y.Is4() {
				return true
			}
		}
	}
	return false
}
