// Package nb models the part of OVN's northbound database that Berth uses: plain structs with the column names as
// tags, and nothing else, so that pure code can speak of rows without importing a database client.
//
// Invariant: only columns that exist in every OVN from 22.03 to 26.03 stand here, and Logical_Switch.ports and
// Logical_Router.ports are only ever mutated, never read (reading them costs the square of the ports). Policies and
// translations of routers are read: there are few of them, and without that nobody knows which router a row is on.
package nb

import (
	"cmp"
	"net/netip"
)

// CompareFamilies orders addresses as rows list them: IPv4 before IPv6.
func CompareFamilies(a, b netip.Addr) int { return cmp.Compare(a.BitLen(), b.BitLen()) }

// Marks that Berth puts into external_ids.
const (
	// Vendor is the key of the ownership mark.
	Vendor = "vendor"
	// VendorKubeOVN is its value: Kube-OVN's own, for the rows are the same.
	VendorKubeOVN = "kube-ovn"
	// KeySwitch names the logical switch that a port is on.
	KeySwitch = "ls"
	// KeyRouter names the logical router that a router port is on.
	KeyRouter = "lr"
	// KeyPod is "namespace/pod" on a pod's port.
	KeyPod = "pod"
	// KeyClaim is the claim of the pod's leases, on a pod's port.
	KeyClaim = "berth-claim"
	// KeyPodUID is the UID of the bound pod, on a pod's port.
	KeyPodUID = "berth-pod-uid"
	// KeyNode names the node of a port group that follows a node. A group with it is Berth's to fill.
	KeyNode = "node"
	// KeySubnet names the subnet of a port group that follows a subnet and a node.
	KeySubnet = "subnet"
	// KeyNP tells what a port group is for.
	KeyNP = "np"
	// KeyEpoch is the key of the leader's epoch in NB_Global.
	KeyEpoch = "berth-epoch"
)

// Global is the only row of NB_Global.
type Global struct {
	UUID        string            `ovsdb:"_uuid"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Options     map[string]string `ovsdb:"options"`
}

// LogicalSwitch is a row of Logical_Switch. Its name is not unique in the schema.
type LogicalSwitch struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	OtherConfig map[string]string `ovsdb:"other_config"`
	Ports       []string          `ovsdb:"ports"`
	ACLs        []string          `ovsdb:"acls"`
}

// LogicalSwitchPort is a row of Logical_Switch_Port. It lives as long as a switch refers to it.
type LogicalSwitchPort struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	Type         string            `ovsdb:"type"`
	Addresses    []string          `ovsdb:"addresses"`
	PortSecurity []string          `ovsdb:"port_security"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Options      map[string]string `ovsdb:"options"`
	// Tag is the VLAN of a localnet port.
	Tag *int `ovsdb:"tag"`
	// DHCPv4 and DHCPv6 refer to rows of DHCP_Options. Of a desired port they are empty: Port.DHCP says what they shall be.
	DHCPv4 *string `ovsdb:"dhcpv4_options"`
	DHCPv6 *string `ovsdb:"dhcpv6_options"`
}

// LogicalRouter is a row of Logical_Router. Its name is not unique in the schema.
type LogicalRouter struct {
	UUID         string            `ovsdb:"_uuid"`
	Name         string            `ovsdb:"name"`
	ExternalIDs  map[string]string `ovsdb:"external_ids"`
	Options      map[string]string `ovsdb:"options"`
	Ports        []string          `ovsdb:"ports"`
	Policies     []string          `ovsdb:"policies"`
	NAT          []string          `ovsdb:"nat"`
	StaticRoutes []string          `ovsdb:"static_routes"`
}

// LogicalRouterPort is a row of Logical_Router_Port. It lives as long as a router refers to it.
type LogicalRouterPort struct {
	UUID     string            `ovsdb:"_uuid"`
	Name     string            `ovsdb:"name"`
	MAC      string            `ovsdb:"mac"`
	Networks []string          `ovsdb:"networks"`
	Options  map[string]string `ovsdb:"options"`
	// Peer names the port of another router that this one leads to.
	Peer        *string           `ovsdb:"peer"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	// GatewayChassis refers to rows of Gateway_Chassis. Of a desired port it is empty: RouterPort.Chassis says them.
	GatewayChassis []string `ovsdb:"gateway_chassis"`
}

// GatewayChassis is a row of Gateway_Chassis: a node that may do the work of a router port. It lives as long as a router
// port refers to it.
type GatewayChassis struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ChassisName string            `ovsdb:"chassis_name"`
	Priority    int               `ovsdb:"priority"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// PortGroup is a row of Port_Group.
type PortGroup struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Ports       []string          `ovsdb:"ports"`
	ACLs        []string          `ovsdb:"acls"`
}

// Port is a desired logical switch port and the switch that it belongs to.
type Port struct {
	Switch string
	Row    LogicalSwitchPort
	// Groups lists the port groups that the port is a member of, among those that follow a node (vendor is Kube-OVN's and
	// there is a KeyNode). nil leaves the membership alone, empty leaves all of those groups. Other groups are never
	// touched.
	Groups []string
	// SecurityGroups lists the port's SecurityGroups by name. It is a member of the port groups of those that exist, of the
	// one that denies all when there is any of them, and of no other SecurityGroup's. nil leaves that alone.
	SecurityGroups []string
	// DHCP and Routing are what hangs on the port; nil leaves it alone.
	DHCP    *DHCP
	Routing *Routing
}

// Group is a desired port group, made on demand. Its members are given by Port.Groups; those of a SecurityGroup's by what
// all ports say, and its address sets with them.
type Group struct {
	Name        string
	ExternalIDs map[string]string
}

// RouterPort is a desired router port and its router.
type RouterPort struct {
	Router string
	Row    LogicalRouterPort
	// Chassis are the nodes that may do the port's work, by their names in OVN, the first one first. nil leaves them alone.
	Chassis []string
	// FixedMAC tells that somebody has chosen the MAC: a port that exists changes to it.
	FixedMAC bool
}

// Rows is a set of desired rows. Cross-references are by name. Row UUIDs are empty.
type Rows struct {
	Routers     []LogicalRouter
	Switches    []LogicalSwitch
	RouterPorts []RouterPort
	Ports       []Port
	Groups      []Group
	// ACLs are those of switches and port groups, one entry for each.
	ACLs []ACLs
	// DHCP are the options of switches, by switch and family.
	DHCP []DHCPOptions
	// Virtuals are ports of type virtual that are made on demand. Their parents follow from KeyVips of all ports.
	Virtuals []Port
	// Complete lists switches of which all DHCP options, and all virtual ports named after their own addresses, are among
	// these rows: what is Kube-OVN's beyond that is to go.
	Complete []string
	// Policies and Routes of routers.
	Policies []Policy
	Routes   []Route
	// Whole tells that these rows are all that follows from topology: what is marked as such beyond them is to go, but for
	// switches and routers, and so are port groups of nodes or subnets that have none of these rows.
	Whole bool
	// Held lists switches whose rows of topology stay as they are, whether asked for or not.
	Held []string
	// Options of the whole database shall have these values; others are left alone.
	Options map[string]string
}
