package chart

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"
)

// values are one place of an object in each variant; a variant outside of the scope at hand has no meaning in it.
type values [variantCount]any

// emitter writes a place once where all variants agree, and under conditions where they don't.
type emitter struct{ out bytes.Buffer }

func (e *emitter) line(indent int, format string, args ...any) {
	e.out.WriteString(strings.Repeat(" ", indent))
	fmt.Fprintf(&e.out, format, args...)
	e.out.WriteByte('\n')
}

// mapping writes the keys of maps.
func (e *emitter) mapping(indent int, scope set, at values) error {
	keys := map[string]set{}
	for _, v := range scope.list() {
		for k := range at[v].(map[string]any) {
			keys[k] |= 1 << v
		}
	}
	for _, k := range slices.Sorted(maps.Keys(keys)) {
		var child values
		for _, v := range keys[k].list() {
			child[v] = at[v].(map[string]any)[k]
		}
		if err := e.guarded(keys[k], scope, func() error { return e.entry(indent, k+":", keys[k], child) }); err != nil {
			return err
		}
	}
	return nil
}

// guarded writes something that only some variants of the scope have.
func (e *emitter) guarded(has, scope set, write func() error) error {
	if has == scope {
		return write()
	}
	cond, err := condition(has, scope)
	if err != nil {
		return err
	}
	e.line(0, "{{- if %s }}", cond)
	if err := write(); err != nil {
		return err
	}
	e.line(0, "{{- end }}")
	return nil
}

// entry writes what stands behind a key, or behind the dash of a list.
func (e *emitter) entry(indent int, head string, scope set, at values) error {
	groups := groupEqual(scope, at)
	switch {
	case len(groups) == 1:
		return e.plain(indent, head, at[scope.list()[0]])
	case allOf[map[string]any](scope, at):
		e.line(indent, "%s", head)
		return e.mapping(indent+2, scope, at)
	case sameLists(scope, at):
		e.line(indent, "%s", head)
		return e.list(indent, scope, at)
	}
	for n, g := range groups {
		cond, err := condition(g, scope)
		if err != nil {
			return err
		}
		word := "if"
		if n > 0 {
			word = "else if"
		}
		e.line(0, "{{- %s %s }}", word, cond)
		if err := e.plain(indent, head, at[g.list()[0]]); err != nil {
			return err
		}
	}
	e.line(0, "{{- end }}")
	return nil
}

func (e *emitter) list(indent int, scope set, at values) error {
	for n := range at[scope.list()[0]].([]any) {
		var child values
		for _, v := range scope.list() {
			child[v] = at[v].([]any)[n]
		}
		if err := e.entry(indent, "-", scope, child); err != nil {
			return err
		}
	}
	return nil
}

// plain writes a value that needs no condition.
func (e *emitter) plain(indent int, head string, value any) error {
	body, err := yaml.Marshal(value)
	if err != nil {
		return fmt.Errorf("encode a value: %w", err)
	}
	text := strings.TrimSuffix(string(body), "\n")
	var nested bool
	switch v := value.(type) {
	case map[string]any:
		nested = len(v) > 0
	case []any:
		nested = len(v) > 0
	}
	pad := func(n int) string { return strings.Repeat(" ", n) }
	switch {
	case !nested: // the further lines of a long text are indented by two
		text = pad(indent) + head + " " + strings.ReplaceAll(text, "\n", "\n"+pad(indent))
	default:
		text = pad(indent) + head + "\n" + pad(indent+2) + strings.ReplaceAll(text, "\n", "\n"+pad(indent+2))
	}
	e.out.WriteString(templated(text) + "\n")
	return nil
}

func (s set) list() []Variant {
	return slices.DeleteFunc(Variants(), func(v Variant) bool { return !s.has(v) })
}

// groupEqual splits a scope by what the variants have.
func groupEqual(scope set, at values) []set {
	var groups []set
	for _, v := range scope.list() {
		n := slices.IndexFunc(groups, func(g set) bool { return reflect.DeepEqual(at[g.list()[0]], at[v]) })
		if n < 0 {
			groups = append(groups, 1<<v)
			continue
		}
		groups[n] |= 1 << v
	}
	return groups
}

func allOf[T any](scope set, at values) bool {
	return !slices.ContainsFunc(scope.list(), func(v Variant) bool { _, ok := at[v].(T); return !ok })
}

// sameLists tells whether all are lists of equally many maps.
func sameLists(scope set, at values) bool {
	if !allOf[[]any](scope, at) {
		return false
	}
	length := len(at[scope.list()[0]].([]any))
	return !slices.ContainsFunc(scope.list(), func(v Variant) bool {
		l := at[v].([]any)
		return len(l) != length || slices.ContainsFunc(l, func(item any) bool { _, ok := item.(map[string]any); return !ok })
	})
}
