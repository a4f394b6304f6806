// Package nb models the part of OVN's northbound database that Berth uses: plain structs with the column names as
// tags, and nothing else, so that pure code can speak of rows without importing a database client.
//
// Invariant: only columns that exist in every OVN from 22.03 to 26.03 stand here, and Logical_Switch.ports and
// Logical_Router.ports are only ever mutated, never read (reading them costs the square of the ports).
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
}

// LogicalRouter is a row of Logical_Router. Its name is not unique in the schema.
type LogicalRouter struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Options     map[string]string `ovsdb:"options"`
	Ports       []string          `ovsdb:"ports"`
}

// LogicalRouterPort is a row of Logical_Router_Port. It lives as long as a router refers to it.
type LogicalRouterPort struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	MAC         string            `ovsdb:"mac"`
	Networks    []string          `ovsdb:"networks"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// PortGroup is a row of Port_Group.
type PortGroup struct {
	UUID        string            `ovsdb:"_uuid"`
	Name        string            `ovsdb:"name"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
	Ports       []string          `ovsdb:"ports"`
}

// Port is a desired logical switch port and the switch that it belongs to.
type Port struct {
	Switch string
	Row    LogicalSwitchPort
	// Groups lists the port groups that the port is a member of, among those that follow a node (vendor is Kube-OVN's and
	// there is a KeyNode). nil leaves the membership alone, empty leaves all of those groups. Other groups are never
	// touched.
	Groups []string
}

// Group is a desired port group, made on demand. Its members are given by Port.Groups.
type Group struct {
	Name        string
	ExternalIDs map[string]string
}

// RouterPort is a desired router port and its router.
type RouterPort struct {
	Router string
	Row    LogicalRouterPort
}

// Rows is a set of desired rows. Cross-references are by name. Row UUIDs are empty.
type Rows struct {
	Routers     []LogicalRouter
	Switches    []LogicalSwitch
	RouterPorts []RouterPort
	Ports       []Port
	Groups      []Group
}
