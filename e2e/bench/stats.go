package bench

import (
	"errors"
	"math"
	"slices"
	"time"
)

// Summary is what is said of many durations, in milliseconds.
type Summary struct {
	Count int     `json:"count"`
	P50   float64 `json:"p50ms"`
	P99   float64 `json:"p99ms"`
	Max   float64 `json:"maxMs"`
}

// Summarize sums durations up; of none it says nothing.
func Summarize(ds []time.Duration) Summary {
	if len(ds) == 0 {
		return Summary{}
	}
	ds = slices.Sorted(slices.Values(ds))
	return Summary{Count: len(ds), P50: milliseconds(percentile(ds, 0.50)), P99: milliseconds(percentile(ds, 0.99)), Max: milliseconds(ds[len(ds)-1])}
}

// percentile gives the smallest of sorted durations that at least that part of them does not exceed.
func percentile(sorted []time.Duration, part float64) time.Duration {
	rank := int(math.Ceil(part * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// Line is a straight line through samples.
type Line struct {
	// Start is its value at the first sample, Slope its rise in an hour.
	Start, Slope float64
}

// errFew says that there is no line through so few samples.
var errFew = errors.New("a trend needs samples at two moments at least: let it run longer, or sample more often")

// Fit lays a line through samples by least squares.
func Fit(at []time.Time, values []float64) (Line, error) {
	if len(at) != len(values) || len(at) < 2 {
		return Line{}, errFew
	}
	n := float64(len(at))
	var sx, sy, sxx, sxy float64
	for i, t := range at {
		x, y := t.Sub(at[0]).Hours(), values[i]
		sx, sy, sxx, sxy = sx+x, sy+y, sxx+x*x, sxy+x*y
	}
	spread := n*sxx - sx*sx
	if spread <= 0 {
		return Line{}, errFew
	}
	slope := (n*sxy - sx*sy) / spread
	return Line{Start: (sy - slope*sx) / n, Slope: slope}, nil
}
