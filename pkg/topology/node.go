package topology

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Node is what rows need to know of a node.
type Node struct {
	Name    string
	Created time.Time
	Labels  map[string]string
	// Ready tells that it can route for others.
	Ready bool
	// Internal are its addresses in the physical network.
	Internal []netip.Addr
	// Join and MAC are its addresses on the join switch; none while it has none.
	Join []netip.Addr
	MAC  string
	// Chassis is its name in OVN; empty while it has none.
	Chassis string
}

// byNodeAge orders by age, so that of two that clash the one that was there first stays.
func byNodeAge(a, b Node) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// addNodes adds the nodes' ports on the join switch, the way to each node, and the groups of their pods.
func (b *builder) addNodes() {
	for _, n := range b.nodes {
		if err := b.addGroup(nb.NodeGroup(n.Name), "node "+n.Name); err != nil {
			b.find(KindNode, n.Name, err)
		}
		if b.join == "" || len(n.Join) == 0 {
			continue
		}
		b.addNodePort(b.join, n)
		for _, a := range n.Internal {
			gw, ok := ofFamily(n.Join, a)
			if !ok || slices.Contains(n.Join, a) {
				continue
			}
			other, ok := b.addPolicy(b.in.Config.ClusterRouter, "node "+n.Name, nb.RouterPolicy{
				Priority: priorityNode, Match: family(a) + ".dst == " + a.String(), Action: nb.ActionReroute, Nexthops: []string{gw.String()},
				ExternalIDs: marks(nb.KeyNode, n.Name, nb.KeyAddressFamily, strings.TrimPrefix(family(a), "ip")),
			})
			if !ok && other != "node "+n.Name {
				b.find(KindNode, n.Name, &NameClashError{Row: a.String(), Other: other})
			}
		}
	}
}

func (b *builder) addNodePort(join string, n Node) {
	words := []string{strings.ToLower(n.MAC)}
	for _, a := range slices.SortedStableFunc(slices.Values(n.Join), nb.CompareFamilies) {
		words = append(words, a.String())
	}
	b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: join, Row: nb.LogicalSwitchPort{
		Name: nb.NodePortName(n.Name), Addresses: []string{strings.Join(words, " ")},
		ExternalIDs: marks(nb.KeySwitch, join),
	}})
}

// addGroup adds a port group, unless another object has its name: the names of a-b and a.b are one.
func (b *builder) addGroup(g nb.Group, object string) error {
	if err := b.claim("port group "+g.Name, object); err != nil {
		return err
	}
	b.rows.Groups = append(b.rows.Groups, g)
	return nil
}

// claim takes a row's name for an object.
func (b *builder) claim(row, object string) error {
	if other, ok := b.names[row]; ok {
		return &NameClashError{Row: row, Other: other}
	}
	b.names[row] = object
	return nil
}
