package adopt

import (
	"encoding/json"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// The API groups of StatefulSets, as Kube-OVN has them.
const (
	kindStatefulSet = "StatefulSet"
	groupApps       = "apps"
	groupKruise     = "apps.kruise.io"
	groupKubeVirt   = "kubevirt.io"
)

func recordAddresses(ip *kubeovnv1.IP) []netip.Addr { return facts.Record(ip).Addresses }

// record plans one IP record that the pods' path has made: that of a pod, or of one that is to come back.
func (p *planner) record(ip *kubeovnv1.IP) error {
	if ip.Labels[facts.LabelClaim] != "" || facts.Reservation(ip) || len(ip.OwnerReferences) > 0 || ip.DeletionTimestamp != nil {
		return nil
	}
	if !p.meant(ip.Spec.Namespace, []string{ip.Spec.Subnet}) {
		return nil
	}
	if pod, ok := p.byName[ip.Name]; ok {
		if claim := p.claims[string(pod.UID)]; claim != "" {
			p.out.Records = append(p.out.Records, RecordStep{Record: ip, Claim: claim, PodUID: string(pod.UID)})
		}
		return nil
	}
	owner, answer := p.absent(ip)
	switch {
	case owner == (ipam.Owner{}) || answer == lifecycle.No:
		p.skip("IP", ip.Spec.Namespace, ip.Name, "nobody comes back to it: kube-ovn-controller deletes it, else do that yourself")
		return nil
	case answer == lifecycle.Unknown:
		p.problem("IP", ip.Spec.Namespace, ip.Name, "it can't be found out whether %s still wants it: see that you may read that", owner)
		return nil
	}
	return p.keep(ip, owner)
}

// absent tells who comes back to a record without a pod.
func (p *planner) absent(ip *kubeovnv1.IP) (ipam.Owner, lifecycle.Answer) {
	owner := ipam.Owner{Kind: ip.Spec.PodType, Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName}
	groups := []string{groupApps, groupKruise}
	switch ip.Spec.PodType {
	case kindStatefulSet:
	case network.KindVM:
		groups = []string{groupKubeVirt}
	default:
		return ipam.Owner{}, lifecycle.No
	}
	best := lifecycle.No
	found := owner
	found.Group = groups[0]
	for _, g := range groups {
		owner.Group = g
		switch a := p.Keeps(ipam.Held{Subnet: ip.Spec.Subnet, Lease: ipam.Lease{Owner: owner, Provider: providerOf(ip)}}); {
		case a == lifecycle.Yes:
			return owner, a
		case a == lifecycle.Unknown && g != groupKruise: // that kind is rarely served at all
			found, best = owner, a
		}
	}
	return found, best
}

// providerOf reads a record's network from its name.
func providerOf(ip *kubeovnv1.IP) string {
	if provider, ok := strings.CutPrefix(ip.Name, network.PortName(ip.Spec.PodName, ip.Spec.Namespace, network.DefaultProvider)+"."); ok {
		return provider
	}
	return network.DefaultProvider
}

// keep plans the lease of a pod that is to come back.
func (p *planner) keep(ip *kubeovnv1.IP, owner ipam.Owner) error {
	s := p.Catalog.Subnets[ip.Spec.Subnet]
	have := facts.Record(ip)
	if !p.serves(s) || len(have.Addresses) == 0 {
		p.problem("IP", ip.Spec.Namespace, ip.Name, "its subnet %q can't be used, or it has no address: put that right, or delete it", ip.Spec.Subnet)
		return nil
	}
	claim, err := p.stickyClaim(owner)
	if err != nil {
		return err
	}
	own := ipam.Owner{Group: kubeovnv1.GroupVersion().Group, Kind: ipam.KindIP, Name: ip.Name}
	for _, a := range have.Addresses {
		h, leased := p.at[spot{ip.Spec.Subnet, a.String()}]
		users := p.users[spot{ip.Spec.Subnet, a.String()}]
		err := s.Set.Check(a, own)
		switch {
		case err != nil:
			p.problem("IP", ip.Spec.Namespace, ip.Name, "%v", err)
			return nil
		case len(users) > 0:
			p.problem("IP", ip.Spec.Namespace, ip.Name, "pod %s/%s has %s: delete that pod, or the record", users[0].Namespace, users[0].Name, a)
			return nil
		case leased && h.Claim != claim && h.Owner != own:
			p.problem("IP", ip.Spec.Namespace, ip.Name, "%s is leased to %s: delete the record, or that", a, h.Owner)
			return nil
		}
	}
	p.use(ip.Spec.Namespace, []string{ip.Spec.Subnet})
	p.held = append(p.held, lifecycle.Claimant{Namespace: ip.Spec.Namespace, Name: ip.Spec.PodName, Identity: ip.Spec.PodName, Claim: claim, Owner: owner,
		Holdings: []lifecycle.Holding{{Provider: providerOf(ip), Subnet: ip.Spec.Subnet, Addresses: have.Addresses, MAC: have.MAC}}})
	p.out.Records = append(p.out.Records, RecordStep{Record: ip, Claim: claim})
	return nil
}

// stickyClaim is the claim under which an owner has leases, or is to have them.
func (p *planner) stickyClaim(o ipam.Owner) (ipam.Claim, error) {
	if claim := p.sticky[o]; claim != "" {
		return claim, nil
	}
	claim, err := p.Draw()
	if err != nil {
		return "", err
	}
	p.sticky[o] = claim
	return claim, nil
}

// lease plans the leases of all that is taken over.
func (p *planner) lease() {
	made := map[spot]ipam.Held{} // reservations that give way
	var leases []ipam.Held
	mine := map[spot]ipam.Claim{}
	for _, c := range p.held {
		for _, h := range c.Holdings {
			for _, a := range h.Addresses {
				mine[spot{h.Subnet, a.String()}] = c.Claim
			}
		}
	}
	for _, h := range p.Leases {
		at := spot{h.Subnet, h.Address.String()}
		if claim := mine[at]; claim != "" && claim != h.Claim && h.Owner.Reserves() {
			made[at] = h
			continue
		}
		leases = append(leases, h)
	}
	plan := lifecycle.Rebuild(lifecycle.Loss{Pods: p.held, Leases: leases})
	for _, x := range plan.Restore {
		if x.Lease.PodUID == "" { // the pod is absent
			x.Lease.PodName = ""
		}
		x.Lease.Under = p.under[x.Lease.Claim][x.Lease.Address]
		if old, ok := made[spot{x.Subnet, x.Lease.Address.String()}]; ok {
			p.out.Leases.Replace = append(p.out.Leases.Replace, lifecycle.Replaced{Old: old, New: x.Lease})
			continue
		}
		p.out.Leases.Restore = append(p.out.Leases.Restore, x)
	}
	for _, c := range plan.Conflicts {
		p.problem("Pod", c.Namespace, c.Pod, "%s", c.Detail)
	}
}

// reserve plans the leases of who is no pod, in the subnets that are taken over.
func (p *planner) reserve() error {
	if p.Scope.Namespace == "" {
		for name, s := range p.Catalog.Subnets {
			if p.serves(s) && (p.Scope.Subnet == "" || p.Scope.Subnet == name) && (len(p.Catalog.Reserved[name]) > 0 || p.Scope.Subnet == name) {
				p.use("", []string{name})
			}
		}
	}
	taken := map[spot]bool{}
	for _, x := range p.out.Leases.Restore {
		taken[spot{x.Subnet, x.Lease.Address.String()}] = true
	}
	for _, x := range p.out.Leases.Replace {
		taken[spot{x.Old.Subnet, x.New.Address.String()}] = true
	}
	slices.Sort(p.out.Subnets)
	for _, name := range p.out.Subnets {
		reserved := p.Catalog.Reserved[name]
		for _, a := range slices.SortedFunc(maps.Keys(reserved), netip.Addr.Compare) {
			o, at := reserved[a], spot{name, a.String()}
			_, leased := p.at[at]
			if leased || taken[at] || p.Catalog.Subnets[name].Set.Check(a, o) != nil {
				continue
			}
			if i := slices.IndexFunc(p.users[at], func(pod Pod) bool { return !p.lends(o, pod) }); i >= 0 {
				if !slices.ContainsFunc(p.out.Problems, func(x Problem) bool { return x.Kind == o.Kind && x.Name == o.Name }) {
					p.problem(o.Kind, "", o.Name, "pod %s/%s has %s: delete that pod, or this", p.users[at][i].Namespace, p.users[at][i].Name, a)
				}
				continue
			}
			claim, err := p.stickyClaim(o)
			if err != nil {
				return err
			}
			p.out.Leases.Restore = append(p.out.Leases.Restore,
				lifecycle.Restored{Subnet: name, Lease: ipam.Lease{Address: a, Claim: claim, Owner: o, Requested: true}})
		}
	}
	return nil
}

// lends tells that a pod has an address by the object that reserves it: its own record, or the Vip that it names.
func (p *planner) lends(o ipam.Owner, pod Pod) bool {
	switch o.Kind {
	case ipam.KindIP:
		return p.byName[o.Name].Pod != nil && p.byName[o.Name].UID == pod.UID
	case ipam.KindVip:
		return slices.ContainsFunc(pod.Networks, func(n network.CarriedInterface) bool {
			return pod.Annotations[network.Key(n.Provider, network.SuffixVip)] == o.Name
		})
	}
	return false
}

// kubeOVN begins the names under which Kube-OVN's programs write.
const kubeOVN = "kube-ovn"

// written are the annotations of a pod that neither Kube-OVN nor we wrote: the API server remembers who did.
func written(p *corev1.Pod) map[string]bool {
	out := map[string]bool{}
	for _, f := range p.ManagedFields {
		if f.FieldsV1 == nil || strings.HasPrefix(f.Manager, kubeOVN) || strings.HasPrefix(f.Manager, "kubectl-berth") || strings.HasPrefix(f.Manager, "berth") {
			continue
		}
		var fields struct {
			Metadata struct {
				Annotations map[string]json.RawMessage `json:"f:annotations"`
			} `json:"f:metadata"`
		}
		if err := json.Unmarshal(f.FieldsV1.GetRawBytes(), &fields); err != nil {
			continue
		}
		for name := range fields.Metadata.Annotations {
			out[strings.TrimPrefix(name, "f:")] = true
		}
	}
	return out
}

// Requested tells by network what the pod's user asked for. Its annotations alone can't tell: Kube-OVN writes its answer
// in the same keys. But it is not who wrote them first.
func Requested(p *corev1.Pod) map[string]map[string]string {
	out := map[string]map[string]string{}
	for key := range written(p) {
		provider, suffix, ok := network.SplitKey(key)
		asks := suffix == network.SuffixAddress || suffix == network.SuffixMAC || suffix == network.SuffixSubnet || suffix == network.SuffixNICType
		if value := strings.TrimSpace(p.Annotations[key]); ok && asks && value != "" {
			if out[provider] == nil {
				out[provider] = map[string]string{}
			}
			out[provider][suffix] = value
		}
	}
	return out
}

func requestedValue(asked map[string]map[string]string) string {
	if len(asked) == 0 {
		return ""
	}
	text, err := json.Marshal(asked)
	if err != nil { // maps of strings can always be written
		return ""
	}
	return string(text)
}
