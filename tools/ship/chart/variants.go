package chart

import (
	"fmt"
	"strings"

	"github.com/berth-net/berth/tools/ship/render"
)

// Choices of an installation that change more than a value. A variant is one combination of them.
const (
	modeAlone       = "alone"
	modeBeside      = "beside"
	certsOwn        = "self-managed"
	certsManager    = "cert-manager"
	variantCount    = 8
	allVariants     = set(1<<variantCount - 1)
	bitBeside       = 1
	bitCertManager  = 2
	bitMonitoring   = 4
	componentAlerts = "monitoring"
)

// Variant is one combination of the choices.
type Variant int

// Variants lists all combinations.
func Variants() []Variant {
	out := make([]Variant, variantCount)
	for n := range out {
		out[n] = Variant(n)
	}
	return out
}

// Mode is alone or beside.
func (v Variant) Mode() string {
	if v&bitBeside != 0 {
		return modeBeside
	}
	return modeAlone
}

// Certificates is self-managed or cert-manager.
func (v Variant) Certificates() string {
	if v&bitCertManager != 0 {
		return certsManager
	}
	return certsOwn
}

// Monitoring tells whether there is a Prometheus operator.
func (v Variant) Monitoring() bool { return v&bitMonitoring != 0 }

// Values are the chart's values that choose the variant.
func (v Variant) Values() map[string]any {
	return map[string]any{"mode": v.Mode(), "certificates": v.Certificates(), "monitoring": v.Monitoring()}
}

// Objects are the variant's objects as kustomize builds them.
func (v Variant) Objects(repo string) ([]render.Object, error) {
	overlay := v.Mode()
	if v.Certificates() == certsManager {
		overlay += "-" + certsManager
	}
	var components []string
	if v.Monitoring() {
		components = append(components, componentAlerts)
	}
	return render.Overlay(repo, overlay, components...)
}

// set is a set of variants.
type set uint16

func (s set) has(v Variant) bool { return s&(1<<v) != 0 }

// literal is a condition on one choice.
type literal struct {
	holds set
	text  string
}

func literals() []literal {
	where := func(ok func(Variant) bool) set {
		var s set
		for _, v := range Variants() {
			if ok(v) {
				s |= 1 << v
			}
		}
		return s
	}
	return []literal{
		{where(func(v Variant) bool { return v.Mode() == modeAlone }), `eq .Values.mode "alone"`},
		{where(func(v Variant) bool { return v.Mode() == modeBeside }), `eq .Values.mode "beside"`},
		{where(func(v Variant) bool { return v.Certificates() == certsOwn }), `eq .Values.certificates "self-managed"`},
		{where(func(v Variant) bool { return v.Certificates() == certsManager }), `eq .Values.certificates "cert-manager"`},
		{where(Variant.Monitoring), `.Values.monitoring`},
		{where(func(v Variant) bool { return !v.Monitoring() }), `not .Values.monitoring`},
	}
}

// condition says by the values when a variant of the scope is one of the wanted.
func condition(want, scope set) (string, error) {
	all := literals()
	for _, a := range all {
		if a.holds&scope == want {
			return a.text, nil
		}
	}
	for n, a := range all {
		for _, b := range all[n+1:] {
			if a.holds&b.holds&scope == want {
				return fmt.Sprintf("and (%s) (%s)", a.text, strings.TrimSpace(b.text)), nil
			}
		}
	}
	return "", fmt.Errorf("variants %08b of %08b have no condition of two choices: make the components change less at once", want, scope)
}
