package app

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares with a file, or writes it.
func golden(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatalf("%v: run the test with -update", err)
	}
	if d := cmp.Diff(string(want), got); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}

// TestGolden holds the answers about one cluster. Run it with -update to write them anew.
func TestGolden(t *testing.T) {
	w := shop(t)
	w.install("ensure")
	nb := northboundOf(t, w)
	cases := map[string]struct {
		args []string
		code int
	}{
		"status":           {[]string{"status"}, 0},
		"status-json":      {[]string{"status", "-o", "json"}, 0},
		"subnets":          {[]string{"subnets"}, 0},
		"subnets-wide":     {[]string{"subnets", "-o", "wide"}, 0},
		"subnets-json":     {[]string{"subnets", "-o", "json"}, 0},
		"leases":           {[]string{"leases"}, 0},
		"leases-wide":      {[]string{"leases", "-o", "wide", "--subnet=tiny"}, 0},
		"leases-pending":   {[]string{"leases", "--pending", "-o", "yaml"}, 0},
		"leases-namespace": {[]string{"leases", "-n", "plain"}, 0},
		"who-pod":          {[]string{"who", "10.16.0.20"}, 0},
		"who-mac":          {[]string{"who", "0A-58-0a-10-00-14", "-o", "wide"}, 0},
		"who-reserved":     {[]string{"who", "10.16.0.50"}, 0},
		"who-gateway":      {[]string{"who", "10.16.0.1"}, 0},
		"who-free":         {[]string{"who", "10.16.0.77"}, ExitFound},
		"who-outside":      {[]string{"who", "192.0.2.1", "-o", "json"}, ExitFound},
		"who-no-mac":       {[]string{"who", "02:00:00:00:00:01"}, ExitFound},
		"why-running":      {[]string{"why", "web-0", "-n", "shop", "--northbound", nb}, 0},
		"why-running-json": {[]string{"why", "shop/web-0", "-o", "json", "--northbound", nb}, 0},
		"why-unbound":      {[]string{"why", "web-1", "-n", "shop"}, 0},
		"why-waiting":      {[]string{"why", "queue", "-n", "shop"}, 0},
		"why-late":         {[]string{"why", "late", "-n", "shop"}, 0},
		"why-bad":          {[]string{"why", "bad", "-n", "shop"}, 0},
		"why-not-ours":     {[]string{"why", "other", "-n", "plain"}, 0},
		"adopt":            {[]string{"adopt", "--all", "--dry-run"}, ExitFine},
		"adopt-json":       {[]string{"adopt", "-n", "plain", "--dry-run", "-o", "json"}, ExitFine},
		"rebuild":          {[]string{"rebuild", "ovn-default", "--dry-run", "-o", "wide", "--northbound", nb}, ExitFine},
		"handback-wide":    {[]string{"handback", "--subnet=tiny", "--dry-run", "-o", "wide"}, ExitFound},
		"audit":            {[]string{"audit", "--settle=0s"}, ExitFound},
		"audit-wide":       {[]string{"audit", "--settle=0s", "-o", "wide", "--northbound", nb}, ExitFound},
		"audit-json":       {[]string{"audit", "--settle=0s", "-o", "json", "--northbound", nb}, ExitFound},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			code, out, errs := w.run(c.args...)
			if code != c.code || errs != "" {
				t.Errorf("exit code %d, want %d; %s", code, c.code, errs)
			}
			golden(t, filepath.Join("testdata", name+".golden"), out)
		})
	}
	files, err := filepath.Glob("testdata/*.golden")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name := filepath.Base(f)
		if _, ok := cases[name[:len(name)-len(".golden")]]; !ok {
			t.Errorf("nothing writes %s: remove it", f)
		}
	}
}
