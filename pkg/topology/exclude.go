package topology

import (
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// addrRange is a run of addresses of one family, both ends included.
type addrRange struct{ from, to netip.Addr }

// String is the form of excludeIps.
func (r addrRange) String() string {
	if r.from == r.to {
		return r.from.String()
	}
	return r.from.String() + ".." + r.to.String()
}

func parseExcluded(path *field.Path, list []string) ([]addrRange, field.ErrorList) {
	var ranges []addrRange
	var errs field.ErrorList
	for i, text := range list {
		first, second, two := strings.Cut(strings.TrimSpace(text), "..")
		if !two {
			second = first
		}
		from, err1 := netip.ParseAddr(strings.TrimSpace(first))
		to, err2 := netip.ParseAddr(strings.TrimSpace(second))
		switch {
		case err1 != nil || err2 != nil || from.Zone() != "" || to.Zone() != "" || from.Is4In6() || to.Is4In6():
			errs = append(errs, field.Invalid(path.Index(i), text, "give one address, or a range as 10.16.0.10..10.16.0.20"))
		case from.Is4() != to.Is4():
			errs = append(errs, field.Invalid(path.Index(i), text, "the two ends are of different families"))
		case to.Less(from):
			errs = append(errs, field.Invalid(path.Index(i), text, "the range ends before it begins: swap its ends"))
		default:
			ranges = append(ranges, addrRange{from, to})
		}
	}
	return ranges, errs
}

// merge sorts ranges, IPv4 first, and joins those that overlap. Neighbours stay apart, so that a gateway or a list of
// addresses can still be recognised.
func merge(ranges []addrRange) []string {
	slices.SortFunc(ranges, func(a, b addrRange) int { return a.from.Compare(b.from) })
	var merged []addrRange
	for _, r := range ranges {
		if n := len(merged); n > 0 && merged[n-1].from.Is4() == r.from.Is4() && !merged[n-1].to.Less(r.from) {
			if merged[n-1].to.Less(r.to) {
				merged[n-1].to = r.to
			}
			continue
		}
		merged = append(merged, r)
	}
	var out []string
	for _, r := range merged {
		out = append(out, r.String())
	}
	return out
}
