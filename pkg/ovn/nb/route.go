package nb

import "strings"

// Marks on rows that hang on a pod's port, and values of columns.
const (
	// KeyPort names the switch port that a row is there for. The row goes with the port.
	KeyPort = "port"
	// KeyPurpose tells what a row is for: PurposeExternal, PurposeNorth or PurposeTopology.
	KeyPurpose = "berth-purpose"
	// KeyProtocol is the family of a DHCP row: ProtocolIPv4 or ProtocolIPv6.
	KeyProtocol = "protocol"
	// KeyType with TypeSecurityGroup, and KeySecurityGroup with the group's name, are on the port group of a SecurityGroup.
	KeyType = "type"
	// KeySecurityGroup names the SecurityGroup of a port group.
	KeySecurityGroup = "sg"
	// KeySecurityGroups lists a port's SecurityGroups, joined by slashes.
	KeySecurityGroups = "security_groups"
	// PrefixAssociated begins the keys that tell of each SecurityGroup whether a port is in it.
	PrefixAssociated = "associated_sg_"
	// KeyVips lists the further addresses that a port may use, and KeyAttachVips is "true" beside it.
	KeyVips = "vips"
	// KeyAttachVips marks ports with KeyVips.
	KeyAttachVips = "attach-vips"
	// KeyOptions lists the options of a port that are Berth's, so that nobody else's are taken away.
	KeyOptions = "berth-options"
	// KeyVip names the Vip of a virtual port that is there as long as a port uses its address.
	KeyVip = "berth-vip"

	// ProtocolIPv4 and ProtocolIPv6 are the values of KeyProtocol.
	ProtocolIPv4 = "IPv4"
	// ProtocolIPv6 is the other one.
	ProtocolIPv6 = "IPv6"
	// TypeSecurityGroup is the value of KeyType.
	TypeSecurityGroup = "security_group"
	// PurposeExternal: traffic of a pod with an EIP or SNAT address.
	PurposeExternal = "external"
	// PurposeNorth: traffic of a pod with a gateway of its own.
	PurposeNorth = "north-gateway"

	// TypeVirtual is the type of a port whose address moves between its parents.
	TypeVirtual = "virtual"
	// OptionVirtualIP and OptionVirtualParents are options of such a port.
	OptionVirtualIP = "virtual-ip"
	// OptionVirtualParents lists the ports that may take the address, joined by commas.
	OptionVirtualParents = "virtual-parents"
	// ActionReroute is the action of policies that send traffic to a gateway.
	ActionReroute = "reroute"
	// NATSource and NATBoth are types of translations: a pod's SNAT address, and its EIP.
	NATSource = "snat"
	// NATBoth translates both ways.
	NATBoth = "dnat_and_snat"
)

// DHCPOptions is a row of DHCP_Options. What it is for is in its external_ids: a family on a switch, or on one port.
type DHCPOptions struct {
	UUID        string            `ovsdb:"_uuid"`
	CIDR        string            `ovsdb:"cidr"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// RouterPolicy is a row of Logical_Router_Policy. It lives as long as a router refers to it.
type RouterPolicy struct {
	UUID        string            `ovsdb:"_uuid"`
	Priority    int               `ovsdb:"priority"`
	Match       string            `ovsdb:"match"`
	Action      string            `ovsdb:"action"`
	Nexthops    []string          `ovsdb:"nexthops"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// NAT is a row of NAT. It lives as long as a router refers to it.
type NAT struct {
	UUID        string            `ovsdb:"_uuid"`
	Type        string            `ovsdb:"type"`
	ExternalIP  string            `ovsdb:"external_ip"`
	LogicalIP   string            `ovsdb:"logical_ip"`
	ExternalMAC *string           `ovsdb:"external_mac"`
	LogicalPort *string           `ovsdb:"logical_port"`
	Options     map[string]string `ovsdb:"options"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// StaticRoute is a row of Logical_Router_Static_Route. It lives as long as a router refers to it.
type StaticRoute struct {
	UUID        string            `ovsdb:"_uuid"`
	Prefix      string            `ovsdb:"ip_prefix"`
	Table       string            `ovsdb:"route_table"`
	Policy      *string           `ovsdb:"policy"`
	Nexthop     string            `ovsdb:"nexthop"`
	ExternalIDs map[string]string `ovsdb:"external_ids"`
}

// DHCP is what a port answers DHCP with; nil: nothing. A row with a KeyPort is the port's own. One without is that of
// its switch: a port only refers to it, and makes it when it is missing and has options here.
type DHCP struct {
	V4, V6 *DHCPOptions
}

// Routing is all that a router has for the sake of one port.
type Routing struct {
	// Router by name.
	Router string
	// Policies have a priority and a match that no other policy has.
	Policies []RouterPolicy
	// NATs are the translations.
	NATs []Translation
	// Without lists old routes to a port's address that must not be there any more.
	Without []StaticRoute
}

// Translation is a desired NAT row.
type Translation struct {
	Row NAT
	// From lists pods ("namespace/name") that have this address and give it up. An address of any other living pod's port
	// is not taken.
	From []string
}

// ParseDHCPOptions reads options as they are written in annotations and Subnets: "lease_time=60,dns_server={1.1.1.1;8.8.8.8}".
// What isn't of the form option=value doesn't count.
func ParseDHCPOptions(text string) map[string]string {
	out := map[string]string{}
	for part := range strings.SplitSeq(text, ",") {
		k, v, ok := strings.Cut(part, "=")
		k, v = strings.TrimSpace(k), strings.ReplaceAll(strings.ReplaceAll(v, " ", ""), ";", ",")
		if ok && k != "" && v != "" {
			out[k] = v
		}
	}
	return out
}

// VirtualPortName returns the name of the virtual port of one of a switch's own further addresses.
func VirtualPortName(sw, ip string) string { return sw + "-vip-" + ip }
