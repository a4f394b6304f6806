package bench

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// table is one in Markdown, with columns as wide as they must be: it can be read as it is, too.
type table struct {
	head []string
	rows [][]string
}

func (t *table) row(cells ...string) { t.rows = append(t.rows, cells) }

// String writes it; one without rows is nothing.
func (t *table) String() string {
	if len(t.rows) == 0 {
		return ""
	}
	wide := make([]int, len(t.head))
	for _, r := range append([][]string{t.head}, t.rows...) {
		for i, c := range r {
			wide[i] = max(wide[i], len([]rune(c)))
		}
	}
	var b strings.Builder
	line := func(cells []string, fill string) {
		for i, w := range wide {
			c := ""
			if i < len(cells) {
				c = cells[i]
			}
			b.WriteString("| " + c + strings.Repeat(fill, w-len([]rune(c))) + " ")
		}
		b.WriteString("|\n")
	}
	line(t.head, " ")
	line(make([]string, len(wide)), "-")
	for _, r := range t.rows {
		line(r, " ")
	}
	return b.String()
}

// Markdown writes a report as a section of a page.
func Markdown(r *Report) string {
	var b strings.Builder
	m := r.Machine
	fmt.Fprintf(&b, "## %s\n\n", r.At.Format("2006-01-02 15:04 UTC"))
	fmt.Fprintf(&b, "Revision %s, %s. %s, %d cores, %.0f GiB, Linux %s, load %.2f before the start.\n", r.Revision, m.Go, m.CPU, m.Cores, m.GiB, m.Kernel, m.Load)
	fmt.Fprintf(&b, "%d pods a burst, %d creations a measurement, %d single pods, %d runs each.\n", r.Sizes.Pods, r.Sizes.Creates, r.Sizes.Singles, r.Sizes.Runs)
	for _, part := range []struct {
		title string
		table fmt.Stringer
	}{
		{"Budgets", verdicts(r)}, {"CREATE", createTable(r)}, {"Bursts, in seconds", burstTable(r)}, {"Writes of one pod's life in a burst", writeTable(r)},
		{"Processor and memory in a burst", usageTable(r)}, {"Single pods, in ms", singleTable(r)}, {"A full subnet", tightTable(r)}, {"Many pods", largeTable(r)},
	} {
		if text := part.table.String(); text != "" {
			fmt.Fprintf(&b, "\n### %s\n\n%s", part.title, text)
		}
	}
	return b.String()
}

// Append puts a section behind a page.
func Append(page, section string) string {
	if page = strings.TrimRight(page, "\n"); page != "" {
		page += "\n\n"
	}
	return page + section
}

func verdicts(r *Report) *table {
	t := &table{head: []string{"budget", "limit", "figure", "verdict"}}
	for _, v := range Judge(r) {
		t.row(v.Budget, v.Limit, v.Figure, v.Result)
	}
	return t
}

func createTable(r *Report) *table {
	t := &table{head: []string{"clients", "without: p50 ms", "p99 ms", "pods/s", "a webhook that does nothing: p50 ms", "pods/s", "part",
		"with Berth: p50 ms", "p99 ms", "pods/s", "part"}}
	for _, n := range r.Sizes.Clients {
		of := func(f func(Creates) float64) func(Burst) float64 {
			return func(b Burst) float64 { return f(creates(b, n)) }
		}
		p50, p99 := of(func(c Creates) float64 { return c.Latency.P50 }), of(func(c Creates) float64 { return c.Latency.P99 })
		rate := of(func(c Creates) float64 { return c.PerSecond })
		part := func(with []Burst) string {
			if without, with, ok := compare(r.Floor, with, rate, slices.Max); ok {
				return fmt.Sprintf("%.0f %%", 100*with/without)
			}
			return ""
		}
		cells := []string{fmt.Sprint(n), best(r.Floor, p50, slices.Min, "%.1f"), best(r.Floor, p99, slices.Min, "%.1f"), best(r.Floor, rate, slices.Max, "%.0f"),
			median(r.Idle, p50, "%.1f"), median(r.Idle, rate, "%.0f"), part(r.Idle),
			median(r.Berth, p50, "%.1f"), median(r.Berth, p99, "%.1f"), median(r.Berth, rate, "%.0f"), part(r.Berth)}
		if len(r.Floor)+len(r.Berth) > 0 {
			t.row(cells...)
		}
	}
	return t
}

func best(bs []Burst, of func(Burst) float64, choose func([]float64) float64, format string) string {
	if len(bs) == 0 {
		return ""
	}
	return fmt.Sprintf(format, choose(figures(bs, of)))
}

func median(bs []Burst, of func(Burst) float64, format string) string {
	if len(bs) == 0 {
		return ""
	}
	return fmt.Sprintf(format, middle(bs, of))
}

// burstTable has all runs: how far they lie apart tells what a ratio of them is worth.
func burstTable(r *Report) *table {
	t := &table{head: []string{"run", "all bound", "all wired", "all gone", "CREATE p50 ms", "p99 ms", "node -> routed p50 ms", "p99 ms", "northbound transactions", "writes of the ledger by the webhook"}}
	for n, b := range append(slices.Clone(r.Floor), r.Berth...) {
		name := fmt.Sprintf("without, %d", n+1)
		cells := []string{fmt.Sprintf("%.2f", b.Bound), "", fmt.Sprintf("%.2f", b.Gone), fmt.Sprintf("%.1f", b.Create.P50), fmt.Sprintf("%.1f", b.Create.P99)}
		if b.Berth {
			name = fmt.Sprintf("with Berth, %d", n+1-len(r.Floor))
			cells[1] = fmt.Sprintf("%.2f", b.Wired)
			cells = append(cells, fmt.Sprintf("%.0f", b.Connect.P50), fmt.Sprintf("%.0f", b.Connect.P99), fmt.Sprintf("%.0f", b.Transactions), fmt.Sprintf("%.0f", b.LedgerWrites))
		}
		t.row(append([]string{name}, cells...)...)
	}
	return t
}

// writeTable is of the last run with Berth: who wrote what, and how often for a pod.
func writeTable(r *Report) *table {
	t := &table{head: []string{"who", "verb", "resource", "a pod", "refused by the API server"}}
	if len(r.Berth) == 0 {
		return t
	}
	for _, w := range r.Berth[len(r.Berth)-1].Writes {
		t.row(w.Author, w.Verb, w.Resource, fmt.Sprintf("%.3f", float64(w.Count)/float64(r.Sizes.Pods)), fmt.Sprint(w.Failed))
	}
	return t
}

func usageTable(r *Report) *table {
	t := &table{head: []string{"process", "without: CPU s", "with Berth: CPU s", "MiB after", "MiB at most"}}
	seconds := func(bs []Burst, process string) string {
		for _, u := range lastOf(bs).Usage {
			if u.Process == process {
				return fmt.Sprintf("%.1f", u.CPU)
			}
		}
		return ""
	}
	after := lastOf(r.Berth).Usage
	if len(after) == 0 {
		after = lastOf(r.Floor).Usage
	}
	for _, u := range after {
		t.row(u.Process, seconds(r.Floor, u.Process), seconds(r.Berth, u.Process), fmt.Sprintf("%.0f", u.MiB), fmt.Sprintf("%.0f", u.PeakMiB))
	}
	return t
}

func lastOf(bs []Burst) Burst {
	if len(bs) == 0 {
		return Burst{}
	}
	return bs[len(bs)-1]
}

func singleTable(r *Report) *table {
	t := &table{head: []string{"", "p50", "p99", "most"}}
	rows := map[string]*Singles{"": r.Singles}
	if r.Large != nil {
		rows[fmt.Sprintf(", beside %d pods", r.Large.Pods)] = &r.Large.OneMore
	}
	for _, where := range slices.Sorted(maps.Keys(rows)) {
		s := rows[where]
		if s == nil {
			continue
		}
		for _, row := range []struct {
			name string
			of   Summary
		}{{"CREATE", s.Create}, {"node -> routed", s.Connect}, {"request -> routed", s.Ready}} {
			t.row(row.name+where, fmt.Sprintf("%.1f", row.of.P50), fmt.Sprintf("%.1f", row.of.P99), fmt.Sprintf("%.1f", row.of.Max))
		}
	}
	return t
}

func tightTable(r *Report) *table {
	t := &table{head: []string{"", "refused", "waited", "all wired, s"}}
	if r.Tight == nil {
		return t
	}
	for _, row := range []struct {
		name string
		Round
	}{
		{"as many pods as addresses", r.Tight.First}, {"as many again, while the first are being deleted; they may wait", r.Tight.AtOnce},
		{"as many again, when all others are gone", r.Tight.Again},
	} {
		t.row(row.name, fmt.Sprint(row.Refused), fmt.Sprint(row.Waited), fmt.Sprintf("%.2f", row.Seconds))
	}
	return t
}

func largeTable(r *Report) *table {
	t := &table{head: []string{"", "ready, s", "new pod wired, s", "all compared, s", "our writes", "transactions", "MiB at most"}}
	row := func(name string, x Restart, writes string) {
		or := func(v float64) string {
			if v == 0 {
				return ""
			}
			return fmt.Sprintf("%.1f", v)
		}
		t.row(name, or(x.Ready), or(x.FirstPod), or(x.Compared), writes, or(x.Transactions), fmt.Sprintf("%.0f", x.PeakMiB))
	}
	if l := r.Large; l != nil {
		count := func(ws []Write) string { return fmt.Sprint(by(ws, ours)) }
		row(fmt.Sprintf("webhook killed, %d pods", l.Pods), l.Webhook, "")
		row("worker told to end", l.Worker, count(l.Worker.Writes))
		row("worker killed", l.Crash, count(l.Crash.Writes))
		t.row(fmt.Sprintf("nothing for %.0f s", quietTime.Seconds()), "", "", "", count(l.Quiet), fmt.Sprintf("%.0f", l.QuietTransactions), "")
	}
	if r.Ledger != nil {
		row(fmt.Sprintf("webhook killed, %d leases in %d blocks", r.Ledger.Leases, r.Ledger.Blocks), r.Ledger.Webhook, "")
	}
	return t
}
