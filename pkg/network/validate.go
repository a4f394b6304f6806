package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// validate checks every annotation by which users ask for something, of all networks.
func (pl *planner) validate(nets []*net) {
	providers := map[string]bool{}
	for _, n := range nets {
		providers[n.provider], providers[n.base] = true, true
	}
	pl.values(func(key, provider string, err error) {
		if err != nil {
			pl.errs = append(pl.errs, field.Invalid(annotationPath(key), pl.pod.Annotations[key], err.Error()))
		} else if !providers[provider] {
			pl.warn("%s is for the network %q, which the pod has not: ignored", key, provider)
		}
	})
	pl.oneOf(OrdinalRuleKey, OrdinalRuleKubeOVN)
	pl.oneOf(WhenUnavailableKey, Wait, Refuse)
	pl.validateDefault()
	pl.unread(nets)
}

// values checks the values that any network may have, and tells of each. They are checked with the blanks around them: the
// nodes' daemon reads many of them, and takes none.
func (pl *planner) values(tell func(key, provider string, err error)) {
	checks := pl.checks()
	for _, key := range slices.Sorted(maps.Keys(pl.pod.Annotations)) {
		provider, suffix, ok := SplitKey(key)
		value := pl.pod.Annotations[key]
		if check := checks[suffix]; ok && check != nil && value != "" {
			tell(key, provider, check(value))
		}
	}
}

// oneOf checks an annotation that has certain values only.
func (pl *planner) oneOf(key string, values ...string) {
	if v, ok := pl.pod.Annotations[key]; ok && !slices.Contains(values, v) {
		pl.errs = append(pl.errs, field.NotSupported(annotationPath(key), v, values))
	}
}

// unread warns of requests for addresses by networks and interfaces that the pod has not.
func (pl *planner) unread(nets []*net) {
	read := map[string]bool{}
	for _, n := range nets {
		read[Key(n.base, SuffixSubnet)] = true
		for _, s := range append(askable(), SuffixFamily, SuffixPool) {
			read[Key(n.provider, s)] = true
		}
		for _, s := range []string{SuffixAddress, SuffixMAC} {
			read[interfaceKey(n.selection, s)] = true
		}
	}
	_, claimed := pl.pod.Annotations[ClaimKey]
	for _, key := range slices.Sorted(maps.Keys(pl.pod.Annotations)) {
		provider, suffix, ok := SplitKey(key)
		value := strings.TrimSpace(pl.pod.Annotations[key])
		base, _, _ := strings.Cut(suffix, ".")
		asks := slices.Contains(askable(), base) && base != SuffixNICType || suffix == SuffixFamily || suffix == SuffixPool
		if !ok || !asks || value == "" || read[key] || claimed && Output(key) {
			continue
		}
		if err := daemonReads(provider, suffix, pl.pod.Annotations[key]); err != nil && len(nets) > 0 {
			pl.errs = append(pl.errs, field.Invalid(annotationPath(key), pl.pod.Annotations[key], err.Error()))
			continue
		}
		pl.warn("%s is for the network %q, or an interface of it, which the pod has not: ignored", key, provider)
	}
}

// daemonReads tells what the nodes' daemon has against a value that nobody else reads: it looks at the families of all
// networks, and at the default network's pool also where another network is the default.
func daemonReads(provider, suffix, value string) error {
	if suffix == SuffixFamily {
		_, err := ParseFamily(value)
		return err
	}
	if suffix != SuffixPool || provider != DefaultProvider || !strings.ContainsAny(value, ",;") {
		return nil
	}
	for word := range strings.SplitSeq(strings.ReplaceAll(value, ";", ","), ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(word)); err != nil || a.Zone() != "" {
			return fmt.Errorf("%q is not an IP address, and the nodes' daemon looks at it, too: correct it, or leave it away", word)
		}
	}
	return nil
}

// checks are by suffix, for every provider. Addresses, MACs, families and pools are read where they are planned.
func (pl *planner) checks() map[string]func(string) error {
	return map[string]func(string) error{
		"ingress_rate": natural, "egress_rate": natural, "ingress_burst": natural, "egress_burst": natural,
		"latency": natural, "limit": natural, "jitter": natural, "loss": percentage,
		"port_security": truth, "layer2_forward": truth, "mirror": truth, "default_route": truth,
		"dhcp-v4-options": dhcpOptions, "dhcp-v6-options": dhcpOptions,
		"routes":             routes,
		SuffixPortVips:       addressList,
		SuffixSecurityGroups: pl.securityGroups,
	}
}

// validateDefault checks what only the default network has.
func (pl *planner) validateDefault() {
	for _, c := range []struct {
		suffix string
		check  func(string) error
	}{{suffixEIP, oneAddress}, {suffixSNAT, oneAddress}, {suffixNorthGateway, addressList}, {SuffixAaps, pl.aaps}} {
		suffix, check := c.suffix, c.check
		key := Key(DefaultProvider, suffix)
		if v := strings.TrimSpace(pl.pod.Annotations[key]); v != "" {
			if err := check(v); err != nil {
				pl.errs = append(pl.errs, field.Invalid(annotationPath(key), pl.pod.Annotations[key], err.Error()))
			}
		}
	}
}

// unrouted warns of what only the cluster router can do, when no subnet of the pod stands at it.
func (pl *planner) unrouted(i *Interface) {
	if slices.ContainsFunc(i.Candidates, func(c Candidate) bool { return pl.atClusterRouter(c.Object) }) {
		return
	}
	for _, suffix := range []string{suffixEIP, suffixSNAT, suffixNorthGateway} {
		key := Key(DefaultProvider, suffix)
		if v := strings.TrimSpace(pl.pod.Annotations[key]); v != "" {
			pl.warn("%s=%q was ignored: only the router %s does this, and the way of subnet %s is another",
				key, v, pl.cfg.ClusterRouter, names(i.Candidates))
		}
	}
}

// atClusterRouter tells whether the pods of a subnet have their way through the cluster router.
func (pl *planner) atClusterRouter(s *kubeovnv1.Subnet) bool {
	return (s.Spec.Vpc == "" || s.Spec.Vpc == pl.cfg.ClusterRouter) && (s.Spec.Vlan == "" || s.Spec.LogicalGateway)
}

func natural(v string) error {
	if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 0 {
		return errors.New("write a whole number that is not negative, without blanks")
	}
	return nil
}

func percentage(v string) error {
	if n, err := strconv.ParseFloat(v, 64); err != nil || !(n >= 0 && n <= 100) { // not a number is neither
		return errors.New("write a percentage from 0 to 100, without blanks")
	}
	return nil
}

func truth(v string) error {
	if v != "true" && v != "false" {
		return errors.New("write true or false, without blanks")
	}
	return nil
}

func oneAddress(v string) error {
	if len(tokens(v)) != 1 {
		return errors.New("write one address")
	}
	return addressList(v)
}

// addressList checks addresses that stand for themselves: nobody reads a mask here.
func addressList(v string) error {
	for _, f := range tokens(v) {
		if _, err := netip.ParsePrefix(f); err == nil {
			return fmt.Errorf("%q has a mask: leave it away", f)
		}
		if _, err := parseAddress(f); err != nil {
			return err
		}
	}
	return nil
}

func dhcpOptions(v string) error {
	for _, f := range tokens(v) {
		if k, value, ok := strings.Cut(f, "="); !ok || strings.TrimSpace(k) == "" || strings.TrimSpace(value) == "" {
			return fmt.Errorf("%q is not of the form option=value: separate options by commas, and the values of one by semicolons", f)
		}
	}
	return nil
}

func routes(v string) error {
	var list []struct {
		Destination string `json:"dst"`
		Gateway     string `json:"gw"`
	}
	if err := json.Unmarshal([]byte(v), &list); err != nil {
		return fmt.Errorf("it is not a JSON list like [{\"dst\":\"10.0.0.0/8\",\"gw\":\"10.16.0.1\"}]: %w", err)
	}
	for _, r := range list {
		if _, err := netip.ParsePrefix(r.Destination); r.Destination != "" && err != nil {
			return fmt.Errorf("dst %q is not a CIDR: write it like 10.0.0.0/8", r.Destination)
		}
		if _, err := netip.ParseAddr(r.Gateway); err != nil {
			return fmt.Errorf("gw %q is not an address: write it like 10.16.0.1", r.Gateway)
		}
	}
	return nil
}

// securityGroups checks that the groups exist, and that each has a port group of its own.
func (pl *planner) securityGroups(v string) error {
	for _, sg := range tokens(v) {
		if !pl.cat.SecurityGroups[sg] {
			return fmt.Errorf("there is no SecurityGroup %q: make it, or name another", sg)
		}
		if err := fits("a port group is named after the SecurityGroup", groupName(sg), maxName); err != nil {
			return err
		}
		for other := range pl.cat.SecurityGroups {
			if other != sg && groupName(other) == groupName(sg) {
				return fmt.Errorf("the SecurityGroups %s and %s have the same port group %s: rename one of them", min(sg, other), max(sg, other), groupName(sg))
			}
		}
	}
	return nil
}

// aaps checks the Vips whose addresses the pod may use besides its own.
func (pl *planner) aaps(v string) error {
	for _, name := range tokens(v) {
		vip := pl.cat.Vips[name]
		switch {
		case vip == nil:
			return fmt.Errorf("there is no Vip %q: make it, or name another", name)
		case vip.Spec.Namespace != pl.pod.Namespace:
			return fmt.Errorf("the Vip %q is for namespace %q: name one of this namespace", name, vip.Spec.Namespace)
		}
	}
	return nil
}
