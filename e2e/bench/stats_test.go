package bench

import (
	"errors"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestSummarize(t *testing.T) {
	ms := func(values ...int) (ds []time.Duration) {
		for _, v := range values {
			ds = append(ds, time.Duration(v)*time.Millisecond)
		}
		return ds
	}
	var hundred []time.Duration
	for i := 100; i > 0; i-- {
		hundred = append(hundred, time.Duration(i)*time.Millisecond)
	}
	for name, c := range map[string]struct {
		ds   []time.Duration
		want Summary
	}{
		"none":    {nil, Summary{}},
		"one":     {ms(7), Summary{Count: 1, P50: 7, P99: 7, Max: 7}},
		"two":     {ms(9, 1), Summary{Count: 2, P50: 1, P99: 9, Max: 9}},
		"three":   {ms(9, 1, 5), Summary{Count: 3, P50: 5, P99: 9, Max: 9}},
		"hundred": {hundred, Summary{Count: 100, P50: 50, P99: 99, Max: 100}},
	} {
		t.Run(name, func(t *testing.T) {
			before := append([]time.Duration{}, c.ds...)
			if d := cmp.Diff(c.want, Summarize(c.ds)); d != "" {
				t.Error(d)
			}
			if d := cmp.Diff(before, append([]time.Duration{}, c.ds...)); d != "" {
				t.Errorf("the durations were reordered: %s", d)
			}
		})
	}
}

func TestFit(t *testing.T) {
	begun := time.Unix(1_800_000_000, 0)
	at := func(minutes ...int) (out []time.Time) {
		for _, m := range minutes {
			out = append(out, begun.Add(time.Duration(m)*time.Minute))
		}
		return out
	}
	for name, c := range map[string]struct {
		at     []time.Time
		values []float64
		want   Line
		fails  bool
	}{
		"flat":       {at: at(0, 10, 20), values: []float64{5, 5, 5}, want: Line{Start: 5}},
		"growing":    {at: at(0, 30, 60), values: []float64{10, 12, 14}, want: Line{Start: 10, Slope: 4}},
		"noise":      {at: at(0, 20, 40, 60), values: []float64{1, -1, 1, -1}, want: Line{Start: 0.6, Slope: -1.2}},
		"one":        {at: at(0), values: []float64{5}, fails: true},
		"one moment": {at: at(3, 3), values: []float64{5, 6}, fails: true},
		"uneven":     {at: at(0, 1), values: []float64{5}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Fit(c.at, c.values)
			if c.fails != errors.Is(err, errFew) {
				t.Fatalf("got %v", err)
			}
			if math.Abs(got.Start-c.want.Start)+math.Abs(got.Slope-c.want.Slope) > 1e-9 {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

func TestParseMetrics(t *testing.T) {
	got, err := ParseMetrics([]byte(`# HELP a what it is
# TYPE a counter
a 12
b{x="1",y="two, \"three\" {4}"} 1.5e3
b{x="2",y=""} 2 1700000000
c{} NaN
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Samples{{"a", map[string]string{}, 12}, {"b", map[string]string{"x": "1", "y": `two, "three" {4}`}, 1500}, {"b", map[string]string{"x": "2", "y": ""}, 2}}
	if d := cmp.Diff(want, got[:3]); d != "" || !math.IsNaN(got[3].Value) {
		t.Error(d, got[3])
	}
	for labels, want := range map[string]float64{"": 1502, "1": 1500, "3": 0} {
		only := map[string]string{}
		if labels != "" {
			only["x"] = labels
		}
		if sum := got.Sum("b", only); sum != want {
			t.Errorf("x=%q: %v, want %v", labels, sum, want)
		}
	}
	for _, bad := range []string{"a", "a x", `a{x="1} 2`, `a{x=1} 2`, "{} 1"} {
		if _, err := ParseMetrics([]byte(bad)); err == nil {
			t.Errorf("%q was read", bad)
		}
	}
}

func TestGrown(t *testing.T) {
	for name, c := range map[string]struct{ before, after, want float64 }{
		"grown": {3, 10, 7}, "the same": {3, 3, 0}, "begun anew": {30, 4, 4},
	} {
		if got := Grown(c.before, c.after); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
