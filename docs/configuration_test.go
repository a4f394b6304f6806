// Package docs holds the pages to what the programs are.
package docs

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	worker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhook "github.com/berth-net/berth/cmd/webhook/app"
)

func programs() []*cobra.Command { return []*cobra.Command{webhook.NewCommand(), worker.NewCommand()} }

// The defaults are what operators rely on: a change of one is a change for them, and is written down here.
func TestDefaults(t *testing.T) {
	t.Setenv("POD_NAME", "pod-name")
	t.Setenv("POD_NAMESPACE", "berth-system")
	for _, cmd := range programs() {
		t.Run(cmd.Name(), func(t *testing.T) {
			var got bytes.Buffer
			cmd.SetOut(&got)
			cmd.SetArgs([]string{"--print-config"})
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			golden := "testdata/" + cmd.Name() + ".yaml"
			if os.Getenv("UPDATE_GOLDEN") != "" {
				if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if d := cmp.Diff(string(want), got.String()); err != nil || d != "" {
				t.Errorf("%v; UPDATE_GOLDEN=1 writes the file anew\n%s", err, d)
			}
		})
	}
}

// The tables of settings list every flag, with its default and its words. UPDATE_GOLDEN=1 writes them anew.
func TestSettings(t *testing.T) {
	t.Setenv("POD_NAME", "")
	t.Setenv("POD_NAMESPACE", "")
	const page = "configuration.md"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	text := string(raw)
	for _, cmd := range programs() {
		head := "## " + cmd.Name() + "\n\n"
		before, rest, ok := strings.Cut(text, head)
		if !ok {
			t.Fatalf("%s has no %q", page, head)
		}
		_, after, found := strings.Cut(rest, "\n## ")
		if text = before + head + table(cmd); found {
			text += "\n## " + after
		}
	}
	text = strings.TrimRight(text, "\n") + "\n"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(page, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(text, string(raw)); d != "" {
		t.Error(d)
	}
}

func table(cmd *cobra.Command) string {
	var b strings.Builder
	b.WriteString("| flag | default | what it says |\n|---|---|---|\n")
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		value := strings.Trim(f.DefValue, "[]")
		switch {
		case f.Name == "help":
			return
		case f.Name == "replica":
			value = "`POD_NAME`, or the host's name"
		case value != "":
			value = "`" + value + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | %s | %s |\n", f.Name, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
	return b.String()
}
