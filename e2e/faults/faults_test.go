//go:build e2e

package faults

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/go-logr/logr"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/suite"
)

// TestMain is silent about what the clients' library would like to log.
func TestMain(m *testing.M) {
	ctrllog.SetLogger(logr.Discard())
	os.Exit(m.Run())
}

// world starts one for a test.
func world(t *testing.T, o Options) *World {
	t.Helper()
	dir, err := os.MkdirTemp("", "bf") // short, for sockets
	if err != nil {
		t.Fatal(err)
	}
	o.Dir, o.Bin, o.Out = dir, suite.Bin(), os.Stderr
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	w, err := Start(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			dump(t, w)
		}
		if suite.Keep() {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return w
}

// dump copies the logs of Berth's programs to where they outlive the cluster.
func dump(t *testing.T, w *World) {
	t.Helper()
	to, err := os.MkdirTemp("", "berth-faults-logs-")
	if err != nil {
		t.Error(err)
		return
	}
	files, _ := filepath.Glob(filepath.Join(w.LogDir(), "*"))
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err == nil {
			err = os.WriteFile(filepath.Join(to, filepath.Base(f)), text, 0o600)
		}
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("the logs are in %s", to)
}

// play runs seeds until one fails.
func play(t *testing.T, w *World, first, count uint64, p Plan) {
	t.Helper()
	ctx := t.Context()
	if end, ok := t.Deadline(); ok { // or nothing would be taken down
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, end.Add(-time.Minute))
		defer cancel()
	}
	var reports []*Report
	for seed := first; seed < first+count; seed++ {
		t.Logf("%s=%d", seedVariable, seed)
		report, err := w.Run(ctx, seed, p)
		reports = append(reports, report)
		if err := report.Print(os.Stderr); err != nil {
			t.Error(err)
		}
		if err != nil {
			t.Errorf("seed %d: the faults could not be made: %v", seed, err)
		}
		if !report.Passed() {
			t.Errorf("%v", report)
		}
		if t.Failed() {
			break
		}
	}
	if file := os.Getenv(reportVariable); file != "" {
		f, err := os.Create(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := Write(f, reports); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// TestFaultsShort plays one schedule of a minute, in which every kind comes. Workers sweep faster than as shipped, and
// watch leases without a pod for little longer than the API server's longest creation: that saves waiting, no rule.
func TestFaultsShort(t *testing.T) {
	if os.Getenv(seedsVariable) != "" {
		t.Skip(seedsVariable + " asks for the long test")
	}
	seed := number(t, seedVariable, fresh())
	w := world(t, Options{Seed: seed, Sweep: 5 * time.Second, PendingAge: 40 * time.Second})
	play(t, w, seed, 1, Plan{Length: time.Duration(number(t, secondsVariable, 60)) * time.Second, Every: 1800 * time.Millisecond, AtOnce: 4, Kinds: kinds(t, Kinds())})
}

// TestFaults plays as many schedules as it is told to, each from another seed, with workers as they are shipped.
func TestFaults(t *testing.T) {
	if os.Getenv(seedsVariable) == "" {
		t.Skip("it takes long: set " + seedsVariable)
	}
	count := number(t, seedsVariable, 1)
	seed := number(t, seedVariable, fresh())
	w := world(t, Options{Seed: seed})
	play(t, w, seed, count, Plan{Length: time.Duration(number(t, secondsVariable, 90)) * time.Second, Every: 2 * time.Second, AtOnce: 4, Kinds: kinds(t, Kinds())})
}
