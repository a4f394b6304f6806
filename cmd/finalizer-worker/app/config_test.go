package app

import (
	"bytes"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The defaults are what operators rely on: a change of one is a change for them, and is written down here.
func TestDefaults(t *testing.T) {
	t.Setenv("POD_NAME", "pod-name")
	t.Setenv("POD_NAMESPACE", "berth-system")
	cmd := NewCommand()
	var got bytes.Buffer
	cmd.SetOut(&got)
	cmd.SetArgs([]string{"--print-config"})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	const golden = "testdata/defaults.yaml"
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(golden, got.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if d := cmp.Diff(string(want), got.String()); err != nil || d != "" {
		t.Errorf("%v; UPDATE_GOLDEN=1 writes the file anew\n%s", err, d)
	}
}
