package network

import (
	"errors"
	"fmt"
	"net/netip"
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
	// CIDR and Gateway are as pods carry them: canonical, joined by a comma, IPv4 first.
	CIDR, Gateway string
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
	// Subnets, Vpcs and Vlans by name.
	Subnets map[string]Subnet
	Vpcs    map[string]*kubeovnv1.Vpc
	Vlans   map[string]*kubeovnv1.Vlan
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
}

// NewSubnet works out a subnet's address sets. It never fails: Err of the result says what is wrong.
func NewSubnet(obj *kubeovnv1.Subnet) Subnet {
	s := Subnet{Object: obj}
	if err := s.parse(); err != nil {
		s.Err = fmt.Errorf("subnet %s can't be used: %w", obj.Name, err)
		s.Set = nil
	}
	return s
}

func (s *Subnet) parse() error {
	prefixes, err := parsePrefixes(s.Object.Spec.CIDRBlock)
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
	spec := ipam.SubnetSpec{Name: s.Object.Name, UID: string(s.Object.UID), Prefixes: prefixes, Gateways: gateways, Exclude: exclude}
	if s.Object.Spec.Vlan != "" {
		spec.Domain = "vlan." + s.Object.Spec.Vlan
	}
	s.CIDR, s.Gateway = join(prefixes), join(gateways)
	s.Set, err = ipam.NewSubnet(spec)
	return err
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

func parsePrefixes(text string) ([]netip.Prefix, error) {
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
	if len(out) == 0 {
		return nil, errors.New("spec.cidrBlock is empty: subnets without addresses are not served")
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
