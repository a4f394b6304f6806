package bench

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTrend(t *testing.T) {
	begun := time.Unix(1_800_000_000, 0)
	series := func(least float64, values ...float64) *Series {
		s := &Series{Name: "x", Least: least}
		for n, v := range values {
			s.add(begun.Add(time.Duration(n)*time.Minute), v)
		}
		return s
	}
	for name, c := range map[string]struct {
		series *Series
		want   Trend
	}{
		"flat":               {series(0, 10, 10, 10), Trend{Start: 10, Allowed: 1}},
		"falling":            {series(0, 10, 9, 8), Trend{Start: 10, Growth: -2, Allowed: 1}},
		"within the part":    {series(0, 10, 10.25, 10.5), Trend{Start: 10, Growth: 0.5, Allowed: 1}},
		"growing":            {series(0, 10, 11, 12), Trend{Start: 10, Growth: 2, Allowed: 1, Grows: true}},
		"not worth a word":   {series(3, 10, 11, 12), Trend{Start: 10, Growth: 2, Allowed: 3}},
		"from nothing":       {series(1, 0, 1, 2), Trend{Growth: 2, Allowed: 1, Grows: true}},
		"a peak is no trend": {series(0, 10, 30, 10), Trend{Start: 10 + 20.0/3, Allowed: 5.0 / 3}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.series.Judge(0.1)
			if err != nil {
				t.Fatal(err)
			}
			c.want.Name, c.want.Samples = "x", 3
			if d := cmp.Diff(c.want, got, cmp.Comparer(func(a, b float64) bool { return a-b < 1e-9 && b-a < 1e-9 })); d != "" {
				t.Error(d)
			}
			if text, want := TrendTable([]Trend{got}), map[bool]string{false: "| flat", true: "| GROWING"}[got.Grows]; !strings.Contains(text, want) {
				t.Errorf("no %q in %s", want, text)
			}
		})
	}
	if _, err := series(0, 1).Judge(0.1); !errors.Is(err, errFew) {
		t.Error(err)
	}
}

func TestFlat(t *testing.T) {
	for name, c := range map[string]struct {
		soaked Soaked
		want   bool
	}{
		"flat":      {Soaked{Trends: []Trend{{}, {}}}, true},
		"one grows": {Soaked{Trends: []Trend{{}, {Grows: true}}}, false},
		"left":      {Soaked{Left: []string{"x"}}, false},
	} {
		if got := c.soaked.Flat(); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func TestSurplus(t *testing.T) {
	got := surplus([]level{{name: "a", value: 3}, {name: "b", value: 3}, {name: "e", value: 1}}, []level{{name: "a", value: 3}, {name: "b", value: 4}, {name: "c", value: 1}, {name: "e", value: 9}}, "e")
	if d := cmp.Diff([]string{"b: 4, and 3 before", "c: 1, and 0 before"}, got); d != "" {
		t.Error(d)
	}
}

func TestChurnCheck(t *testing.T) {
	good := Churn{For: time.Hour, Rate: 20, Life: time.Minute, WarmUp: 5 * time.Minute, Every: 10 * time.Second, Part: 0.1}
	if err := good.Check(); err != nil {
		t.Error(err)
	}
	for name, change := range map[string]func(*Churn){
		"no rate": func(c *Churn) { c.Rate = 0 }, "no samples": func(c *Churn) { c.Every = 0 }, "no life": func(c *Churn) { c.Life = 0 },
		"too short": func(c *Churn) { c.For = 5*time.Minute + 19*time.Second }, "shrinking": func(c *Churn) { c.Part = -1 },
	} {
		c := good
		if change(&c); c.Check() == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
