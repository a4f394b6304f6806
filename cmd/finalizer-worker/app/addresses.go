package app

import (
	"context"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/worker"
)

// addresses counts those of all subnets whenever it is scraped, as kubectl berth subnets does.
type addresses struct {
	count func() (*report.Subnets, error)

	mu     sync.Mutex
	gauges *prometheus.GaugeVec
}

// countAddresses has the addresses counted once ledger and caches are complete.
func countAddresses(ctx context.Context, registry prometheus.Registerer, w *worker.Worker, ledger *ipam.Ledger, full func() error) error {
	return registry.Register(newAddresses(func() (*report.Subnets, error) {
		if err := full(); err != nil {
			return nil, err
		}
		cat, err := w.Catalog(ctx)
		if err != nil {
			return nil, err
		}
		return report.SubnetsOf(cat, ledger), nil
	}))
}

func newAddresses(count func() (*report.Subnets, error)) *addresses {
	return &addresses{count: count, gauges: prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "berth_subnet_addresses",
		Help: "Addresses of each subnet and family, by state."}, []string{"subnet", "family", "state"})}
}

// Describe implements prometheus.Collector.
func (a *addresses) Describe(out chan<- *prometheus.Desc) { a.gauges.Describe(out) }

// Collect counts anew. There are no samples while nothing can be counted.
func (a *addresses) Collect(out chan<- prometheus.Metric) {
	subnets, err := a.count()
	if err != nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.gauges.Reset()
	for _, s := range subnets.Items {
		if s.Figures == nil {
			continue
		}
		free, _ := s.Free.Float64()
		excluded, _ := s.Excluded.Float64()
		for state, n := range map[string]float64{"bound": float64(s.Bound), "pending": float64(s.Pending), "reserved": float64(s.Reserved),
			"resting": float64(s.Resting), "free": free - float64(s.Resting), "excluded": excluded} {
			a.gauges.WithLabelValues(s.Name, s.Family, state).Set(n)
		}
	}
	a.gauges.Collect(out)
}
