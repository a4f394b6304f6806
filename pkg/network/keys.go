package network

import "strings"

// The label by which a namespace opts in, or a pod out, and its values.
const (
	// LabelInject is on namespaces and pods.
	LabelInject = "berth.dev/inject"
	// InjectEnabled: pods are served at admission, and by the worker when they slipped past.
	InjectEnabled = "enabled"
	// InjectLate: pods are served by the worker only.
	InjectLate = "late"
	// InjectDisabled on a pod: it is left alone.
	InjectDisabled = "disabled"
)

// Names of our own on pods and subnets.
const (
	// ClaimKey is the annotation with the claim of the pod's leases.
	ClaimKey = "berth.dev/claim"
	// ClaimPreview is its value in the answer to a dry run: it names no leases.
	ClaimPreview = "preview"
	// RequestedKey is the annotation that keeps what the user asked for.
	RequestedKey = "berth.dev/requested"
	// PluggedKey is the annotation that keeps the value of NetworksKey that the pod's networks were made from: another
	// value there is an edit.
	PluggedKey = "berth.dev/networks"
	// Finalizer keeps a pod until its addresses are taken back.
	Finalizer = "berth.dev/network"
	// AddressGate is the scheduling gate of pods that wait for an address.
	AddressGate = "berth.dev/address"
	// OrdinalRuleKey on a StatefulSet's pod with OrdinalRuleKubeOVN: its ordinal counts from 0 in a list of addresses,
	// whatever the set's first ordinal is.
	OrdinalRuleKey = "berth.dev/ordinal-rule"
	// OrdinalRuleKubeOVN is its only value.
	OrdinalRuleKubeOVN = "kube-ovn"
	// RestrictedKey on a subnet with the value "true": it serves the namespaces only that it is bound to.
	RestrictedKey = "berth.dev/restricted"
	// LabelManaged on a subnet: it is fenced off from kube-ovn-controller by spec.excludeIps.
	LabelManaged = "berth.dev/managed"
	// ClosedKey is the annotation of a subnet that gives no addresses, for leases of it may have been lost: its value says
	// why. The worker takes it off when all are restored.
	ClosedKey = "berth.dev/closed"
	// ExcludeKey is the annotation with the real exclusions of a fenced subnet, in the form of spec.excludeIps.
	ExcludeKey = "berth.dev/exclude-ips"
)

// DefaultProvider is the provider of the default network.
const DefaultProvider = "ovn"

// Suffixes of a network's annotations: Key joins them to a provider.
const (
	SuffixAddress         = "ip_address"
	SuffixMAC             = "mac_address"
	SuffixCIDR            = "cidr"
	SuffixGateway         = "gateway"
	SuffixSubnet          = "logical_switch"
	SuffixNICType         = "pod_nic_type"
	SuffixRouter          = "logical_router"
	SuffixVlanID          = "vlan_id"
	SuffixProviderNetwork = "provider_network"
	SuffixVM              = "virtualmachine"
	SuffixAllocated       = "allocated"
	SuffixRouted          = "routed"
	SuffixFamily          = "ip_family"
	SuffixPool            = "ip_pool"
	SuffixVip             = "vip"
	SuffixSecurityGroups  = "security_groups"
	SuffixPortVips        = "port_vips"
	SuffixAaps            = "aaps"
	suffixEIP             = "eip"
	suffixSNAT            = "snat"
	suffixNorthGateway    = "north_gateway"
)

const (
	domain        = ".kubernetes.io/"
	mirrorKey     = "kubernetes.io/config.mirror"
	natGatewayKey = DefaultProvider + domain + "vpc_nat_gw"

	natGatewayLabel    = "ovn.kubernetes.io/vpc-nat-gw"
	egressGatewayLabel = "ovn.kubernetes.io/vpc-egress-gateway"
)

// Key is the annotation of a provider's network with that suffix.
func Key(provider, suffix string) string { return provider + domain + suffix }

// SplitKey takes a key apart that Key made; false for other keys.
func SplitKey(key string) (provider, suffix string, ok bool) {
	provider, suffix, ok = strings.Cut(key, domain)
	return provider, suffix, ok && provider != "" && suffix != ""
}

// Output tells whether a pod's annotation is one that only this project and the worker write beside a claim: the claim,
// what its networks were made from, and their values.
func Output(key string) bool {
	if key == ClaimKey || key == PluggedKey {
		return true
	}
	_, suffix, ok := SplitKey(key)
	if !ok {
		return false
	}
	switch suffix {
	case SuffixAddress, SuffixMAC, SuffixCIDR, SuffixGateway, SuffixSubnet, SuffixNICType, SuffixRouter, SuffixVlanID,
		SuffixProviderNetwork, SuffixVM:
		return true
	}
	return Progress(key)
}

// Progress tells whether a pod's annotation says how far the worker has come: allocated and routed of any network.
func Progress(key string) bool {
	_, suffix, ok := SplitKey(key)
	return ok && (suffix == SuffixAllocated || suffix == SuffixRouted)
}
