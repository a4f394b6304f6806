package adopt

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/topology"
)

// broken tells all that stands against taking a pod over.
func (p *planner) broken(pod Pod, claim ipam.Claim) []string {
	out := pod.unfitBut(p.Catalog, p.serves, func(n network.CarriedInterface, a netip.Addr) ipam.Owner { return p.vipOf(pod, n, a) })
	if v, has := pod.Annotations[network.ClaimKey]; has {
		out = append(out, fmt.Sprintf("its annotation %s=%q is none that was written here: remove it", network.ClaimKey, v))
	}
	for _, n := range pod.Networks {
		if len(n.Addresses) == 0 && n.MAC == (ipam.MAC{}) {
			continue
		}
		for _, a := range n.Addresses {
			out = append(out, p.rivals(pod, n, a, claim)...)
		}
		out = append(out, p.macRivals(pod, n, claim)...)
		out = append(out, p.recordDiffers(pod, n)...)
	}
	for _, provider := range p.unattached(pod) {
		out = append(out, fmt.Sprintf("it asks for a network of provider %s, and has no annotation %s: wait until it has, or recreate it",
			provider, network.Key(provider, network.SuffixAddress)))
	}
	return out
}

// unfitBut is Unfit where addresses may be lent by more than the pod's own record.
func (p Pod) unfitBut(cat network.Catalog, serves func(network.Subnet) bool, lent func(network.CarriedInterface, netip.Addr) ipam.Owner) []string {
	reserved := map[string]bool{}
	for _, n := range p.Networks {
		set := cat.Subnets[n.Subnet].Set
		for _, a := range n.Addresses {
			if o := lent(n, a); set != nil && o != (ipam.Owner{}) && set.Check(a, o) == nil {
				if err := set.Check(a, ipam.Owner{}); err != nil {
					reserved[err.Error()] = true
				}
			}
		}
	}
	return slices.DeleteFunc(p.Unfit(cat, serves), func(why string) bool { return reserved[why] })
}

// shares tells that two pods are launchers of one virtual machine.
func (p Pod) shares(q Pod) bool { return p.Owner.Kind == network.KindVM && p.Owner == q.Owner }

func (p *planner) rivals(pod Pod, n network.CarriedInterface, a netip.Addr, claim ipam.Claim) (out []string) {
	for _, other := range p.users[spot{n.Subnet, a.String()}] {
		if other.UID != pod.UID && !pod.shares(other) {
			out = append(out, fmt.Sprintf("pod %s/%s has %s, too: delete one of the two", other.Namespace, other.Name, a))
		}
	}
	h, leased := p.at[spot{n.Subnet, a.String()}]
	if leased && h.Claim != claim && !p.lent(pod, n, a, h) {
		out = append(out, fmt.Sprintf("%s is leased to %s: kubectl berth who %s tells more", a, h.Owner, a))
	}
	return out
}

// lent tells that a lease is the reservation by which the pod has the address.
func (p *planner) lent(pod Pod, n network.CarriedInterface, a netip.Addr, h ipam.Held) bool {
	if !h.Owner.Reserves() {
		return false
	}
	record := ipam.Owner{Group: h.Owner.Group, Kind: ipam.KindIP, Name: network.PortName(pod.Identity, pod.Namespace, n.Provider)}
	return h.Owner == record || h.Owner == p.vipOf(pod, n, a)
}

func (p *planner) macRivals(pod Pod, n network.CarriedInterface, claim ipam.Claim) (out []string) {
	if s := p.Catalog.Subnets[n.Subnet]; n.MAC == (ipam.MAC{}) {
		if s.Set != nil && topology.IsOVN(s.Provider()) {
			out = append(out, fmt.Sprintf("it has no annotation %s: wait until it has, or recreate it", network.Key(n.Provider, network.SuffixMAC)))
		}
		return out
	}
	at := spot{p.domain(n.Subnet), n.MAC.String()}
	for _, other := range p.users[at] {
		if other.UID != pod.UID && !pod.shares(other) {
			out = append(out, fmt.Sprintf("pod %s/%s has MAC %s, too: delete one of the two", other.Namespace, other.Name, n.MAC))
		}
	}
	if h, leased := p.at[at]; leased && h.Claim != claim && !h.Owner.Reserves() {
		out = append(out, fmt.Sprintf("MAC %s is leased to %s: kubectl berth who %s tells more", n.MAC, h.Owner, n.MAC))
	}
	return out
}

// recordDiffers tells that the pod's IP record says something else than the pod.
func (p *planner) recordDiffers(pod Pod, n network.CarriedInterface) []string {
	ip := p.records[network.PortName(pod.Identity, pod.Namespace, n.Provider)]
	if ip == nil || len(n.Addresses) == 0 {
		return nil
	}
	have := recordAddresses(ip)
	if ip.Spec.Subnet == n.Subnet && slices.Equal(have, n.Addresses) {
		return nil
	}
	return []string{fmt.Sprintf("its IP record %s says %v of subnet %s, and its annotations say %v of %s: put the record right", ip.Name, have, ip.Spec.Subnet,
		n.Addresses, n.Subnet)}
}

// unattached are the providers of the networks that the pod asks for and has nothing of.
func (p *planner) unattached(pod Pod) (out []string) {
	for _, name := range selections(pod.Annotations[network.NetworksKey], pod.Namespace) {
		has, serving := false, ""
		for _, s := range p.Catalog.Subnets {
			provider := s.Provider()
			if provider != name && provider != name+"."+network.DefaultProvider {
				continue
			}
			serving = provider
			has = has || slices.ContainsFunc(pod.Networks, func(n network.CarriedInterface) bool {
				return n.Provider == provider || strings.HasPrefix(n.Provider, provider+".")
			})
		}
		if serving != "" && !has && !slices.Contains(out, serving) {
			out = append(out, serving)
		}
	}
	return out
}

// selections gives the attachments that a pod names, as "<name>.<namespace>". What can't be read names none.
func selections(text, namespace string) (out []string) {
	var list []struct{ Name, Namespace string }
	if strings.HasPrefix(strings.TrimSpace(text), "[") {
		if err := json.Unmarshal([]byte(text), &list); err != nil {
			return nil
		}
	} else {
		for item := range strings.SplitSeq(text, ",") {
			item, _, _ = strings.Cut(strings.TrimSpace(item), "@")
			ns, name, ok := strings.Cut(item, "/")
			if !ok {
				ns, name = "", item
			}
			list = append(list, struct{ Name, Namespace string }{name, ns})
		}
	}
	for _, s := range list {
		if s.Namespace == "" {
			s.Namespace = namespace
		}
		if s.Name != "" {
			out = append(out, s.Name+"."+s.Namespace)
		}
	}
	return out
}
