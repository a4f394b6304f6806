package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// suffixPortName is the annotation that tells a node's daemon which port is its own.
const suffixPortName = "port_name"

// suffixChassis is the annotation by which a node's daemon tells its name in OVN.
const suffixChassis = "chassis"

// nodeInput reads what rows need to know of a node, but for its place on the join switch.
func nodeInput(n *corev1.Node) topology.Node {
	out := topology.Node{Name: n.Name, Created: n.CreationTimestamp.Time, Labels: n.Labels,
		Chassis: n.Annotations[network.Key(network.DefaultProvider, suffixChassis)]}
	for _, a := range n.Status.Addresses {
		if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
			out.Internal = append(out.Internal, ip.Unmap())
		}
	}
	for _, c := range n.Status.Conditions {
		out.Ready = out.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
	}
	return out
}

// nodeOwner is who has a node's addresses.
func nodeOwner(name string) ipam.Owner { return ipam.Owner{Kind: ipam.KindNode, Name: name} }

// placeNodes leases each node its addresses on the join switch: those that it carries, or any. A node that can't have
// any is told, and keeps no other from its place.
func (w *Worker) placeNodes(ctx context.Context, l *landscape) error {
	join, ok := l.catalog.Subnets[w.Network.NodeSwitch]
	ready := ok && join.Set != nil && join.Object.DeletionTimestamp == nil
	var errs []error
	for _, n := range byRight(l) {
		if !ready {
			w.leavePlace(n)
			continue
		}
		held, err := w.placeNode(ctx, join, l.nodes[n.Name], w.nodeLeases(n.Name))
		if err == nil {
			l.places[n.Name] = held
			n.Join, n.MAC = addressesOf(held), macOf(held).String()
			continue
		}
		w.leavePlace(n)
		if refusal, ok := ipam.AsRefusal(err); ok {
			w.tellOnce("node "+n.Name+" "+refusal.Error(), "A node gets no place on the join switch: free the address, or take "+
				network.Key(network.DefaultProvider, network.SuffixAddress)+" off the node", "node", n.Name, "reason", refusal.Error())
			continue
		}
		errs = append(errs, fmt.Errorf("lease the place of node %s: %w", n.Name, err))
	}
	return errors.Join(errs...)
}

// byRight gives the nodes, first those that say which place they have: when leases were lost, nobody else may get it.
func byRight(l *landscape) []*topology.Node {
	var first, others []*topology.Node
	for i := range l.Nodes {
		n := &l.Nodes[i]
		if l.nodes[n.Name].Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)] != "" {
			first = append(first, n)
		} else {
			others = append(others, n)
		}
	}
	return append(first, others...)
}

// leavePlace lets a node keep the place that it has, when nothing can be said about it now.
func (w *Worker) leavePlace(n *topology.Node) {
	p, ok := w.Northbound.Port(nb.NodePortName(n.Name))
	if !ok || !nb.OfTopology(p.ExternalIDs) || len(p.Addresses) == 0 {
		return
	}
	n.Join = lifecycle.PortAddresses(p)
	n.MAC, _, _ = strings.Cut(p.Addresses[0], " ")
}

// nodeLeases are a node's leases on the join switch.
func (w *Worker) nodeLeases(node string) []ipam.Held {
	return slices.DeleteFunc(w.Ledger.ByOwner(nodeOwner(node)), func(h ipam.Held) bool { return !w.place(h) })
}

// place tells a node's lease on the join switch. A node may have others: its addresses in the physical network.
func (w *Worker) place(h ipam.Held) bool {
	return h.Owner.Kind == ipam.KindNode && h.Subnet == w.Network.NodeSwitch && h.Address.IsValid() && h.Provider == network.DefaultProvider
}

func addressesOf(held []ipam.Held) []netip.Addr {
	var out []netip.Addr
	for _, h := range held {
		out = append(out, h.Address)
	}
	slices.SortFunc(out, nb.CompareFamilies)
	return out
}

// macOf is the interface's MAC. The lease of an IPv6 address beside an IPv4 one may have none.
func macOf(held []ipam.Held) ipam.MAC {
	for _, h := range held {
		if h.MAC != (ipam.MAC{}) {
			return h.MAC
		}
	}
	return ipam.MAC{}
}

// placeNode leases what the node lacks. An address outside the subnet is freed at once: nobody else can have it.
func (w *Worker) placeNode(ctx context.Context, join network.Subnet, node *corev1.Node, have []ipam.Held) ([]ipam.Held, error) {
	outside := slices.DeleteFunc(slices.Clone(have), func(h ipam.Held) bool { return within(join.Set, h.Address) })
	if err := w.free(ctx, outside); err != nil {
		return nil, err
	}
	have = slices.DeleteFunc(have, func(h ipam.Held) bool { return !within(join.Set, h.Address) })
	if len(have) == len(join.Set.Families()) {
		return have, nil
	}
	ir := ipam.InterfaceRequest{Provider: network.DefaultProvider, Candidates: []ipam.Source{{Subnet: join.Set}}, Reservation: nodeOwner(node.Name)}
	var asked []netip.Addr
	for _, a := range addressesIn(node.Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)]) {
		held := slices.ContainsFunc(have, func(h ipam.Held) bool { return h.Address.Is4() == a.Is4() })
		if within(join.Set, a) && !held {
			asked = append(asked, a)
		}
	}
	if len(asked) > 0 {
		ir.Choices = [][]netip.Addr{asked}
	}
	if m, err := ipam.ParseMAC(node.Annotations[network.Key(network.DefaultProvider, network.SuffixMAC)]); err == nil && len(have) == 0 {
		ir.MAC = m
	}
	held, err := w.takeReserved(ctx, nodeOwner(node.Name), ir)
	if refusal, ok := ipam.AsRefusal(err); ok && ir.MAC != (ipam.MAC{}) && len(asked) == 0 {
		w.tellOnce("node "+node.Name+" "+refusal.Error(), "A node's MAC can't be kept", "node", node.Name, "reason", refusal.Error())
		ir.MAC = ipam.MAC{}
		held, err = w.takeReserved(ctx, nodeOwner(node.Name), ir)
	}
	return held, err
}

func within(s *ipam.Subnet, a netip.Addr) bool {
	p, ok := s.Prefix(ipam.FamilyOf(a))
	return ok && p.Contains(a)
}

// takeReserved leases one interface for an owner that is no pod.
func (w *Worker) takeReserved(ctx context.Context, o ipam.Owner, ir ipam.InterfaceRequest) ([]ipam.Held, error) {
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return nil, err
	}
	a, err := w.Ledger.Take(ctx, ipam.Request{Claim: claim, Owner: o, Interfaces: []ipam.InterfaceRequest{ir}})
	if err != nil {
		return nil, err
	}
	return a.Interfaces[0].Leases, nil
}

// announceNodes tells each node's daemon its place, once the place is there.
func (w *Worker) announceNodes(ctx context.Context, l *landscape) error {
	join := l.catalog.Subnets[w.Network.NodeSwitch]
	var errs []error
	for _, n := range l.Nodes {
		if len(l.places[n.Name]) == 0 {
			continue
		}
		node := l.nodes[n.Name]
		err := w.ensureRecord(ctx, nodeRecord(node, w.Network.NodeSwitch, n))
		if err == nil {
			err = w.annotateNode(ctx, node, map[string]string{
				network.SuffixAddress: joined(n.Join), network.SuffixMAC: n.MAC, network.SuffixCIDR: join.CIDR, network.SuffixGateway: join.Gateway,
				network.SuffixSubnet: w.Network.NodeSwitch, network.SuffixAllocated: "true", suffixPortName: nb.NodePortName(n.Name),
			})
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("announce the place of node %s: %w", n.Name, err))
		}
	}
	return errors.Join(errs...)
}

// annotateNode writes the annotations that differ, on the node as it was read.
func (w *Worker) annotateNode(ctx context.Context, node *corev1.Node, want map[string]string) error {
	lack := map[string]string{}
	for _, suffix := range slices.Sorted(maps.Keys(want)) {
		if key := network.Key(network.DefaultProvider, suffix); node.Annotations[key] != want[suffix] {
			lack[key] = want[suffix]
		}
	}
	if len(lack) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{
		"uid": node.UID, "resourceVersion": node.ResourceVersion, "annotations": lack,
	}})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(w.Client.Patch(ctx, node.DeepCopy(), client.RawPatch(types.MergePatchType, body)))
}

func joined(as []netip.Addr) string {
	var texts []string
	for _, a := range as {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}

// nodeRecord is the IP record of a node. It goes with the node.
func nodeRecord(node *corev1.Node, join string, n topology.Node) *kubeovnv1.IP {
	ip := plainRecord(nb.NodePortName(n.Name), join, n.Join, n.MAC)
	ip.Labels[labelNode] = n.Name
	ip.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: node.Name, UID: node.UID}}
	ip.Spec.PodName, ip.Spec.NodeName = n.Name, n.Name
	return ip
}

// plainRecord is an IP record that is no pod's.
func plainRecord(name, subnet string, as []netip.Addr, mac string) *kubeovnv1.IP {
	ip := &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{},
			Labels: map[string]string{labelSubnet: subnet, subnet: "", labelReserved: "false"}},
		Spec: kubeovnv1.IPSpec{Subnet: subnet, IPAddress: joined(as), MacAddress: mac,
			AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}},
	}
	for _, a := range as {
		setFamily(&ip.Spec, a)
	}
	return ip
}

// giveBackNode frees what a node had that is gone, and deletes its record. Its rows are gone already.
func (w *Worker) giveBackNode(ctx context.Context, name string, held []ipam.Held) error {
	if gone, err := w.gone(ctx, name, &corev1.Node{}); err != nil || !gone {
		return err
	}
	if err := w.free(ctx, held); err != nil {
		return fmt.Errorf("free the place of node %s: %w", name, err)
	}
	var ip kubeovnv1.IP
	err := w.Live.Get(ctx, client.ObjectKey{Name: nb.NodePortName(name)}, &ip)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the record of node %s: %w", name, err)
	}
	if ip.Spec.Subnet != w.Network.NodeSwitch || ip.Spec.PodName != name {
		return nil
	}
	return w.dropRecord(ctx, &ip)
}
