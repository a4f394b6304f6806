package worker

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// networksIn reads a list of networks. The program has refused what can't be read.
func networksIn(text string) []netip.Prefix {
	var out []netip.Prefix
	for part := range strings.SplitSeq(text, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(part)); err == nil {
			out = append(out, p.Masked())
		}
	}
	return out
}

// placeLinks leases the router's addresses in underlay subnets that are joined to the overlay.
func (w *Worker) placeLinks(ctx context.Context, l *landscape) error {
	var errs []error
	for _, s := range l.Subnets {
		l.status[s.Name] = s.Status
		cat, ok := l.catalog.Subnets[s.Name]
		if !topology.NeedsU2O(s) || !ok || cat.Set == nil || s.DeletionTimestamp != nil {
			continue
		}
		text := cmp.Or(s.Spec.U2OInterconnectionIP, s.Status.U2OInterconnectionIP)
		asked := slices.DeleteFunc(addressesIn(text), func(a netip.Addr) bool { return !within(cat.Set, a) })
		held, err := w.placeLink(ctx, cat, asked, cat.Set.Families())
		if refusal, ok := ipam.AsRefusal(err); ok {
			w.tellOnce("link "+s.Name+" "+refusal.Error(), "An underlay subnet can't be joined to the overlay", "subnet", s.Name, "reason", refusal.Error())
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("lease the router's address in subnet %s: %w", s.Name, err))
			continue
		}
		l.links[s.Name] = held
		s.Status.U2OInterconnectionIP = joined(addressesOf(held))
	}
	return errors.Join(errs...)
}

// placeLink leases the router one address of each family in a subnet: those asked for, or what it has, or any.
func (w *Worker) placeLink(ctx context.Context, cat network.Subnet, asked []netip.Addr, families []ipam.Family) ([]ipam.Held, error) {
	o := gatewayOf(cat)
	var have []ipam.Held
	for _, f := range families {
		for _, h := range w.Ledger.ByOwner(o) {
			if !w.link(h) || ipam.FamilyOf(h.Address) != f || !within(cat.Set, h.Address) {
				continue
			}
			other := slices.ContainsFunc(asked, func(a netip.Addr) bool { return a.Is4() == h.Address.Is4() && a != h.Address })
			if !other {
				have = append(have, h)
				break
			}
		}
	}
	if len(have) == len(families) {
		return have, nil
	}
	ir := ipam.InterfaceRequest{Candidates: []ipam.Source{{Subnet: cat.Set}}, Reservation: o, NoMAC: true, Families: families}
	if len(asked) > 0 {
		ir.Choices = [][]netip.Addr{asked}
	}
	return w.takeReserved(ctx, o, ir)
}

// link tells the lease of a router's address in an underlay subnet.
func (w *Worker) link(h ipam.Held) bool {
	return h.Owner.Kind == ipam.KindSubnet && h.Address.IsValid()
}

// announceSubnets writes which node routes for each subnet, and which addresses the router has in it.
func (w *Worker) announceSubnets(ctx context.Context, l *landscape) error {
	var errs []error
	for _, s := range l.Subnets {
		if err := w.announceSubnet(ctx, l, s); err != nil {
			errs = append(errs, fmt.Errorf("announce the gateway of subnet %s: %w", s.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (w *Worker) announceSubnet(ctx context.Context, l *landscape, s *kubeovnv1.Subnet) error {
	was := l.status[s.Name]
	status := map[string]string{}
	set := func(key, have, want string) {
		if have != want {
			status[key] = want
		}
	}
	routed := topology.IsOVN(s.Spec.Provider) && s.Spec.Vpc == w.Network.ClusterRouter && s.Name != w.Network.NodeSwitch &&
		(s.Spec.Vlan == "" || s.Spec.LogicalGateway)
	if routed {
		set("activateGateway", was.ActivateGateway, topology.ActiveGateway(s, l.Nodes))
	}
	held := l.links[s.Name]
	if len(held) > 0 || !topology.NeedsU2O(s) {
		ip, mac, vpc := "", "", ""
		if len(held) > 0 {
			ip, mac, vpc = joined(addressesOf(held)), w.gatewayMAC(l.catalog.Subnets[s.Name]).String(), s.Spec.Vpc
			if err := w.ensureRecord(ctx, linkRecord(s, addressesOf(held), mac)); err != nil {
				return err
			}
		}
		set("u2oInterconnectionIP", was.U2OInterconnectionIP, ip)
		set("u2oInterconnectionMAC", was.U2OInterconnectionMAC, mac)
		set("u2oInterconnectionVPC", was.U2OInterconnectionVPC, vpc)
		if err := w.dropOldLink(ctx, s, was); err != nil {
			return err
		}
	}
	if len(status) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": s.UID}, "status": status})
	if err != nil {
		return err
	}
	return client.IgnoreNotFound(w.Client.Status().Patch(ctx, s, client.RawPatch(types.MergePatchType, body)))
}

// linkName is the IP record of a router's addresses in an underlay subnet.
func linkName(vpc, subnet string) string { return "u2o-interconnection." + vpc + "." + subnet }

func linkRecord(s *kubeovnv1.Subnet, as []netip.Addr, mac string) *kubeovnv1.IP {
	ip := plainRecord(linkName(s.Spec.Vpc, s.Name), s.Name, as, mac)
	ip.OwnerReferences = []metav1.OwnerReference{{APIVersion: kubeovnv1.GroupVersion().String(), Kind: ipam.KindSubnet, Name: s.Name, UID: s.UID}}
	ip.Labels[labelNode] = ""
	ip.Spec.PodName, ip.Spec.Namespace = ip.Name, corev1.NamespaceDefault
	return ip
}

// dropOldLink deletes the record of a link that the subnet had and has no more.
func (w *Worker) dropOldLink(ctx context.Context, s *kubeovnv1.Subnet, was kubeovnv1.SubnetStatus) error {
	vpc := was.U2OInterconnectionVPC
	if vpc == "" || topology.NeedsU2O(s) && vpc == s.Spec.Vpc {
		return nil
	}
	var ip kubeovnv1.IP
	err := w.Client.Get(ctx, client.ObjectKey{Name: linkName(vpc, s.Name)}, &ip)
	if err != nil || ip.Spec.Subnet != s.Name {
		return client.IgnoreNotFound(err)
	}
	return w.dropRecord(ctx, &ip)
}

// giveBack frees the leases of nodes and links that are no more, now that no row has their addresses.
func (w *Worker) giveBack(ctx context.Context, l *landscape) error {
	var errs []error
	nodes := map[string][]ipam.Held{}
	for _, h := range w.Ledger.Leases() {
		same := func(o ipam.Held) bool { return o.Address == h.Address }
		name := h.Owner.Name
		switch {
		case w.place(h) && l.nodes[name] == nil:
			nodes[name] = append(nodes[name], h)
		case w.place(h) && len(l.places[name]) > 0 && !slices.ContainsFunc(l.places[name], same),
			w.link(h) && l.unlinked(name) || w.link(h) && len(l.linksOf(name)) > 0 && !slices.ContainsFunc(l.linksOf(name), same):
			errs = append(errs, w.free(ctx, []ipam.Held{h}))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(nodes)) {
		errs = append(errs, w.giveBackNode(ctx, name, nodes[name]))
	}
	return errors.Join(errs...)
}

// unlinked tells that a subnet isn't there, or has no router beside its gateway.
func (l *landscape) unlinked(subnet string) bool {
	if s, err := topology.ExternalSubnet(l.Input); err == nil && s.Name == subnet {
		return !topology.WantsExternal(l.Input)
	}
	i := slices.IndexFunc(l.Subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == subnet })
	return i < 0 || !topology.NeedsU2O(l.Subnets[i])
}

// regroup has the pods looked at that belong into groups which are new.
func (w *Worker) regroup(ctx context.Context, groups []nb.Group) error {
	subnets, nodes := map[string]bool{}, map[string]bool{}
	for _, g := range groups {
		if sw := g.ExternalIDs[nb.KeySubnet]; sw != "" {
			subnets[sw], nodes[g.ExternalIDs[nb.KeyNode]] = true, true
		}
	}
	if len(subnets) == 0 {
		return nil
	}
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	for i := range pods.Items {
		p := &pods.Items[i]
		if !nodes[p.Spec.NodeName] {
			continue
		}
		for key, value := range p.Annotations {
			if _, suffix, ok := network.SplitKey(key); ok && suffix == network.SuffixSubnet && subnets[value] {
				if err := w.enqueueSurely(ctx, client.ObjectKeyFromObject(p)); err != nil {
					return err
				}
				break
			}
		}
	}
	return nil
}
