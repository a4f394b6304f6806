package fault

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// parse reads a Go file.
func source(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// What is built without the tag does nothing, keeps nothing and needs nothing.
func TestNoTraceWithoutTheTag(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	empty := 0
	for _, path := range files {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(string(text), "//go:build faultpoint\n") {
			continue
		}
		f := source(t, path)
		if len(f.Imports) > 0 {
			t.Errorf("%s imports something", path)
		}
		for _, d := range f.Decls {
			switch d := d.(type) {
			case *ast.GenDecl:
				if d.Tok == token.VAR {
					t.Errorf("%s has a variable", path)
				}
			case *ast.FuncDecl:
				if d.Name.Name == "Hit" && len(d.Body.List) == 0 {
					empty++
				} else if d.Name.Name != "Points" {
					t.Errorf("%s: %s does something", path, d.Name.Name)
				}
			}
		}
	}
	if empty != 1 {
		t.Errorf("%d empty functions Hit, want 1", empty)
	}
}

// constants gives the declared points by the names of their constants.
func constants(t *testing.T) map[string]string {
	t.Helper()
	names := map[string]string{}
	ast.Inspect(source(t, "fault.go"), func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Names) == 1 && len(v.Values) == 1 {
			names[v.Names[0].Name] = strings.Trim(v.Values[0].(*ast.BasicLit).Value, `"`)
		}
		return true
	})
	return names
}

// Every declared point is hit in the function that it names, and nowhere else.
func TestEveryPointIsWhereItSays(t *testing.T) {
	names := constants(t)
	want := map[string][]string{}
	for _, p := range Points() {
		in, _, _ := strings.Cut(string(p), "/")
		want[string(p)] = []string{in}
	}
	if len(want) != len(names) {
		t.Errorf("%d constants and %d points", len(names), len(want))
	}
	files, err := filepath.Glob("../../*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	deeper, err := filepath.Glob("../../*/*/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]string{}
	for _, path := range append(files, deeper...) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "fault.Hit(") || strings.HasSuffix(path, "_test.go") {
			continue
		}
		for _, d := range source(t, path).Decls {
			if f, ok := d.(*ast.FuncDecl); ok {
				for _, name := range hits(f) {
					got[names[name]] = append(got[names[name]], f.Name.Name)
				}
			}
		}
	}
	if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("points by the functions that hit them (-want +got):\n%s", d)
	}
}

// hits gives the constants that a function hits.
func hits(f *ast.FuncDecl) []string {
	var out []string
	ast.Inspect(f, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		if s, ok := call.Fun.(*ast.SelectorExpr); ok && s.Sel.Name == "Hit" {
			if x, ok := s.X.(*ast.Ident); ok && x.Name == "fault" {
				if arg, ok := call.Args[0].(*ast.SelectorExpr); ok {
					out = append(out, arg.Sel.Name)
				}
			}
		}
		return true
	})
	return out
}
