package ovn

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// ProviderOVN is the provider of a pod's default network.
const ProviderOVN = "ovn"

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
	// PortSecurity lets the port send only from its own addresses.
	PortSecurity bool
	// ExternalIP tells that the interface has an EIP or an SNAT address.
	ExternalIP bool
	// NorthGateway tells that the interface has a gateway of its own.
	NorthGateway bool
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
}

// PortName returns the name of a pod's switch port.
func PortName(pod, namespace, provider string) string {
	if provider == "" || provider == ProviderOVN {
		return pod + "." + namespace
	}
	return pod + "." + namespace + "." + provider
}

// NodeGroup returns the port group of a node's pods.
func NodeGroup(node string) nb.Group {
	return nb.Group{
		Name:        groupName("node-" + node),
		ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyNode: node, nb.KeyNP: "node/" + node},
	}
}

// SubnetNodeGroup returns the port group of a node's pods in one subnet.
func SubnetNodeGroup(subnet, node string) nb.Group {
	return nb.Group{
		Name: groupName(subnet + "." + node),
		ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeySubnet: subnet, nb.KeyNode: node, nb.KeyNP: subnet + "/" + node,
		},
	}
}

// PodRows returns the rows that a pod shall have: its ports, and once it has a node, the groups that route for it.
func PodRows(in PodInput) nb.Rows {
	var rows nb.Rows
	groups := map[string]nb.Group{}
	for _, i := range in.Interfaces {
		port := nb.Port{Switch: i.Subnet.Name, Row: podPort(in, i)}
		if in.Node != nil {
			port.Groups = []string{}
			for _, g := range interfaceGroups(i, *in.Node, in.Config) {
				port.Groups = append(port.Groups, g.Name)
				groups[g.Name] = g
			}
			slices.Sort(port.Groups)
		}
		rows.Ports = append(rows.Ports, port)
	}
	for _, g := range groups {
		rows.Groups = append(rows.Groups, g)
	}
	slices.SortFunc(rows.Groups, func(a, b nb.Group) int { return strings.Compare(a.Name, b.Name) })
	return rows
}

func podPort(in PodInput, i InterfaceInput) nb.LogicalSwitchPort {
	addresses := portAddresses(i.MAC, i.Addresses)
	ids := map[string]string{
		nb.Vendor:    nb.VendorKubeOVN,
		nb.KeySwitch: i.Subnet.Name,
		nb.KeyPod:    in.Namespace + "/" + in.Name,
	}
	if in.Claim != "" {
		ids[nb.KeyClaim] = in.Claim
	}
	if in.UID != "" {
		ids[nb.KeyPodUID] = in.UID
	}
	row := nb.LogicalSwitchPort{
		Name:        PortName(in.Name, in.Namespace, i.Provider),
		Addresses:   []string{addresses},
		ExternalIDs: ids,
	}
	if i.PortSecurity {
		row.PortSecurity = []string{addresses}
	}
	return row
}

// portAddresses is OVN's form: the MAC, then the IPv4 and the IPv6 address.
func portAddresses(mac string, addrs []netip.Addr) string {
	words := []string{strings.ToLower(mac)}
	for _, a := range slices.SortedStableFunc(slices.Values(addrs), nb.CompareFamilies) {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
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
	external := i.ExternalIP && cfg.EnableEIPSNAT
	if distributed && !external && !i.NorthGateway && shareFamily(i.Addresses, node.JoinIPs) {
		groups = append(groups, SubnetNodeGroup(s.Name, node.Name))
	}
	return groups
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

// groupName makes a port group's name: OVN's expressions can't have a dash in it.
func groupName(s string) string { return strings.ReplaceAll(s, "-", ".") }
