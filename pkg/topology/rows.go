package topology

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Config names the objects that have a part of their own.
type Config struct {
	// ClusterRouter is the router of the default VPC.
	ClusterRouter string
	// DefaultSubnet is the subnet of pods that ask for none.
	DefaultSubnet string
	// NodeSwitch is the subnet that joins the nodes to the cluster router.
	NodeSwitch string
}

// Input is all that the rows follow from.
type Input struct {
	// Vpcs of the cluster.
	Vpcs []*kubeovnv1.Vpc
	// Subnets of the cluster.
	Subnets []*kubeovnv1.Subnet
	// Config of the cluster.
	Config Config
	// MAC makes a router port's MAC from the names of router and switch; nil means DefaultMAC.
	MAC func(seed string) string
}

// Finding is something that keeps an object from being realised as it is written.
type Finding struct {
	// Kind is Subnet or Vpc.
	Kind string
	// Name of the object.
	Name string
	// Err tells what is wrong and what to do.
	Err error
}

// Kinds of objects that findings are about.
const (
	KindSubnet = "Subnet"
	KindVpc    = "Vpc"
)

// OverlapError tells that two subnets of one VPC have addresses in common. The younger one gets no router port.
type OverlapError struct {
	// Vpc that both belong to.
	Vpc string
	// CIDR of this subnet, and the other subnet with its own.
	CIDR, Other, OtherCIDR string
}

// Error implements error.
func (e *OverlapError) Error() string {
	return fmt.Sprintf("%s overlaps with %s of the older subnet %s in VPC %s: change one of them", e.CIDR, e.OtherCIDR, e.Other, e.Vpc)
}

// MissingVpcError tells that a subnet names a VPC that doesn't exist.
type MissingVpcError struct{ Vpc string }

// Error implements error.
func (e *MissingVpcError) Error() string {
	return fmt.Sprintf("VPC %s does not exist: create it, or correct spec.vpc", e.Vpc)
}

// NameClashError tells that two objects would have one row.
type NameClashError struct {
	// Row is the name that both would have.
	Row string
	// Other is the object that has it.
	Other string
}

// Error implements error.
func (e *NameClashError) Error() string {
	return fmt.Sprintf("northbound name %s is already that of %s: rename one of the two", e.Row, e.Other)
}

// Rows returns the routers, switches and links between them that Vpcs and Subnets ask for, and what is wrong with them.
func Rows(in Input) (nb.Rows, []Finding) {
	if in.MAC == nil {
		in.MAC = DefaultMAC
	}
	b := &builder{in: in, routers: map[string]bool{}, names: map[string]string{}}
	subnets := slices.SortedFunc(slices.Values(in.Subnets), byAge)
	b.addRouters(subnets)
	var linked []plannedSubnet
	for _, s := range subnets {
		if p, ok := b.addSwitch(s); ok {
			linked = append(linked, p)
		}
	}
	b.addLinks(linked)
	b.sort()
	return b.rows, b.findings
}

// IsOVN tells whether a provider's subnets are switches of OVN: the default network, or an attachment by OVN.
func IsOVN(provider string) bool {
	if provider == "" || provider == providerOVN {
		return true
	}
	fields := strings.Split(provider, ".")
	return len(fields) == 3 && fields[0] != "" && fields[1] != "" && fields[2] == providerOVN
}

// DefaultMAC derives a locally administered MAC from a seed. It begins with 02, so it's never one of a pod's, which
// begin with 0a:58 or 0e.
func DefaultMAC(seed string) string {
	h := sha256.Sum256([]byte(seed))
	return fmt.Sprintf("02:%02x:%02x:%02x:%02x:%02x", h[0], h[1], h[2], h[3], h[4])
}

// byAge orders by age, so that of two that clash the one that was there first stays.
func byAge(a, b *kubeovnv1.Subnet) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

type builder struct {
	in       Input
	rows     nb.Rows
	findings []Finding
	routers  map[string]bool
	// names maps the names of links to the subnets that have them.
	names map[string]string
}

// plannedSubnet is a subnet with its defaults filled in.
type plannedSubnet struct {
	*kubeovnv1.Subnet
	cidrs    []netip.Prefix
	gateways []netip.Addr
}

func (b *builder) find(kind, name string, err error) {
	b.findings = append(b.findings, Finding{Kind: kind, Name: name, Err: err})
}

func (b *builder) addRouters(subnets []*kubeovnv1.Subnet) {
	learn := map[string]bool{}
	for _, s := range subnets {
		if s.Spec.U2OInterconnection && s.Spec.Vlan != "" {
			learn[b.vpcOf(s)] = true
		}
	}
	names := []string{b.in.Config.ClusterRouter}
	for _, v := range b.in.Vpcs {
		names = append(names, v.Name)
		if v.Spec.EnableExternal {
			learn[v.Name] = true
		}
		if slices.ContainsFunc(subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == v.Name }) {
			b.find(KindVpc, v.Name, &NameClashError{Row: v.Name, Other: "subnet " + v.Name})
		}
	}
	for _, name := range names {
		if b.routers[name] {
			continue
		}
		b.routers[name] = true
		b.rows.Routers = append(b.rows.Routers, nb.LogicalRouter{
			Name:        name,
			ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN},
			Options: map[string]string{
				"mac_binding_age_threshold":     "300",
				"dynamic_neigh_routers":         "true",
				"always_learn_from_arp_request": fmt.Sprint(learn[name]),
			},
		})
	}
}

func (b *builder) vpcOf(s *kubeovnv1.Subnet) string {
	return cmp.Or(s.Spec.Vpc, b.in.Config.ClusterRouter)
}

// addSwitch makes the switch of an OVN subnet. It returns the subnet when it is to be linked to its router.
func (b *builder) addSwitch(s *kubeovnv1.Subnet) (plannedSubnet, bool) {
	if !IsOVN(s.Spec.Provider) {
		return plannedSubnet{}, false
	}
	b.rows.Switches = append(b.rows.Switches, nb.LogicalSwitch{
		Name: s.Name, ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN},
	})
	patch, err := Defaults(s, b.in.Config)
	if err != nil {
		b.find(KindSubnet, s.Name, err)
		return plannedSubnet{}, false
	}
	full := s.DeepCopy()
	patch.Apply(full)
	b.addServices(full)
	p := plannedSubnet{Subnet: full}
	// What Defaults has returned without an error can be parsed.
	for text := range splitList(full.Spec.CIDRBlock) {
		if c, err := netip.ParsePrefix(text); err == nil {
			p.cidrs = append(p.cidrs, c)
		}
	}
	for text := range splitList(full.Spec.Gateway) {
		if g, err := netip.ParseAddr(text); err == nil {
			p.gateways = append(p.gateways, g)
		}
	}
	return p, len(p.cidrs) > 0
}

// addLinks joins subnets to their routers, the oldest first.
func (b *builder) addLinks(subnets []plannedSubnet) {
	for i, s := range subnets {
		if err := b.overlap(s, subnets[:i]); err != nil {
			b.find(KindSubnet, s.Name, err)
			continue
		}
		if !hasLink(s.Subnet) {
			continue
		}
		if err := b.addLink(s); err != nil {
			b.find(KindSubnet, s.Name, err)
		}
	}
}

// hasLink tells whether a subnet's gateway is on the router.
func hasLink(s *kubeovnv1.Subnet) bool { return s.Spec.Vlan == "" || s.Spec.LogicalGateway }

func (b *builder) overlap(s plannedSubnet, older []plannedSubnet) error {
	for _, o := range older {
		apart := o.Spec.Vlan != s.Spec.Vlan && !(hasLink(o.Subnet) && hasLink(s.Subnet))
		if b.vpcOf(o.Subnet) != b.vpcOf(s.Subnet) || apart {
			continue
		}
		for _, mine := range s.cidrs {
			for _, theirs := range o.cidrs {
				if mine.Overlaps(theirs) {
					return &OverlapError{Vpc: b.vpcOf(s.Subnet), CIDR: mine.String(), Other: o.Name, OtherCIDR: theirs.String()}
				}
			}
		}
	}
	return nil
}

func (b *builder) addLink(s plannedSubnet) error {
	router := b.vpcOf(s.Subnet)
	if !b.routers[router] {
		return &MissingVpcError{Vpc: router}
	}
	routerPort, switchPort := router+"-"+s.Name, s.Name+"-"+router
	for _, row := range []string{"router port " + routerPort, "switch port " + switchPort} {
		if other, ok := b.names[row]; ok {
			return &NameClashError{Row: row, Other: "subnet " + other}
		}
	}
	b.names["router port "+routerPort] = s.Name
	b.names["switch port "+switchPort] = s.Name
	b.rows.RouterPorts = append(b.rows.RouterPorts, nb.RouterPort{Router: router, Row: nb.LogicalRouterPort{
		Name: routerPort, MAC: b.in.MAC(router + "/" + s.Name), Networks: networks(s),
		ExternalIDs: map[string]string{nb.KeyRouter: router, nb.Vendor: nb.VendorKubeOVN},
	}})
	b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: s.Name, Row: nb.LogicalSwitchPort{
		Name: switchPort, Type: "router", Addresses: []string{"router"},
		Options:     map[string]string{"router-port": routerPort},
		ExternalIDs: map[string]string{nb.KeySwitch: s.Name, nb.Vendor: nb.VendorKubeOVN},
	}})
	return nil
}

// networks are the router's addresses in a subnet, with the length of its prefix.
func networks(s plannedSubnet) []string {
	var out []string
	for i, g := range s.gateways {
		out = append(out, netip.PrefixFrom(g, s.cidrs[i].Bits()).String())
	}
	return out
}

func (b *builder) sort() {
	slices.SortFunc(b.rows.Routers, func(x, y nb.LogicalRouter) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(b.rows.Switches, func(x, y nb.LogicalSwitch) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(b.rows.RouterPorts, func(x, y nb.RouterPort) int { return cmp.Compare(x.Row.Name, y.Row.Name) })
	slices.SortFunc(b.rows.DHCP, func(x, y nb.DHCPOptions) int {
		return cmp.Or(cmp.Compare(x.ExternalIDs[nb.KeySwitch], y.ExternalIDs[nb.KeySwitch]), cmp.Compare(x.CIDR, y.CIDR))
	})
	slices.Sort(b.rows.Complete)
	slices.SortFunc(b.rows.Ports, func(x, y nb.Port) int { return cmp.Compare(x.Row.Name, y.Row.Name) })
	slices.SortStableFunc(b.findings, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name))
	})
}
