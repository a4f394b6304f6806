package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/node"
)

// usage reads what every process of the cluster has taken so far, and this one; those of a kind are added up.
func (w *World) usage() ([]Usage, error) {
	pids := map[string][]int{"bench": {os.Getpid()}}
	order := []string{"webhook", "worker", "kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "ovn-nb", "ovn-sb", "ovn-northd", "ovn-controller", "vswitchd", "bench"}
	for name, image := range map[string]string{"webhook": cluster.WebhookImage, "worker": cluster.WorkerImage} {
		records, err := w.Containers(image)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			pids[name] = append(pids[name], r.Process.PID)
		}
	}
	for _, name := range order[2 : len(order)-1] {
		processes := []string{name}
		if name == "ovn-controller" || name == "vswitchd" {
			processes = nil
			for _, n := range w.NodeNames() {
				processes = append(processes, n+"-"+name)
			}
		}
		for _, p := range processes {
			process, err := w.Process(p)
			if err != nil {
				return nil, err
			}
			pids[name] = append(pids[name], process.ID().PID)
		}
	}
	var out []Usage
	for _, name := range order {
		sum := Usage{Process: name}
		for _, pid := range pids[name] {
			u, err := usageOf(pid)
			if err != nil {
				return nil, err
			}
			sum.CPU, sum.MiB, sum.PeakMiB = sum.CPU+u.CPU, sum.MiB+u.MiB, sum.PeakMiB+u.PeakMiB
		}
		if len(pids[name]) > 0 {
			out = append(out, sum)
		}
	}
	return out, nil
}

// counters are what our programs count.
type counters struct{ transactions, operations, ledgerWrites float64 }

func (w *World) counters(ctx context.Context) (counters, error) {
	worker, err := w.scrape(ctx, workerName, workerMetrics)
	if err != nil {
		return counters{}, err
	}
	webhook, err := w.scrape(ctx, webhookName, webhookMetrics)
	return counters{transactions: worker.Sum("berth_northbound_transactions_total", nil), operations: worker.Sum("berth_northbound_operations_total", nil),
		ledgerWrites: webhook.Sum("berth_ledger_writes_total", nil)}, err
}

// since gives by how much they have grown.
func (c counters) since(before counters) counters {
	return counters{transactions: Grown(before.transactions, c.transactions), operations: Grown(before.operations, c.operations),
		ledgerWrites: Grown(before.ledgerWrites, c.ledgerWrites)}
}

// restarted waits until all processes of an image are others than those before.
func (w *World) restarted(ctx context.Context, image string, before []node.Record) (now []node.Record, err error) {
	old := map[int]bool{}
	for _, r := range before {
		old[r.Process.PID] = true
	}
	err = until(ctx, "new processes of "+image, func(context.Context) error {
		all, err := w.Containers(image)
		if err != nil {
			return err
		}
		now = nil
		for _, r := range all {
			if !old[r.Process.PID] {
				now = append(now, r)
			}
		}
		if len(now) < len(before) {
			return fmt.Errorf("%d of %d: %w", len(now), len(before), errNobody)
		}
		return nil
	})
	return now, err
}

// startOf is when a process started, by the kernel's clock.
func startOf(r node.Record) (time.Time, error) {
	text, err := os.ReadFile("/proc/uptime")
	if err != nil {
		return time.Time{}, fmt.Errorf("read how long the machine has been up: %w", err)
	}
	up, err := parseUptime(string(text))
	if err != nil {
		return time.Time{}, err
	}
	return time.Now().Add(time.Duration(float64(r.Process.Start)/clockTicks*float64(time.Second)) - up), nil
}

func parseUptime(text string) (time.Duration, error) {
	first, _, _ := strings.Cut(text, " ")
	seconds, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, fmt.Errorf("uptime %q is no number: %w", text, err)
	}
	return time.Duration(seconds * float64(time.Second)), nil
}

// tailBytes is how much of a log is worth showing.
const tailBytes = 3000

// Explain shows the ends of our programs' logs.
func (w *World) Explain(out io.Writer) error {
	entries, err := os.ReadDir(w.LogDir())
	if err != nil {
		return fmt.Errorf("find the logs: %w", err)
	}
	for _, e := range entries {
		if !strings.Contains(e.Name(), webhookName) && !strings.Contains(e.Name(), workerName) {
			continue
		}
		text, err := os.ReadFile(filepath.Join(w.LogDir(), e.Name()))
		if err != nil {
			return fmt.Errorf("read a log: %w", err)
		}
		if _, err := fmt.Fprintf(out, "--- %s\n%s\n", e.Name(), text[max(0, len(text)-tailBytes):]); err != nil {
			return err
		}
	}
	return nil
}
