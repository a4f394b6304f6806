package faults

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/sampler"
)

// Line is what became of one kind of fault.
type Line struct {
	Kind Kind `json:"kind"`
	// Injected is how often, Missed how often nothing was there to break, Seconds how long in all.
	Injected int     `json:"injected"`
	Missed   int     `json:"missed,omitempty"`
	Seconds  float64 `json:"seconds"`
	// Requests have met it, of faults that are put between Berth and the API server.
	Requests int `json:"requests"`
	// Lost is what was found broken while such a fault lasted, or just after.
	Lost []string `json:"lost"`
}

// Report is one run.
type Report struct {
	Seed   uint64    `json:"seed"`
	Began  time.Time `json:"began"`
	Length float64   `json:"seconds"`
	Steps  []Step    `json:"steps"`
	Faults []Line    `json:"faults"`
	// Did and Failed are the churn's.
	Did    map[string]int `json:"did"`
	Failed map[string]int `json:"failed,omitempty"`
	// Pods were made meanwhile.
	Pods int `json:"pods"`
	// Samples were taken, and Broken is what must not be.
	Samples int      `json:"samples"`
	Broken  []string `json:"broken"`
	// Settled and Drained are the seconds that it took after the last fault until every pod was up, and after the
	// deletion of everything until the accounts were empty. Left is what was not.
	Settled float64  `json:"settledSeconds"`
	Drained float64  `json:"drainedSeconds"`
	Left    Accounts `json:"left"`
}

// Passed tells that nothing was lost.
func (r *Report) Passed() bool { return len(r.Broken) == 0 && r.Left.Empty() }

// near is how long after its end a fault is still thought to be the cause of what is broken.
const near = 10 * time.Second

// event is a fault as it was, in real time.
type event struct {
	step       Step
	begin, end time.Time
	missed     bool
}

// fill sums the events up, and puts what was broken beside the faults that lasted then.
func (r *Report) fill(events []event, hits func(Kind) int, broken []sampler.Violation) {
	lines := map[Kind]*Line{}
	for _, e := range events {
		l := lines[e.step.Kind]
		if l == nil {
			l = &Line{Kind: e.step.Kind, Requests: hits(e.step.Kind), Lost: []string{}}
			lines[e.step.Kind] = l
		}
		if e.missed {
			l.Missed++
			continue
		}
		l.Injected++
		l.Seconds += e.end.Sub(e.begin).Seconds()
		for _, v := range broken {
			if text := v.String(); !v.Since.Before(e.begin) && v.Since.Before(e.end.Add(near)) && !slices.Contains(l.Lost, text) {
				l.Lost = append(l.Lost, text)
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(lines)) {
		r.Faults = append(r.Faults, *lines[k])
	}
	for _, v := range broken {
		r.Broken = append(r.Broken, v.String())
	}
}

// Print writes the report for people.
func (r *Report) Print(out io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d: %d faults in %.0f s, %d pods made, %d samples\n", r.Seed, len(r.Steps), r.Length, r.Pods, r.Samples)
	for _, l := range r.Faults {
		lost := "nothing lost"
		if len(l.Lost) > 0 {
			lost = "LOST: " + strings.Join(l.Lost, "; ")
		}
		requests := ""
		if l.Requests > 0 || proxied(l.Kind) {
			requests = fmt.Sprintf(", %d requests met it", l.Requests)
		}
		fmt.Fprintf(&b, "  %-20s injected %2d times, %5.1f s in all%s: %s\n", l.Kind, l.Injected, l.Seconds, requests, lost)
	}
	fmt.Fprintf(&b, "  churn: %v; the API server could not: %v\n", r.Did, r.Failed)
	fmt.Fprintf(&b, "  every pod was up %.1f s after the last fault; the accounts were empty %.1f s after the deletion: %+v\n", r.Settled, r.Drained, r.Left)
	for _, x := range r.Broken {
		fmt.Fprintf(&b, "  BROKEN: %s\n", x)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// proxied tells whether a kind is put between Berth and the API server.
func proxied(k Kind) bool {
	switch k {
	case WatchStalled, WatchCut, WatchExpired, AnswerLost, APISlow, APIRefuses:
		return true
	}
	return false
}

// Write writes reports for programs.
func Write(out io.Writer, reports []*Report) error {
	e := json.NewEncoder(out)
	e.SetIndent("", " ")
	if err := e.Encode(reports); err != nil {
		return fmt.Errorf("write the reports: %w", err)
	}
	return nil
}
