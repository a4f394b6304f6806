package worker

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// How long the first pod is overdue is told; none is while all have time left, or none is being deleted.
func TestFinalizersAreTold(t *testing.T) {
	now := time.Unix(1000, 0)
	for name, c := range map[string]struct {
		ends []time.Time
		want [2]float64
	}{
		"none":      {nil, [2]float64{0, 0}},
		"time left": {[]time.Time{now.Add(30 * time.Second)}, [2]float64{1, 0}},
		"overdue":   {[]time.Time{now.Add(-5 * time.Second), now.Add(-time.Minute), now.Add(time.Second)}, [2]float64{3, 60}},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := NewMetrics(nil)
			if err != nil {
				t.Fatal(err)
			}
			m.overdue.Set(7) // of the sweep before
			m.tellFinalizers(c.ends, now)
			if d := cmp.Diff(c.want, [2]float64{testutil.ToFloat64(m.pending), testutil.ToFloat64(m.overdue)}); d != "" {
				t.Error(d)
			}
		})
	}
}
