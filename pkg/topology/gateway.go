package topology

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// NoGatewayError tells that no node can route for a centralized subnet.
type NoGatewayError struct{ Subnet string }

// Error implements error.
func (e *NoGatewayError) Error() string {
	return fmt.Sprintf("no gateway node of subnet %s is there: name nodes in spec.gatewayNode, or choose them by spec.gatewayNodeSelectors", e.Subnet)
}

// Centralized tells that chosen nodes route for a subnet, and not each its own pods'.
func Centralized(s *kubeovnv1.Subnet) bool { return s.Spec.GatewayType == gatewayCentralized }

// ActiveGateway is the node that routes for a centralized subnet; empty: there is none, or all of them do. The one that
// does stays, as long as it can.
func ActiveGateway(s *kubeovnv1.Subnet, nodes []Node) string {
	if !Centralized(s) || s.Spec.EnableEcmp {
		return ""
	}
	if serving := serving(s, nodes); len(serving) > 0 {
		return serving[0].Name
	}
	return ""
}

// serving are the nodes that route for a centralized subnet. When none is ready, they stay as they are: somebody who may
// be able to is better than nobody.
func serving(s *kubeovnv1.Subnet, nodes []Node) []Node {
	chosen := gatewayNodes(s, nodes)
	ready := slices.DeleteFunc(slices.Clone(chosen), func(n Node) bool { return !n.Ready })
	candidates := ready
	if len(ready) == 0 {
		candidates = chosen
	}
	if s.Spec.EnableEcmp {
		return candidates
	}
	if i := slices.IndexFunc(candidates, func(n Node) bool { return n.Name == s.Status.ActivateGateway }); i > 0 {
		return candidates[i : i+1]
	}
	return candidates[:min(1, len(candidates))]
}

// gatewayNodes are the nodes that may route for a centralized subnet, in their order of preference.
func gatewayNodes(s *kubeovnv1.Subnet, nodes []Node) []Node {
	var out []Node
	add := func(n Node) {
		if len(n.Join) > 0 && !slices.ContainsFunc(out, func(o Node) bool { return o.Name == n.Name }) {
			out = append(out, n)
		}
	}
	// An entry may have the address of its traffic after a colon.
	for text := range splitList(s.Spec.GatewayNode) {
		name, _, _ := strings.Cut(text, ":")
		for _, n := range nodes {
			if n.Name == strings.TrimSpace(name) {
				add(n)
			}
		}
	}
	if s.Spec.GatewayNode != "" {
		return out
	}
	sorted := slices.SortedFunc(slices.Values(nodes), func(a, b Node) int { return strings.Compare(a.Name, b.Name) })
	for i := range s.Spec.GatewayNodeSelectors {
		selector, err := metav1.LabelSelectorAsSelector(&s.Spec.GatewayNodeSelectors[i])
		if err != nil || selector.Empty() {
			continue
		}
		for _, n := range sorted {
			if selector.Matches(labels.Set(n.Labels)) {
				add(n)
			}
		}
	}
	return out
}

// addGateway adds the policies by which a subnet's traffic stays in the VPC, or leaves it.
func (b *builder) addGateway(s plannedSubnet) {
	for _, c := range s.cidrs {
		if len(s.u2o) == 0 {
			b.subnetPolicy(s, prioritySubnet, family(c.Addr())+".dst == "+c.String(), nil)
		}
	}
	router := b.vpcOf(s.Subnet)
	switch {
	case len(s.u2o) > 0:
		b.addU2O(s)
	case router != b.in.Config.ClusterRouter || s.Name == b.in.Config.NodeSwitch || b.join == "":
	case Centralized(s.Subnet):
		b.addCentralized(s)
	default:
		b.addDistributed(s)
	}
}

// subnetPolicy adds a policy for the sake of a subnet: it lets pass, or with next hops sends there.
func (b *builder) subnetPolicy(s plannedSubnet, priority int, match string, nexthops []string, more ...string) {
	row := nb.RouterPolicy{Priority: priority, Match: match, Action: nb.ActionAllow, Nexthops: nexthops,
		ExternalIDs: marks(append(more, nb.KeySubnet, s.Name)...)}
	if len(nexthops) > 0 {
		row.Action = nb.ActionReroute
	}
	if other, ok := b.addPolicy(b.vpcOf(s.Subnet), "subnet "+s.Name, row); !ok {
		b.find(KindSubnet, s.Name, &NameClashError{Row: match, Other: other})
	}
}

// addDistributed has each node route for its own pods, which are in a group for that.
func (b *builder) addDistributed(s plannedSubnet) {
	for _, n := range b.nodes {
		g := nb.SubnetNodeGroup(s.Name, n.Name)
		made := false
		for _, c := range s.cidrs {
			hop, ok := ofFamily(n.Join, c.Addr())
			if !ok {
				continue
			}
			if !made {
				if err := b.addGroup(g, "subnet "+s.Name+" on node "+n.Name); err != nil {
					b.find(KindSubnet, s.Name, err)
					break
				}
				made = true
			}
			b.subnetPolicy(s, priorityGateway, groupSource(g, c.Addr()), []string{hop.String()}, nb.KeyNode, n.Name)
		}
	}
}

// groupSource matches what comes from a group's ports.
func groupSource(g nb.Group, like netip.Addr) string {
	f := family(like)
	return f + ".src == $" + g.Name + "_" + f
}

func (b *builder) addCentralized(s plannedSubnet) {
	nodes := serving(s.Subnet, b.nodes)
	if len(nodes) == 0 {
		b.find(KindSubnet, s.Name, &NoGatewayError{Subnet: s.Name})
		return
	}
	for _, c := range s.cidrs {
		var hops, ids []string
		for _, n := range nodes {
			if hop, ok := ofFamily(n.Join, c.Addr()); ok {
				hops = append(hops, hop.String())
				// A node of such a name would take away the mark.
				if _, taken := marks(nb.KeySubnet, "")[n.Name]; !taken {
					ids = append(ids, n.Name, hop.String())
				}
			}
		}
		if len(hops) > 0 {
			slices.Sort(hops)
			b.subnetPolicy(s, priorityGateway, family(c.Addr())+".src == "+c.String(), hops, ids...)
		}
	}
}
