package network

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
)

// NetworksKey and DefaultNetworkKey are the annotations by which a pod names its attachments, and what replaces its
// default network (Network Plumbing Working Group, and Multus).
const (
	NetworksKey       = "k8s.v1.cni.cncf.io/networks"
	DefaultNetworkKey = "v1.multus-cni.io/default-network"
)

// Selection is one network that a pod names.
type Selection struct {
	Namespace, Name string
	// Interface is the name inside the pod; empty: Multus chooses.
	Interface string
	// IPs and MAC are asked for.
	IPs []string
	MAC string
}

func (s Selection) String() string { return s.Namespace + "/" + s.Name }

// same tells that both name one interface of one network, whatever they ask for it.
func (s Selection) same(o Selection) bool {
	return s.Namespace == o.Namespace && s.Name == o.Name && s.Interface == o.Interface
}

// Attachment is what a NetworkAttachmentDefinition says.
type Attachment struct {
	// Provider of the network; empty: it is none of ours.
	Provider string
	// IPAMOnly: another CNI plugs the interface in.
	IPAMOnly bool
	// Err says why its configuration can't be read.
	Err error
}

// net is one network of the pod before anything is looked up for it.
type net struct {
	provider  string // prefix of its annotations
	base      string // provider that Subnets name
	ipamOnly  bool
	primary   bool
	selection Selection
	own       map[string]string // asked for by the network's own annotations, by suffix
	asked     map[string]string // the same, and what the selection and the interface's own keys ask
	from      string            // the annotation that own stands in, when not each value's own
	at        map[string]string // the annotation that a value of asked stands in, when it is not of own, by suffix
}

// networks lists the pod's networks: the default one, unless it is replaced or left to another CNI, then attachments.
func (pl *planner) networks() []*net {
	var nets []*net
	switch {
	case pl.pod.DefaultNetwork != nil:
		if n := pl.attached(*pl.pod.DefaultNetwork, DefaultNetworkKey); n != nil {
			n.primary = true
			nets = append(nets, n)
		}
	case !pl.cfg.NonPrimary:
		nets = append(nets, &net{provider: DefaultProvider, base: DefaultProvider, primary: true})
	}
	if err := pl.pod.NetworksErr; err != nil {
		pl.errs = append(pl.errs, field.Invalid(annotationPath(NetworksKey), pl.pod.Annotations[NetworksKey], err.Error()))
	} else {
		nets = pl.attachments(nets)
	}
	served := map[string]bool{}
	for _, n := range nets {
		n.own, n.from = pl.asked(n)
		n.asked = pl.named(n)
		served[n.provider] = true
	}
	if pl.given == nil { // else it may have been unplugged
		pl.unserved(served)
	}
	return nets
}

// attachments adds those that the pod names to its networks.
func (pl *planner) attachments(nets []*net) []*net {
	times := map[string]int{}
	for _, s := range pl.pod.Networks {
		times[s.String()]++
	}
	taken := map[string]bool{}
	for _, n := range nets {
		taken[n.provider] = true
	}
	list := make([]*net, len(pl.pod.Networks))
	plugged := make([]bool, len(list))
	for i, s := range pl.pod.Networks {
		if list[i] = pl.attached(s, NetworksKey); list[i] != nil {
			plugged[i] = pl.keepName(list[i], taken)
		}
	}
	for i, n := range list {
		switch s := pl.pod.Networks[i]; {
		case n == nil:
			continue
		case !plugged[i]:
			if many := times[s.String()] > 1 || pl.byInterface(s); many && s.Interface != "" {
				n.provider = n.base + "." + s.Interface
			} else if many && taken[n.provider] {
				n.provider = fmt.Sprintf("%s.net%d", n.base, i+1) // as Multus names it
			}
			if taken[n.provider] {
				pl.errs = append(pl.errs, field.Duplicate(annotationPath(NetworksKey).Index(i), s.String()))
				continue
			}
			taken[n.provider] = true
		}
		nets = append(nets, n)
	}
	return nets
}

// keepName gives an attachment that is plugged in the name that it has, however often its network is named by now. It
// tells whether there is one.
func (pl *planner) keepName(n *net, taken map[string]bool) bool {
	s, name := n.selection, n.base
	if own := n.base + "." + s.Interface; s.Interface != "" && pl.given[own] {
		name = own
	} else if before := pl.pod.Plugged; len(before) > 0 && !slices.ContainsFunc(before, s.same) {
		return false // the network's own name is another interface's, or nobody's any more
	}
	if !pl.given[name] || taken[name] {
		return false
	}
	n.provider, taken[name] = name, true
	return true
}

// interfaceKey is the annotation by which one interface of an attachment asks for an address or a MAC.
func interfaceKey(s Selection, suffix string) string {
	return Key(s.Name+"."+s.Namespace, suffix) + "." + s.Interface
}

// byInterface tells whether the selection's interface asks under its own name: it has annotations of its own then, also
// when its attachment is named once only.
func (pl *planner) byInterface(s Selection) bool {
	_, address := pl.pod.Annotations[interfaceKey(s, SuffixAddress)]
	_, mac := pl.pod.Annotations[interfaceKey(s, SuffixMAC)]
	return s.Interface != "" && (address || mac)
}

// attached looks a selection up; nil when it is none of ours, or wrong.
func (pl *planner) attached(s Selection, key string) *net {
	a, ok := pl.cat.Attachments[s.String()]
	at := annotationPath(key)
	switch {
	case !ok:
		pl.errs = append(pl.errs, field.Invalid(at, s.String(), fmt.Sprintf(
			"there is no NetworkAttachmentDefinition %s in namespace %s: make it, or name another", s.Name, s.Namespace)))
		return nil
	case a.Err != nil:
		pl.errs = append(pl.errs, field.Invalid(at, s.String(), fmt.Sprintf("the configuration of NetworkAttachmentDefinition %s can't be read: %v", s, a.Err)))
		return nil
	case a.Provider == "":
		return nil
	}
	return &net{provider: a.Provider, base: a.Provider, ipamOnly: a.IPAMOnly, selection: s}
}

// unserved warns of requests for networks that the pod has not.
func (pl *planner) unserved(served map[string]bool) {
	for _, provider := range slices.Sorted(maps.Keys(pl.requested)) {
		if !served[provider] {
			pl.warn("%s names the network %q, which is not served: ignored", RequestedKey, provider)
		}
	}
}

// readRequested reads RequestedKey, once for all networks, and tells of what a copy brought along.
func (pl *planner) readRequested() {
	if claim, ok := pl.pod.Annotations[ClaimKey]; ok {
		if _, ok := ipam.ParseClaim(claim); !ok {
			_, dropped := Strip(pl.pod.Annotations)
			pl.warn("%s is %q, a copy's and no claim: these were ignored: %s", ClaimKey, claim, strings.Join(dropped, ", "))
		}
	}
	text, ok := pl.pod.Annotations[RequestedKey]
	if !ok {
		return
	}
	var err error
	if pl.requested, err = parseRequested(text); err != nil {
		pl.errs = append(pl.errs, field.Invalid(annotationPath(RequestedKey), text, err.Error()))
	}
}

// asked gives what the user asked of a network, by suffix: what RequestedKey keeps, else the annotations, unless these
// are ours.
func (pl *planner) asked(n *net) (asked map[string]string, from string) {
	an := pl.pod.Annotations
	claim, claimed := an[ClaimKey]
	before, kept := pl.requested[n.provider]
	switch {
	case kept && claimed:
		return before, RequestedKey
	case kept:
		for _, s := range askable() {
			key := Key(n.provider, s)
			if v, ok := an[key]; ok && v != before[s] {
				pl.warn("%s=%q was ignored: %s says what is asked for", key, v, RequestedKey)
			}
		}
		return before, RequestedKey
	case claimed:
		if _, ok := ipam.ParseClaim(claim); !ok {
			return map[string]string{}, ""
		}
		if Given(an, n.provider) {
			return map[string]string{}, ""
		}
	}
	asked = map[string]string{}
	for _, s := range askable() {
		if v, ok := an[Key(n.provider, s)]; ok {
			asked[s] = v
		}
	}
	return asked, ""
}

// Given tells whether a network's annotations beside a claim are the answer to a request, and not one.
func Given(an map[string]string, provider string) bool {
	if an[Key(provider, SuffixCIDR)] != "" {
		return true
	}
	_, mac := an[Key(provider, SuffixMAC)]
	_, subnet := an[Key(provider, SuffixSubnet)]
	_, nic := an[Key(provider, SuffixNICType)]
	return mac && subnet && nic
}

// named adds to the network's own values what is asked for by the selection, and by the keys of its interface.
func (pl *planner) named(n *net) map[string]string {
	asked := map[string]string{}
	maps.Copy(asked, n.own)
	if n.selection.Name == "" {
		return asked
	}
	n.at = map[string]string{}
	set := func(suffix, key, value string) {
		if value == "" {
			return
		}
		if old := strings.TrimSpace(asked[suffix]); old != "" && old != value {
			pl.warn("%s=%q was ignored: %s says %q", cmp.Or(n.at[suffix], Key(n.provider, suffix)), old, key, value)
		}
		asked[suffix], n.at[suffix] = value, key
	}
	set(SuffixAddress, NetworksKey, strings.Join(n.selection.IPs, ","))
	set(SuffixMAC, NetworksKey, n.selection.MAC)
	if n.provider != n.base && n.selection.Interface != "" {
		for _, s := range []string{SuffixAddress, SuffixMAC} {
			key := interfaceKey(n.selection, s)
			set(s, key, strings.TrimSpace(pl.pod.Annotations[key]))
		}
	}
	return asked
}
