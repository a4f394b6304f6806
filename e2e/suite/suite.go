// Package suite is what the suites of tests on local clusters have in common.
//
// Invariant: the environment is read here alone: BERTH_E2E_BIN names a directory of programs to run in place of the work
// tree's, with BERTH_E2E_KEEP a cluster outlives its tests, and with BERTH_LONG tests take the time that they would like.
package suite

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/sampling"
)

// logEnd is how much of a log is printed, in bytes.
const logEnd = 12000

// Bin is the directory of the programs to run; empty: the work tree's.
func Bin() string { return os.Getenv("BERTH_E2E_BIN") }

// Keep tells whether clusters are to outlive their tests.
func Keep() bool { return os.Getenv("BERTH_E2E_KEEP") != "" }

// Long tells whether tests have time.
func Long() bool { return os.Getenv("BERTH_LONG") != "" }

// Main runs a package's tests, and then ends what they share, unless clusters are to outlive them. It does not return.
func Main(m *testing.M, end func(context.Context) error) {
	code := m.Run()
	if !Keep() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		err := end(ctx)
		cancel()
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// Until waits until ok finds nothing wrong, or ends the test.
func Until(ctx context.Context, t testing.TB, what string, every, limit time.Duration, ok func(context.Context) error) {
	t.Helper()
	if err := await.Until(ctx, what, every, limit, ok); err != nil {
		t.Fatal(err)
	}
}

// Broken fails the test for what was seen broken since the cluster is there.
func Broken(t testing.TB, s *sampling.Sampling) {
	t.Helper()
	broken, samples := s.Broken()
	t.Logf("%d samples", samples)
	for _, v := range broken {
		t.Errorf("after %d samples: %v", samples, v)
	}
}

// Logs prints the ends of the logs whose names match a pattern, when the test has failed.
func Logs(t testing.TB, dir string, patterns ...string) {
	t.Helper()
	if !t.Failed() {
		return
	}
	for _, pattern := range patterns {
		files, err := filepath.Glob(filepath.Join(dir, pattern))
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Log(err)
			}
			t.Logf("--- %s\n%s", filepath.Base(f), b[max(0, len(b)-logEnd):])
		}
	}
}
