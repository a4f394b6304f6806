package bench

import (
	"fmt"
	"math"
	"time"
)

// Series is something that was sampled over time.
type Series struct {
	Name   string
	At     []time.Time
	Values []float64
	// Least is a growth that is never worth a word: what a garbage collector or a batch makes.
	Least float64
}

func (s *Series) add(at time.Time, v float64) {
	s.At, s.Values = append(s.At, at), append(s.Values, v)
}

// Trend is whether a series grows.
type Trend struct {
	Name    string `json:"name"`
	Samples int    `json:"samples"`
	// Start and Growth are of the straight line through the samples, Growth over all of their time. Allowed is how much it may
	// grow in that time.
	Start   float64 `json:"start"`
	Growth  float64 `json:"growth"`
	Allowed float64 `json:"allowed"`
	Grows   bool    `json:"grows"`
}

// Judge lays a line through the series: it may grow by a part of where it starts, or by what is never worth a word.
func (s *Series) Judge(part float64) (Trend, error) {
	line, err := Fit(s.At, s.Values)
	if err != nil {
		return Trend{}, fmt.Errorf("%s: %w", s.Name, err)
	}
	t := Trend{Name: s.Name, Samples: len(s.At), Start: line.Start, Growth: line.Slope * s.At[len(s.At)-1].Sub(s.At[0]).Hours(),
		Allowed: math.Max(part*line.Start, s.Least)}
	t.Grows = t.Growth > t.Allowed
	return t, nil
}

// TrendTable is what to read.
func TrendTable(trends []Trend) string {
	t := &table{head: []string{"", "samples", "at first", "grew by", "may grow by", "verdict"}}
	for _, x := range trends {
		verdict := "flat"
		if x.Grows {
			verdict = "GROWING"
		}
		t.row(x.Name, fmt.Sprint(x.Samples), fmt.Sprintf("%.1f", x.Start), fmt.Sprintf("%+.1f", x.Growth), fmt.Sprintf("%.1f", x.Allowed), verdict)
	}
	return t.String()
}
