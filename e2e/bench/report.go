package bench

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/berth-net/berth/internal/serve"
)

// Parts of a benchmark.
const (
	// PartFloor is the cluster without Berth, PartBurst the same with it.
	PartFloor = "a"
	PartBurst = "b"
	// PartTight fills a subnet to the last address, PartLarge a cluster.
	PartTight = "c"
	PartLarge = "d"
	// PartLedger has the webhook start over a large ledger.
	PartLedger = "e"
)

// Sizes say how much is measured.
type Sizes struct {
	// Pods of a burst, Creates of one measurement of CREATE, Clients that make them.
	Pods    int   `json:"pods"`
	Creates int   `json:"creates"`
	Clients []int `json:"clients"`
	// Singles are pods one after the other.
	Singles int `json:"singles"`
	// Runs without Berth before those with it, with it, and without it after.
	Runs int `json:"runs"`
	// Addresses of the subnet that is filled, Held pods of the filled cluster, Leases of the large ledger.
	Addresses int `json:"addresses"`
	Held      int `json:"held"`
	Leases    int `json:"leases"`
}

// DefaultSizes are those that the budgets are about.
func DefaultSizes() Sizes {
	return Sizes{Pods: 2000, Creates: 500, Clients: []int{1, 16, 64}, Singles: 300, Runs: 3, Addresses: 1000, Held: 10000, Leases: 100000}
}

// Machine is where it was measured.
type Machine struct {
	CPU    string  `json:"cpu"`
	Cores  int     `json:"cores"`
	GiB    float64 `json:"gib"`
	Kernel string  `json:"kernel"`
	Go     string  `json:"go"`
	// Load is the load average of a minute before anything was started: above one half of the cores, others were at work.
	Load float64 `json:"load"`
}

// Report is all that was measured in one run.
type Report struct {
	At       time.Time `json:"at"`
	Revision string    `json:"revision"`
	Machine  Machine   `json:"machine"`
	Sizes    Sizes     `json:"sizes"`
	Floor    []Burst   `json:"floor,omitempty"`
	// Idle are creations alone, with a webhook that does nothing.
	Idle    []Burst  `json:"idle,omitempty"`
	Berth   []Burst  `json:"berth,omitempty"`
	Singles *Singles `json:"singles,omitempty"`
	Tight   *Tight   `json:"tight,omitempty"`
	Large   *Large   `json:"large,omitempty"`
	Ledger  *Ledger  `json:"ledger,omitempty"`
}

// Measure measures the chosen parts. What was measured before something went wrong is in the report, too.
func (w *World) Measure(ctx context.Context, r *Report, parts map[string]bool) error {
	more := parts[PartTight] || parts[PartLarge] || parts[PartLedger]
	for _, part := range []struct {
		name string
		do   func() error
	}{
		{PartFloor, func() error { return w.floor(ctx, r, "before", true) }},
		{PartBurst, func() error { return w.withBerth(ctx, r) }},
		{PartFloor, func() error { return w.floor(ctx, r, "after", more) }},
		{PartTight, func() error { t, err := w.tight(ctx, r.Sizes); r.Tight = &t; return err }},
		{PartLarge, func() error { l, err := w.large(ctx, r.Sizes); r.Large = &l; return err }},
		{PartLedger, func() error { l, err := w.largeLedger(ctx, r.Sizes.Leases); r.Ledger = &l; return err }},
	} {
		if !parts[part.name] {
			continue
		}
		w.say("part %s", part.name)
		if err := part.do(); err != nil {
			return fmt.Errorf("part %s: %w", part.name, err)
		}
	}
	return nil
}

// floor measures without Berth, and puts it back when somebody needs it.
func (w *World) floor(ctx context.Context, r *Report, when string, needed bool) error {
	if err := w.WithoutBerth(ctx); err != nil {
		return err
	}
	for n := range r.Sizes.Runs {
		w.say("without Berth, %s, run %d", when, n+1)
		b, err := w.burst(ctx, fmt.Sprintf("floor-%s-%d", when, n), r.Sizes, false)
		if err != nil {
			return err
		}
		r.Floor = append(r.Floor, b)
	}
	for n := range r.Sizes.Runs {
		w.say("with a webhook that does nothing, %s, run %d", when, n+1)
		creates, err := w.idle(ctx, fmt.Sprintf("idle-%s-%d", when, n), r.Sizes)
		if err != nil {
			return err
		}
		r.Idle = append(r.Idle, Burst{Creates: creates})
	}
	if !needed {
		return nil
	}
	return w.WithBerth(ctx)
}

func (w *World) withBerth(ctx context.Context, r *Report) error {
	for n := range r.Sizes.Runs {
		w.say("with Berth, run %d", n+1)
		b, err := w.burst(ctx, fmt.Sprintf("berth-%d", n), r.Sizes, true)
		if err != nil {
			return err
		}
		r.Berth = append(r.Berth, b)
	}
	s, err := w.singles(ctx, "single", r.Sizes.Singles)
	r.Singles = &s
	return err
}

// NewReport begins a report of this machine and this build.
func NewReport(s Sizes) (*Report, error) {
	cpu, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, fmt.Errorf("describe the machine: %w", err)
	}
	var u unix.Utsname
	if err := unix.Uname(&u); err != nil {
		return nil, fmt.Errorf("describe the machine: %w", err)
	}
	var info unix.Sysinfo_t
	if err := unix.Sysinfo(&info); err != nil {
		return nil, fmt.Errorf("describe the machine: %w", err)
	}
	build := serve.BuildInfo()
	return &Report{At: time.Now().UTC(), Revision: build.Revision, Sizes: s, Machine: Machine{
		CPU: processor(cpu), Cores: runtime.NumCPU(), GiB: float64(info.Totalram) * float64(info.Unit) / (1 << 30),
		Kernel: unix.ByteSliceToString(u.Release[:]), Go: build.GoVersion, Load: float64(info.Loads[0]) / (1 << 16)}}, nil
}

// processor names the processor that /proc/cpuinfo tells of.
func processor(cpuinfo []byte) string {
	for lines := bufio.NewScanner(bytes.NewReader(cpuinfo)); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
