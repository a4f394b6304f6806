package network

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// Subnet is a Subnet object, and the address sets that it describes.
type Subnet struct {
	Object *kubeovnv1.Subnet
	// Set is nil when Err is not.
	Set *ipam.Subnet
	// CIDR and Gateway are as pods carry them: canonical, joined by a comma, IPv4 first. Empty in a subnet of MACs alone.
	CIDR, Gateway string
	// Pools are the names of its IPPools, oldest first. Those that can't be read are left away.
	Pools []string
	// PoolErrs say, by IPPool, which of its entries can't be read: those are left out, and the others serve.
	PoolErrs map[string]error
	// Err says why nothing can be had from it.
	Err error
}

// Provider of the networks that the subnet serves.
func (s Subnet) Provider() string {
	if s.Object == nil || s.Object.Spec.Provider == "" {
		return DefaultProvider
	}
	return s.Object.Spec.Provider
}

// Catalog is all topology that a plan may need.
type Catalog struct {
	// Subnets, and what they stand on, by name.
	Subnets          map[string]Subnet
	Vpcs             map[string]*kubeovnv1.Vpc
	Vlans            map[string]*kubeovnv1.Vlan
	ProviderNetworks map[string]*kubeovnv1.ProviderNetwork
	// Nodes are the labels of nodes, by name.
	Nodes map[string]map[string]string
	// Pools and Vips by name.
	Pools map[string]*kubeovnv1.IPPool
	Vips  map[string]*kubeovnv1.Vip
	// SecurityGroups are the names of those that exist.
	SecurityGroups map[string]bool
	// Attachments are those that the pod names, by "<namespace>/<name>".
	Attachments map[string]Attachment
	// Reserved are, by subnet, the addresses that are somebody's who is no pod.
	Reserved map[string]map[netip.Addr]ipam.Owner
	// Reservations are addresses that IP objects which are none of ours hold, by the object's name.
	Reservations map[string]Reservation
}

// Reservation is the addresses of an IP object.
type Reservation struct {
	Subnet    string
	Addresses []netip.Addr
	MAC       ipam.MAC
}

// Namespace is what the contract needs to know of a namespace.
type Namespace struct {
	Name                string
	Labels, Annotations map[string]string
}

// Config is what the installation decides.
type Config struct {
	// DefaultSubnet serves pods that nothing else decides for.
	DefaultSubnet string
	// ClusterRouter is the default VPC's name.
	ClusterRouter string
	// NodeSwitch is the subnet of the nodes, which pods can't be in.
	NodeSwitch string
	// PodNICType is written to pods that don't choose.
	PodNICType string
	// Alone tells that no controller of Kube-OVN runs: nobody plugs its gateways in.
	Alone bool
	// NonPrimary leaves the default network to another CNI: attachments only are served.
	NonPrimary bool
	// ForgetVMs takes a virtual machine's address back with its pod.
	ForgetVMs bool
	// Owners are further kinds whose pods come back to their addresses, each under its own name.
	Owners []OwnerKind
}

// OwnerKind is a kind of controller, by API group.
type OwnerKind struct{ Group, Kind string }

// Around is what else decides who may have which address of a subnet.
type Around struct {
	// Pools are the IPPools of the subnet.
	Pools []*kubeovnv1.IPPool
	// Reserved addresses are somebody's who is no pod.
	Reserved map[netip.Addr]ipam.Owner
}

// NewSubnet works out a subnet's address sets. It never fails: Err of the result says what is wrong.
func NewSubnet(obj *kubeovnv1.Subnet, around Around) Subnet {
	s := Subnet{Object: obj}
	if err := s.parse(around); err != nil {
		s.Err = fmt.Errorf("subnet %s can't be used: %w", obj.Name, err)
		s.Set = nil
	}
	return s
}

func (s *Subnet) parse(around Around) error {
	prefixes, err := parsePrefixes(s.Object.Spec)
	if err != nil {
		return err
	}
	gateways, err := parseGateways(s.Object.Spec.Gateway, prefixes)
	if err != nil {
		return err
	}
	exclude, err := s.exclusions(prefixes, gateways)
	if err != nil {
		return err
	}
	spec := ipam.SubnetSpec{Name: s.Object.Name, UID: string(s.Object.UID), Prefixes: prefixes, Gateways: gateways, Exclude: exclude,
		Pools: s.pools(around.Pools), Reserved: around.Reserved, Closed: s.Object.Annotations[ClosedKey],
		Domain: DomainOf(s.Object)}
	s.CIDR, s.Gateway = join(prefixes), join(gateways)
	s.Set, err = ipam.NewSubnet(spec)
	return err
}

// DomainOf names the L2 domain of a subnet, in which MACs are unique.
func DomainOf(s *kubeovnv1.Subnet) string {
	if s.Spec.Vlan != "" {
		return "vlan." + s.Spec.Vlan
	}
	return s.Name
}

// pools reads the IPPools, oldest first: an address that two of them name is the older one's.
func (s *Subnet) pools(objs []*kubeovnv1.IPPool) []ipam.Pool {
	objs = slices.Clone(objs)
	slices.SortFunc(objs, func(a, b *kubeovnv1.IPPool) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), strings.Compare(a.Name, b.Name))
	})
	var out []ipam.Pool
	for _, o := range objs {
		var good []string
		for _, item := range o.Spec.IPs {
			if _, err := ParseRanges([]string{item}); err != nil {
				s.PoolErrs = with(s.PoolErrs, o.Name, errors.Join(s.PoolErrs[o.Name], err))
				continue
			}
			good = append(good, item)
		}
		set, err := ParseRanges(good)
		if err != nil {
			s.PoolErrs = with(s.PoolErrs, o.Name, err)
			set = &netipx.IPSet{}
		}
		out = append(out, ipam.Pool{Name: o.Name, Set: set})
		s.Pools = append(s.Pools, o.Name)
	}
	return out
}

// exclusions are spec.excludeIps; in a fenced subnet, where that is the fence, those of the annotation.
func (s *Subnet) exclusions(prefixes []netip.Prefix, gateways []netip.Addr) (*netipx.IPSet, error) {
	fenced := s.Object.Labels[LabelManaged] == "true"
	if own, ok := s.Object.Annotations[ExcludeKey]; ok && fenced {
		set, err := ParseRanges(strings.Split(own, ","))
		if err != nil {
			return nil, fmt.Errorf("annotation %s: %w", ExcludeKey, err)
		}
		return set, nil
	}
	set, err := ParseRanges(s.Object.Spec.ExcludeIps)
	if err != nil {
		return nil, fmt.Errorf("spec.excludeIps: %w", err)
	}
	if fenced && covers(set, prefixes, gateways) {
		return &netipx.IPSet{}, nil
	}
	return set, nil
}

// covers tells whether set leaves no host address of the prefixes.
func covers(set *netipx.IPSet, prefixes []netip.Prefix, gateways []netip.Addr) bool {
	var left netipx.IPSetBuilder
	for _, p := range prefixes {
		left.AddPrefix(p)
		if p.Addr().BitLen()-p.Bits() > 1 {
			left.Remove(p.Addr())
			left.Remove(netipx.PrefixLastIP(p))
		}
	}
	for _, g := range gateways {
		left.Remove(g)
	}
	left.RemoveSet(set)
	rest, err := left.IPSet()
	return err == nil && len(rest.Ranges()) == 0
}

// protocolMAC is spec.protocol of a subnet that gives MACs alone.
const protocolMAC = "Mac"

func parsePrefixes(spec kubeovnv1.SubnetSpec) ([]netip.Prefix, error) {
	text := spec.CIDRBlock
	var out []netip.Prefix
	for _, f := range tokens(text) {
		p, err := netip.ParsePrefix(f)
		switch {
		case err != nil:
			return nil, fmt.Errorf("spec.cidrBlock: %q is not a CIDR: write it like 10.16.0.0/16", f)
		case p.Addr().Is4In6():
			return nil, fmt.Errorf("spec.cidrBlock: %q is IPv4 written as IPv6: write it as IPv4", f)
		case p.IsSingleIP():
			return nil, fmt.Errorf("spec.cidrBlock: %q has one address only: widen it", f)
		}
		out = append(out, p.Masked())
	}
	if len(out) == 0 && spec.Protocol != protocolMAC && spec.Vlan == "" {
		return nil, errors.New("spec.cidrBlock is empty: only a subnet of a Vlan can be without addresses")
	}
	if len(out) > 2 || len(out) == 2 && out[0].Addr().Is4() == out[1].Addr().Is4() {
		return nil, fmt.Errorf("spec.cidrBlock: %q has more than one CIDR of a family: make a subnet of each", text)
	}
	if len(out) == 2 && out[1].Addr().Is4() {
		out[0], out[1] = out[1], out[0]
	}
	return out, nil
}

// parseGateways gives one gateway for each prefix, in their order: the one written, else the first host address.
func parseGateways(text string, prefixes []netip.Prefix) ([]netip.Addr, error) {
	written, err := ParseAddresses(text)
	if err != nil {
		return nil, fmt.Errorf("spec.gateway: %w", err)
	}
	out := make([]netip.Addr, len(prefixes))
	for i, p := range prefixes {
		out[i] = p.Addr()
		if p.Addr().BitLen()-p.Bits() > 1 {
			out[i] = p.Addr().Next()
		}
	}
	for _, g := range written {
		i := 0
		for i < len(prefixes) && !prefixes[i].Contains(g) {
			i++
		}
		if i == len(prefixes) {
			return nil, fmt.Errorf("spec.gateway: %s is outside %s: put it inside", g, join(prefixes))
		}
		out[i] = g
	}
	return out, nil
}
