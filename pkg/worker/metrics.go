package worker

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/berth-net/berth/pkg/lifecycle"
)

// Metrics of the worker.
type Metrics struct {
	wire       prometheus.Histogram
	reclaim    prometheus.Histogram
	pending    prometheus.Gauge
	overdue    prometheus.Gauge
	findings   *prometheus.GaugeVec
	repairs    *prometheus.CounterVec
	late       *prometheus.CounterVec
	held       *prometheus.CounterVec
	sweeps     *prometheus.CounterVec
	watched    prometheus.Gauge
	leading    prometheus.Gauge
	waiting    prometheus.Gauge
	handedOver prometheus.Counter
	closed     prometheus.Gauge
	rebuilds   prometheus.Counter
	restored   prometheus.Counter
	unrealised *prometheus.GaugeVec
	asked      prometheus.Histogram
	answered   *prometheus.CounterVec
}

// NewMetrics makes the metrics and registers them; nil registers none.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
	}
	counters := func(name, help, label string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	}
	gauges := func(name, help, label string) *prometheus.GaugeVec {
		return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, []string{label})
	}
	duration := func(name, help string) prometheus.Histogram {
		return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.002, 2, 14)})
	}
	m := &Metrics{
		wire:       duration("berth_wire_duration_seconds", "From the worker's first look at a pod with a node to its mark routed."),
		reclaim:    duration("berth_reclaim_duration_seconds", "From the decision that a pod is gone to the removal of its finalizer."),
		pending:    gauge("berth_finalizers_pending", "Pods that are being deleted and still carry the finalizer, at the last sweep."),
		overdue:    gauge("berth_finalizers_oldest_seconds", "How long ago the first of these pods was to end, at the last sweep."),
		findings:   gauges("berth_sweep_findings", "What did not fit together at the last sweep, by kind.", "kind"),
		repairs:    counters("berth_sweep_repairs_total", "What the sweep has repaired, by kind.", "kind"),
		late:       counters("berth_late_allocations_total", "Addresses given by the worker and not at admission, by result.", "result"),
		held:       counters("berth_pods_not_wired_total", "Attempts at pods that could not be wired, by reason.", "reason"),
		sweeps:     counters("berth_sweeps_total", "Sweeps, by result.", "result"),
		watched:    gauge("berth_pending_leases", "Leases that no pod carries and that are being watched."),
		waiting:    gauge("berth_pods_waiting", "Pods that wait for an address."),
		handedOver: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leases_handed_over_total", Help: "Leases that went from a pod that is gone to one that waited."}),
		closed:     gauge("berth_subnets_closed", "Subnets that give no address until lost leases are restored."),
		rebuilds:   prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_rebuilds_total", Help: "Subnets that were opened again after their leases had been restored."}),
		restored:   prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_leases_restored_total", Help: "Lost leases that were restored from pods, ports and records."}),
		leading:    gauge("berth_worker_leading", "1 while this worker is the one that writes."),
		unrealised: gauges("berth_topology_findings", "Subnets and Vpcs that can't be realised as written, by kind.", "kind"),
		asked:      prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_bind_hook_duration_seconds", Help: "Time to answer about one Binding.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 10)}),
		answered:   counters("berth_bind_hook_requests_total", "Bindings that this worker was asked about, by outcome.", "outcome"),
	}
	for _, k := range lifecycle.Kinds() {
		m.findings.WithLabelValues(string(k)).Set(0)
	}
	for _, o := range boundOutcomes() {
		m.answered.WithLabelValues(o)
	}
	if r == nil {
		return m, nil
	}
	var errs []error
	for _, c := range []prometheus.Collector{m.wire, m.reclaim, m.pending, m.overdue, m.findings, m.repairs, m.late, m.held, m.sweeps, m.waiting, m.handedOver,
		m.closed, m.rebuilds, m.restored,
		m.watched, m.leading, m.unrealised, m.asked, m.answered} {
		errs = append(errs, r.Register(c))
	}
	return m, errors.Join(errs...)
}

// tellFinalizers tells how many pods still carry the finalizer that were to end by then, and since when the first of them.
func (m *Metrics) tellFinalizers(ends []time.Time, now time.Time) {
	m.pending.Set(float64(len(ends)))
	oldest := time.Duration(0)
	for _, end := range ends {
		oldest = max(oldest, now.Sub(end))
	}
	m.overdue.Set(oldest.Seconds())
}
