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
	variantCount    = 16
	allVariants     = set(1<<variantCount - 1)
	bitBeside       = 1
	bitCertManager  = 2
	bitMonitoring   = 4
	bitBindHook     = 8
	componentAlerts = "monitoring"
	componentHook   = "bind-hook"
	// maxChoices is how many choices one condition may be of. The worker's arguments hang on three.
	maxChoices = 3
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

// BindHook tells whether the API server asks the worker about bindings.
func (v Variant) BindHook() bool { return v&bitBindHook != 0 }

// Values are the chart's values that choose the variant.
func (v Variant) Values() map[string]any {
	return map[string]any{"mode": v.Mode(), "certificates": v.Certificates(), "monitoring": v.Monitoring(),
		"bindHook": map[string]any{"enabled": v.BindHook()}}
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
	if v.BindHook() {
		components = append(components, componentHook)
		if v.Certificates() == certsManager {
			components = append(components, componentHook+"-"+certsManager)
		}
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
		{where(Variant.BindHook), `.Values.bindHook.enabled`},
		{where(func(v Variant) bool { return !v.BindHook() }), `not .Values.bindHook.enabled`},
	}
}

// condition says by the values when a variant of the scope is one of the wanted, by as few choices as will do.
func condition(want, scope set) (string, error) {
	for choices := 1; choices <= maxChoices; choices++ {
		switch texts := conjunction(literals(), choices, scope, want); len(texts) {
		case 0:
		case 1:
			return texts[0], nil
		default:
			return "and (" + strings.Join(texts, ") (") + ")", nil
		}
	}
	return "", fmt.Errorf("variants %016b of %016b have no condition of %d choices: make the components change less at once", want, scope, maxChoices)
}

// conjunction finds so many literals that hold, all at once, for the wanted variants of the scope and for no others.
func conjunction(from []literal, choices int, scope, want set) []string {
	for n, l := range from {
		holds := l.holds & scope
		if choices == 1 {
			if holds == want {
				return []string{l.text}
			}
			continue
		}
		if rest := conjunction(from[n+1:], choices-1, holds, want); rest != nil {
			return append([]string{l.text}, rest...)
		}
	}
	return nil
}
