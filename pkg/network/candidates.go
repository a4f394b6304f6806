package network

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// candidates chooses the subnets, and the pools in them.
func (pl *planner) candidates(n *net, i *Interface, pool string) {
	subnets, ok := pl.subnets(n, pool)
	if !ok {
		return
	}
	for _, s := range subnets {
		i.Candidates = append(i.Candidates, Candidate{Subnet: s, Pool: pool})
	}
	if pool == "" && len(i.Choices) == 0 && n.provider == DefaultProvider {
		pl.namespacePools(i)
	}
	for _, c := range i.Candidates {
		if err := c.PoolErrs[c.Pool]; c.Pool != "" && err != nil {
			pl.warn("IPPool %s: spec.ips: %v: left out", c.Pool, err)
		}
	}
	before := len(pl.errs)
	pl.fitFamily(n, i)
	pl.fitChoices(n, i)
	if len(pl.errs) == before && n.provider == DefaultProvider {
		pl.fitList(n, i)
		pl.unrouted(i)
	}
}

// subnets gives the usable subnets in order; false when there is none, which is noted.
func (pl *planner) subnets(n *net, pool string) ([]Subnet, bool) {
	name := strings.TrimSpace(n.asked[SuffixSubnet])
	if name == "" && n.provider != n.base {
		name = strings.TrimSpace(pl.pod.Annotations[Key(n.base, SuffixSubnet)])
	}
	if pool != "" {
		p := pl.cat.Pools[pool]
		var err error
		switch {
		case p == nil:
			err = fmt.Errorf("there is no IPPool %q: make it, name another, or list addresses", pool)
		case p.DeletionTimestamp != nil:
			err = fmt.Errorf("IPPool %q is being deleted: name another", pool)
		case name != "" && name != p.Spec.Subnet:
			err = fmt.Errorf("IPPool %q is in subnet %s, and %s is asked for: keep one of the two", pool, p.Spec.Subnet, name)
		}
		if err != nil {
			pl.invalidOwn(n, SuffixPool, pool, err)
			return nil, false
		}
		s, err := pl.usable(n, p.Spec.Subnet)
		if err != nil {
			pl.invalidOwn(n, SuffixPool, pool, err)
			return nil, false
		}
		return []Subnet{s}, true
	}
	if name != "" {
		s, err := pl.usable(n, name)
		if err != nil {
			pl.invalid(n, SuffixSubnet, name, err)
			return nil, false
		}
		return []Subnet{s}, true
	}
	return pl.listed(n)
}

// listed gives the usable ones of the subnets that serve a pod which names none.
func (pl *planner) listed(n *net) ([]Subnet, bool) {
	names := pl.names()
	if n.base != DefaultProvider {
		names = pl.serving(n.base)
		if len(names) == 0 {
			pl.errs = append(pl.errs, field.Invalid(annotationPath(NetworksKey), n.selection.String(), fmt.Sprintf(
				"no subnet has spec.provider %q, which is the network's: make one", n.base)))
			return nil, false
		}
	}
	var out []Subnet
	var why []string
	for _, name := range names {
		s, err := pl.usable(n, name)
		if err != nil {
			why = append(why, err.Error())
			continue
		}
		out = append(out, s)
	}
	for _, w := range why {
		pl.warn("%s: passed over", w)
	}
	if len(out) == 0 {
		pl.errs = append(pl.errs, field.Invalid(field.NewPath("metadata", "namespace"), pl.ns.Name,
			fmt.Sprintf("no subnet serves this namespace (%s): mend one, bind one by its spec.namespaces, or name one by %s",
				strings.Join(why, "; "), Key(n.provider, SuffixSubnet))))
		return nil, false
	}
	return out, true
}

// serving lists the subnets of a provider, by name.
func (pl *planner) serving(provider string) []string {
	var out []string
	for _, name := range slices.Sorted(maps.Keys(pl.cat.Subnets)) {
		if pl.cat.Subnets[name].Provider() == provider {
			out = append(out, name)
		}
	}
	return out
}

// namespacePools narrows the candidates to the pools that are there for the namespace: from pool to pool, but never to
// what belongs to none. Pools of other subnets don't count.
func (pl *planner) namespacePools(i *Interface) {
	var out []Candidate
	for _, c := range i.Candidates {
		for _, name := range c.Pools {
			if p := pl.cat.Pools[name]; p != nil && p.DeletionTimestamp == nil && slices.Contains(p.Spec.Namespaces, pl.ns.Name) {
				out = append(out, Candidate{Subnet: c.Subnet, Pool: name})
			}
		}
	}
	if len(out) > 0 {
		i.Candidates = out
	}
}

// fitFamily keeps the candidates that have the family that is asked for.
func (pl *planner) fitFamily(n *net, i *Interface) {
	if len(i.Families) == 0 {
		return
	}
	f := i.Families[0]
	have := slices.DeleteFunc(slices.Clone(i.Candidates), func(c Candidate) bool { return !slices.Contains(c.Set.Families(), f) })
	if len(have) == 0 {
		pl.invalidOwn(n, SuffixFamily, pl.input(n, SuffixFamily), &ipam.FamilyError{Subnet: names(i.Candidates), Family: f})
	}
	i.Candidates = have
}

// fitChoices keeps the candidates that have one of the choices, and tells of choices that none has.
func (pl *planner) fitChoices(n *net, i *Interface) {
	if len(i.Choices) == 0 || len(i.Candidates) == 0 {
		return
	}
	fitting := make([]bool, len(i.Candidates))
	for _, choice := range i.Choices {
		var why []error
		fits := false
		for k, c := range i.Candidates {
			if err := check(c.Set, choice, i.Reservation); err != nil {
				why = append(why, err)
				continue
			}
			fitting[k], fits = true, true
		}
		if !fits {
			pl.misfit(n, i, choice, why)
		}
	}
	var out []Candidate
	for k, c := range i.Candidates {
		if fitting[k] {
			out = append(out, c)
		}
	}
	i.Candidates = out
}

func (pl *planner) misfit(n *net, i *Interface, choice []netip.Addr, why []error) {
	for _, err := range why {
		switch {
		case i.Reservation.Kind == ipam.KindVip:
			pl.invalidOwn(n, SuffixVip, i.Reservation.Name, err)
		case i.Reservation.Kind == ipam.KindIP && n.asked[SuffixAddress] == "":
			pl.errs = append(pl.errs, field.Invalid(field.NewPath("metadata", "name"), pl.pod.Name, fmt.Sprintf(
				"the IP %s reserves an address for this pod that it can't have: %v: mend or delete the IP", i.Reservation.Name, err)))
		case len(i.Choices) > 1 || n.asked[SuffixAddress] == "":
			pl.invalidOwn(n, SuffixPool, join(choice), err)
		default:
			pl.invalid(n, SuffixAddress, join(choice), err)
		}
	}
}

// fitList tells of a value of ip_pool that the nodes' daemon doesn't take in a subnet that the pod may come to. It looks at
// that of the default network again, beside the subnet's CIDR, and would never plug the pod in.
func (pl *planner) fitList(n *net, i *Interface) {
	text := pl.pod.Annotations[Key(n.provider, SuffixPool)]
	if text == "" {
		return
	}
	if bad := slices.DeleteFunc(slices.Clone(i.Candidates), func(c Candidate) bool { return daemonTakes(text, c.Set) }); len(bad) > 0 {
		pl.invalidOwn(n, SuffixPool, text, fmt.Errorf("the nodes' daemon wants an address of subnet %s between any two semicolons, without blanks and mask: "+
			"leave empty entries away, and list single addresses of several subnets by commas", names(bad)))
	}
}

// daemonTakes tells whether the nodes' daemon takes a value of ip_pool in a subnet. What is no list is a pool's name to it.
func daemonTakes(text string, s *ipam.Subnet) bool {
	if _, err := netip.ParseAddr(text); err != nil && !strings.ContainsAny(text, ",;") {
		return true
	}
	for entry := range strings.SplitSeq(text, ";") {
		if !daemonFinds(entry, s) {
			return false
		}
	}
	return true
}

// daemonFinds tells whether the nodes' daemon finds an address of the subnet in an entry: it stops at the first, unless
// something stands before it that is no address. One with blanks around it is an address, and in no subnet.
func daemonFinds(entry string, s *ipam.Subnet) bool {
	for word := range strings.SplitSeq(entry, ",") {
		a, err := netip.ParseAddr(strings.TrimSpace(word))
		if err != nil {
			return false
		}
		prefix, ok := s.Prefix(ipam.FamilyOf(a.Unmap()))
		if ok && prefix.Contains(a.Unmap()) && word == strings.TrimSpace(word) {
			return true
		}
	}
	return false
}

func check(s *ipam.Subnet, addresses []netip.Addr, reservation ipam.Owner) error {
	for _, a := range addresses {
		if err := s.Check(a, reservation); err != nil {
			return err
		}
	}
	return nil
}

func names(candidates []Candidate) string {
	var out []string
	for _, c := range candidates {
		if !slices.Contains(out, c.Object.Name) {
			out = append(out, c.Object.Name)
		}
	}
	return strings.Join(out, ", ")
}

// usable gives a subnet that the network can take from now.
func (pl *planner) usable(n *net, name string) (Subnet, error) {
	s, ok := pl.cat.Subnets[name]
	switch {
	case !ok:
		return Subnet{}, fmt.Errorf("subnet %q does not exist: name one of those that `kubectl get subnets` lists", name)
	case name == pl.cfg.NodeSwitch:
		return Subnet{}, fmt.Errorf("subnet %q is the nodes' own: name another", name)
	case s.Err != nil:
		return Subnet{}, s.Err
	case s.Object.DeletionTimestamp != nil:
		return Subnet{}, fmt.Errorf("subnet %q is being deleted: name another", name)
	case s.Provider() != n.base:
		return Subnet{}, fmt.Errorf("subnet %q serves the network %q and not %q: name another", name, s.Provider(), n.base)
	case s.Object.Annotations[RestrictedKey] == "true" && !pl.bound(s):
		return Subnet{}, fmt.Errorf("subnet %q is restricted by %s to the namespaces that it is bound to: name another", name, RestrictedKey)
	}
	if err := fits("the subnet's name is a label of its records", name, maxLabel); err != nil {
		return Subnet{}, err
	}
	if n.ipamOnly {
		return s, nil
	}
	if vpc := s.Object.Spec.Vpc; vpc != "" && vpc != pl.cfg.ClusterRouter && pl.cat.Vpcs[vpc] == nil {
		return Subnet{}, fmt.Errorf("subnet %q is in the VPC %q, which does not exist: make it, or name another subnet", name, vpc)
	}
	return s, pl.usableVlan(s)
}

// usableVlan checks what an underlay subnet stands on.
func (pl *planner) usableVlan(s Subnet) error {
	name := s.Object.Spec.Vlan
	if name == "" {
		return nil
	}
	vlan := pl.cat.Vlans[name]
	if vlan == nil {
		return fmt.Errorf("subnet %q is on the Vlan %q, which does not exist: make it, or name another subnet", s.Object.Name, name)
	}
	if p := vlan.Spec.Provider; p == "" || pl.cat.ProviderNetworks[p] == nil {
		return fmt.Errorf("subnet %q is on the Vlan %q of the ProviderNetwork %q, which does not exist: make it, or name another subnet", s.Object.Name, name, p)
	}
	return pl.reachable(s)
}

// names lists the subnets for a pod that names none, in order.
func (pl *planner) names() []string {
	var out []string
	add := func(names ...string) {
		for _, n := range names {
			if n != "" && !slices.Contains(out, n) {
				out = append(out, n)
			}
		}
	}
	if pl.ns.Name != metav1.NamespaceSystem {
		for _, name := range slices.Sorted(maps.Keys(pl.cat.Vpcs)) {
			if v := pl.cat.Vpcs[name]; name != pl.cfg.ClusterRouter && slices.Contains(v.Spec.Namespaces, pl.ns.Name) {
				add(defaultOf(v))
			}
		}
	}
	add(tokens(pl.ns.Annotations[Key(DefaultProvider, SuffixSubnet)])...)
	for _, name := range slices.Sorted(maps.Keys(pl.cat.Subnets)) {
		if s := pl.cat.Subnets[name]; s.Provider() == DefaultProvider && pl.bound(s) {
			add(name)
		}
	}
	if len(out) > 0 {
		return out
	}
	if v := pl.cat.Vpcs[pl.cfg.ClusterRouter]; v != nil && defaultOf(v) != "" {
		return []string{defaultOf(v)}
	}
	return []string{pl.cfg.DefaultSubnet}
}

func defaultOf(v *kubeovnv1.Vpc) string {
	if v.Spec.DefaultSubnet != "" {
		return v.Spec.DefaultSubnet
	}
	return v.Status.DefaultLogicalSwitch
}

// bound tells whether the subnet is there for the namespace.
func (pl *planner) bound(s Subnet) bool {
	if s.Object == nil {
		return false
	}
	if slices.Contains(s.Object.Spec.Namespaces, pl.ns.Name) {
		return true
	}
	for i := range s.Object.Spec.NamespaceSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&s.Object.Spec.NamespaceSelectors[i])
		if err != nil {
			pl.warn("subnet %s: spec.namespaceSelectors[%d] can't be read and was ignored: %v", s.Object.Name, i, err)
			continue
		}
		if sel.Matches(labels.Set(pl.ns.Labels)) {
			return true
		}
	}
	return false
}
