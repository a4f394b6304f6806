package network

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// ValidateNamespace judges a change of a namespace's label; old is nil for a new namespace, now is nil for one that is to
// be deleted, which nothing stands against.
func ValidateNamespace(now, old *Namespace, w World) (warnings []string, errs field.ErrorList) {
	if now == nil {
		return nil, nil
	}
	var before Namespace
	if old != nil {
		before = *old
	}
	value, was := now.Labels[LabelInject], before.Labels[LabelInject]
	if value == was {
		return nil, nil
	}
	if value != "" && !now.OptedIn() && value != InjectDisabled {
		warnings = append(warnings, fmt.Sprintf("label %s=%s means nothing: write %s, or %s for pods that are served after their creation",
			LabelInject, value, InjectEnabled, InjectLate))
	}
	if now.OptedIn() || !before.OptedIn() {
		return warnings, nil
	}
	if fenced := w.fencedFor(*now); len(fenced) > 0 {
		errs = append(errs, field.Forbidden(field.NewPath("metadata", "labels").Key(LabelInject), fmt.Sprintf(
			"the namespace is bound to %s, labelled %s=true, which serves namespaces only that have opted in: unbind it first", strings.Join(fenced, ", "), LabelManaged)))
	}
	pods, sticky := 0, 0
	for _, l := range w.Leases {
		switch {
		case l.Owner.Namespace != now.Name || !l.Address.IsValid():
		case l.Owner.Sticky():
			sticky++
		default:
			pods++
		}
	}
	if pods+sticky > 0 {
		warnings = append(warnings, fmt.Sprintf("%d addresses are still held in this namespace (%d by owners that come back to them): "+
			"its pods keep theirs until they end, new pods get none", pods+sticky, sticky))
	}
	return warnings, errs
}

// fencedFor names the fenced subnets that a namespace is bound to.
func (w World) fencedFor(ns Namespace) (names []string) {
	for _, name := range slices.Sorted(maps.Keys(w.Catalog.Subnets)) {
		if o := w.Catalog.Subnets[name].Object; o != nil && o.Labels[LabelManaged] == "true" && binds(o, ns) {
			names = append(names, "subnet "+name)
		}
	}
	return names
}
