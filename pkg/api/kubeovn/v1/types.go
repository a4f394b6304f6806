package v1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Subnet is one L2 network: a logical switch and the addresses on it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=subnets,shortName=subnet
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="Vpc",type=string,JSONPath=`.spec.vpc`
// +kubebuilder:printcolumn:name="Vlan",type=string,JSONPath=`.spec.vlan`
// +kubebuilder:printcolumn:name="Protocol",type=string,JSONPath=`.spec.protocol`
// +kubebuilder:printcolumn:name="CIDR",type=string,JSONPath=`.spec.cidrBlock`
// +kubebuilder:printcolumn:name="Private",type=boolean,JSONPath=`.spec.private`
// +kubebuilder:printcolumn:name="NAT",type=boolean,JSONPath=`.spec.natOutgoing`
// +kubebuilder:printcolumn:name="Default",type=boolean,JSONPath=`.spec.default`
// +kubebuilder:printcolumn:name="GatewayType",type=string,JSONPath=`.spec.gatewayType`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4usingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4availableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6usingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6availableIPs`
// +kubebuilder:printcolumn:name="ExcludeIPs",type=string,JSONPath=`.spec.excludeIps`
// +kubebuilder:printcolumn:name="U2OInterconnectionIP",type=string,JSONPath=`.status.u2oInterconnectionIP`
type Subnet struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec SubnetSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status SubnetStatus `json:"status,omitempty"`
}

// SubnetSpec is the desired state of a Subnet.
type SubnetSpec struct {
	// +optional
	Default bool `json:"default,omitempty"`
	// Vpc is the router; empty means the cluster router.
	// +optional
	Vpc string `json:"vpc,omitempty"`
	// Protocol is IPv4, IPv6, Dual or Mac.
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// +optional
	NamespaceSelectors []metav1.LabelSelector `json:"namespaceSelectors,omitempty"`
	// CIDRBlock is one CIDR, or v4 and v6 joined by a comma.
	// +optional
	CIDRBlock string `json:"cidrBlock,omitempty"`
	// Gateway is one address, or v4 and v6 joined by a comma.
	// +optional
	Gateway string `json:"gateway,omitempty"`
	// ExcludeIps are addresses or ranges a..b that are never handed out unasked.
	// +optional
	ExcludeIps []string `json:"excludeIps,omitempty"`
	// Provider is the network of the pod that uses this subnet; empty means ovn.
	// +optional
	Provider string `json:"provider,omitempty"`
	// GatewayType is distributed or centralized.
	// +optional
	GatewayType string `json:"gatewayType,omitempty"`
	// +optional
	GatewayNode string `json:"gatewayNode,omitempty"`
	// GatewayNodeSelectors choose the gateway nodes when GatewayNode names none.
	// +optional
	GatewayNodeSelectors []metav1.LabelSelector `json:"gatewayNodeSelectors,omitempty"`
	// EnableEcmp has all gateway nodes route at once, not one of them.
	// +optional
	EnableEcmp bool `json:"enableEcmp,omitempty"`
	// +optional
	NatOutgoing bool `json:"natOutgoing,omitempty"`
	// NatOutgoingPolicyRules say which traffic leaves with a node's address, in place of all.
	// +optional
	NatOutgoingPolicyRules []NatOutgoingPolicyRule `json:"natOutgoingPolicyRules,omitempty"`
	// +optional
	ExternalEgressGateway string `json:"externalEgressGateway,omitempty"`
	// +optional
	PolicyRoutingPriority uint32 `json:"policyRoutingPriority,omitempty"`
	// +optional
	PolicyRoutingTableID uint32 `json:"policyRoutingTableID,omitempty"`
	// +optional
	Mtu uint32 `json:"mtu,omitempty"`
	// +optional
	Private bool `json:"private,omitempty"`
	// +optional
	AllowSubnets []string `json:"allowSubnets,omitempty"`
	// ACLs of the switch.
	// +optional
	ACLs []ACL `json:"acls,omitempty"`
	// AllowEWTraffic lets the subnet's addresses reach one another beside ACLs.
	// +optional
	AllowEWTraffic bool `json:"allowEWTraffic,omitempty"`
	// +optional
	Vlan string `json:"vlan,omitempty"`
	// +optional
	LogicalGateway bool `json:"logicalGateway,omitempty"`
	// +optional
	DisableGatewayCheck bool `json:"disableGatewayCheck,omitempty"`
	// +optional
	DisableInterConnection bool `json:"disableInterConnection,omitempty"`
	// +optional
	EnableDHCP bool `json:"enableDHCP,omitempty"`
	// +optional
	DHCPv4Options string `json:"dhcpV4Options,omitempty"`
	// +optional
	DHCPv6Options string `json:"dhcpV6Options,omitempty"`
	// +optional
	U2OInterconnection bool `json:"u2oInterconnection,omitempty"`
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OFeatures U2OFeatures `json:"u2oFeatures,omitempty"`
	// +optional
	EnableLb *bool `json:"enableLb,omitempty"`
	// +optional
	EnableIPv6RA bool `json:"enableIPv6RA,omitempty"`
	// +optional
	IPv6RAConfigs string `json:"ipv6RAConfigs,omitempty"`
	// +optional
	EnableMulticastSnoop bool `json:"enableMulticastSnoop,omitempty"`
	// +optional
	EnableExternalLBAddress bool `json:"enableExternalLBAddress,omitempty"`
	// NodeNetwork names the network of the nodes that carries the tunnels.
	// +optional
	NodeNetwork string `json:"nodeNetwork,omitempty"`
	// +optional
	RouteTable string `json:"routeTable,omitempty"`
	// +optional
	Vips []string `json:"vips,omitempty"`
}

// U2OFeatures are variants of an underlay subnet's way into the overlay.
type U2OFeatures struct {
	// OverlayOnlyRouting leaves all but the overlay to the physical gateway.
	// +optional
	OverlayOnlyRouting bool `json:"overlayOnlyRouting,omitempty"`
}

// SubnetStatus is the observed state of a Subnet.
type SubnetStatus struct {
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
	// +optional
	V4AvailableIPs BigInt `json:"v4availableIPs,omitempty"`
	// +optional
	V4AvailableIPRange string `json:"v4availableIPrange,omitempty"`
	// +optional
	V4UsingIPs BigInt `json:"v4usingIPs,omitempty"`
	// +optional
	V4UsingIPRange string `json:"v4usingIPrange,omitempty"`
	// +optional
	V6AvailableIPs BigInt `json:"v6availableIPs,omitempty"`
	// +optional
	V6AvailableIPRange string `json:"v6availableIPrange,omitempty"`
	// +optional
	V6UsingIPs BigInt `json:"v6usingIPs,omitempty"`
	// +optional
	V6UsingIPRange string `json:"v6usingIPrange,omitempty"`
	// +optional
	ActivateGateway string `json:"activateGateway,omitempty"`
	// +optional
	DHCPv4OptionsUUID string `json:"dhcpV4OptionsUUID,omitempty"`
	// +optional
	DHCPv6OptionsUUID string `json:"dhcpV6OptionsUUID,omitempty"`
	// +optional
	U2OInterconnectionIP string `json:"u2oInterconnectionIP,omitempty"`
	// +optional
	U2OInterconnectionMAC string `json:"u2oInterconnectionMAC,omitempty"`
	// +optional
	U2OInterconnectionVPC string `json:"u2oInterconnectionVPC,omitempty"`
}

// SubnetList is a list of Subnet objects.
//
// +kubebuilder:object:root=true
type SubnetList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Subnet `json:"items"`
}

// Vpc is a logical router and the namespaces whose pods live behind it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=vpcs,shortName=vpc
// +kubebuilder:printcolumn:name="EnableExternal",type=boolean,JSONPath=`.status.enableExternal`
// +kubebuilder:printcolumn:name="EnableBfd",type=boolean,JSONPath=`.status.enableBfd`
// +kubebuilder:printcolumn:name="Standby",type=boolean,JSONPath=`.status.standby`
// +kubebuilder:printcolumn:name="Subnets",type=string,JSONPath=`.status.subnets`
// +kubebuilder:printcolumn:name="ExtraExternalSubnets",type=string,JSONPath=`.status.extraExternalSubnets`
// +kubebuilder:printcolumn:name="Namespaces",type=string,JSONPath=`.spec.namespaces`
// +kubebuilder:printcolumn:name="DefaultSubnet",type=string,JSONPath=`.status.defaultLogicalSwitch`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Vpc struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec VpcSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status VpcStatus `json:"status,omitempty"`
}

// VpcSpec is the desired state of a Vpc.
type VpcSpec struct {
	// +optional
	DefaultSubnet string `json:"defaultSubnet,omitempty"`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// +optional
	StaticRoutes []StaticRoute `json:"staticRoutes,omitempty"`
	// +optional
	PolicyRoutes []PolicyRoute `json:"policyRoutes,omitempty"`
	// +optional
	VpcPeerings []VpcPeering `json:"vpcPeerings,omitempty"`
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// +optional
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// +optional
	BFDPort *BFDPort `json:"bfdPort,omitempty"`
}

// VpcStatus is the observed state of a Vpc.
type VpcStatus struct {
	// +optional
	Standby bool `json:"standby,omitempty"`
	// +optional
	Default bool `json:"default,omitempty"`
	// +optional
	DefaultLogicalSwitch string `json:"defaultLogicalSwitch,omitempty"`
	// +optional
	Router string `json:"router,omitempty"`
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// +optional
	EnableExternal bool `json:"enableExternal,omitempty"`
	// +optional
	EnableBfd bool `json:"enableBfd,omitempty"`
	// +optional
	ExtraExternalSubnets []string `json:"extraExternalSubnets,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// VpcList is a list of Vpc objects.
//
// +kubebuilder:object:root=true
type VpcList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vpc `json:"items"`
}

// IP records the addresses of one interface for people and for Kube-OVN's daemon. It is output: the ledger decides.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=ips,shortName=ip
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.spec.v4IpAddress`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.spec.v6IpAddress`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.spec.macAddress`
// +kubebuilder:printcolumn:name="Node",type=string,JSONPath=`.spec.nodeName`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
type IP struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec IPSpec `json:"spec,omitempty"`
}

// IPSpec is the desired state of a IP.
type IPSpec struct {
	// PodName is the pod's name, or the name of its VM.
	PodName string `json:"podName"`
	// Namespace of the pod.
	Namespace string `json:"namespace"`
	// Subnet by name.
	Subnet string `json:"subnet"`
	// AttachSubnets is legacy and empty.
	AttachSubnets []string `json:"attachSubnets"`
	// NodeName is where the pod runs.
	NodeName string `json:"nodeName"`
	// IPAddress is v4, v6 or v4,v6.
	IPAddress string `json:"ipAddress"`
	// V4IPAddress is the IPv4 part.
	V4IPAddress string `json:"v4IpAddress"`
	// V6IPAddress is the IPv6 part.
	V6IPAddress string `json:"v6IpAddress"`
	// AttachIPs is legacy and empty.
	AttachIPs []string `json:"attachIps"`
	// MacAddress in lower case.
	MacAddress string `json:"macAddress"`
	// AttachMacs is legacy and empty.
	AttachMacs []string `json:"attachMacs"`
	// ContainerID is unused.
	ContainerID string `json:"containerID"`
	// PodType is empty, StatefulSet or VirtualMachine.
	PodType string `json:"podType"`
}

// IPList is a list of IP objects.
//
// +kubebuilder:object:root=true
type IPList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IP `json:"items"`
}

// IPPool is a named subset of a subnet's addresses.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=ippools,shortName=ippool
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="enableAddressSet",type=boolean,JSONPath=`.spec.enableAddressSet`
// +kubebuilder:printcolumn:name="IPs",type=string,JSONPath=`.spec.ips`
// +kubebuilder:printcolumn:name="V4Used",type=number,JSONPath=`.status.v4UsingIPs`
// +kubebuilder:printcolumn:name="V4Available",type=number,JSONPath=`.status.v4AvailableIPs`
// +kubebuilder:printcolumn:name="V6Used",type=number,JSONPath=`.status.v6UsingIPs`
// +kubebuilder:printcolumn:name="V6Available",type=number,JSONPath=`.status.v6AvailableIPs`
type IPPool struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec IPPoolSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status IPPoolStatus `json:"status,omitempty"`
}

// IPPoolSpec is the desired state of a IPPool.
type IPPoolSpec struct {
	// Subnet by name.
	Subnet string `json:"subnet"`
	// +optional
	Namespaces []string `json:"namespaces,omitempty"`
	// IPs are addresses, ranges a..b, or CIDRs.
	IPs []string `json:"ips"`
	// +optional
	EnableAddressSet bool `json:"enableAddressSet,omitempty"`
}

// IPPoolStatus is the observed state of a IPPool.
type IPPoolStatus struct {
	// +optional
	V4AvailableIPs BigInt `json:"v4AvailableIPs,omitempty"`
	// +optional
	V4AvailableIPRange string `json:"v4AvailableIPRange,omitempty"`
	// +optional
	V4UsingIPs BigInt `json:"v4UsingIPs,omitempty"`
	// +optional
	V4UsingIPRange string `json:"v4UsingIPRange,omitempty"`
	// +optional
	V6AvailableIPs BigInt `json:"v6AvailableIPs,omitempty"`
	// +optional
	V6AvailableIPRange string `json:"v6AvailableIPRange,omitempty"`
	// +optional
	V6UsingIPs BigInt `json:"v6UsingIPs,omitempty"`
	// +optional
	V6UsingIPRange string `json:"v6UsingIPRange,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// IPPoolList is a list of IPPool objects.
//
// +kubebuilder:object:root=true
type IPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []IPPool `json:"items"`
}

// Vip is an address that moves between pods.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,path=vips,shortName=vip
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=`.spec.namespace`
// +kubebuilder:printcolumn:name="V4IP",type=string,JSONPath=`.status.v4ip`
// +kubebuilder:printcolumn:name="V6IP",type=string,JSONPath=`.status.v6ip`
// +kubebuilder:printcolumn:name="Mac",type=string,JSONPath=`.status.mac`
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="Type",type=string,JSONPath=`.status.type`
type Vip struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec VipSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status VipStatus `json:"status,omitempty"`
}

// VipSpec is the desired state of a Vip.
type VipSpec struct {
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// +optional
	Subnet string `json:"subnet,omitempty"`
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// +optional
	MacAddress string `json:"macAddress,omitempty"`
	// +optional
	Selector []string `json:"selector,omitempty"`
	// +optional
	AttachSubnets []string `json:"attachSubnets,omitempty"`
}

// VipStatus is the observed state of a Vip.
type VipStatus struct {
	// +optional
	Type string `json:"type,omitempty"`
	// +optional
	V4IP string `json:"v4ip,omitempty"`
	// +optional
	V6IP string `json:"v6ip,omitempty"`
	// +optional
	Mac string `json:"mac,omitempty"`
	// +optional
	Selector []string `json:"selector,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// VipList is a list of Vip objects.
//
// +kubebuilder:object:root=true
type VipList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vip `json:"items"`
}

// Vlan is a VLAN of a provider network.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=vlans,shortName=vlan
// +kubebuilder:printcolumn:name="ID",type=string,JSONPath=`.spec.id`
// +kubebuilder:printcolumn:name="Provider",type=string,JSONPath=`.spec.provider`
// +kubebuilder:printcolumn:name="conflict",type=boolean,JSONPath=`.status.conflict`
type Vlan struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec VlanSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status VlanStatus `json:"status,omitempty"`
}

// VlanSpec is the desired state of a Vlan.
type VlanSpec struct {
	// ID is the tag, 0 to 4095; 0 means untagged.
	ID int `json:"id"`
	// Provider is the ProviderNetwork by name.
	Provider string `json:"provider"`
}

// VlanStatus is the observed state of a Vlan.
type VlanStatus struct {
	// +optional
	Subnets []string `json:"subnets,omitempty"`
	// +optional
	Conflict bool `json:"conflict,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// VlanList is a list of Vlan objects.
//
// +kubebuilder:object:root=true
type VlanList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Vlan `json:"items"`
}

// ProviderNetwork is a physical network that nodes are attached to.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=provider-networks,shortName=pn
// +kubebuilder:printcolumn:name="DefaultInterface",type=string,JSONPath=`.spec.defaultInterface`
// +kubebuilder:printcolumn:name="Ready",type=boolean,JSONPath=`.status.ready`
type ProviderNetwork struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec ProviderNetworkSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status ProviderNetworkStatus `json:"status,omitempty"`
}

// ProviderNetworkSpec is the desired state of a ProviderNetwork.
type ProviderNetworkSpec struct {
	// DefaultInterface of the nodes, at most 15 characters.
	DefaultInterface string `json:"defaultInterface"`
	// +optional
	ExcludeNodes []string `json:"excludeNodes,omitempty"`
}

// ProviderNetworkStatus is the observed state of a ProviderNetwork.
type ProviderNetworkStatus struct {
	// +optional
	Ready bool `json:"ready,omitempty"`
	// +optional
	ReadyNodes []string `json:"readyNodes,omitempty"`
	// +optional
	NotReadyNodes []string `json:"notReadyNodes,omitempty"`
	// +optional
	Vlans []string `json:"vlans,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// ProviderNetworkList is a list of ProviderNetwork objects.
//
// +kubebuilder:object:root=true
type ProviderNetworkList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []ProviderNetwork `json:"items"`
}

// SecurityGroup is a set of rules for the ports that name it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=security-groups,shortName=sg
type SecurityGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Spec SecurityGroupSpec `json:"spec,omitempty"`
	// +optional
	// +kubebuilder:pruning:PreserveUnknownFields
	Status SecurityGroupStatus `json:"status,omitempty"`
}

// SecurityGroupSpec is the desired state of a SecurityGroup.
type SecurityGroupSpec struct {
	// +optional
	IngressRules []SecurityGroupRule `json:"ingressRules,omitempty"`
	// +optional
	EgressRules []SecurityGroupRule `json:"egressRules,omitempty"`
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// +optional
	Tier int `json:"tier,omitempty"`
}

// SecurityGroupStatus is the observed state of a SecurityGroup.
type SecurityGroupStatus struct {
	// +optional
	PortGroup string `json:"portGroup,omitempty"`
	// +optional
	AllowSameGroupTraffic bool `json:"allowSameGroupTraffic,omitempty"`
	// +optional
	IngressMd5 string `json:"ingressMd5,omitempty"`
	// +optional
	EgressMd5 string `json:"egressMd5,omitempty"`
	// +optional
	IngressLastSyncSuccess bool `json:"ingressLastSyncSuccess,omitempty"`
	// +optional
	EgressLastSyncSuccess bool `json:"egressLastSyncSuccess,omitempty"`
	// +optional
	Conditions []Condition `json:"conditions,omitempty"`
}

// SecurityGroupList is a list of SecurityGroup objects.
//
// +kubebuilder:object:root=true
type SecurityGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SecurityGroup `json:"items"`
}

// Condition is Kube-OVN's form of a status condition.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
	// +optional
	Reason string `json:"reason,omitempty"`
	// +optional
	Message string `json:"message,omitempty"`
	// +optional
	LastUpdateTime metav1.Time `json:"lastUpdateTime,omitempty"`
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitempty"`
}

// StaticRoute is a static route of a Vpc.
type StaticRoute struct {
	// Policy is policySrc or policyDst.
	// +optional
	Policy string `json:"policy,omitempty"`
	// +optional
	CIDR string `json:"cidr,omitempty"`
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
	// ECMPMode is ecmp for one of several routes to one network.
	// +optional
	ECMPMode string `json:"ecmpMode,omitempty"`
	// BFDID names the BFD session that the route depends on.
	// +optional
	BFDID string `json:"bfdId,omitempty"`
	// +optional
	RouteTable string `json:"routeTable,omitempty"`
}

// VpcPeering is one end of a link between two Vpcs.
type VpcPeering struct {
	// RemoteVpc by name.
	// +optional
	RemoteVpc string `json:"remoteVpc,omitempty"`
	// LocalConnectIP is this end's address with its prefix, or v4 and v6 joined by a comma.
	// +optional
	LocalConnectIP string `json:"localConnectIP,omitempty"`
}

// ACL is one rule on a Subnet's switch.
type ACL struct {
	// Direction is to-lport or from-lport.
	// +optional
	Direction string `json:"direction,omitempty"`
	// Priority from 0 to 32767; the highest goes first.
	// +optional
	Priority int `json:"priority,omitempty"`
	// Match in OVN's language.
	// +optional
	Match string `json:"match,omitempty"`
	// Action is allow-related, allow-stateless, allow, drop or reject.
	// +optional
	Action string `json:"action,omitempty"`
}

// NatOutgoingPolicyRule says whether some traffic leaves with a node's address.
type NatOutgoingPolicyRule struct {
	// +optional
	Match NatOutgoingPolicyMatch `json:"match,omitempty"`
	// Action is nat or forward.
	// +optional
	Action string `json:"action,omitempty"`
}

// NatOutgoingPolicyMatch lists addresses and CIDRs, joined by commas.
type NatOutgoingPolicyMatch struct {
	// +optional
	SrcIPs string `json:"srcIPs,omitempty"`
	// +optional
	DstIPs string `json:"dstIPs,omitempty"`
}

// BFDPort is where a Vpc's router watches its gateways.
type BFDPort struct {
	// +optional
	Enabled bool `json:"enabled,omitempty"`
	// +optional
	IP string `json:"ip,omitempty"`
	// +optional
	NodeSelector *metav1.LabelSelector `json:"nodeSelector,omitempty"`
}

// PolicyRoute is a policy route of a Vpc.
type PolicyRoute struct {
	// +optional
	Priority int `json:"priority,omitempty"`
	// +optional
	Match string `json:"match,omitempty"`
	// +optional
	Action string `json:"action,omitempty"`
	// +optional
	NextHopIP string `json:"nextHopIP,omitempty"`
}

// SecurityGroupRule is one rule of a SecurityGroup.
type SecurityGroupRule struct {
	IPVersion string `json:"ipVersion"`
	// +optional
	Protocol string `json:"protocol,omitempty"`
	// Priority from 1 (first) to 16384.
	// +optional
	Priority int `json:"priority,omitempty"`
	// RemoteType is address or securityGroup.
	RemoteType string `json:"remoteType"`
	// +optional
	RemoteAddress string `json:"remoteAddress,omitempty"`
	// +optional
	RemoteSecurityGroup string `json:"remoteSecurityGroup,omitempty"`
	// +optional
	PortRangeMin int `json:"portRangeMin,omitempty"`
	// +optional
	PortRangeMax int `json:"portRangeMax,omitempty"`
	// LocalAddress of the port that the rule is about: an address or a CIDR.
	// +optional
	LocalAddress string `json:"localAddress,omitempty"`
	// +optional
	SourcePortRangeMin int `json:"sourcePortRangeMin,omitempty"`
	// +optional
	SourcePortRangeMax int `json:"sourcePortRangeMax,omitempty"`
	// Policy is allow, drop or pass.
	Policy string `json:"policy"`
}
