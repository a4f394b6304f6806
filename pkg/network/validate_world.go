package network

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// World is what a change of the topology is judged against. The object itself may be in it, as it was.
type World struct {
	Catalog Catalog
	Config  Config
	// Namespaces are all that exist.
	Namespaces []Namespace
	// Nodes are the internal addresses of nodes, and whose they are.
	Nodes map[netip.Addr]string
	// APIServer is the address that pods reach the API server at; the zero value: not known.
	APIServer netip.Addr
	// Leases are those of the subnets concerned.
	Leases []ipam.Held
}

// OptedIn tells whether pods of the namespace are served, by the webhook or by the worker alone.
func (n Namespace) OptedIn() bool {
	v := n.Labels[LabelInject]
	return v == InjectEnabled || v == InjectLate
}

// onlyNew leaves away what was wrong before in the same words: an object may be changed so long as it gets no worse.
func onlyNew(now, before field.ErrorList) field.ErrorList {
	key := func(e *field.Error) string { return string(e.Type) + " " + e.Field + " " + e.Detail }
	had := map[string]bool{}
	for _, e := range before {
		had[key(e)] = true
	}
	var out field.ErrorList
	for _, e := range now {
		if !had[key(e)] {
			out = append(out, e)
		}
	}
	return out
}

// holds gives the leases for which keep says yes, of those that somebody would miss: what a node or the subnet itself
// has of a subnet goes with it.
func (w World) holds(subnet string, keep func(ipam.Held) bool) []ipam.Held {
	var out []ipam.Held
	for _, l := range w.Leases {
		own := l.Owner.Kind == ipam.KindSubnet || l.Owner.Kind == ipam.KindNode && subnet != w.Config.NodeSwitch
		if l.Subnet == subnet && l.Address.IsValid() && !own && keep(l) {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b ipam.Held) int { return a.Address.Compare(b.Address) })
	return out
}

// namedHolders is how many holders a refusal names.
const namedHolders = 3

// holders counts leases and names some, for people.
func holders(ls []ipam.Held) string {
	var texts []string
	for _, l := range ls[:min(len(ls), namedHolders)] {
		texts = append(texts, fmt.Sprintf("%s (%s)", l.Address, holder(l)))
	}
	text := strings.Join(texts, ", ")
	if more := len(ls) - len(texts); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	if len(ls) == 1 {
		return "1 address is held: " + text
	}
	return fmt.Sprintf("%d addresses are held: %s", len(ls), text)
}

func holder(l ipam.Held) string {
	switch {
	case l.PodName != "":
		return "pod " + l.Owner.Namespace + "/" + l.PodName
	case l.Owner.Sticky() && l.Owner.Namespace != "":
		return l.Owner.Kind + " " + l.Owner.Namespace + "/" + l.Owner.Name
	case l.Owner.Sticky():
		return l.Owner.Kind + " " + l.Owner.Name
	}
	return "a pod of namespace " + l.Owner.Namespace + " that is being created"
}

// binds tells whether a subnet is there for a namespace. Selectors that can't be read bind nothing.
func binds(s *kubeovnv1.Subnet, ns Namespace) bool {
	if slices.Contains(s.Spec.Namespaces, ns.Name) {
		return true
	}
	for i := range s.Spec.NamespaceSelectors {
		sel, err := metav1.LabelSelectorAsSelector(&s.Spec.NamespaceSelectors[i])
		if err == nil && sel.Matches(labels.Set(ns.Labels)) {
			return true
		}
	}
	return false
}

// detail is an error's text without the field's name in front.
func detail(path *field.Path, err error) string {
	return strings.TrimPrefix(err.Error(), path.String()+": ")
}
