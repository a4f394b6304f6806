package node

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Annotation keys of the contract that are read here.
const (
	defaultProvider     = "ovn"
	keyNetworks         = "k8s.v1.cni.cncf.io/networks"
	keyDefaultNetwork   = "v1.multus-cni.io/default-network"
	suffixIP            = ".kubernetes.io/ip_address"
	maxInterfaceNameLen = 15
)

// ErrNotYet says that the pod's annotations aren't complete; wait for the next change of the pod.
var ErrNotYet = errors.New("not ready for the network yet")

// AnnotationError is an annotation that can't be followed.
type AnnotationError struct {
	Provider, Key, Value, Problem string
}

// Error names the annotation and the problem.
func (e *AnnotationError) Error() string {
	return fmt.Sprintf("annotation %s.kubernetes.io/%s=%q: %s; correct the annotation", e.Provider, e.Key, e.Value, e.Problem)
}

// Route is one more route of an interface; an invalid Dst means the default route.
type Route struct {
	Dst netip.Prefix `json:"dst"`
	Via netip.Addr   `json:"via"`
}

// Interface is what the contract says about one interface of a pod.
type Interface struct {
	// Name in the pod's network namespace.
	Name string `json:"name"`
	// HostName is the other end's name on the node.
	HostName string `json:"hostName"`
	Provider string `json:"provider"`
	// Port is the name of the OVN port, and of the IP record.
	Port      string         `json:"port"`
	Subnet    string         `json:"subnet"`
	MAC       string         `json:"mac"`
	Addresses []netip.Prefix `json:"addresses"`
	// Gateways are those of the interface's families.
	Gateways []netip.Addr `json:"gateways"`
	// DefaultRoute tells whether the gateways are the pod's default routes.
	DefaultRoute bool    `json:"defaultRoute"`
	Routes       []Route `json:"routes"`
}

// IPs returns the bare addresses, IPv4 first.
func (i *Interface) IPs() []string {
	ips := make([]string, len(i.Addresses))
	for n, p := range i.Addresses {
		ips[n] = p.Addr().String()
	}
	return ips
}

// Plan reads a pod's annotations: the interfaces to make, the one with the pod's own address first. It returns ErrNotYet
// while something is missing that the allocator or the worker will still write.
func Plan(pod *corev1.Pod) ([]Interface, error) {
	primary := primaryProvider(pod)
	if !hasAddress(pod, primary) {
		return nil, fmt.Errorf("%w: no address for provider %s", ErrNotYet, primary)
	}
	attachments := parseNetworks(pod.Annotations[keyNetworks], pod.Namespace)
	plan := make([]Interface, 0, 1+len(attachments))
	for _, p := range append([]named{{primary, "eth0"}}, attached(pod, primary, attachments)...) {
		i, err := planOne(pod, p.provider, p.name)
		if err != nil {
			return nil, err
		}
		plan = append(plan, i)
	}
	return plan, nil
}

// named is a provider and the interface that it becomes.
type named struct{ provider, name string }

// attachment is one entry of the pod's network list.
type attachment struct{ namespace, nad, ifName string }

func primaryProvider(pod *corev1.Pod) string {
	nad := pod.Annotations[keyDefaultNetwork]
	if nad == "" {
		return defaultProvider
	}
	a := parseShort(nad, pod.Namespace)
	return a.nad + "." + a.namespace + ".ovn"
}

// attached lists the OVN providers that have addresses beside the primary one, in the order of the network list.
func attached(pod *corev1.Pod, primary string, list []attachment) []named {
	var found []named
	position := map[string]int{}
	for key := range pod.Annotations {
		provider, ok := strings.CutSuffix(key, suffixIP)
		if !ok || provider == primary || !isOVN(provider) || !hasAddress(pod, provider) {
			continue
		}
		n := named{provider: provider}
		position[provider] = len(list)
		for at, a := range list {
			own := a.nad + "." + a.namespace + ".ovn"
			// An entry whose interface has a provider of its own is not the plain provider's.
			if provider == own+"."+a.ifName || provider == own && !(a.ifName != "" && hasAddress(pod, own+"."+a.ifName)) {
				position[provider], n.name = at, cmp.Or(a.ifName, fmt.Sprintf("net%d", at+1))
				break
			}
		}
		found = append(found, n)
	}
	slices.SortFunc(found, func(a, b named) int {
		return cmp.Or(position[a.provider]-position[b.provider], strings.Compare(a.provider, b.provider))
	})
	for at := range found {
		found[at].name = cmp.Or(found[at].name, fmt.Sprintf("net%d", at+1))
	}
	return found
}

// isOVN tells whether a provider's interfaces are ports of OVN (else only its addresses are of Kube-OVN).
func isOVN(provider string) bool {
	fields := strings.Split(provider, ".")
	return provider == defaultProvider || (len(fields) == 3 || len(fields) == 4) && fields[2] == "ovn"
}

// hasAddress: an address, or a whole interface without one (a subnet that gives MACs only).
func hasAddress(pod *corev1.Pod, provider string) bool {
	a := annotations{pod.Annotations, provider}
	return a.get("ip_address") != "" || a.get("allocated") == "true" && a.get("mac_address") != "" && a.get("cidr") == ""
}

func planOne(pod *corev1.Pod, provider, name string) (Interface, error) {
	a := annotations{pod.Annotations, provider}
	i := Interface{Name: name, Provider: provider, Subnet: a.get("logical_switch"), MAC: strings.ToLower(a.get("mac_address"))}
	i.DefaultRoute = a.get("default_route") == "true" || name == "eth0" && a.get("default_route") != "false"
	i.Port = cmp.Or(a.get("virtualmachine"), pod.Name) + "." + pod.Namespace
	if provider != defaultProvider {
		i.Port += "." + provider
	}
	i.HostName = HostName(string(pod.UID), name)
	if i.DefaultRoute && a.get("ip_address") != "" && a.get("routed") != "true" {
		return i, fmt.Errorf("%w: %s is not routed", ErrNotYet, provider)
	}
	if i.MAC == "" {
		return i, &AnnotationError{provider, "mac_address", "", "an address without a MAC"}
	}
	var err error
	if i.Addresses, err = a.prefixes(); err != nil {
		return i, err
	}
	if i.Gateways, err = a.gateways(i.Addresses); err != nil {
		return i, err
	}
	i.Routes, err = a.routes()
	return i, err
}

// HostName is the name of an interface's end on the node: at most 15 characters, unique by pod and interface.
func HostName(uid, ifName string) string {
	sum := sha256.Sum256([]byte(uid))
	id := hex.EncodeToString(sum[:])
	if ifName == "eth0" {
		return id[:12] + "_h"
	}
	if name := id[:8] + "_" + ifName + "_h"; len(name) <= maxInterfaceNameLen {
		return name
	}
	sum = sha256.Sum256([]byte(uid + "/" + ifName))
	return hex.EncodeToString(sum[:])[:13] + "_h"
}

// annotations are those of one provider.
type annotations struct {
	all      map[string]string
	provider string
}

func (a annotations) get(key string) string { return a.all[a.provider+".kubernetes.io/"+key] }

func (a annotations) wrong(key, problem string) error {
	return &AnnotationError{a.provider, key, a.get(key), problem}
}

func (a annotations) list(key string) []string {
	var out []string
	for _, s := range strings.Split(a.get(key), ",") {
		if s = strings.TrimSpace(s); s != "" {
			out = append(out, s)
		}
	}
	return out
}

// prefixes joins each address with the mask of its family's CIDR.
func (a annotations) prefixes() ([]netip.Prefix, error) {
	var cidrs, out []netip.Prefix
	for _, s := range a.list("cidr") {
		cidr, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, a.wrong("cidr", "not a CIDR")
		}
		cidrs = append(cidrs, cidr)
	}
	for _, s := range a.list("ip_address") {
		addr, err := netip.ParseAddr(strings.SplitN(s, "/", 2)[0])
		if err != nil {
			return nil, a.wrong("ip_address", "not an address")
		}
		n := slices.IndexFunc(cidrs, func(c netip.Prefix) bool { return c.Addr().Is4() == addr.Is4() })
		if n < 0 || !cidrs[n].Contains(addr) {
			return nil, a.wrong("ip_address", "not inside cidr "+a.get("cidr"))
		}
		out = append(out, netip.PrefixFrom(addr, cidrs[n].Bits()))
	}
	return out, nil
}

// gateways keeps those of the addresses' families.
func (a annotations) gateways(addresses []netip.Prefix) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, s := range a.list("gateway") {
		gw, err := netip.ParseAddr(s)
		if err != nil {
			return nil, a.wrong("gateway", "not an address")
		}
		if slices.ContainsFunc(addresses, func(p netip.Prefix) bool { return p.Addr().Is4() == gw.Is4() }) {
			out = append(out, gw)
		}
	}
	if len(out) != len(addresses) {
		return nil, a.wrong("gateway", fmt.Sprintf("%d gateways for %d addresses", len(out), len(addresses)))
	}
	return out, nil
}

func (a annotations) routes() ([]Route, error) {
	text := a.get("routes")
	if text == "" {
		return nil, nil
	}
	var entries []struct{ Dst, GW string }
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, a.wrong("routes", "not a JSON list of dst and gw")
	}
	out := make([]Route, len(entries))
	for n, e := range entries {
		var err error
		if e.Dst != "" {
			if out[n].Dst, err = netip.ParsePrefix(e.Dst); err != nil {
				return nil, a.wrong("routes", "dst is not a CIDR")
			}
		}
		if out[n].Via, err = netip.ParseAddr(e.GW); err != nil {
			return nil, a.wrong("routes", "gw is not an address")
		}
	}
	return out, nil
}

// parseNetworks reads the network list, JSON or short. What can't be read is no attachment: admission has judged it.
func parseNetworks(text, namespace string) []attachment {
	text = strings.TrimSpace(text)
	if text == "" {
		return nil
	}
	if strings.HasPrefix(text, "[") {
		var entries []struct{ Name, Namespace, Interface string }
		if json.Unmarshal([]byte(text), &entries) != nil {
			return nil
		}
		out := make([]attachment, len(entries))
		for n, e := range entries {
			out[n] = attachment{cmp.Or(e.Namespace, namespace), e.Name, e.Interface}
		}
		return out
	}
	var out []attachment
	for _, s := range strings.Split(text, ",") {
		out = append(out, parseShort(strings.TrimSpace(s), namespace))
	}
	return out
}

// parseShort reads [namespace/]name[@interface].
func parseShort(s, namespace string) attachment {
	s, ifName, _ := strings.Cut(s, "@")
	if ns, name, ok := strings.Cut(s, "/"); ok {
		return attachment{ns, name, ifName}
	}
	return attachment{namespace, s, ifName}
}
