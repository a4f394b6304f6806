package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"syscall"
	"time"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/node"
)

// Restart is how a program came back. Seconds count from the start of the new process, of the last one of several.
type Restart struct {
	// Ready is when it said so.
	Ready float64 `json:"ready,omitempty"`
	// FirstPod is when a pod that was made meanwhile was routed, Compared when the first full comparison was done.
	FirstPod float64 `json:"firstPod,omitempty"`
	Compared float64 `json:"compared,omitempty"`
	// PeakMiB is the most memory of one process.
	PeakMiB float64 `json:"peakMib"`
	// Writes are ours meanwhile, Transactions those sent to the northbound database; without those for the one new pod,
	// which are told apart by what one pod takes at rest.
	Writes       []Write `json:"writes,omitempty"`
	Transactions float64 `json:"transactions,omitempty"`
}

// Large is what single things cost in a cluster that holds many pods.
type Large struct {
	Pods int `json:"pods"`
	// Filled is how many seconds it took to create and wire them.
	Filled float64 `json:"filled"`
	// OneMore are pods one after the other.
	OneMore Singles `json:"oneMore"`
	// Webhook is a restart of all replicas at once. Worker is one that is told to end, and gives its lease up; Crash is one
	// that is killed, whose lease has to run out.
	Webhook Restart `json:"webhook"`
	Worker  Restart `json:"worker"`
	Crash   Restart `json:"crash"`
	// Quiet are our writes in a while in which nothing happened.
	Quiet             []Write `json:"quiet,omitempty"`
	QuietTransactions float64 `json:"quietTransactions"`
	Usage             []Usage `json:"usage"`
}

// quietTime is how long nothing happens while writes are counted: longer than two sweeps.
const quietTime = 70 * time.Second

// large fills a cluster and measures.
func (w *World) large(ctx context.Context, s Sizes) (l Large, err error) {
	l.Pods = s.Held
	crew, err := newCrew(ctx, w.client, roomyName, w.nodes)
	if err != nil {
		return l, err
	}
	defer crew.Close()
	held := pods("held", s.Held, nil)
	r, err := crew.fill(ctx, "held", s.Held, nil)
	if err != nil {
		return l, err
	}
	l.Filled = r.Seconds
	if err := crew.run(ctx, hands, namesOf(held)); err != nil {
		return l, err
	}
	// Another crew would bind and end the same pods twice.
	for _, step := range []func() error{
		func() error { return w.quiet(ctx, &l) },
		func() (err error) { l.OneMore, err = crew.singles(ctx, "more", s.Singles); return err },
		func() (err error) { l.Webhook, err = w.restartWebhook(ctx); return err },
		func() error { return w.awaitBerth(ctx) }, // endpoints follow
		func() (err error) { l.Worker, err = w.restartWorker(ctx, crew, syscall.SIGTERM); return err },
		func() (err error) { l.Crash, err = w.restartWorker(ctx, crew, syscall.SIGKILL); return err },
		func() (err error) { l.Usage, err = w.usage(); return err },
		func() error { return crew.emptied(ctx) },
	} {
		if err := step(); err != nil {
			return l, err
		}
	}
	return l, nil
}

// quiet counts what is written while nothing happens.
func (w *World) quiet(ctx context.Context, l *Large) error {
	before, err := w.reading(ctx, true)
	if err != nil {
		return err
	}
	if err := pause(ctx, quietTime); err != nil {
		return err
	}
	writes, err := w.audit.next()
	if err != nil {
		return err
	}
	l.Quiet = slices.DeleteFunc(writes, func(k Write) bool { return !ours(k) })
	after, err := w.counters(ctx)
	l.QuietTransactions = after.since(before.counters).transactions
	return err
}

// restartWebhook kills all replicas, and waits until all are ready again.
func (w *World) restartWebhook(ctx context.Context) (r Restart, err error) {
	before, err := w.Containers(cluster.WebhookImage)
	if err != nil {
		return r, err
	}
	if err := w.KillWebhook(syscall.SIGKILL); err != nil {
		return r, err
	}
	now, err := w.restarted(ctx, cluster.WebhookImage, before)
	if err != nil {
		return r, err
	}
	ips, err := w.addressesOf(ctx, webhookName)
	if err != nil {
		return r, err
	}
	for _, ip := range ips {
		err := until(ctx, "the webhook on "+ip, func(ctx context.Context) error {
			_, err := fetch(ctx, fmt.Sprintf("http://%s:%d/readyz", ip, webhookHealth))
			return err
		})
		if err != nil {
			return r, err
		}
	}
	r.Ready, r.PeakMiB, err = since(now)
	return r, err
}

// since gives how long ago the last of some processes was started, and the most memory that one of them had.
func since(records []node.Record) (seconds, peak float64, err error) {
	var started time.Time
	for _, r := range records {
		at, err := startOf(r)
		if err != nil {
			return 0, 0, err
		}
		u, err := usageOf(r.Process.PID)
		if err != nil {
			return 0, 0, err
		}
		peak = max(peak, u.PeakMiB)
		if at.After(started) {
			started = at
		}
	}
	return time.Since(started).Seconds(), peak, nil
}

// restartWorker ends the worker by a signal, makes a pod at once, and waits for its network and for the new worker's first
// full comparison.
func (w *World) restartWorker(ctx context.Context, crew *Crew, sig syscall.Signal) (r Restart, err error) {
	before, err := w.Containers(cluster.WorkerImage)
	if err != nil {
		return r, err
	}
	if _, err := w.audit.next(); err != nil {
		return r, err
	}
	if err := w.KillWorker(sig); err != nil {
		return r, err
	}
	now, err := w.restarted(ctx, cluster.WorkerImage, before)
	if err != nil {
		return r, err
	}
	filled, err := crew.fill(ctx, fmt.Sprintf("after-signal-%d", sig), 1, nil)
	if err != nil || filled.Refused > 0 {
		return r, errors.Join(err, errIf(filled.Refused > 0, "the pod after the restart was refused"))
	}
	if r.FirstPod, _, err = since(now); err != nil {
		return r, err
	}
	err = until(ctx, "a full comparison", func(ctx context.Context) error {
		ss, err := w.scrape(ctx, workerName, workerMetrics)
		if err == nil && ss.Sum("berth_sweeps_total", map[string]string{"result": "done"}) < 1 {
			err = errors.New("none is done")
		}
		r.Transactions = ss.Sum("berth_northbound_transactions_total", nil)
		return err
	})
	if err != nil {
		return r, err
	}
	if r.Compared, r.PeakMiB, err = since(now); err != nil {
		return r, err
	}
	writes, err := w.audit.next()
	r.Writes = slices.DeleteFunc(writes, func(k Write) bool { return !ours(k) })
	return r, err
}

func errIf(so bool, text string) error {
	if so {
		return errors.New(text)
	}
	return nil
}
