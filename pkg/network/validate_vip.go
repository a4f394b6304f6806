package network

import (
	"fmt"
	"net/netip"
	"reflect"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// ValidateVip judges a change of a Vip, as ValidateSubnet does of a Subnet. Its addresses are held while a pod has
// borrowed them; that the Vip itself has them is no hindrance.
func ValidateVip(now, old *kubeovnv1.Vip, w World) (warnings []string, errs field.ErrorList) {
	if now == nil {
		if lent := w.lent(old); len(lent) > 0 && old.DeletionTimestamp == nil {
			errs = append(errs, field.Forbidden(field.NewPath("metadata", "name"), holders(lent)+": delete the pod first, its address is the Vip's"))
		}
		return nil, errs
	}
	if old != nil && (now.DeletionTimestamp != nil || reflect.DeepEqual(now.Spec, old.Spec)) {
		return nil, nil
	}
	errs = judgeVip(now, w)
	if old == nil {
		return warnings, errs
	}
	errs = onlyNew(errs, judgeVip(old, w))
	a, b := old.Spec, now.Spec
	if a.Subnet != b.Subnet || a.V4IP != b.V4IP || a.V6IP != b.V6IP || a.MacAddress != b.MacAddress {
		if lent := w.lent(old); len(lent) > 0 {
			errs = append(errs, field.Forbidden(field.NewPath("spec"), holders(lent)+": the Vip can't move while a pod has its address"))
		}
	}
	return warnings, errs
}

// vipOwner is the owner of what a Vip has.
func vipOwner(name string) ipam.Owner {
	return ipam.Owner{Group: kubeOVNGroup, Kind: ipam.KindVip, Name: name}
}

// lent gives the leases of pods that have a Vip's addresses.
func (w World) lent(v *kubeovnv1.Vip) []ipam.Held {
	return w.holds(v.Spec.Subnet, func(l ipam.Held) bool { return l.LentFrom(vipOwner(v.Name)) })
}

// judgeVip tells what is wrong with a Vip as it is.
func judgeVip(v *kubeovnv1.Vip, w World) (errs field.ErrorList) {
	spec := field.NewPath("spec")
	subnet, there := w.Catalog.Subnets[v.Spec.Subnet]
	if v.Spec.Subnet != "" && !there {
		errs = append(errs, field.Invalid(spec.Child("subnet"), v.Spec.Subnet, "there is no such subnet: make it first, or name another"))
	}
	for i, name := range v.Spec.AttachSubnets {
		if _, ok := w.Catalog.Subnets[name]; !ok {
			errs = append(errs, field.Invalid(spec.Child("attachSubnets").Index(i), name, "there is no such subnet: make it first, or name another"))
		}
	}
	if v.Spec.MacAddress != "" {
		if _, err := ipam.ParseMAC(v.Spec.MacAddress); err != nil {
			errs = append(errs, field.Invalid(spec.Child("macAddress"), v.Spec.MacAddress, err.Error()))
		}
	}
	for _, c := range []struct {
		at, text string
		family   ipam.Family
	}{{"v4ip", v.Spec.V4IP, ipam.IPv4}, {"v6ip", v.Spec.V6IP, ipam.IPv6}} {
		if c.text == "" {
			continue
		}
		a, err := parseAddress(c.text)
		if err == nil && ipam.FamilyOf(a) != c.family {
			err = fmt.Errorf("%s is not an address of %s", a, c.family)
		}
		if err == nil && there {
			err = w.vipFault(v, subnet, a)
		}
		if err != nil {
			errs = append(errs, field.Invalid(spec.Child(c.at), c.text, err.Error()))
		}
	}
	return errs
}

// vipFault tells why a Vip can't have an address of a subnet.
func (w World) vipFault(v *kubeovnv1.Vip, s Subnet, a netip.Addr) error {
	if s.Set == nil {
		return nil // it is said of the subnet
	}
	if err := s.Set.Check(a, vipOwner(v.Name)); err != nil {
		return err
	}
	for _, l := range w.Leases {
		if l.Subnet == v.Spec.Subnet && l.Address == a && l.Owner != vipOwner(v.Name) && !l.LentFrom(vipOwner(v.Name)) {
			return fmt.Errorf("%s is held by %s: choose another, or free it first", a, holder(l))
		}
	}
	return nil
}
