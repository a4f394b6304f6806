// Package manifests_test holds manifests, dashboard and documents to what the programs really do.
//
// Invariant: nobody is alerted by, looks at, or reads about a metric or a flag that does not exist.
package manifests_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// metric is one that a program exports.
type metric struct{ Type, Labels string }

// exported reads from the source which metrics there are.
func exported(t *testing.T) map[string]metric {
	t.Helper()
	out := map[string]metric{}
	for _, root := range []string{"cmd", "pkg", "internal", "certs"} {
		err := filepath.WalkDir(filepath.Join("..", root), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			maps.Copy(out, metricsOf(file))
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if len(out) < 20 {
		t.Fatalf("only %d metrics are found: %v", len(out), out)
	}
	return out
}

// metricsOf finds calls that name a metric: constructors of Prometheus, and functions of the file that wrap one.
func metricsOf(file *ast.File) map[string]metric {
	wrappers, out := map[string]string{}, map[string]metric{}
	ast.Inspect(file, func(n ast.Node) bool {
		if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == 1 && len(a.Rhs) == 1 {
			name, named := a.Lhs[0].(*ast.Ident)
			if f, isFunc := a.Rhs[0].(*ast.FuncLit); isFunc && named {
				ast.Inspect(f, func(n ast.Node) bool {
					if c, ok := n.(*ast.CallExpr); ok && constructor(c) != "" {
						wrappers[name.Name] = constructor(c)
					}
					return true
				})
			}
		}
		return true
	})
	ast.Inspect(file, func(n ast.Node) bool {
		c, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		kind := constructor(c)
		if f, ok := c.Fun.(*ast.Ident); ok && kind == "" {
			kind = wrappers[f.Name]
		}
		if kind == "" {
			return true
		}
		if words := literals(c); len(words) > 0 && strings.HasPrefix(words[0], "berth_") {
			out[words[0]] = metric{Type: strings.ToLower(strings.TrimSuffix(strings.TrimSuffix(kind, "Vec"), "Func")), Labels: labels(kind, c, words)}
		}
		return true
	})
	return out
}

// constructor is Gauge for prometheus.NewGauge, and empty for what is none.
func constructor(c *ast.CallExpr) string {
	s, ok := c.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	if x, ok := s.X.(*ast.Ident); !ok || x.Name != "prometheus" {
		return ""
	}
	for _, kind := range []string{"Counter", "Gauge", "Histogram", "Summary"} {
		if rest, ok := strings.CutPrefix(s.Sel.Name, "New"+kind); ok && (rest == "" || rest == "Vec" || rest == "Func") {
			return kind + rest
		}
	}
	return ""
}

// literals are the texts in a call, in order.
func literals(n ast.Node) []string {
	var out []string
	ast.Inspect(n, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if s, err := strconv.Unquote(l.Value); err == nil {
				out = append(out, s)
			}
		}
		return true
	})
	return out
}

// labels are those that follow name and help, or that are constant.
func labels(kind string, c *ast.CallExpr, words []string) string {
	if strings.HasSuffix(kind, "Vec") {
		return strings.Join(words[2:], ", ")
	}
	var out []string
	ast.Inspect(c, func(n ast.Node) bool {
		if kv, ok := n.(*ast.KeyValueExpr); ok {
			if l, ok := kv.Key.(*ast.BasicLit); ok && l.Kind == token.STRING {
				out = append(out, strings.Trim(l.Value, `"`))
			}
		}
		return true
	})
	return strings.Join(out, ", ")
}

func read(t *testing.T, path string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join("..", path))
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// docs/metrics.md lists exactly the metrics that there are, with their types and labels.
func TestMetricsReference(t *testing.T) {
	row := regexp.MustCompile("(?m)^\\| `(berth_[a-z_]+)` \\| (\\w+) \\| ([^|]*) \\| (.+) \\|$")
	listed := map[string]metric{}
	for _, m := range row.FindAllStringSubmatch(read(t, "docs/metrics.md"), -1) {
		if _, twice := listed[m[1]]; twice {
			t.Errorf("%s is listed twice", m[1])
		}
		listed[m[1]] = metric{Type: m[2], Labels: strings.TrimSpace(strings.ReplaceAll(m[3], "`", ""))}
	}
	if d := cmp.Diff(exported(t), listed); d != "" {
		t.Errorf("docs/metrics.md differs from the source (-source +document):\n%s", d)
	}
}

// Alerts and dashboard use metrics that there are, with labels that they have.
func TestQueries(t *testing.T) {
	known := exported(t)
	use := regexp.MustCompile(`(berth_[a-z_]+)(\{[^}]*\})?`)
	label := regexp.MustCompile(`([a-z_]+)\s*(?:=~|!~|!=|=)`)
	for _, file := range []string{"manifests/components/monitoring/rules.yaml", "manifests/dashboard/berth.json"} {
		uses := use.FindAllStringSubmatch(strings.ReplaceAll(read(t, file), `\"`, `"`), -1)
		if len(uses) < 15 {
			t.Errorf("%s uses %d metrics only", file, len(uses))
		}
		for _, m := range uses {
			name := m[1]
			have, ok := known[name]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if base, cut := strings.CutSuffix(name, suffix); cut && !ok {
					have, ok = known[base]
					ok = ok && have.Type == "histogram"
				}
			}
			if !ok {
				t.Errorf("%s: there is no metric %s", file, name)
			}
			for _, l := range label.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(append(strings.Split(have.Labels, ", "), "namespace", "pod", "job"), l[1]) {
					t.Errorf("%s: %s has no label %s", file, name, l[1])
				}
			}
		}
	}
}
