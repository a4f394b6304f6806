package ovn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

// applyAt applies pods at given times and returns the sizes of the transactions and when each pod was done.
func applyAt(t *testing.T, s *fakeStore, opts WriterOptions, at []time.Duration, beside ...func(*Writer)) (sizes []int, done []time.Duration) {
	t.Helper()
	if opts.MaxDelay == 0 {
		opts.MaxDelay = 5 * time.Millisecond
	}
	w := newWriter(s, opts)
	runWriter(t, w)
	start := time.Now()
	done = make([]time.Duration, len(at))
	for i, d := range at {
		go func() {
			time.Sleep(d)
			if err := w.Apply(t.Context(), podChange(fmt.Sprintf("p%d", i), "s1")); err != nil {
				t.Error(err)
			}
			done[i] = time.Since(start)
		}()
	}
	for _, do := range beside {
		go do(w)
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	for _, names := range s.sent {
		sizes = append(sizes, len(names))
	}
	return sizes, done
}

// every gives n times, one each step.
func every(step time.Duration, n int) (out []time.Duration) {
	for i := range n {
		out = append(out, time.Duration(i)*step)
	}
	return out
}

// pairs gives n times two, the second a moment after the first.
func pairs(step, moment time.Duration, n int) (out []time.Duration) {
	for _, at := range every(step, n) {
		out = append(out, at, at+moment)
	}
	return out
}

// northd works anew after each transaction: when many come at once they wait for each other, longer than one that comes
// alone, and not those that have no time.
func TestBurst(t *testing.T) {
	const ms = time.Millisecond
	cases := map[string]struct {
		at     []time.Duration
		opts   WriterOptions
		urgent time.Duration // when one comes that has 50 ms
		took   time.Duration // for that one
		sizes  []int
	}{
		// Two of each three come while another is under way: the ninth of those is in the fifth transaction.
		"a burst begins":        {at: every(2*ms, 60), sizes: []int{3, 3, 3, 3, 48}},
		"full batches don't":    {at: every(2*ms, 60), opts: WriterOptions{MaxBatch: 16}, sizes: []int{3, 3, 3, 3, 16, 16, 16}},
		"who has no time":       {at: every(2*ms, 60), urgent: 61*ms + ms/2, took: 5 * ms, sizes: []int{3, 3, 3, 3, 23, 26}},
		"a burst ends":          {at: append(every(2*ms, 60), 1500*ms, 1520*ms), sizes: []int{3, 3, 3, 3, 48, 1, 1}},
		"its end is remembered": {at: append(every(2*ms, 60), 900*ms, 920*ms), sizes: []int{3, 3, 3, 3, 48, 2}},
		"a dozen at once":       {at: slices.Concat(every(0, 12), []time.Duration{100 * ms, 200 * ms}), sizes: []int{12, 1, 1}},
		// Pairs of which each second waits for the first: they wait longer and longer.
		"pairs":                  {at: pairs(61*ms, 2*ms+ms/2, 40), sizes: append(slices.Repeat([]int{2}, 15), 4, 4, 4, 4, 4, 4, 6, 6, 6, 6, 2)},
		"few are none":           {at: every(60*ms, 20), sizes: slices.Repeat([]int{1}, 20)},
		"one after the other":    {at: every(6*ms, 100), sizes: slices.Repeat([]int{1}, 100)},
		"the operator's choice":  {at: every(2*ms, 60), opts: WriterOptions{BurstDelay: 21 * ms}, sizes: []int{3, 3, 3, 3, 11, 11, 11, 11, 4}},
		"longer alone than that": {at: every(2*ms, 60), opts: WriterOptions{MaxDelay: 51 * ms, BurstDelay: 20 * ms}, sizes: []int{26, 26, 8}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore(t)
				var took time.Duration
				sizes, _ := applyAt(t, s, tc.opts, tc.at, func(w *Writer) {
					if tc.urgent == 0 {
						return
					}
					time.Sleep(tc.urgent) // of the bubble's time: it comes in the middle of the others
					ctx, cancel := context.WithTimeout(t.Context(), 50*ms)
					defer cancel()
					began := time.Now()
					if err := w.Apply(ctx, podChange("urgent", "s1")); err != nil {
						t.Error(err)
					}
					took = time.Since(began)
				})
				if took != tc.took {
					t.Errorf("the one without time took %s, want %s", took, tc.took)
				}
				if diff := cmp.Diff(tc.sizes, sizes); diff != "" {
					t.Errorf("sizes of transactions (-want +got):\n%s", diff)
				}
			})
		})
	}
}

func TestBatching(t *testing.T) {
	const ms = time.Millisecond
	cases := map[string]struct {
		latency time.Duration
		opts    WriterOptions
		at      []time.Duration
		sizes   []int
		done    []time.Duration
	}{
		"one waits for company":          {at: []time.Duration{0}, sizes: []int{1}, done: []time.Duration{5 * ms}},
		"company comes":                  {at: []time.Duration{0, 4 * ms}, sizes: []int{2}, done: []time.Duration{5 * ms, 5 * ms}},
		"company comes too late":         {at: []time.Duration{0, 6 * ms}, sizes: []int{1, 1}, done: []time.Duration{5 * ms, 11 * ms}},
		"a full batch doesn't wait":      {opts: WriterOptions{MaxBatch: 2}, at: []time.Duration{0, 1 * ms}, sizes: []int{2}, done: []time.Duration{1 * ms, 1 * ms}},
		"what comes in flight is next":   {latency: 50 * ms, at: []time.Duration{0, 10 * ms, 20 * ms, 30 * ms}, sizes: []int{1, 3}, done: []time.Duration{55 * ms, 105 * ms, 105 * ms, 105 * ms}},
		"delay of the operator's choice": {opts: WriterOptions{MaxDelay: time.Second}, at: []time.Duration{0, 900 * ms}, sizes: []int{2}, done: []time.Duration{time.Second, time.Second}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newFakeStore(t)
				s.latency = tc.latency
				sizes, done := applyAt(t, s, tc.opts, tc.at)
				if diff := cmp.Diff(tc.sizes, sizes); diff != "" {
					t.Errorf("sizes of transactions (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.done, done); diff != "" {
					t.Errorf("done at (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// Whoever only makes sure of a port waits for no batch.
func TestWhatHoldsDoesNotWait(t *testing.T) {
	old := podChange("old", "s1")
	cases := map[string]struct {
		change Change
		took   time.Duration
	}{
		"a port that is there":     {change: old},
		"a new one":                {podChange("new", "s1"), time.Minute},
		"one of which more is due": {Change{Key: "x", Ensure: old.Ensure, RemovePorts: []string{"none.default"}}, time.Minute},
		"one on another switch":    {podChange("old", "s2"), time.Minute}, // there is none: the batch says so
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWriter(newFakeStore(t), WriterOptions{MaxDelay: time.Minute})
				runWriter(t, w)
				if err := w.Apply(t.Context(), old); err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				_ = w.Apply(t.Context(), tc.change)
				if took := time.Since(began); took != tc.took {
					t.Errorf("took %s, want %s", took, tc.took)
				}
			})
		})
	}
}

func TestWriterThatHasEndedAnswersNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWriter(newFakeStore(t), WriterOptions{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error)
		go func() { done <- w.Run(ctx) }()
		if err := w.Apply(t.Context(), podChange("old", "s1")); err != nil {
			t.Error(err)
		}
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if err := w.Apply(t.Context(), podChange("old", "s1")); !errors.Is(err, ErrStopped) {
			t.Errorf("%v, want ErrStopped", err)
		}
	})
}

// applyAll applies pods p0 to p<n-1> at once and returns their errors.
func applyAll(t *testing.T, w *Writer, n int) []error {
	t.Helper()
	errs := make([]error, n)
	for i := range n {
		go func() { errs[i] = w.Apply(t.Context(), podChange(fmt.Sprintf("p%d", i), "s1")) }()
	}
	time.Sleep(time.Hour)
	synctest.Wait()
	return errs
}

func TestRefusalHitsTheGuiltyAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		s.refuse = func(names []string) error {
			if slices.Contains(names, "p5.default") {
				return &TransactionError{Code: "constraint violation", index: -1}
			}
			return nil
		}
		w := newWriter(s, WriterOptions{})
		runWriter(t, w)
		for i, err := range applyAll(t, w, 64) {
			var refused *TransactionError
			if got := errors.As(err, &refused); got != (i == 5) {
				t.Errorf("p%d: %v", i, err)
			}
		}
		if got := w.Transactions(); got > 20 {
			t.Errorf("%d transactions to find one of 64", got)
		}
	})
}

func TestStaleMirrorIsReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		first := true
		s.refuse = func([]string) error {
			if !first {
				return nil
			}
			first = false
			// Somebody else has made the port; the mirror shows it a moment later.
			go func() {
				time.Sleep(20 * time.Millisecond)
				s.changes.notify()
			}()
			return &TransactionError{Code: "constraint violation", index: -1}
		}
		w := newWriter(s, WriterOptions{})
		runWriter(t, w)
		if err := applyAll(t, w, 1)[0]; err != nil {
			t.Error(err)
		}
	})
}

func TestUnknownOutcomeIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		lost := 0
		s.refuse = func([]string) error {
			if lost++; lost <= 3 {
				return fmt.Errorf("%w: connection lost", errUnknown)
			}
			return nil
		}
		w := newWriter(s, WriterOptions{})
		runWriter(t, w)
		for i, err := range applyAll(t, w, 10) {
			if err != nil {
				t.Errorf("p%d: %v", i, err)
			}
		}
		if got := w.Transactions(); got != 4 {
			t.Errorf("%d transactions, want 4", got)
		}
	})
}

func TestCallerThatLeavesIsLeftOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		w := newWriter(s, WriterOptions{MaxDelay: time.Minute})
		runWriter(t, w)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Apply(ctx, podChange("gone", "s1")); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v, want a deadline", err)
		}
		applyAll(t, w, 1)
		if diff := cmp.Diff([][]string{{"p0.default"}}, s.sent); diff != "" {
			t.Errorf("transactions (-want +got):\n%s", diff)
		}
	})
}

func TestRunAnswersThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		s.latency = time.Hour
		w := newWriter(s, WriterOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		errs := make(chan error, 2)
		for i := range 2 {
			go func() {
				time.Sleep(time.Duration(i) * time.Second)
				errs <- w.Apply(t.Context(), podChange(fmt.Sprintf("p%d", i), "s1"))
			}()
		}
		if err := w.Run(ctx); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := <-errs; !errors.Is(err, ErrStopped) {
				t.Errorf("%v, want ErrStopped", err)
			}
		}
	})
}

func TestMetrics(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	m, err := newMetrics(registry)
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		s := newFakeStore(t)
		s.metrics = m
		s.refuse = func(names []string) error {
			if slices.Contains(names, "p1.default") {
				return &TransactionError{Code: "constraint violation", index: -1}
			}
			return nil
		}
		w := newWriter(s, WriterOptions{Epoch: 7})
		runWriter(t, w)
		applyAll(t, w, 2)
	})
	for result, want := range map[string]float64{resultCommitted: 1, resultRefused: 2, resultFenced: 0} {
		if got := testutil.ToFloat64(m.transactions.WithLabelValues(result)); got != want {
			t.Errorf("%v transactions %s, want %v", got, result, want)
		}
	}
	if got := testutil.ToFloat64(m.epoch); got != 7 {
		t.Errorf("epoch %v, want 7", got)
	}
	if got := testutil.ToFloat64(m.operations); got != 3 {
		t.Errorf("%v operations, want 3: fence, insert, reference", got)
	}
	if _, err := newMetrics(registry); err == nil {
		t.Error("the same metrics registered twice")
	}
}
