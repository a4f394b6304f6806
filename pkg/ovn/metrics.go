package ovn

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Results of a transaction, as the metric tells them.
const (
	resultCommitted = "committed"
	resultRefused   = "refused"
	resultFenced    = "fenced"
	resultUnknown   = "unknown"
)

type metrics struct {
	transactions *prometheus.CounterVec
	operations   prometheus.Counter
	batch        prometheus.Histogram
	connected    prometheus.Gauge
	epoch        prometheus.Gauge
}

func newMetrics(r prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		transactions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "berth_northbound_transactions_total",
			Help: "Transactions sent to the northbound database, by result.",
		}, []string{"result"}),
		operations: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "berth_northbound_operations_total",
			Help: "Operations in transactions that were committed.",
		}),
		batch: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "berth_northbound_batch_changes",
			Help:    "Changes that were composed into one committed transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 8),
		}),
		connected: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_northbound_connected",
			Help: "1 while the mirror of the northbound database is complete and follows it.",
		}),
		epoch: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "berth_northbound_epoch",
			Help: "The epoch that this process writes under.",
		}),
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.transactions, m.operations, m.batch, m.connected, m.epoch} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}
