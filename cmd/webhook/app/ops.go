package app

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/ipam"
)

// serveOps serves health and metrics on one listener until the context ends.
func serveOps(ctx context.Context, l net.Listener, o serve.OpsOptions) error {
	mux := http.NewServeMux()
	mux.Handle("/healthz", &serve.Checks{})
	mux.Handle("/livez", &serve.Checks{})
	mux.Handle("/readyz", o.Ready)
	mux.Handle("/metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	server := &http.Server{Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() }) // probes and scrapes may be cut
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("listener %s ended by itself, restart the program: %w", l.Addr(), err)
	}
	return nil
}

// ledgerMetrics counts what the ledger writes.
type ledgerMetrics struct{ writes, operations, conflicts prometheus.Counter }

func newLedgerMetrics(reg prometheus.Registerer) (*ledgerMetrics, error) {
	m := &ledgerMetrics{
		writes:     prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_ledger_writes_total", Help: "Writes of blocks that were stored."}),
		operations: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_ledger_operations_total", Help: "Operations on leases in those writes."}),
		conflicts:  prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_ledger_conflicts_total", Help: "Writes that met a change by somebody else."}),
	}
	for _, c := range []prometheus.Collector{m.writes, m.operations, m.conflicts} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("registering the ledger's metrics: %w", err)
		}
	}
	return m, nil
}

// registerStock counts what the stock did.
func registerStock(reg prometheus.Registerer, s *ipam.Stock) error {
	counters := []prometheus.Collector{
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "berth_lease_stock_requests_total",
			Help: "Pods whose leases could have been taken ahead."}, func() float64 { return float64(s.StockStats().Requests) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "berth_lease_stock_served_total",
			Help: "Pods whose leases had been taken ahead."}, func() float64 { return float64(s.StockStats().Served) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{Name: "berth_lease_stock_returned_total",
			Help: "Sets of leases that were taken ahead and given back."}, func() float64 { return float64(s.StockStats().Returned) }),
	}
	for _, c := range counters {
		if err := reg.Register(c); err != nil {
			return fmt.Errorf("registering the metrics of the stock: %w", err)
		}
	}
	return nil
}

// Committed counts a stored write.
func (m *ledgerMetrics) Committed(ops int) {
	m.writes.Inc()
	m.operations.Add(float64(ops))
}

// Conflicted counts a write that came too late.
func (m *ledgerMetrics) Conflicted() { m.conflicts.Inc() }
