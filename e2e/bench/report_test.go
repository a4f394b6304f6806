package bench

import (
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// floorRun and berthRun are runs of 100 pods.
func floorRun(bound, gone, p50, rate float64) Burst {
	return Burst{Pods: 100, Bound: bound, Gone: gone, Creates: []Creates{{Clients: 1, Latency: Summary{P50: p50}}, {Clients: 16, PerSecond: rate}}}
}

func berthRun(wired, gone, p50, rate float64, writes, records int, transactions float64) Burst {
	b := floorRun(0, gone, p50, rate)
	b.Berth, b.Wired, b.Transactions = true, wired, transactions
	b.Writes = []Write{{Author: "worker", Verb: "patch", Resource: "pods", Count: writes}, {Author: "worker", Verb: "create", Resource: "ips", Count: records},
		{Author: "bench", Verb: "create", Resource: "pods", Count: 100}}
	return b
}

func sized() Sizes {
	s := DefaultSizes()
	s.Pods, s.Runs = 100, 1
	return s
}

// good holds every budget, by a little.
func good() *Report {
	return &Report{Sizes: sized(),
		Floor:   []Burst{floorRun(2, 3, 4, 90), floorRun(1, 1, 3, 100)},
		Berth:   []Burst{berthRun(2.9, 3.9, 7.9, 66, 240, 200, 19), berthRun(1, 1, 4, 90, 100, 100, 10), berthRun(9, 9, 90, 10, 900, 900, 90)},
		Singles: &Singles{Connect: Summary{P50: 20, P99: 49}},
		Tight: &Tight{First: Round{Seconds: 1}, AtOnce: Round{Waited: 7}, OneMore: "full", Freed: Summary{Count: 20, P50: 100, Max: 999},
			Addresses: 1000},
		Ledger: &Ledger{Webhook: Restart{Ready: 4.9, PeakMiB: 249}},
		Large:  &Large{Worker: Restart{FirstPod: 4.9, Compared: 59, Writes: []Write{{Author: "worker", Count: 8}, {Author: "kubelet", Count: 99}}}},
	}
}

func results(r *Report) map[string]string {
	out := map[string]string{}
	for _, v := range Judge(r) {
		word, _, _ := strings.Cut(v.Budget, " ")
		key := map[string]string{"CREATE": "latency", "pods/s": "rate", "100": "wired", "those": "gone", "API": "writes", "northbound": "transactions", "node": "connect",
			"1000": "tight", "an": "freed", "webhook": "ledger", "worker": "large"}[word]
		out[key] = v.Result
	}
	return out
}

func TestJudge(t *testing.T) {
	all := []string{"latency", "rate", "wired", "gone", "writes", "transactions", "connect", "tight", "freed", "ledger", "large"}
	for name, c := range map[string]struct {
		change func(*Report)
		missed []string
	}{
		"all held":         {func(*Report) {}, nil},
		"slow creation":    {func(r *Report) { r.Berth[0].Creates[0].Latency.P50 = 8.1 }, []string{"latency"}},
		"few creations":    {func(r *Report) { r.Berth[0].Creates[1].PerSecond = 64 }, []string{"rate"}},
		"slow wiring":      {func(r *Report) { r.Berth[0].Wired = 3.1 }, []string{"wired"}},
		"slow reclaiming":  {func(r *Report) { r.Berth[0].Gone = 4.1 }, []string{"gone"}},
		"many writes":      {func(r *Report) { r.Berth[0].Writes[0].Count = 251 }, []string{"writes"}},
		"many records":     {func(r *Report) { r.Berth[0].Writes[1].Count = 211 }, []string{"writes"}},
		"transactions":     {func(r *Report) { r.Berth[0].Transactions = 21 }, []string{"transactions"}},
		"slow connection":  {func(r *Report) { r.Singles.Connect.P99 = 50 }, []string{"connect"}},
		"refused":          {func(r *Report) { r.Tight.First.Refused = 1 }, []string{"tight"}},
		"waited in vain":   {func(r *Report) { r.Tight.Again.Waited = 1 }, []string{"tight"}},
		"a duplicate":      {func(r *Report) { r.Tight.Duplicates = []string{"x"} }, []string{"tight"}},
		"a leak":           {func(r *Report) { r.Tight.LeasesLeft = 1 }, []string{"tight"}},
		"never full":       {func(r *Report) { r.Tight.OneMore = "" }, []string{"tight"}},
		"slow release":     {func(r *Report) { r.Tight.Freed.Max = 1000 }, []string{"freed"}},
		"nobody released":  {func(r *Report) { r.Tight.Freed = Summary{} }, []string{"freed"}},
		"slow start":       {func(r *Report) { r.Ledger.Webhook.Ready = 5 }, []string{"ledger"}},
		"a large webhook":  {func(r *Report) { r.Ledger.Webhook.PeakMiB = 250 }, []string{"ledger"}},
		"late first pod":   {func(r *Report) { r.Large.Worker.FirstPod = 5 }, []string{"large"}},
		"late comparison":  {func(r *Report) { r.Large.Worker.Compared = 60 }, []string{"large"}},
		"writes at start":  {func(r *Report) { r.Large.Worker.Writes[0].Count = 9 }, []string{"large"}},
		"the floor counts": {func(r *Report) { r.Floor = append(r.Floor, floorRun(0.5, 0.5, 1, 200)) }, []string{"latency", "rate", "wired", "gone"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := good()
			c.change(r)
			want := map[string]string{}
			for _, k := range all {
				want[k] = held
				if slices.Contains(c.missed, k) {
					want[k] = missed
				}
			}
			if d := cmp.Diff(want, results(r)); d != "" {
				t.Error(d)
			}
		})
	}
	for k, v := range results(&Report{Sizes: sized()}) {
		if v != unmeasured {
			t.Errorf("%s is %s though nothing was measured", k, v)
		}
	}
	r := good()
	r.Floor = nil
	if got := results(r); got["wired"] != unmeasured || got["writes"] != held {
		t.Errorf("without a floor: %v", got)
	}
}

func TestMiddle(t *testing.T) {
	of := func(b Burst) float64 { return b.Wired }
	for want, bs := range map[float64][]Burst{2: {{Wired: 3}, {Wired: 2}, {Wired: 1}}, 7: {{Wired: 1}, {Wired: 7}}, 4: {{Wired: 4}}} {
		if got := middle(bs, of); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
	if !math.IsNaN(middle(nil, of)) {
		t.Error("of none there is no median")
	}
}

func TestTable(t *testing.T) {
	tb := &table{head: []string{"a", "long head"}}
	if tb.String() != "" {
		t.Error("a table without rows")
	}
	tb.row("größer", "1")
	tb.row("x")
	want := "| a      | long head |\n| ------ | --------- |\n| größer | 1         |\n| x      |           |\n"
	if d := cmp.Diff(want, tb.String()); d != "" {
		t.Error(d)
	}
}

func TestMarkdown(t *testing.T) {
	r := good()
	r.At, r.Revision, r.Machine = time.Unix(1_800_000_000, 0).UTC(), "abc", Machine{CPU: "C", Cores: 2, GiB: 24, Kernel: "6", Go: "go1", Load: 0.5}
	text := Markdown(r)
	for _, part := range []string{"## 2027-01-15 08:00 UTC\n", "Revision abc, go1. C, 2 cores, 24 GiB, Linux 6, load 0.50", "### Budgets", "| held ", "### CREATE", "| 66 %",
		"### Bursts", "| with Berth, 3 ", "### Writes", "### A full subnet", "### Many pods", "| worker told to end "} {
		if !strings.Contains(text, part) {
			t.Errorf("no %q in\n%s", part, text)
		}
	}
	if bare := Markdown(&Report{Sizes: sized()}); strings.Contains(bare, "### CREATE") || strings.Contains(bare, "NaN") {
		t.Errorf("what was not measured is told:\n%s", bare)
	}
	if strings.Contains(text, "NaN") {
		t.Error(text)
	}
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	var again Report
	if err := json.Unmarshal(out, &again); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(*r, again); d != "" {
		t.Errorf("JSON loses something: %s", d)
	}
}

func TestAppend(t *testing.T) {
	for page, want := range map[string]string{"": "## b\n", "# a\n\n\n": "# a\n\n## b\n", "# a": "# a\n\n## b\n"} {
		if got := Append(page, "## b\n"); got != want {
			t.Errorf("%q: %q, want %q", page, got, want)
		}
	}
}
