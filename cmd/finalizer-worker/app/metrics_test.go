package app

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/worker"
)

// All metrics of the process can be gathered at once, and ours follow Prometheus' conventions.
func TestMetricsGather(t *testing.T) {
	registry := prometheus.NewRegistry()
	if err := serve.RegisterBuildInfo(registry, "finalizer-worker", serve.BuildInfo()); err != nil {
		t.Fatal(err)
	}
	if _, err := worker.NewMetrics(registry); err != nil {
		t.Fatal(err)
	}
	families, err := gatherer(registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, f := range families {
		names[f.GetName()] = true
	}
	for _, want := range []string{"berth_worker_leading", "go_goroutines", "process_start_time_seconds"} {
		if !names[want] {
			t.Errorf("%s is missing", want)
		}
	}
	problems, err := testutil.GatherAndLint(registry)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "berth_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}
