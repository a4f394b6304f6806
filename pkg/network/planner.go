package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
)

// planner is one run of Plan.
type planner struct {
	pod       Pod
	ns        Namespace
	cat       Catalog
	cfg       Config
	out       *Planned
	errs      field.ErrorList
	requested map[string]map[string]string // what RequestedKey keeps, by provider and suffix
	given     map[string]bool              // providers of networks that the pod has already and that stay what they are
}

func (pl *planner) warn(format string, args ...any) {
	pl.out.Dropped = append(pl.out.Dropped, fmt.Sprintf(format, args...))
}

func annotationPath(key string) *field.Path { return field.NewPath("metadata", "annotations").Key(key) }

// path is where a value that was asked for a network stands.
func (n *net) path(suffix string) *field.Path {
	switch at := n.at[suffix]; at {
	case "":
	case NetworksKey:
		return annotationPath(at).Key(n.selection.String())
	default:
		return annotationPath(at)
	}
	if n.from != "" && n.own[suffix] != "" {
		return annotationPath(n.from).Child(n.provider, suffix)
	}
	return annotationPath(Key(n.provider, suffix))
}

func (pl *planner) invalid(n *net, suffix, value string, err error) {
	pl.errs = append(pl.errs, field.Invalid(n.path(suffix), value, err.Error()))
}

// invalidOwn is for annotations that are never output and so always stand under their own key.
func (pl *planner) invalidOwn(n *net, suffix, value string, err error) {
	pl.errs = append(pl.errs, field.Invalid(annotationPath(Key(n.provider, suffix)), value, err.Error()))
}

// input is an annotation of the network that is never output.
func (pl *planner) input(n *net, suffix string) string {
	return strings.TrimSpace(pl.pod.Annotations[Key(n.provider, suffix)])
}

// nicTypes are the kinds of network interfaces that Kube-OVN's node daemon knows.
func nicTypes() []string {
	return []string{"veth-pair", "internal-port", "offload-port", "dpdk-port", "sriov"}
}

// plan works out one network. Its errors are noted.
func (pl *planner) plan(n *net) Interface {
	i := Interface{Provider: n.provider, IPAMOnly: n.ipamOnly, NICType: strings.TrimSpace(n.asked[SuffixNICType])}
	var err error
	var static []netip.Addr
	if n.ipamOnly {
		pl.unmade(n)
	}
	if i.NICType != "" && !slices.Contains(nicTypes(), i.NICType) {
		pl.invalid(n, SuffixNICType, n.asked[SuffixNICType], fmt.Errorf("it is none of %s", strings.Join(nicTypes(), ", ")))
	}
	if text := n.asked[SuffixAddress]; text != "" {
		if static, err = ParseAddresses(text); err != nil {
			pl.invalid(n, SuffixAddress, text, err)
		}
	}
	if text := strings.TrimSpace(n.asked[SuffixMAC]); text != "" {
		if i.MAC, err = ipam.ParseMAC(text); err != nil {
			pl.invalid(n, SuffixMAC, n.asked[SuffixMAC], err)
		}
	}
	if len(static) > 0 {
		i.Choices = [][]netip.Addr{static}
	}
	pl.family(n, &i)
	before := len(pl.errs)
	pool := pl.choose(n, &i)
	pl.familyOfChoices(n, &i)
	if len(pl.errs) == before {
		pl.candidates(n, &i, pool)
	}
	if vm := pl.out.Owner; vm.Kind == KindVM && !n.ipamOnly {
		i.VM = vm.Name
	}
	return i
}

// unmade warns of what is asked of an interface that another CNI makes.
func (pl *planner) unmade(n *net) {
	for _, suffix := range []string{SuffixMAC, SuffixNICType} {
		if v := strings.TrimSpace(n.own[suffix]); v != "" {
			pl.warn("%s=%q was ignored: another CNI plugs the pod into the network %s", Key(n.provider, suffix), v, n.provider)
		}
	}
}

// family reads ip_family, with the blanks around it: the nodes' daemon takes none.
func (pl *planner) family(n *net, i *Interface) {
	text := pl.pod.Annotations[Key(n.provider, SuffixFamily)]
	if text == "" {
		return
	}
	f, err := ParseFamily(text)
	if err != nil {
		pl.invalidOwn(n, SuffixFamily, text, err)
		return
	}
	i.Families = []ipam.Family{f}
	for _, choice := range i.Choices {
		for _, a := range choice {
			if ipam.FamilyOf(a) != f {
				pl.invalidOwn(n, SuffixFamily, text, fmt.Errorf("the address %s that is asked for is of the other family: remove one of the two", a))
			}
		}
	}
}

// familyOfChoices tells of choices that have nothing of the family that is asked for: in their place nothing else is
// given.
func (pl *planner) familyOfChoices(n *net, i *Interface) {
	if len(i.Families) == 0 || n.asked[SuffixAddress] != "" {
		return
	}
	suffix := SuffixPool
	if i.Reservation.Kind == ipam.KindVip {
		suffix = SuffixVip
	}
	for _, choice := range i.Choices {
		if !ofFamily(choice, i.Families[0]) {
			pl.invalidOwn(n, SuffixFamily, pl.input(n, SuffixFamily), fmt.Errorf("%s asks for %s, of the other family: remove one of the two",
				Key(n.provider, suffix), join(choice)))
			return
		}
	}
}

func ofFamily(addresses []netip.Addr, f ipam.Family) bool {
	return slices.ContainsFunc(addresses, func(a netip.Addr) bool { return ipam.FamilyOf(a) == f })
}

// choose reads what addresses are asked for besides ip_address: a Vip's, a list's, a reservation's. It returns the name
// of the pool that is asked for.
func (pl *planner) choose(n *net, i *Interface) (pool string) {
	vip, list := pl.input(n, SuffixVip), pl.input(n, SuffixPool)
	static := len(i.Choices) > 0
	switch {
	case vip != "" && n.provider == DefaultProvider:
		if static || list != "" {
			pl.invalidOwn(n, SuffixVip, vip, fmt.Errorf("an address is asked for by %s or %s, too: keep one of them",
				Key(n.provider, SuffixAddress), Key(n.provider, SuffixPool)))
			return ""
		}
		pl.vip(n, i, vip)
	case list != "":
		if static {
			pl.warn("%s=%q was ignored: %s names an address", Key(n.provider, SuffixPool), list, Key(n.provider, SuffixAddress))
			return ""
		}
		return pl.pool(n, i, list)
	default:
		pl.reservation(n, i)
	}
	return ""
}

// vip asks for a Vip's address.
func (pl *planner) vip(n *net, i *Interface, name string) {
	v := pl.cat.Vips[name]
	var err error
	switch {
	case v == nil:
		err = fmt.Errorf("there is no Vip %q: make it, or name another", name)
	case v.DeletionTimestamp != nil:
		err = fmt.Errorf("the Vip %q is being deleted: name another", name)
	case v.Spec.Namespace != "" && v.Spec.Namespace != pl.pod.Namespace:
		err = fmt.Errorf("the Vip %q is for namespace %s: name one of this namespace", name, v.Spec.Namespace)
	case v.Spec.Type != "":
		err = fmt.Errorf("the Vip %q is of type %s, which no pod can use: name another", name, v.Spec.Type)
	}
	if err == nil {
		var as []netip.Addr
		if as, err = ParseAddresses(v.Status.V4IP + "," + v.Status.V6IP); err == nil && len(as) == 0 {
			err = fmt.Errorf("the Vip %q has no address yet: wait until its status has one", name)
		}
		i.Choices = [][]netip.Addr{as}
	}
	if err == nil {
		err = fits(Key(n.provider, SuffixVip)+" marks the Vip with the port's name", pl.portName(n.provider), maxLabel)
	}
	if err != nil {
		pl.invalidOwn(n, SuffixVip, name, err)
		return
	}
	i.Reservation = ipam.Owner{Group: kubeOVNGroup, Kind: ipam.KindVip, Name: name}
	if s := strings.TrimSpace(n.asked[SuffixSubnet]); s != "" && s != v.Spec.Subnet {
		pl.invalidOwn(n, SuffixVip, name, fmt.Errorf("the Vip %q is in subnet %s, and %s is asked for: keep one of the two", name, v.Spec.Subnet, s))
	}
	n.asked = with(n.asked, SuffixSubnet, v.Spec.Subnet)
}

// reservation asks for the address of the IP object that was made for this very pod before it.
func (pl *planner) reservation(n *net, i *Interface) {
	if pl.pod.Name == "" {
		return
	}
	r, ok := pl.cat.Reservations[pl.portName(n.provider)]
	if !ok || len(r.Addresses) == 0 {
		return
	}
	owner := ipam.Owner{Group: kubeOVNGroup, Kind: ipam.KindIP, Name: pl.portName(n.provider)}
	if len(i.Choices) > 0 {
		if slices.Equal(i.Choices[0], r.Addresses) {
			i.Reservation = owner
		}
		return
	}
	if s := strings.TrimSpace(n.asked[SuffixSubnet]); s != "" && s != r.Subnet {
		pl.warn("the reservation IP %s was ignored: it is in subnet %s, and %s is asked for", owner.Name, r.Subnet, s)
		return
	}
	if len(i.Families) > 0 && !ofFamily(r.Addresses, i.Families[0]) {
		pl.warn("the reservation IP %s was ignored: it has %s, and %s is asked for", owner.Name, join(r.Addresses), i.Families[0])
		return
	}
	i.Choices, i.Reservation = [][]netip.Addr{r.Addresses}, owner
	if i.MAC == (ipam.MAC{}) && !r.MAC.Derived() {
		i.MAC = r.MAC
	}
	n.asked = with(n.asked, SuffixSubnet, r.Subnet)
}

func with[V any](m map[string]V, key string, value V) map[string]V {
	out := make(map[string]V, len(m)+1)
	for k, v := range m {
		out[k] = v
	}
	out[key] = value
	return out
}

// pool reads ip_pool: the name of an IPPool, or a list of addresses.
func (pl *planner) pool(n *net, i *Interface, text string) string {
	choices, name, err := ParsePool(text)
	switch {
	case err != nil:
		pl.invalidOwn(n, SuffixPool, text, err)
		return ""
	case name != "":
		return name
	}
	set, ordinal, member := pl.ordinal()
	if !member {
		i.Choices = choices
		return ""
	}
	start := pl.pod.OrdinalStart
	if pl.pod.Annotations[OrdinalRuleKey] == OrdinalRuleKubeOVN {
		start = 0
	}
	entry := ordinal - start
	if entry < 0 || entry >= len(choices) {
		pl.invalidOwn(n, SuffixPool, text, fmt.Errorf("the list has %d entries, and the pod of ordinal %d of StatefulSet %s (first ordinal %d) needs entry %d: "+
			"lengthen the list, or scale the set down", len(choices), ordinal, set, start, entry))
		return ""
	}
	i.Choices = choices[entry : entry+1]
	return ""
}

// ordinal tells whose StatefulSet's pod this is, and which.
func (pl *planner) ordinal() (set string, ordinal int, member bool) {
	ref, ok := pl.pod.Controller()
	if !ok || pl.out.Owner.Kind != kindStatefulSet {
		return "", 0, false
	}
	ordinal, member = Ordinal(ref.Name, pl.pod.Name)
	return ref.Name, ordinal, member
}
