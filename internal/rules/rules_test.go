// Package rules holds the rules of the house that a compiler doesn't.
package rules

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/berth-net/berth/"

// TestImports holds which package may depend on what, over everything that it pulls in.
func TestImports(t *testing.T) {
	const (
		clientGo = "k8s.io/client-go/"
		runtime  = "sigs.k8s.io/controller-runtime"
		ovsdb    = "github.com/ovn-kubernetes/libovsdb"
	)
	pure := []string{clientGo, runtime, ovsdb}
	for pkg, forbidden := range map[string][]string{
		"pkg/network":     pure,
		"pkg/ipam":        pure,
		"pkg/lifecycle":   pure,
		"pkg/topology":    pure,
		"internal/report": {ovsdb, module + "pkg/worker"},
		"pkg/ovn/nb":      {"."}, // nothing that is not of the standard library
		"pkg/ovn":         {runtime, clientGo},
		"pkg/admission":   {ovsdb, module + "pkg/worker"},
		"pkg/worker":      {module + "pkg/admission"},
	} {
		t.Run(pkg, func(t *testing.T) {
			for _, dep := range deps(t, module+pkg) {
				for _, f := range forbidden {
					if dep != module+pkg && strings.HasPrefix(dep, f) || f == "." && dep != module+pkg && strings.Contains(strings.SplitN(dep, "/", 2)[0], ".") {
						t.Errorf("depends on %s", dep)
					}
				}
			}
		})
	}
}

// TestOnlyOVNBuildsOperations holds that OVSDB operations are built in one place. The database in memory takes them.
func TestOnlyOVNBuildsOperations(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-f", `{{.ImportPath}} {{join .Imports " "}}`, module+"...").Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		pkg, imports, _ := strings.Cut(strings.TrimSpace(line), " ")
		if strings.Contains(imports, "github.com/ovn-kubernetes/libovsdb/") && pkg != module+"pkg/ovn" && pkg != module+"internal/memnb" {
			t.Errorf("%s imports libovsdb", pkg)
		}
	}
}

func deps(t *testing.T, pkg string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", pkg).Output()
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(out))
	if len(got) == 0 || got[len(got)-1] != pkg {
		t.Fatalf("go list gave %q", got)
	}
	return got
}
