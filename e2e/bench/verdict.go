package bench

import (
	"fmt"
	"math"
	"slices"
)

// Verdict is a budget and what was measured.
type Verdict struct {
	Budget string `json:"budget"`
	Limit  string `json:"limit"`
	Figure string `json:"figure"`
	// Result is held, missed, or not measured.
	Result string `json:"result"`
}

// Results.
const (
	held       = "held"
	missed     = "missed"
	unmeasured = "not measured"
)

// judged is a verdict on a figure.
func judged(budget, limit, figure string, ok bool) Verdict {
	v := Verdict{Budget: budget, Limit: limit, Figure: figure, Result: missed}
	if ok {
		v.Result = held
	}
	return v
}

// Judge gives the verdict on every budget. Without Berth the best of all runs counts, with it the middle one.
func Judge(r *Report) []Verdict {
	out := append(judgeCreates(r), judgeBursts(r)...)
	out = append(out, judgeSingles(r), judgeTight(r), judgeFreed(r))
	return append(out, judgeLedger(r), judgeLarge(r))
}

func judgeCreates(r *Report) []Verdict {
	one := Verdict{Budget: "CREATE with Berth, one client, at p50", Limit: "5 ms over none", Result: unmeasured}
	many := Verdict{Budget: "pods/s created at 16 clients", Limit: "65 % of none", Result: unmeasured}
	if without, with, ok := both(r, func(b Burst) float64 { return creates(b, 1).Latency.P50 }, slices.Min); ok {
		one = judged(one.Budget, one.Limit, fmt.Sprintf("%.1f ms over %.1f ms", with-without, without), with-without <= 5)
	}
	if without, with, ok := both(r, func(b Burst) float64 { return creates(b, 16).PerSecond }, slices.Max); ok {
		figure := fmt.Sprintf("%.0f %%: %.0f of %.0f", 100*with/without, with, without)
		if _, idle, ok := compare(r.Floor, r.Idle, func(b Burst) float64 { return creates(b, 16).PerSecond }, slices.Max); ok {
			figure += fmt.Sprintf("; a webhook that does nothing: %.0f %%", 100*idle/without)
		}
		many = judged(many.Budget, many.Limit, figure, with/without >= 0.65)
	}
	return []Verdict{one, many}
}

func judgeBursts(r *Report) []Verdict {
	n := r.Sizes.Pods
	wired := Verdict{Budget: fmt.Sprintf("%d pods created and bound at once -> all wired", n), Limit: "3 times create and bind alone", Result: unmeasured}
	gone := Verdict{Budget: "those deleted at once -> all reclaimed", Limit: "4 times deletion alone", Result: unmeasured}
	writes := Verdict{Budget: "API writes per pod life of the burst beyond create, bind, delete", Limit: "4.5, without IP records 2.5", Result: unmeasured}
	transactions := Verdict{Budget: "northbound transactions per pod life of the burst", Limit: "0.2", Result: unmeasured}
	// Without Berth the last step is the node, with it the network.
	end := func(b Burst) float64 {
		if b.Berth {
			return b.Wired
		}
		return b.Bound
	}
	if without, with, ok := both(r, end, slices.Min); ok {
		wired = judged(wired.Budget, wired.Limit, fmt.Sprintf("%.1f times: %.1f s, %.1f s", with/without, with, without), with/without <= 3)
	}
	if without, with, ok := both(r, func(b Burst) float64 { return b.Gone }, slices.Min); ok {
		gone = judged(gone.Budget, gone.Limit, fmt.Sprintf("%.1f times: %.1f s, %.1f s", with/without, with, without), with/without <= 4)
	}
	if len(r.Berth) > 0 {
		perPod := func(of func(Burst) float64) float64 { return middle(r.Berth, of) / float64(n) }
		all := perPod(func(b Burst) float64 { return float64(by(b.Writes, ours)) })
		few := perPod(func(b Burst) float64 { return float64(by(b.Writes, oursWithoutRecords)) })
		writes = judged(writes.Budget, writes.Limit, fmt.Sprintf("%.2f, without %.2f", all, few), all <= 4.5 && few <= 2.5)
		sent := perPod(func(b Burst) float64 { return b.Transactions })
		transactions = judged(transactions.Budget, transactions.Limit, fmt.Sprintf("%.3f", sent), sent <= 0.2)
	}
	return []Verdict{wired, gone, writes, transactions}
}

func judgeSingles(r *Report) Verdict {
	v := Verdict{Budget: "node -> `routed`, one pod", Limit: "p99 below 50 ms", Result: unmeasured}
	if r.Singles == nil {
		return v
	}
	c := r.Singles.Connect
	return judged(v.Budget, v.Limit, fmt.Sprintf("p50 %.0f ms, p99 %.0f ms", c.P50, c.P99), c.P99 < 50)
}

func judgeTight(r *Report) Verdict {
	v := Verdict{Budget: fmt.Sprintf("%d pods on as many addresses, deleted and recreated", r.Sizes.Addresses),
		Limit: "no untrue refusal or wait, no duplicate, no leak", Result: unmeasured}
	t := r.Tight
	if t == nil {
		return v
	}
	untrue := t.First.Refused + t.First.Waited + t.Again.Refused + t.Again.Waited + t.AtOnce.Refused
	return judged(v.Budget, v.Limit, fmt.Sprintf("%d untrue, %d twice, %d left", untrue, len(t.Duplicates), t.LeasesLeft),
		untrue == 0 && len(t.Duplicates) == 0 && t.LeasesLeft == 0 && t.OneMore != "")
}

func judgeFreed(r *Report) Verdict {
	v := Verdict{Budget: "an address freed in a full subnet -> the waiting pod released", Limit: "below 1 s", Result: unmeasured}
	if r.Tight == nil {
		return v
	}
	f := r.Tight.Freed
	return judged(v.Budget, v.Limit, fmt.Sprintf("p50 %.0f ms, at most %.0f ms, from the pod's DELETE", f.P50, f.Max), f.Count > 0 && f.Max < 1000)
}

func judgeLedger(r *Report) Verdict {
	v := Verdict{Budget: fmt.Sprintf("webhook ready with %d leases", r.Sizes.Leases), Limit: "below 5 s and 250 MiB", Result: unmeasured}
	if r.Ledger == nil {
		return v
	}
	x := r.Ledger.Webhook
	return judged(v.Budget, v.Limit, fmt.Sprintf("%.1f s, %.0f MiB", x.Ready, x.PeakMiB), x.Ready < 5 && x.PeakMiB < 250)
}

// onePod is the most that the one pod which is made while the worker restarts may be written for: its lease by both
// programs, once more each after a conflict, its IP record, its annotations, the subnet's figures, and the event of the
// new leader.
const onePod = 8

func judgeLarge(r *Report) Verdict {
	v := Verdict{Budget: fmt.Sprintf("worker started over %d pods", r.Sizes.Held), Limit: "a new pod wired below 5 s, all compared below 60 s, no writes", Result: unmeasured}
	if r.Large == nil {
		return v
	}
	x := r.Large.Worker
	n := by(x.Writes, ours)
	return judged(v.Budget, v.Limit, fmt.Sprintf("%.1f s, %.1f s, %d writes with the new pod's", x.FirstPod, x.Compared, n),
		x.FirstPod < 5 && x.Compared < 60 && n <= onePod)
}

func creates(b Burst, clients int) Creates {
	for _, c := range b.Creates {
		if c.Clients == clients {
			return c
		}
	}
	return Creates{}
}

// both gives a figure without Berth, the best one, and with it, the middle one; false when one is missing.
func both(r *Report, of func(Burst) float64, best func([]float64) float64) (without, with float64, ok bool) {
	return compare(r.Floor, r.Berth, of, best)
}

// compare gives the best figure of some runs, and the middle one of others; false when one is missing.
func compare(floor, runs []Burst, of func(Burst) float64, best func([]float64) float64) (without, with float64, ok bool) {
	if len(floor) == 0 || len(runs) == 0 {
		return 0, 0, false
	}
	without, with = best(figures(floor, of)), middle(runs, of)
	return without, with, without > 0 && with > 0
}

func figures(bs []Burst, of func(Burst) float64) []float64 {
	out := make([]float64, len(bs))
	for i, b := range bs {
		out[i] = of(b)
	}
	return out
}

// middle is the median of a figure; of an even number of runs the worse of the two in the middle, when less is better.
func middle(bs []Burst, of func(Burst) float64) float64 {
	if len(bs) == 0 {
		return math.NaN()
	}
	all := slices.Sorted(slices.Values(figures(bs, of)))
	return all[len(all)/2]
}
