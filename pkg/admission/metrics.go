package admission

import (
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
)

// metrics of the handler.
type metrics struct {
	requests *prometheus.CounterVec
	refusals *prometheus.CounterVec
	duration prometheus.Histogram
	inFlight prometheus.Gauge
	panics   prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_admission_requests_total",
			Help: "Admission requests by outcome."}, []string{"outcome"}),
		refusals: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_admission_refusals_total",
			Help: "Pods that were refused or wait, by reason."}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_admission_duration_seconds",
			Help: "Time to answer an admission request.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)}),
		inFlight: prometheus.NewGauge(prometheus.GaugeOpts{Name: "berth_admission_in_flight",
			Help: "Admission requests being answered."}),
		panics: prometheus.NewCounter(prometheus.CounterOpts{Name: "berth_admission_panics_total",
			Help: "Admission requests that ended in a panic. Each is a bug."}),
	}
	for _, o := range outcomes() {
		m.requests.WithLabelValues(o)
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.requests, m.refusals, m.duration, m.inFlight, m.panics} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("the metrics of admission are registered twice, make one handler for each registry: %w", err)
		}
	}
	return m, nil
}
