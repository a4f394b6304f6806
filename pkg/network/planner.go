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

// planner is one run of Plan.
type planner struct {
	pod  Pod
	ns   Namespace
	cat  Catalog
	cfg  Config
	out  *Planned
	errs field.ErrorList
	// from is the annotation that the asked values stand in, when it is not each value's own.
	from string
}

func (pl *planner) warn(format string, args ...any) {
	pl.out.Dropped = append(pl.out.Dropped, fmt.Sprintf(format, args...))
}

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }

// path is where a value that was asked for stands.
func (pl *planner) path(suffix string) *field.Path {
	if pl.from != "" {
		return annotationPath(pl.from).Child(DefaultProvider, suffix)
	}
	return annotationPath(Key(DefaultProvider, suffix))
}

func (pl *planner) invalid(suffix, value string, err error) {
	pl.errs = append(pl.errs, field.Invalid(pl.path(suffix), value, err.Error()))
}

// invalidOwn is for annotations that are never output and so always stand under their own key.
func (pl *planner) invalidOwn(suffix, value string, err error) {
	pl.errs = append(pl.errs, field.Invalid(annotationPath(Key(DefaultProvider, suffix)), value, err.Error()))
}

// asked gives what the user asked of the default network, by suffix: what RequestedKey keeps, else the annotations of
// a pod that carries no claim.
func (pl *planner) asked() map[string]string {
	an := pl.pod.Annotations
	claim, claimed := an[ClaimKey]
	if text, ok := an[RequestedKey]; ok {
		return pl.askedBefore(text)
	}
	if claimed {
		if _, ok := ipam.ParseClaim(claim); !ok {
			_, dropped := Strip(an)
			pl.warn("%s is %q, a copy's and no claim: these were ignored: %s", ClaimKey, claim, strings.Join(dropped, ", "))
		}
		return nil
	}
	out := map[string]string{}
	for _, s := range askable() {
		if v, ok := an[Key(DefaultProvider, s)]; ok {
			out[s] = v
		}
	}
	return out
}

// askable are the suffixes of what RequestedKey keeps.
func askable() []string { return []string{SuffixSubnet, SuffixAddress, SuffixMAC, SuffixNICType} }

func (pl *planner) askedBefore(text string) map[string]string {
	pl.from = RequestedKey
	all, err := parseRequested(text)
	if err != nil {
		pl.errs = append(pl.errs, field.Invalid(annotationPath(RequestedKey), text, err.Error()))
		return nil
	}
	for _, provider := range slices.Sorted(maps.Keys(all)) {
		if provider != DefaultProvider {
			pl.warn("%s names the network %q, which is not served: ignored", RequestedKey, provider)
		}
	}
	asked := all[DefaultProvider]
	if _, claimed := pl.pod.Annotations[ClaimKey]; claimed {
		return asked
	}
	for _, s := range askable() {
		key := Key(DefaultProvider, s)
		if v, ok := pl.pod.Annotations[key]; ok && v != asked[s] {
			pl.warn("%s=%q was ignored: %s says what is asked for", key, v, RequestedKey)
		}
	}
	return asked
}

// parse reads the asked values of the default network.
func (pl *planner) parse(asked map[string]string) Interface {
	i := Interface{Provider: DefaultProvider, NICType: strings.TrimSpace(asked[SuffixNICType])}
	var err error
	if text := asked[SuffixAddress]; text != "" {
		if i.Addresses, err = ParseAddresses(text); err != nil {
			pl.invalid(SuffixAddress, text, err)
		}
	}
	if text := strings.TrimSpace(asked[SuffixMAC]); text != "" {
		if i.MAC, err = ipam.ParseMAC(text); err != nil {
			pl.invalid(SuffixMAC, asked[SuffixMAC], err)
		}
	}
	pl.parseFamily(&i)
	for _, s := range []string{SuffixPool, SuffixVip} {
		if v := pl.pod.Annotations[Key(DefaultProvider, s)]; strings.TrimSpace(v) != "" {
			pl.invalidOwn(s, v, fmt.Errorf("not supported yet: remove it, and ask for an address by %s instead",
				Key(DefaultProvider, SuffixAddress)))
		}
	}
	return i
}

func (pl *planner) parseFamily(i *Interface) {
	text, ok := pl.pod.Annotations[Key(DefaultProvider, SuffixFamily)]
	if text = strings.TrimSpace(text); !ok || text == "" {
		return
	}
	f, err := ParseFamily(text)
	if err != nil {
		pl.invalidOwn(SuffixFamily, text, err)
		return
	}
	i.Families = []ipam.Family{f}
	for _, a := range i.Addresses {
		if ipam.FamilyOf(a) != f {
			pl.invalidOwn(SuffixFamily, text, fmt.Errorf("the address %s that is asked for is of the other family: remove one of the two", a))
		}
	}
}

// candidates chooses the subnets.
func (pl *planner) candidates(i *Interface, subnet string) {
	subnet = strings.TrimSpace(subnet)
	if subnet != "" {
		s, err := pl.usable(subnet)
		if err != nil {
			pl.invalid(SuffixSubnet, subnet, err)
			return
		}
		i.Candidates = []Subnet{s}
	} else {
		var why []string
		for _, name := range pl.names() {
			s, err := pl.usable(name)
			if err != nil {
				why = append(why, err.Error())
				continue
			}
			i.Candidates = append(i.Candidates, s)
		}
		for _, w := range why {
			pl.warn("%s: passed over", w)
		}
		if len(i.Candidates) == 0 {
			pl.errs = append(pl.errs, field.Invalid(field.NewPath("metadata", "namespace"), pl.ns.Name,
				fmt.Sprintf("no subnet serves this namespace (%s): mend one, bind one by its spec.namespaces, or name one by %s",
					strings.Join(why, "; "), Key(DefaultProvider, SuffixSubnet))))
			return
		}
	}
	pl.fit(i)
}

// fit keeps the candidates that have what is asked for.
func (pl *planner) fit(i *Interface) {
	have := slices.DeleteFunc(slices.Clone(i.Candidates), func(s Subnet) bool {
		return len(i.Families) > 0 && !slices.Contains(s.Set.Families(), i.Families[0])
	})
	if len(have) == 0 {
		text := pl.pod.Annotations[Key(DefaultProvider, SuffixFamily)]
		pl.invalidOwn(SuffixFamily, text, &ipam.FamilyError{Subnet: names(i.Candidates), Family: i.Families[0]})
		return
	}
	i.Candidates = have
	if len(i.Addresses) == 0 {
		return
	}
	var fitting []Subnet
	var errs []error
	for _, s := range have {
		if err := check(s.Set, i.Addresses); err != nil {
			errs = append(errs, err)
			continue
		}
		fitting = append(fitting, s)
	}
	if len(fitting) == 0 {
		for _, err := range errs {
			pl.invalid(SuffixAddress, join(i.Addresses), err)
		}
		return
	}
	i.Candidates = fitting
}

func check(s *ipam.Subnet, addresses []netip.Addr) error {
	for _, a := range addresses {
		if err := s.Check(a, ipam.Owner{}); err != nil {
			return err
		}
	}
	return nil
}

func names(subnets []Subnet) string {
	out := make([]string, len(subnets))
	for i, s := range subnets {
		out[i] = s.Object.Name
	}
	return strings.Join(out, ", ")
}

// usable gives a subnet that pods of the default network can be put into now.
func (pl *planner) usable(name string) (Subnet, error) {
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
	case s.Provider() != DefaultProvider:
		return Subnet{}, fmt.Errorf("subnet %q serves the network %q and not pods' default network: name another", name, s.Provider())
	}
	if vpc := s.Object.Spec.Vpc; vpc != "" && vpc != pl.cfg.ClusterRouter && pl.cat.Vpcs[vpc] == nil {
		return Subnet{}, fmt.Errorf("subnet %q is in the VPC %q, which does not exist: make it, or name another subnet", name, vpc)
	}
	if vlan := s.Object.Spec.Vlan; vlan != "" && pl.cat.Vlans[vlan] == nil {
		return Subnet{}, fmt.Errorf("subnet %q is on the Vlan %q, which does not exist: make it, or name another subnet", name, vlan)
	}
	return s, nil
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
