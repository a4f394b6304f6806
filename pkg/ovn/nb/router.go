package nb

import "strings"

// Marks and values of rows that topology makes.
const (
	// PurposeTopology is the value of KeyPurpose on rows that follow from Vpcs, Subnets and Nodes alone. Such a row goes
	// when nothing asks for it any more.
	PurposeTopology = "topology"
	// KeyAddressFamily is "4" or "6" on policies of nodes.
	KeyAddressFamily = "address-family"
	// KeyU2O is "true" on policies that join an underlay subnet to the overlay.
	KeyU2O = "isU2ORoutePolicy"
	// KeyU2ONoLB is "true" beside it on those that bring pods to Services without a load balancer on the switch.
	KeyU2ONoLB = "isU2ONoLBRoutePolicy"
	// KeyU2OOverlayOnly is "true" beside it on those of subnets that reach the overlay alone through the router.
	KeyU2OOverlayOnly = "isU2OOverlayOnlyRoutePolicy"
	// KeyIPv4Network and KeyIPv6Network are the networks of a subnet, on its localnet port.
	KeyIPv4Network = "ipv4_network"
	// KeyIPv6Network is the other one.
	KeyIPv6Network = "ipv6_network"

	// TypeRouter is the type of a switch port that leads to a router, OptionRouterPort the port at its other end.
	TypeRouter = "router"
	// OptionRouterPort names a router port.
	OptionRouterPort = "router-port"
	// OptionNATAddresses tells which addresses the port announces; "router" are all of the router's.
	OptionNATAddresses = "nat-addresses"
	// TypeLocalnet is the type of a switch port that leads to a physical network, OptionNetworkName that network.
	TypeLocalnet = "localnet"
	// OptionNetworkName names a physical network.
	OptionNetworkName = "network_name"
	// OptionRouteTable is the option of a router port whose traffic looks into a table of its own.
	OptionRouteTable = "route_table"
	// RouteByDestination and RouteBySource are the policies of static routes. No policy means the first.
	RouteByDestination = "dst-ip"
	// RouteBySource looks at where a packet comes from.
	RouteBySource = "src-ip"
)

// Policy is a desired policy of a router. Its priority and match are no other's on that router.
type Policy struct {
	Router string
	Row    RouterPolicy
}

// Route is a desired static route of a router. Table, policy, prefix and nexthop together are no other's on that router.
type Route struct {
	Router string
	Row    StaticRoute
}

// OfTopology tells whether a row follows from Vpcs, Subnets and Nodes, by its external_ids.
func OfTopology(ids map[string]string) bool {
	return ids[Vendor] == VendorKubeOVN && ids[KeyPurpose] == PurposeTopology
}

// NodePortName returns the name of a node's port on the join switch, of its IP record, and before GroupName of the port
// group of its pods.
func NodePortName(node string) string { return "node-" + node }

// LocalnetName returns the name of the port that leads a subnet to its physical network.
func LocalnetName(subnet string) string { return "localnet." + subnet }

// NodeGroup returns the port group of a node's pods.
func NodeGroup(node string) Group {
	return Group{
		Name:        GroupName(NodePortName(node)),
		ExternalIDs: map[string]string{Vendor: VendorKubeOVN, KeyNode: node, KeyNP: "node/" + node},
	}
}

// SubnetNodeGroup returns the port group of a node's pods in one subnet.
func SubnetNodeGroup(subnet, node string) Group {
	return Group{
		Name: GroupName(subnet + "." + node),
		ExternalIDs: map[string]string{
			Vendor: VendorKubeOVN, KeySubnet: subnet, KeyNode: node, KeyNP: subnet + "/" + node,
		},
	}
}

// GroupName makes a port group's name: OVN's expressions can't have a dash in it.
func GroupName(s string) string { return strings.ReplaceAll(s, "-", ".") }
