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
	// ExternalSubnet is the subnet of the external network.
	ExternalSubnet string
	// EnableLB turns load balancers on.
	EnableLB bool
	// ServiceCIDRs are the addresses of Services, at most one network per family.
	ServiceCIDRs []netip.Prefix
}

// Input is all that the rows follow from.
type Input struct {
	// Vpcs of the cluster.
	Vpcs []*kubeovnv1.Vpc
	// Subnets of the cluster.
	Subnets []*kubeovnv1.Subnet
	// Vlans and ProviderNetworks that underlay subnets stand on.
	Vlans            []*kubeovnv1.Vlan
	ProviderNetworks []*kubeovnv1.ProviderNetwork
	// Nodes of the cluster.
	Nodes []Node
	// External says how the cluster router gets to the external network.
	External External
	// Config of the cluster.
	Config Config
	// MAC makes a router port's MAC from the names of router and switch; nil means DefaultMAC.
	MAC func(seed string) string
}

// Finding is something that keeps an object from being realised as it is written.
type Finding struct {
	// Kind is Subnet, Vpc or Node.
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
	KindNode   = "Node"
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

// Rows returns all that Vpcs, Subnets and Nodes ask for, and what is wrong with them.
func Rows(in Input) (nb.Rows, []Finding) {
	if in.MAC == nil {
		in.MAC = DefaultMAC
	}
	b := &builder{in: in, routers: map[string]bool{}, names: map[string]string{}, policies: map[policyKey]string{},
		routes: map[routeKey]bool{}, nodes: slices.SortedFunc(slices.Values(in.Nodes), byNodeAge)}
	b.in.Vpcs = slices.SortedFunc(slices.Values(in.Vpcs), func(x, y *kubeovnv1.Vpc) int { return cmp.Compare(x.Name, y.Name) })
	b.rows.Whole = true
	b.rows.Options = globalOptions()
	subnets := slices.SortedFunc(slices.Values(in.Subnets), byAge)
	b.addRouters(subnets)
	var planned []plannedSubnet
	for _, s := range subnets {
		if p, ok := b.addSwitch(s); ok {
			planned = append(planned, p)
		}
	}
	b.addLinks(planned)
	b.addExternal()
	b.addNodes()
	for _, s := range b.linked {
		if s.Name == b.join {
			b.addDefaultRoutes(s)
		}
		b.addGateway(s)
	}
	b.addVpcs()
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

// HasPort tells whether a pod's network of that provider is a port of OVN, so that nobody uses its address once the port is
// removed. The several interfaces of one attachment have its provider and, after a dot, names of their own.
func HasPort(provider string) bool {
	fields := strings.SplitN(provider, ".", 4)
	return IsOVN(provider) || len(fields) == 4 && IsOVN(strings.Join(fields[:3], "."))
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
	// names maps the names of rows to the objects that have them, policies and routes what they are the only one of.
	names    map[string]string
	policies map[policyKey]string
	routes   map[routeKey]bool
	// nodes by age, the subnets that are on their router, and the join switch; empty: there is none.
	nodes  []Node
	linked []plannedSubnet
	join   string
}

// plannedSubnet is a subnet with its defaults filled in.
type plannedSubnet struct {
	*kubeovnv1.Subnet
	cidrs    []netip.Prefix
	gateways []netip.Addr
	// u2o are the router's addresses when it isn't the gateway.
	u2o []netip.Addr
}

func (b *builder) find(kind, name string, err error) {
	b.findings = append(b.findings, Finding{Kind: kind, Name: name, Err: err})
}

// hold tells what is wrong with a subnet, and leaves what it has: its pods keep their network.
func (b *builder) hold(subnet string, err error) {
	b.find(KindSubnet, subnet, err)
	b.rows.Held = append(b.rows.Held, subnet)
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
		Name: s.Name, ExternalIDs: marks(),
	})
	if s.Name == b.in.Config.NodeSwitch && b.vpcOf(s) == b.in.Config.ClusterRouter {
		b.join = s.Name
	}
	b.addLocalnet(s)
	patch, err := Defaults(s, b.in.Config)
	if err != nil {
		b.hold(s.Name, err)
		return plannedSubnet{}, false
	}
	full := s.DeepCopy()
	patch.Apply(full)
	b.addServices(full)
	b.addACLs(full)
	p := plannedSubnet{Subnet: full, u2o: u2oAddresses(full)}
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
		err := b.overlap(s, subnets[:i])
		if err == nil && hasLink(s.Subnet) {
			err = b.addLink(s)
		}
		switch {
		case err != nil:
			b.hold(s.Name, err)
		case hasLink(s.Subnet):
			b.linked = append(b.linked, s)
		}
	}
}

// hasLink tells whether a subnet's gateway is on the router, or the router is on an underlay subnet beside the gateway.
func hasLink(s *kubeovnv1.Subnet) bool {
	return s.Spec.Vlan == "" || s.Spec.LogicalGateway || len(u2oAddresses(s)) > 0
}

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
		if err := b.claim(row, "subnet "+s.Name); err != nil {
			return err
		}
	}
	row := nb.LogicalRouterPort{Name: routerPort, MAC: b.in.MAC(router + "/" + s.Name), Networks: networks(s),
		ExternalIDs: marks(nb.KeyRouter, router)}
	if s.Spec.RouteTable != "" {
		row.Options = map[string]string{nb.OptionRouteTable: s.Spec.RouteTable}
	}
	port := nb.RouterPort{Router: router, Row: row}
	if s.Name == b.in.Config.ExternalSubnet {
		port.Chassis = []string{} // it may have had some as the external network
	}
	b.rows.RouterPorts = append(b.rows.RouterPorts, port)
	b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: s.Name, Row: nb.LogicalSwitchPort{
		Name: switchPort, Type: nb.TypeRouter, Addresses: []string{"router"},
		Options:     map[string]string{nb.OptionRouterPort: routerPort},
		ExternalIDs: marks(nb.KeySwitch, s.Name),
	}})
	return nil
}

// networks are the router's addresses in a subnet, with the length of its prefix.
func networks(s plannedSubnet) []string {
	var out []string
	addrs := s.gateways
	if len(s.u2o) > 0 {
		addrs = s.u2o
	}
	for _, c := range s.cidrs {
		if a, ok := ofFamily(addrs, c.Addr()); ok {
			out = append(out, netip.PrefixFrom(a, c.Bits()).String())
		}
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
	slices.SortFunc(b.rows.ACLs, func(x, y nb.ACLs) int { return cmp.Compare(x.Switch, y.Switch) })
	slices.Sort(b.rows.Held)
	b.rows.Held = slices.Compact(b.rows.Held)
	slices.SortFunc(b.rows.Groups, func(x, y nb.Group) int { return cmp.Compare(x.Name, y.Name) })
	slices.SortFunc(b.rows.Policies, func(x, y nb.Policy) int {
		return cmp.Or(cmp.Compare(x.Router, y.Router), cmp.Compare(y.Row.Priority, x.Row.Priority), cmp.Compare(x.Row.Match, y.Row.Match))
	})
	slices.SortFunc(b.rows.Routes, func(x, y nb.Route) int {
		return cmp.Or(cmp.Compare(x.Router, y.Router), cmp.Compare(x.Row.Table, y.Row.Table), cmp.Compare(*x.Row.Policy, *y.Row.Policy),
			cmp.Compare(x.Row.Prefix, y.Row.Prefix), cmp.Compare(x.Row.Nexthop, y.Row.Nexthop))
	})
	slices.SortFunc(b.rows.Ports, func(x, y nb.Port) int { return cmp.Compare(x.Row.Name, y.Row.Name) })
	slices.SortStableFunc(b.findings, func(x, y Finding) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Name, y.Name))
	})
}
