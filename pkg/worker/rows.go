package worker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// Suffixes of annotations that only a pod's rows depend on.
const (
	suffixPortSecurity  = "port_security"
	suffixLayer2Forward = "layer2_forward"
	suffixActivation    = "activation_strategy"
	suffixDHCPv4        = "dhcp-v4-options"
	suffixDHCPv6        = "dhcp-v6-options"
	suffixEIP           = "eip"
	suffixSNAT          = "snat"
	suffixNorthGateway  = "north_gateway"
)

// externalConfigMap describes the network behind EIPs and SNAT addresses.
const externalConfigMap = "ovn-external-gw-config"

// Routing is what an installation has beside subnets. The zero value has neither load balancers nor outer addresses.
type Routing struct {
	// EnableLB turns load balancers on, EnableEIPSNAT pods' EIP and SNAT addresses.
	EnableLB, EnableEIPSNAT bool
	// ExternalNamespace has the ConfigMap of the external network; empty means kube-system.
	ExternalNamespace string
	// ExternalSubnet tells the external gateway when the ConfigMap doesn't; empty means external.
	ExternalSubnet string
	// ServiceCIDRs are the addresses of Services: one network, or one of each family joined by a comma; empty: not known.
	ServiceCIDRs string
}

// rows are what the northbound database shall have of the pod.
func (w *Worker) rows(ctx context.Context, s *subject, wires []wire) (nb.Rows, error) {
	in := ovn.PodInput{Namespace: s.Namespace, Name: s.identity, UID: s.uid(), Claim: string(s.claim),
		Config: ovn.PodConfig{ClusterRouter: w.Network.ClusterRouter, NodeSwitch: w.Network.NodeSwitch,
			EnableLB: w.Routing.EnableLB, EnableEIPSNAT: w.Routing.EnableEIPSNAT}}
	if s.Spec.NodeName != "" {
		node, err := w.node(ctx, s.Spec.NodeName)
		if err != nil {
			return nb.Rows{}, err
		}
		in.Node = node
	}
	var err error
	if in.Migration, err = w.migration(ctx, s); err != nil {
		return nb.Rows{}, err
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return nb.Rows{}, err
	}
	for _, c := range wires {
		if !c.port {
			continue
		}
		i := w.interfaceInput(s, c, cat)
		if c.Provider == network.DefaultProvider {
			if err := w.outer(ctx, s, &i, &in.Config); err != nil {
				return nb.Rows{}, err
			}
		}
		in.Interfaces = append(in.Interfaces, i)
	}
	rows, err := ovn.PodRows(in)
	if err != nil {
		w.warn(s.Pod, reasonUnwired, actionWire, err.Error())
	}
	return rows, err
}

// interfaceInput reads what one network's rows follow from.
func (w *Worker) interfaceInput(s *subject, c wire, cat network.Catalog) ovn.InterfaceInput {
	mac := c.MAC
	if mac == (ipam.MAC{}) && len(c.Addresses) > 0 {
		for _, l := range s.leases {
			if l.Address == c.Addresses[0] {
				mac = l.MAC
			}
		}
	}
	asked := func(suffix string) string {
		return strings.TrimSpace(s.Annotations[network.Key(c.Provider, suffix)])
	}
	i := ovn.InterfaceInput{
		Provider: c.Provider, Addresses: c.Addresses, MAC: mac.String(), Subnet: w.subnetInput(c),
		PortSecurity: asked(suffixPortSecurity) == "true", Layer2Forward: asked(suffixLayer2Forward) == "true",
		Activation: asked(suffixActivation) != "", DHCPv4: asked(suffixDHCPv4), DHCPv6: asked(suffixDHCPv6),
		SecurityGroups: strings.Split(asked(network.SuffixSecurityGroups), ","),
		Vips:           addressesIn(asked(network.SuffixPortVips)),
	}
	for name := range strings.SplitSeq(s.Annotations[network.Key(network.DefaultProvider, network.SuffixAaps)], ",") {
		vip := cat.Vips[strings.TrimSpace(name)]
		if vip == nil || vip.Spec.Namespace != s.Namespace || vip.Spec.Subnet != c.Subnet ||
			w.Topology == Ensure && !topology.VipChooses(vip, s.Labels) {
			continue
		}
		addrs := addressesIn(vip.Status.V4IP + "," + vip.Status.V6IP)
		i.Vips = append(i.Vips, addrs...)
		if len(addrs) > 0 && vip.Spec.Type == "" && w.Topology == Ensure {
			i.Virtuals = append(i.Virtuals, ovn.Virtual{Name: vip.Name, Address: addrs[0]})
		}
	}
	return i
}

func (w *Worker) subnetInput(c wire) ovn.SubnetInput {
	spec := c.subnet.Spec
	in := ovn.SubnetInput{Name: c.subnet.Name, Vpc: spec.Vpc, Vlan: spec.Vlan, GatewayType: spec.GatewayType,
		LogicalGateway: spec.LogicalGateway, U2OInterconnection: spec.U2OInterconnection, EnableLB: spec.EnableLb,
		EnableDHCP: spec.EnableDHCP, RouteTable: spec.RouteTable, PortDHCP: topology.PortDHCP(c.subnet)}
	if !spec.EnableDHCP {
		return in
	}
	in.DHCP = topology.DHCP(c.subnet)
	if w.Topology != Ensure { // somebody else makes these rows
		for _, row := range []*nb.DHCPOptions{in.DHCP.V4, in.DHCP.V6} {
			if row != nil {
				row.Options = nil
			}
		}
	}
	return in
}

// outer reads the gateways and outer addresses of the default network.
func (w *Worker) outer(ctx context.Context, s *subject, i *ovn.InterfaceInput, cfg *ovn.PodConfig) error {
	asked := func(suffix string) []netip.Addr {
		return addressesIn(s.Annotations[network.Key(network.DefaultProvider, suffix)])
	}
	i.NorthGateways, i.EIPs, i.SNATs = asked(suffixNorthGateway), asked(suffixEIP), asked(suffixSNAT)
	if !cfg.EnableEIPSNAT || len(i.EIPs)+len(i.SNATs) == 0 {
		return nil
	}
	var err error
	if cfg.External, err = w.external(ctx); err != nil {
		return err
	}
	i.EIPsFrom, err = w.givenUp(ctx, s, i.EIPs)
	return err
}

// external reads the way out from the ConfigMap and the external subnet.
func (w *Worker) external(ctx context.Context) (ovn.External, error) {
	var config corev1.ConfigMap
	key := w.Routing.externalKey()
	if err := w.Live.Get(ctx, key, &config); client.IgnoreNotFound(err) != nil {
		return ovn.External{}, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return ovn.External{}, err
	}
	return ovn.ReadExternal(config.Data, cat.Subnets[w.Routing.externalSubnet()].Gateway), nil
}

// givenUp gives the pods that still have one of the EIPs and don't need it any more: they are being deleted, or no longer
// ask for it. Of a pod that can't be found nothing is known: its port decides.
func (w *Worker) givenUp(ctx context.Context, s *subject, eips []netip.Addr) ([]string, error) {
	var out []string
	for _, eip := range eips {
		for _, holder := range w.Northbound.EIPHolders(eip.String()) {
			namespace, name, _ := strings.Cut(holder, "/")
			if namespace == s.Namespace && name == s.identity {
				continue
			}
			var pod corev1.Pod
			err := w.Client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &pod)
			switch {
			case apierrors.IsNotFound(err):
				continue
			case err != nil:
				return nil, fmt.Errorf("read pod %s, which has the EIP %s: %w", holder, eip, err)
			}
			asks := slices.Contains(addressesIn(pod.Annotations[network.Key(network.DefaultProvider, suffixEIP)]), eip)
			if pod.DeletionTimestamp != nil || !asks {
				out = append(out, holder)
			}
		}
	}
	return out, nil
}

// addressesIn reads a list of addresses. What can't be read is left away: admission has refused it already.
func addressesIn(text string) []netip.Addr {
	var out []netip.Addr
	for part := range strings.SplitSeq(text, ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(part)); err == nil {
			out = append(out, a.Unmap())
		}
	}
	return out
}

// unplugged are ports of networks that the pod no longer has: it doesn't carry them, and the ledger has no lease for
// them.
func (w *Worker) unplugged(s *subject, rows nb.Rows) []string {
	var out []string
	for _, p := range w.Northbound.PodPorts(s.Namespace, s.identity) {
		carried := slices.ContainsFunc(rows.Ports, func(r nb.Port) bool { return r.Row.Name == p.Name }) ||
			slices.ContainsFunc(s.carried, func(c network.CarriedInterface) bool {
				return network.PortName(s.identity, s.Namespace, c.Provider) == p.Name
			})
		addrs := lifecycle.PortAddresses(p)
		claim := ipam.Claim(p.ExternalIDs[nb.KeyClaim])
		leased := claim == "" || slices.ContainsFunc(w.Ledger.ByClaim(claim), func(l ipam.Held) bool {
			return len(addrs) == 0 || slices.Contains(addrs, l.Address)
		})
		if !carried && !leased {
			out = append(out, p.Name)
		}
	}
	return out
}
