package network

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go4.org/netipx"
	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// ValidatePool judges a change of an IPPool, as ValidateSubnet does of a Subnet.
func ValidatePool(now, old *kubeovnv1.IPPool, w World) (warnings []string, errs field.ErrorList) {
	if now == nil {
		held := w.inPool(old)
		if len(held) == 0 || old.DeletionTimestamp != nil {
			return nil, nil
		}
		return nil, field.ErrorList{field.Forbidden(field.NewPath("metadata", "name"),
			holders(held)+": free them first, or they would be held in what belongs to no pool")}
	}
	if old != nil && (now.DeletionTimestamp != nil || reflect.DeepEqual(now.Spec, old.Spec)) {
		return nil, nil
	}
	if w.Config.Alone && now.Spec.EnableAddressSet && (old == nil || !old.Spec.EnableAddressSet) {
		warnings = append(warnings, "spec.enableAddressSet: nobody makes the address set, for no controller of Kube-OVN runs here")
	}
	errs = judgePool(now, w)
	if old == nil {
		if held := w.inPool(now); len(held) > 0 {
			warnings = append(warnings, holders(held)+": they stay with who holds them, whether or not they may use the pool")
		}
		return warnings, errs
	}
	errs = onlyNew(errs, judgePool(old, w))
	spec := field.NewPath("spec")
	if now.Spec.Subnet != old.Spec.Subnet {
		if held := w.inPool(old); len(held) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("subnet"), fmt.Sprintf("in subnet %s %s: free them first", old.Spec.Subnet, holders(held))))
		}
		return warnings, errs
	}
	if set, err := ParseRanges(now.Spec.IPs); err == nil {
		lost := slices.DeleteFunc(w.inPool(old), func(l ipam.Held) bool { return set.Contains(l.Address) })
		if len(lost) > 0 {
			errs = append(errs, field.Forbidden(spec.Child("ips"), "outside the new ranges "+holders(lost)+": free them first, or keep them in the pool"))
		}
	}
	return warnings, errs
}

// inPool gives the leases of addresses that the pool names.
func (w World) inPool(p *kubeovnv1.IPPool) []ipam.Held {
	set, err := ParseRanges(p.Spec.IPs)
	if err != nil {
		return nil // it gives nobody anything
	}
	return w.holds(p.Spec.Subnet, func(l ipam.Held) bool { return set.Contains(l.Address) })
}

// judgePool tells what is wrong with an IPPool as it is.
func judgePool(p *kubeovnv1.IPPool, w World) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	subnet, there := w.Catalog.Subnets[p.Spec.Subnet]
	switch {
	case p.Spec.Subnet == "":
		errs = append(errs, field.Required(spec.Child("subnet"), "name the subnet that the addresses are of"))
	case !there:
		errs = append(errs, field.Invalid(spec.Child("subnet"), p.Spec.Subnet, "there is no such subnet: make it first, or name another"))
	}
	if len(strings.Join(p.Spec.IPs, "")) == 0 {
		return append(errs, field.Required(spec.Child("ips"), "list addresses, ranges a..b or CIDRs"))
	}
	var prefixes netipx.IPSetBuilder
	known := there
	if there {
		ps, err := parsePrefixes(subnet.Object.Spec)
		known = err == nil
		for _, q := range ps {
			prefixes.AddPrefix(q)
		}
	}
	inside, err := prefixes.IPSet()
	known = known && err == nil
	for i, item := range p.Spec.IPs {
		at := spec.Child("ips").Index(i)
		set, err := ParseRanges([]string{item})
		if err != nil {
			errs = append(errs, field.Invalid(at, item, err.Error()))
			continue
		}
		for _, r := range set.Ranges() {
			if known && !inside.ContainsRange(r) {
				errs = append(errs, field.Invalid(at, item, fmt.Sprintf("it is not inside %s of subnet %s", subnet.Object.Spec.CIDRBlock, p.Spec.Subnet)))
			}
		}
		errs = append(errs, w.shared(p, at, item, set)...)
	}
	return errs
}

// shared finds other pools of the subnet that have some of the addresses.
func (w World) shared(p *kubeovnv1.IPPool, at *field.Path, item string, set *netipx.IPSet) (errs field.ErrorList) {
	for _, name := range slices.Sorted(maps.Keys(w.Catalog.Pools)) {
		other := w.Catalog.Pools[name]
		if name == p.Name || other.Spec.Subnet != p.Spec.Subnet {
			continue
		}
		theirs, err := ParseRanges(other.Spec.IPs)
		if err == nil && set.Overlaps(theirs) {
			errs = append(errs, field.Invalid(at, item, fmt.Sprintf("IPPool %s has some of these addresses: an address belongs to one pool", name)))
		}
	}
	return errs
}
