package adopt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"go4.org/netipx"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// FenceStep puts a fence around a subnet, or takes it away.
type FenceStep struct {
	Subnet *kubeovnv1.Subnet
	// Managed tells that it has a fence afterwards.
	Managed bool
	// Exclude is spec.excludeIps afterwards.
	Exclude []string
	// Own is the annotation with the subnet's own exclusions afterwards, where it has a fence.
	Own string
}

// Fence plans the fence of a subnet: kube-ovn-controller, which never picks excluded addresses, sees all of them
// excluded, and the subnet's own exclusions stand in an annotation. nil: it has one.
func Fence(s network.Subnet) *FenceStep {
	have := s.Object
	step := &FenceStep{Subnet: have, Managed: true, Exclude: whole(s.Set)}
	own, noted := have.Annotations[network.ExcludeKey]
	managed := have.Labels[network.LabelManaged] == "true"
	switch {
	case managed && noted:
		step.Own = own
	case managed && covers(have.Spec.ExcludeIps, step.Exclude): // there is nothing else to exclude
		return nil
	default: // a note without the label counts for nothing, and may be old
		step.Own = strings.Join(have.Spec.ExcludeIps, ",")
		if covers(have.Spec.ExcludeIps, step.Exclude) && noted { // an interrupted step
			step.Own = own
		}
	}
	if managed && noted && covers(have.Spec.ExcludeIps, step.Exclude) {
		return nil
	}
	return step
}

// Unfence plans how a subnet loses its fence. nil: it has none.
func Unfence(s network.Subnet) *FenceStep {
	have := s.Object
	own, noted := have.Annotations[network.ExcludeKey]
	if have.Labels[network.LabelManaged] != "true" && !noted {
		return nil
	}
	step := &FenceStep{Subnet: have, Exclude: have.Spec.ExcludeIps}
	switch {
	case noted:
		step.Exclude = list(own)
	case s.Set != nil && covers(have.Spec.ExcludeIps, whole(s.Set)):
		step.Exclude = nil
	}
	if len(step.Exclude) == 0 { // Kube-OVN excludes gateways in any case
		step.Exclude = list(s.Gateway)
	}
	return step
}

func list(text string) []string {
	out := strings.Split(text, ",")
	for i := range out {
		out[i] = strings.TrimSpace(out[i])
	}
	return slices.DeleteFunc(out, func(f string) bool { return f == "" })
}

// whole gives all host addresses of a subnet, as ranges.
func whole(s *ipam.Subnet) (out []string) {
	if s == nil {
		return nil
	}
	for _, f := range s.Families() {
		p, _ := s.Prefix(f)
		first, last := p.Addr(), netipx.PrefixLastIP(p)
		if p.Addr().BitLen()-p.Bits() > 1 {
			first, last = first.Next(), last.Prev()
		}
		out = append(out, fmt.Sprintf("%s..%s", first, last))
	}
	return out
}

// covers tells that all ranges are excluded.
func covers(exclude, ranges []string) bool {
	have, err := network.ParseRanges(exclude)
	if err != nil {
		return false
	}
	want, err := network.ParseRanges(ranges)
	if err != nil {
		return false
	}
	return !slices.ContainsFunc(want.Ranges(), func(r netipx.IPRange) bool { return !have.ContainsRange(r) })
}

// FenceProblems tells why the subnets of a plan can't have a fence yet: pods of them would be without one who gives them
// addresses.
func (p Plan) FenceProblems(cat network.Catalog) (out []Problem) {
	for _, name := range p.Subnets {
		s := cat.Subnets[name]
		if Fence(s) == nil {
			continue
		}
		if left := p.Left[name]; len(left) > 0 {
			out = append(out, Problem{Kind: "Subnet", Name: name, Text: fmt.Sprintf("%d pods in it are not taken over, of which the first is %s: take them over first (kubectl berth adopt --subnet %s), or move them",
				len(left), slices.Min(left), name)})
		}
	}
	return out
}

// addressesText is the form of addresses in Kube-OVN's records.
func addressesText(as []netip.Addr) string {
	texts := make([]string, len(as))
	for i, a := range as {
		texts[i] = a.String()
	}
	return strings.Join(texts, ",")
}
