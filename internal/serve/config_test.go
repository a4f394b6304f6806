package serve

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
)

// ran is a program with settings of each type. It returns what it ran with, and what it printed.
type ran struct {
	text  string
	flag  bool
	count int
	delay time.Duration
	list  []string
}

func program(t *testing.T, file string, args ...string) (*ran, string, error) {
	t.Helper()
	var got *ran
	var c Config
	var out bytes.Buffer
	r := ran{text: "t", count: 3, delay: time.Minute, list: []string{"a"}}
	cmd := &cobra.Command{Use: "p", Args: cobra.NoArgs, SilenceErrors: true, SilenceUsage: true}
	fs := cmd.Flags()
	fs.StringVar(&r.text, "text", r.text, "")
	fs.BoolVar(&r.flag, "flag", r.flag, "")
	fs.IntVar(&r.count, "count", r.count, "")
	fs.DurationVar(&r.delay, "delay", r.delay, "")
	fs.StringSliceVar(&r.list, "list", r.list, "")
	c.Command(cmd, func(*cobra.Command) error { got = &r; return nil })
	if file != "" {
		path := filepath.Join(t.TempDir(), "config.yaml")
		if err := os.WriteFile(path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		args = append(args, "--config="+path)
	}
	cmd.SetArgs(args)
	cmd.SetOut(&out)
	err := cmd.ExecuteContext(t.Context())
	return got, out.String(), err
}

func TestConfig(t *testing.T) {
	def := ran{text: "t", count: 3, delay: time.Minute, list: []string{"a"}}
	for name, c := range map[string]struct {
		file string
		args []string
		want ran
	}{
		"defaults":         {"", nil, def},
		"empty":            {"{}", nil, def},
		"file":             {"text: x\nflag: true\ncount: 7\ndelay: 3s\nlist: [b, \"c,d\"]\n", nil, ran{"x", true, 7, 3 * time.Second, []string{"b", "c,d"}}},
		"flags win":        {"text: x\nlist: [b]\ncount: 7\n", []string{"--text=y", "--list=c"}, ran{"y", false, 7, time.Minute, []string{"c"}}},
		"text of a number": {"text: 5\n", nil, ran{"5", false, 3, time.Minute, []string{"a"}}},
		"empty list":       {"list: []\n", nil, ran{text: "t", count: 3, delay: time.Minute, list: []string{}}},
		"one of a list":    {"list: b\n", nil, ran{text: "t", count: 3, delay: time.Minute, list: []string{"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, _, err := program(t, c.file, c.args...)
			if d := cmp.Diff(&c.want, got, cmp.AllowUnexported(ran{})); err != nil || d != "" {
				t.Errorf("%v\n%s", err, d)
			}
		})
	}
}

func TestConfigIsStrict(t *testing.T) {
	for name, c := range map[string]struct{ file, says string }{
		"unknown key":   {"texts: x\n", "texts"},
		"repeated key":  {"text: x\ntext: y\n", "text"},
		"no map":        {"- a\n", "not a map"},
		"wrong type":    {"count: many\n", "count"},
		"list for one":  {"text: [a, b]\n", "one value"},
		"nested":        {"text: {a: b}\n", "plain value"},
		"file of files": {"config: x\n", "config"},
	} {
		t.Run(name, func(t *testing.T) {
			if got, _, err := program(t, c.file); err == nil || got != nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("it ran with %+v: %v", got, err)
			}
		})
	}
	if _, _, err := program(t, "a: 1\nb: 2\n"); !errors.Is(err, ErrUnknownKey) || !strings.Contains(err.Error(), "a:") || !strings.Contains(err.Error(), "b:") {
		t.Errorf("not all is told: %v", err)
	}
	if _, _, err := program(t, "", "--config=/nowhere"); err == nil {
		t.Error("a file that is not there is no error")
	}
}

// What is printed can be read, and comes to the same.
func TestPrintConfig(t *testing.T) {
	got, printed, err := program(t, "text: x\n", "--print-config", "--list=b,c", "--delay=90s")
	want := "count: 3\ndelay: 1m30s\nflag: false\nlist:\n- b\n- c\ntext: x\n"
	if err != nil || got != nil || printed != want {
		t.Fatalf("%v, ran %v:\n%s", err, got, printed)
	}
	again, _, err := program(t, printed)
	if d := cmp.Diff(&ran{"x", false, 3, 90 * time.Second, []string{"b", "c"}}, again, cmp.AllowUnexported(ran{})); err != nil || d != "" {
		t.Errorf("%v\n%s", err, d)
	}
}
