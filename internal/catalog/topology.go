package catalog

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// worked is a subnet as it was worked out, and of what.
type worked struct {
	of     string
	subnet network.Subnet
}

// objects are the lists that a topology is made of.
type objects struct {
	subnets          kubeovnv1.SubnetList
	vpcs             kubeovnv1.VpcList
	vlans            kubeovnv1.VlanList
	providerNetworks kubeovnv1.ProviderNetworkList
	pools            kubeovnv1.IPPoolList
	vips             kubeovnv1.VipList
	groups           kubeovnv1.SecurityGroupList
	ips              kubeovnv1.IPList
	nodes            corev1.NodeList
	eips             []eip
}

// Topology gives all that is no single pod's. What it gives is shared.
func (c *Catalog) Topology(ctx context.Context) (network.Catalog, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var at uint64
	if c.Changes != nil { // read first: what changes from here on counts again
		if at = c.Changes(); c.last != nil && c.at == at {
			return *c.last, nil
		}
	}
	o, err := c.list(ctx, c.Cache)
	if err != nil {
		return network.Catalog{}, err
	}
	cat := c.work(o)
	c.at, c.last = at, &cat
	return cat, nil
}

// list reads all that is no single pod's.
func (c *Catalog) list(ctx context.Context, from client.Reader) (*objects, error) {
	o := &objects{}
	for _, list := range []client.ObjectList{&o.subnets, &o.vpcs, &o.vlans, &o.providerNetworks, &o.pools, &o.vips, &o.groups, &o.nodes} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	// Records of pods of ours are many, and no reservations.
	if err := from.List(ctx, &o.ips, client.UnsafeDisableDeepCopy, client.MatchingLabelsSelector{Selector: foreign()}); err != nil {
		return nil, fmt.Errorf("listing %T: %w", &o.ips, err)
	}
	var err error
	o.eips, err = c.eips(ctx, from)
	return o, err
}

// work makes the values of the objects. What has not changed keeps its value.
func (c *Catalog) work(o *objects) network.Catalog {
	cat := network.Catalog{Vpcs: byName(o.vpcs.Items), Vlans: byName(o.vlans.Items), ProviderNetworks: byName(o.providerNetworks.Items),
		Pools: byName(o.pools.Items), Vips: byName(o.vips.Items), SecurityGroups: make(map[string]bool, len(o.groups.Items)),
		Reservations: reservations(o.ips.Items)}
	cat.Nodes = make(map[string]map[string]string, len(o.nodes.Items))
	for i := range o.nodes.Items {
		cat.Nodes[o.nodes.Items[i].Name] = o.nodes.Items[i].Labels
	}
	for i := range o.groups.Items {
		cat.SecurityGroups[o.groups.Items[i].Name] = true
	}
	cat.Reserved = reservedAddresses(o, cat.Reservations)
	cat.Subnets = c.subnets(o, cat.Reserved)
	return cat
}

func byName[T any, P interface {
	*T
	client.Object
}](items []T) map[string]P {
	out := make(map[string]P, len(items))
	for i := range items {
		p := P(&items[i])
		out[p.GetName()] = p
	}
	return out
}

// reservations reads the IP objects that are none of ours.
func reservations(items []kubeovnv1.IP) map[string]network.Reservation {
	out := map[string]network.Reservation{}
	for i := range items {
		ip := &items[i]
		if _, ours := ip.Labels[network.ClaimKey]; ours || placed(ip) || ip.DeletionTimestamp != nil {
			continue
		}
		r := network.Reservation{Subnet: ip.Spec.Subnet, Addresses: addresses(ip.Spec.V4IPAddress, ip.Spec.V6IPAddress, ip.Spec.IPAddress)}
		if m, err := ipam.ParseMAC(ip.Spec.MacAddress); err == nil {
			r.MAC = m
		}
		if len(r.Addresses) > 0 {
			out[ip.Name] = r
		}
	}
	return out
}

// placed tells the record of an address of a node or a router: it is theirs, and nobody's reservation.
func placed(ip *kubeovnv1.IP) bool {
	return slices.ContainsFunc(ip.OwnerReferences, func(r metav1.OwnerReference) bool {
		return r.Kind == ipam.KindNode && ip.Name == nb.NodePortName(r.Name) ||
			r.Kind == ipam.KindSubnet && strings.HasPrefix(ip.Name, "u2o-interconnection.")
	})
}

// addresses gives those in the texts, each once, IPv4 first; what can't be read is left away.
func addresses(texts ...string) []netip.Addr {
	var out []netip.Addr
	for _, text := range texts {
		as, err := network.ParseAddresses(text)
		if err != nil {
			continue
		}
		for _, a := range as {
			if !slices.Contains(out, a) {
				out = append(out, a)
			}
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// subnets works out the subnets that have changed.
func (c *Catalog) subnets(o *objects, reserved map[string]map[netip.Addr]ipam.Owner) map[string]network.Subnet {
	pools := map[string][]*kubeovnv1.IPPool{}
	for i := range o.pools.Items {
		p := &o.pools.Items[i]
		pools[p.Spec.Subnet] = append(pools[p.Spec.Subnet], p)
	}
	out := make(map[string]network.Subnet, len(o.subnets.Items))
	for i := range o.subnets.Items {
		s := &o.subnets.Items[i]
		around := network.Around{Pools: pools[s.Name], Reserved: reserved[s.Name]}
		of := signature(s, around)
		w, ok := c.memo[s.Name]
		if !ok || w.of != of {
			w = worked{of: of, subnet: network.NewSubnet(s, around)}
			c.memo[s.Name] = w
		}
		out[s.Name] = w.subnet
	}
	for name := range c.memo {
		if _, ok := out[name]; !ok {
			delete(c.memo, name)
		}
	}
	return out
}

// reservedAddresses gives, by subnet, the addresses that are somebody's who is no pod.
func reservedAddresses(o *objects, reservations map[string]network.Reservation) map[string]map[netip.Addr]ipam.Owner {
	out := make(map[string]map[netip.Addr]ipam.Owner, len(o.subnets.Items))
	add := func(subnet string, owner ipam.Owner, as ...netip.Addr) {
		for _, a := range as {
			if out[subnet] == nil {
				out[subnet] = map[netip.Addr]ipam.Owner{}
			}
			if _, taken := out[subnet][a]; !taken {
				out[subnet][a] = owner
			}
		}
	}
	group := kubeovnv1.GroupVersion().Group
	for i := range o.vips.Items {
		v := &o.vips.Items[i]
		add(v.Spec.Subnet, ipam.Owner{Group: group, Kind: ipam.KindVip, Name: v.Name}, addresses(v.Status.V4IP, v.Status.V6IP)...)
	}
	for _, e := range o.eips {
		add(e.subnet, e.owner, addresses(e.texts...)...)
	}
	for name, r := range reservations {
		add(r.Subnet, ipam.Owner{Group: group, Kind: ipam.KindIP, Name: name}, r.Addresses...)
	}
	nodes := map[netip.Addr]string{}
	for i := range o.nodes.Items {
		for _, a := range o.nodes.Items[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				nodes[ip.Unmap()] = o.nodes.Items[i].Name
			}
		}
	}
	for i := range o.subnets.Items {
		s := &o.subnets.Items[i]
		add(s.Name, ipam.Owner{Group: group, Kind: ipam.KindSubnet, Name: s.Name}, addresses(s.Status.U2OInterconnectionIP)...)
		for _, p := range prefixes(s) {
			for a, node := range nodes {
				if p.Contains(a) {
					add(s.Name, ipam.Owner{Kind: ipam.KindNode, Name: node}, a)
				}
			}
		}
	}
	return out
}

func prefixes(s *kubeovnv1.Subnet) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range strings.Split(s.Spec.CIDRBlock, ",") {
		if p, err := netip.ParsePrefix(strings.TrimSpace(f)); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// signature changes with all that a subnet is worked out of.
func signature(s *kubeovnv1.Subnet, around network.Around) string {
	parts := []string{string(s.UID), s.ResourceVersion}
	for _, p := range around.Pools {
		parts = append(parts, p.Name+"@"+string(p.UID)+"@"+p.ResourceVersion)
	}
	for a, o := range around.Reserved {
		parts = append(parts, a.String()+"="+o.String())
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}
