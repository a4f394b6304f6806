//go:build e2e

package ship

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/pkg/network"
)

const (
	// rate is how many pods are created a second, inFlight how many of the creations may wait for their answer: a machine
	// that is too slow for the rate gets less of it. One in so many is no dry run.
	rate, inFlight, realOne = 20, 8, 4
	// answerLimit is longer than the API server's for a webhook, so that a failure is seen as what it is.
	answerLimit = 15 * time.Second
)

// load creates pods at a steady rate, most of them as a dry run.
type load struct {
	client kubernetes.Interface
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu            sync.Mutex
	sent, claimed int
	total         int // of all that were claimed since the beginning
	lost          []string
	slowest       time.Duration
}

// startLoad begins to create; the end of the test ends it.
func (h *harness) startLoad(ctx context.Context, t *testing.T) *load {
	t.Helper()
	cfg := rest.CopyConfig(h.Config())
	cfg.Timeout, cfg.WarningHandler = answerLimit, rest.NoWarnings{} // each dry run is told to be one
	c, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	l := &load{client: c}
	ctx, l.cancel = context.WithCancel(ctx)
	t.Cleanup(l.stop)
	l.done.Go(func() { l.run(ctx) })
	return l
}

func (l *load) run(ctx context.Context) {
	slots := make(chan struct{}, inFlight)
	tick := time.NewTicker(time.Second / rate)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case slots <- struct{}{}:
		}
		l.done.Go(func() {
			defer func() { <-slots }()
			l.create(context.WithoutCancel(ctx), n) // what was sent is waited for
		})
	}
}

// create makes one pod that no scheduler knows, and counts whether its answer carries a claim.
func (l *load) create(ctx context.Context, n int) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("load-%d", n), Namespace: "demo", Labels: map[string]string{"e2e": "load"}},
		Spec: corev1.PodSpec{SchedulerName: "nobody", TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}},
	}
	var o metav1.CreateOptions
	if n%realOne != 0 {
		o.DryRun = []string{metav1.DryRunAll}
	}
	began := time.Now()
	got, err := l.client.CoreV1().Pods(p.Namespace).Create(ctx, p, o)
	took := time.Since(began)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.sent++
	l.slowest = max(l.slowest, took)
	switch {
	case err != nil:
		l.lost = append(l.lost, fmt.Sprintf("%s %s after %s: %v", began.Format("15:04:05.000"), p.Name, took.Round(time.Millisecond), err))
	case got.Annotations[network.ClaimKey] == "":
		l.lost = append(l.lost, fmt.Sprintf("%s %s after %s: no claim", began.Format("15:04:05.000"), p.Name, took.Round(time.Millisecond)))
	default:
		l.claimed++
		l.total++
	}
}

// check tells what was lost since it was asked last, and that there was a load at all.
func (l *load) check(t *testing.T, during string) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	t.Logf("%s: %d creations, %d with a claim, the slowest took %s", during, l.sent, l.claimed, l.slowest.Round(time.Millisecond))
	for _, s := range l.lost[:min(len(l.lost), 10)] {
		t.Errorf("%s: %s", during, s)
	}
	if l.claimed == 0 {
		t.Errorf("%s: nothing was created", during)
	}
	l.sent, l.claimed, l.slowest, l.lost = 0, 0, 0, nil
}

func (l *load) stop() {
	l.cancel()
	l.done.Wait()
}

// webhookCounts are the API server's counts of calls of our webhooks that failed, by the metric's line without its value,
// and of all calls.
func (h *harness) webhookCounts(ctx context.Context, t *testing.T) (failed map[string]float64, calls float64) {
	t.Helper()
	text, err := h.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	failed = map[string]float64{}
	for _, line := range lines(string(text)) {
		series, value, ok := strings.Cut(line, "} ")
		if !ok || !strings.Contains(series, `.berth.dev"`) {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			t.Fatal(err)
		}
		switch name, _, _ := strings.Cut(series, "{"); name {
		case "apiserver_admission_webhook_fail_open_count", "apiserver_admission_webhook_rejection_count":
			failed[series] = n
		case "apiserver_admission_webhook_request_total":
			calls += n
		}
	}
	return failed, calls
}

// unchanged tells which of the counts moved.
func unchanged(t *testing.T, before, after map[string]float64) {
	t.Helper()
	if !maps.Equal(before, after) {
		t.Errorf("the API server counts failures of the webhook: %v, before %v", after, before)
	}
}
