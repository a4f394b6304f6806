package app

import (
	"bytes"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-net/berth/internal/report"
)

const (
	reference = "../../../docs/kubectl-berth.md"
	marker    = "<!-- What follows is written by: go test ./cmd/kubectl-berth/app -run TestReference -update -->\n"
)

// usage writes what every command says of itself, and the flags that all have.
func usage(root *cobra.Command) string {
	var b strings.Builder
	for _, c := range root.Commands() {
		if c.Name() == "help" || c.Name() == "completion" {
			continue
		}
		fmt.Fprintf(&b, "\n### %s\n\n%s\n\n    %s\n", c.Name(), c.Long, c.UseLine())
		if c.Example != "" {
			fmt.Fprintf(&b, "\nFor example:\n\n%s\n", indent(c.Example, "  "))
		}
		if flags := c.LocalNonPersistentFlags().FlagUsages(); flags != "" {
			fmt.Fprintf(&b, "\nFlags:\n\n%s", indent(flags, "    "))
		}
	}
	fmt.Fprintf(&b, "\n### Flags of all commands\n\n%s", indent(root.PersistentFlags().FlagUsages(), "    "))
	return b.String()
}

func indent(text, by string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		b.WriteString(by + line)
	}
	return b.String()
}

// TestReference holds the reference page against the commands as they are.
func TestReference(t *testing.T) {
	t.Setenv("HOME", "$HOME") // a default value has it
	t.Setenv("KUBECACHEDIR", "")
	root := NewCommand(genericiooptions.IOStreams{Out: &bytes.Buffer{}, ErrOut: &bytes.Buffer{}}, clocktesting.NewFakeClock(now()))
	page, err := os.ReadFile(reference)
	if err != nil {
		t.Fatal(err)
	}
	head, have, ok := strings.Cut(string(page), marker)
	if !ok {
		t.Fatalf("%s has no line %q", reference, marker)
	}
	want := usage(root)
	if *update {
		if err := os.WriteFile(reference, []byte(head+marker+want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(want, have); d != "" {
		t.Errorf("the page is stale, run the test with -update (-want +got):\n%s", d)
	}
	for _, c := range root.Commands() {
		if c.Short == "" || c.Long == "" || c.Args == nil {
			t.Errorf("%s lacks its help, or a check of its arguments", c.Name())
		}
		if c.Name() != "leases" && !strings.Contains(head, "kubectl berth "+c.Name()) && !strings.Contains(head, "`"+c.Name()+"`") {
			t.Errorf("the page's own words don't name %s", c.Name())
		}
	}
}

// TestSchema holds the names of all fields: programs read them.
func TestSchema(t *testing.T) {
	var lines []string
	for _, v := range []any{report.Status{}, report.Subnets{}, report.Leases{}, report.Who{}, report.Story{}, report.Audit{}, report.Reservation{}, report.Uninstall{}, report.Migration{}} {
		typ := reflect.TypeOf(v)
		lines = append(lines, fields(t, typ, typ.Name())...)
	}
	golden(t, "testdata/fields.txt", strings.Join(lines, "\n")+"\n")
}

// fields lists the JSON fields of a type, with their kinds.
func fields(t *testing.T, typ reflect.Type, path string) []string {
	t.Helper()
	var out []string
	for i := range typ.NumField() {
		f := typ.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		inner, at := f.Type, path+"."+name
		if f.Anonymous && name == "" {
			at = path
		} else if name == "" || name == "-" {
			t.Errorf("%s.%s has no name in JSON", path, f.Name)
			continue
		}
		for inner.Kind() == reflect.Pointer || inner.Kind() == reflect.Slice {
			if inner.Kind() == reflect.Slice {
				at += "[]"
			}
			inner = inner.Elem()
		}
		if inner.Kind() == reflect.Struct && strings.HasSuffix(inner.PkgPath(), "internal/report") {
			out = append(out, fields(t, inner, at)...)
			continue
		}
		out = append(out, at+" "+inner.String())
	}
	return slices.Clip(out)
}
