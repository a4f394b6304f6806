package faults

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/cluster"
)

const (
	// settleLimit and drainLimit bound how long it may take after the last fault until every pod is up, and after the
	// deletion of everything until nothing is left. Both contain what a lease whose pod was never stored takes: it is
	// watched for the pending age, by a worker that must lead first, and found by two sweeps.
	settleLimit = 240 * time.Second
	drainLimit  = 240 * time.Second
	// returnLimit bounds how long a process may take until it answers again.
	returnLimit = time.Minute
)

// run is one schedule under way.
type run struct {
	*World
	mu     sync.Mutex
	events []event
	errs   []error
	lasts  sync.WaitGroup
}

// Run plays the schedule of a seed, and reports. An error tells that the faults themselves could not be made or ended;
// what the product lost is in the report.
func (w *World) Run(ctx context.Context, seed uint64, p Plan) (*Report, error) {
	steps := Schedule(seed, p)
	w.say("seed %d: %d faults", seed, len(steps))
	report := &Report{Seed: seed, Began: time.Now(), Length: p.Length.Seconds(), Steps: steps, Broken: []string{}}
	counted := w.countPods(ctx)
	c := newChurn(w)
	churning, stop := context.WithCancel(ctx)
	defer stop()
	var churned sync.WaitGroup
	churned.Go(func() { c.run(churning, seed) })
	before := map[Kind]int{}
	for _, k := range Kinds() {
		before[k] = w.proxy.Hits(k)
	}
	r := &run{World: w}
	r.play(ctx, steps)
	stop()
	churned.Wait()
	if err := errors.Join(append(r.errs, w.restore(ctx))...); err != nil {
		return report, err
	}
	report.Pods = counted()
	var denied []string
	report.Did, report.Failed, denied = c.totals()
	w.judge(ctx, report)
	broken, samples := w.sampling.Broken()
	report.Samples = samples
	report.fill(r.events, func(k Kind) int { return w.proxy.Hits(k) - before[k] }, broken)
	for _, d := range denied {
		report.Broken = append(report.Broken, "refused: "+d)
	}
	fell, err := w.panics()
	report.Broken = append(report.Broken, fell...)
	return report, err
}

// judge waits for what must come true when all faults are over, and notes what doesn't.
func (w *World) judge(ctx context.Context, report *Report) {
	fault := func(err error) {
		if err != nil {
			report.Broken = append(report.Broken, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	began := time.Now()
	fault(w.settle(ctx, settleLimit))
	report.Settled = time.Since(began).Seconds()
	w.say("settled after %.1f s", report.Settled)
	began = time.Now()
	fault(w.deleteAll(ctx))
	var err error
	report.Left, err = w.drain(ctx, drainLimit)
	fault(err)
	report.Drained = time.Since(began).Seconds()
	w.say("drained after %.1f s", report.Drained)
	fault(w.whole(ctx))
}

// play begins every step at its time, and returns when all have ended.
func (r *run) play(ctx context.Context, steps []Step) {
	began := time.Now()
	for _, s := range steps {
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(began.Add(s.At))):
		}
		if ctx.Err() != nil {
			break
		}
		r.lasts.Go(func() { r.one(ctx, s) })
	}
	r.lasts.Wait()
	if err := ctx.Err(); err != nil {
		r.errs = append(r.errs, err)
	}
}

// one is a single fault from its beginning to its end.
func (r *run) one(ctx context.Context, s Step) {
	r.say("%s", strings.TrimSpace(s.String()))
	e := event{step: s, begin: time.Now()}
	end, err := r.begin(ctx, s)
	if end != nil && err == nil {
		select {
		case <-time.After(s.For):
		case <-ctx.Done():
		}
	}
	if end != nil {
		err = errors.Join(err, end(context.WithoutCancel(ctx)))
	}
	e.end = time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		// The API server may be away while another fault needs it: then this one did not happen.
		e.missed = true
		r.say("%s did not happen: %v", s.Kind, err)
	}
	r.events = append(r.events, e)
}

// restore ends whatever may still last, and waits until everything answers.
func (w *World) restore(ctx context.Context) error {
	for _, name := range []string{"etcd", "kube-apiserver", "ovn-nb", "ovn-northd"} {
		p, err := w.Process(name)
		if err != nil {
			return err
		}
		if err := errors.Join(alive(p.Signal(syscall.SIGCONT)), p.Start()); err != nil {
			return err
		}
	}
	for _, image := range []string{cluster.WebhookImage, cluster.WorkerImage} {
		all, err := w.Containers(image)
		if err != nil {
			return err
		}
		for _, r := range all {
			if err := alive(r.Process.Signal(syscall.SIGCONT)); err != nil {
				return err
			}
		}
	}
	return await.Until(ctx, "the API server and the northbound database answer", lookEvery, returnLimit, func(ctx context.Context) error {
		err := w.Client().CoreV1().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
		_, _, rows := w.rows(ctx)
		return errors.Join(err, rows)
	})
}

// countPods counts the pods that are made from now on, by the watch; what it returns gives their number.
func (w *World) countPods(ctx context.Context) func() int {
	ctx, cancel := context.WithCancel(ctx)
	seen := map[string]bool{}
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			events, err := w.Client().CoreV1().Pods(metav1.NamespaceAll).Watch(ctx, metav1.ListOptions{})
			if err != nil {
				select {
				case <-time.After(time.Second):
				case <-ctx.Done():
				}
				continue
			}
			for e := range events.ResultChan() {
				if p, ok := e.Object.(*corev1.Pod); ok && p.Namespace != system {
					seen[string(p.UID)] = true
				}
			}
		}
	})
	return func() int {
		cancel()
		done.Wait()
		return len(seen)
	}
}

// String sums a report up in a line.
func (r *Report) String() string {
	verdict := "passed"
	if !r.Passed() {
		verdict = fmt.Sprintf("FAILED, %d things are broken", len(r.Broken))
	}
	return fmt.Sprintf("seed %d %s", r.Seed, verdict)
}
