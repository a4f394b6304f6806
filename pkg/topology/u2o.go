package topology

import (
	"net/netip"
	"slices"
	"strings"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// NeedsU2O tells that an underlay subnet is to have addresses on the router beside its physical gateway.
func NeedsU2O(s *kubeovnv1.Subnet) bool {
	return IsOVN(s.Spec.Provider) && s.Spec.U2OInterconnection && s.Spec.Vlan != "" && !s.Spec.LogicalGateway && s.Spec.CIDRBlock != ""
}

// u2oAddresses are those that it has, IPv4 first. One that is outside the subnet is from before its network changed.
func u2oAddresses(s *kubeovnv1.Subnet) []netip.Addr {
	if !NeedsU2O(s) {
		return nil
	}
	return slices.DeleteFunc(parseList(s.Status.U2OInterconnectionIP), func(a netip.Addr) bool {
		for text := range splitList(s.Spec.CIDRBlock) {
			if c, err := netip.ParsePrefix(text); err == nil && c.Contains(a) {
				return false
			}
		}
		return true
	})
}

// addU2O joins an underlay subnet to the overlay: its pods send to the router, which sends on to the physical gateway what
// isn't the overlay's.
func (b *builder) addU2O(s plannedSubnet) {
	for i, c := range s.cidrs {
		gateway := []string{s.gateways[i].String()}
		f := family(c.Addr())
		src, dst := f+".src == "+c.String(), f+".dst == "+c.String()
		var nodes []string
		for _, n := range b.nodes {
			for _, a := range n.Internal {
				if a.Is4() == c.Addr().Is4() && !slices.Contains(nodes, a.String()) {
					nodes = append(nodes, a.String())
				}
			}
		}
		slices.Sort(nodes)
		ids := []string{nb.KeyU2O, "true"}
		if s.Spec.U2OFeatures.OverlayOnlyRouting {
			only := append(slices.Clone(ids), nb.KeyU2OOverlayOnly, "true")
			if overlay := b.overlayCIDRs(s, c.Addr()); len(overlay) > 0 {
				b.subnetPolicy(s, priorityU2O, f+".src == "+set(overlay)+" && "+dst, nil, only...)
			}
			b.subnetPolicy(s, priorityU2OSame, src+" && "+dst, nil, only...)
			b.subnetPolicy(s, priorityU2OGateway, src, gateway, ids...)
		} else {
			b.subnetPolicy(s, priorityU2O, dst, nil, ids...)
			b.subnetPolicy(s, priorityGateway, src, gateway, ids...)
		}
		if len(nodes) > 0 {
			b.subnetPolicy(s, prioritySubnet, f+".dst == "+set(nodes)+" && "+src, gateway, ids...)
		}
	}
	b.addU2OServices(s)
}

// overlayCIDRs are the networks of one family that the subnet's router has without VLANs.
func (b *builder) overlayCIDRs(s plannedSubnet, like netip.Addr) []string {
	var out []string
	for _, o := range b.linked {
		if b.vpcOf(o.Subnet) != b.vpcOf(s.Subnet) || len(o.u2o) > 0 {
			continue
		}
		for _, c := range o.cidrs {
			if c.Addr().Is4() == like.Is4() {
				out = append(out, c.String())
			}
		}
	}
	slices.Sort(out)
	return out
}

// addU2OServices brings pods of an underlay subnet to Services by their nodes, where no load balancer does.
func (b *builder) addU2OServices(s plannedSubnet) {
	balanced := b.in.Config.EnableLB && s.Spec.EnableLb != nil && *s.Spec.EnableLb
	if balanced || b.join == "" || b.vpcOf(s.Subnet) != b.in.Config.ClusterRouter {
		return
	}
	for _, n := range b.nodes {
		g := nb.SubnetNodeGroup(s.Name, n.Name)
		made := false
		for _, c := range s.cidrs {
			hop, ok := ofFamily(n.Join, c.Addr())
			i := slices.IndexFunc(b.in.Config.ServiceCIDRs, func(p netip.Prefix) bool { return p.Addr().Is4() == c.Addr().Is4() })
			if !ok || i < 0 {
				continue
			}
			if !made {
				if err := b.addGroup(g, "subnet "+s.Name+" on node "+n.Name); err != nil {
					b.find(KindSubnet, s.Name, err)
					break
				}
				made = true
			}
			b.subnetPolicy(s, priorityU2O, groupSource(g, c.Addr())+" && "+family(c.Addr())+".dst == "+b.in.Config.ServiceCIDRs[i].String(),
				[]string{hop.String()}, nb.KeyU2O, "true", nb.KeyU2ONoLB, "true", nb.KeyNode, n.Name)
		}
	}
}

// set writes a set as matches have it.
func set(values []string) string {
	if len(values) == 1 {
		return values[0]
	}
	return "{" + strings.Join(values, ", ") + "}"
}
