package demo

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// show runs a demo and returns what it printed. It skips what needs the real server where that isn't.
func show(t *testing.T, o Options) (string, error) {
	t.Helper()
	if _, err := findInstall(installedSchema, findProgram); err != nil && o.Northbound == NorthboundServer {
		t.Skip(err)
	}
	var out bytes.Buffer
	err := Run(t.Context(), &out, o)
	return out.String(), err
}

func TestNothingIsLeft(t *testing.T) {
	for northbound, says := range map[string]string{
		NorthboundServer: "northbound a real ovsdb-server,",
		NorthboundMemory: "northbound in memory,",
	} {
		t.Run(northbound, func(t *testing.T) {
			out, err := show(t, Options{Northbound: northbound})
			if err != nil {
				t.Fatalf("%v, after\n%s", err, out)
			}
			first, _, _ := strings.Cut(out, "\n")
			if !strings.Contains(first, says) {
				t.Errorf("the first line is %q, want it to say %q", first, says)
			}
			if !strings.HasSuffix(out, "\nleft: 0 leases, 0 ports\n") {
				t.Errorf("the end is missing:\n%s", out)
			}
			if n := strings.Count(out, "refused at CREATE: "); n != 2 {
				t.Errorf("%d refusals, want 2:\n%s", n, out)
			}
			if diff := cmp.Diff([]string{"db-0", "db-1", "dual", "static", "web", "web", "web"}, wired(out)); diff != "" {
				t.Errorf("pods with their own address on their port, in their node's group (-want +got):\n%s", diff)
			}
		})
	}
}

// wired lists the pods of whose line the second client's part agrees with the API's.
func wired(out string) []string {
	var names []string
	line := regexp.MustCompile(`(?m)^(\S+) +(\S+) +node-([12]) +(\S+)\.demo +0a:58:[0-9a-f:]{11} (.+?)  +node\.node\.([12])$`)
	for _, m := range line.FindAllStringSubmatch(out, -1) {
		if m[1] == m[4] && m[2] == strings.ReplaceAll(m[5], " ", ",") && m[3] == m[6] {
			name, _, _ := strings.Cut(m[1], "-5d4f-")
			names = append(names, name)
		}
	}
	return names
}

func TestBreakReleaseFails(t *testing.T) {
	for _, northbound := range []string{NorthboundServer, NorthboundMemory} {
		t.Run(northbound, func(t *testing.T) {
			out, err := show(t, Options{Northbound: northbound, Break: BreakRelease, Patience: 10 * time.Second})
			if !errors.Is(err, ErrLeft) {
				t.Errorf("%v, want ErrLeft", err)
			}
			if !strings.HasSuffix(out, "\nleft: 1 leases, 1 ports\n") {
				t.Errorf("the end is another:\n%s", out)
			}
		})
	}
}

func TestChoose(t *testing.T) {
	gone := errors.New("no such program")
	for name, tc := range map[string]struct {
		wanted  string
		missing error
		says    string
		fails   bool
	}{
		"auto, installed":       {NorthboundAuto, nil, "a real ovsdb-server", false},
		"auto, not installed":   {NorthboundAuto, gone, "in memory (no real one: no such program)", false},
		"real, installed":       {NorthboundServer, nil, "a real ovsdb-server", false},
		"real, not installed":   {NorthboundServer, gone, "", true},
		"memory, installed":     {NorthboundMemory, nil, "in memory", false},
		"memory, not installed": {NorthboundMemory, gone, "in memory", false},
		"something else":        {"etcd", nil, "", true},
		"nothing":               {"", nil, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			n, err := choose(tc.wanted, install{}, tc.missing)
			if n.text != tc.says || (err != nil) != tc.fails {
				t.Errorf("%q, %v", n.text, err)
			}
			if tc.fails != (n.start == nil) {
				t.Error("an error and a server, or neither")
			}
		})
	}
}

func TestFindInstall(t *testing.T) {
	schema := filepath.Join(t.TempDir(), "schema")
	if err := os.WriteFile(schema, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct{ schema, lacks string }{
		"all":       {schema, ""},
		"no server": {schema, "ovsdb-server"},
		"no tool":   {schema, "ovsdb-tool"},
		"no schema": {schema + ".gone", "nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := findInstall(tc.schema, func(program string) (string, error) {
				if program == tc.lacks {
					return "", fs.ErrNotExist
				}
				return "/bin/" + program, nil
			})
			if tc.lacks != "" {
				if !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%v, want ErrNotExist", err)
				}
				return
			}
			if want := (install{"/bin/ovsdb-server", "/bin/ovsdb-tool", schema}); got != want || err != nil {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

func TestUnknownBreak(t *testing.T) {
	if out, err := show(t, Options{Northbound: NorthboundMemory, Break: "all"}); err == nil || out != "" {
		t.Errorf("%v, after %q", err, out)
	}
}
