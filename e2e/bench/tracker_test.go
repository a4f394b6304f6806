package bench

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// seen is a pod as a watch shows it.
func seen(uid string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: uid, UID: types.UID(uid), Annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.0.0.1"}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func onNode(p *corev1.Pod)  { p.Spec.NodeName = "n" }
func gated(p *corev1.Pod)   { p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "g"}} }
func running(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }
func routed(p *corev1.Pod)  { p.Annotations["ovn.kubernetes.io/routed"] = "true" }

// deleted is being deleted with a grace period of so many seconds.
func deleted(grace int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: time.Unix(1, 0)}, &grace
	}
}

func TestTrackerOfOneLife(t *testing.T) {
	tr := NewTracker()
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	for n, step := range []struct {
		pod  *corev1.Pod
		want deed
	}{
		{seen("a", gated), nothing},
		{seen("a"), bind},
		{seen("a"), nothing}, // told once
		{seen("a", onNode), nothing},
		{seen("a", onNode, routed), nothing},
		{seen("a", onNode, routed, running), nothing},
		{seen("a", onNode, routed, running, deleted(30)), end},
		{seen("a", onNode, routed, running, deleted(30)), nothing},
		{seen("a", onNode, routed, running, deleted(0)), nothing},
	} {
		if got := tr.observe(at(int64(n+1)), step.pod); got != step.want {
			t.Errorf("step %d: %v, want %v", n, got, step.want)
		}
	}
	if d := cmp.Diff(Counts{Seen: 1, Bound: 1, Routed: 1, Running: 1}, tr.Counts()); d != "" {
		t.Error(d)
	}
	tr.Vanish(at(20), "a")
	tr.Vanish(at(21), "a")
	tr.Vanish(at(22), "unknown")
	want := []Life{{Name: "a", Addresses: "10.0.0.1", Seen: at(1), Ungated: at(2), Bound: at(4), Routed: at(5), Gone: at(20), Running: true}}
	if d := cmp.Diff(want, tr.Lives(), cmpopts.IgnoreUnexported(Life{})); d != "" {
		t.Error(d)
	}
	if got := tr.Counts(); got.Gone != 1 {
		t.Errorf("%+v", got)
	}
	if got := connects(tr.Lives()); len(got) != 1 || got[0] != time.Second {
		t.Errorf("connected in %v", got)
	}
}

func TestTrackerOfOtherLives(t *testing.T) {
	for name, c := range map[string]struct {
		pod  *corev1.Pod
		want deed
	}{
		"deleted before it had a node": {seen("a", deleted(0)), nothing},
		"gated and deleted":            {seen("a", gated, deleted(30)), end},
		"born with a node":             {seen("a", onNode), nothing},
	} {
		if got := NewTracker().observe(time.Unix(1, 0), c.pod); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	tr := NewTracker()
	tr.observe(time.Unix(1, 0), seen("a", gated))
	if tr.Vanish(time.Unix(2, 0), "a"); tr.Counts() != (Counts{Seen: 1, Gone: 1}) {
		t.Errorf("a gated pod that is gone: %+v", tr.Counts())
	}
}

func TestAwait(t *testing.T) {
	two := func(c Counts) bool { return c.Seen == 2 }
	synctest.Test(t, func(t *testing.T) {
		tr := NewTracker()
		done := make(chan error, 1)
		go func() { done <- tr.Await(t.Context(), "two are seen", two) }()
		tr.observe(time.Now(), seen("a"))
		synctest.Wait()
		select {
		case err := <-done:
			t.Fatalf("came back too early: %v", err)
		default:
		}
		tr.observe(time.Now(), seen("b"))
		if err := <-done; err != nil {
			t.Error(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := tr.Await(ctx, "never", func(Counts) bool { return false }); !errors.Is(err, context.DeadlineExceeded) {
			t.Error(err)
		}
		broken := errors.New("broken")
		tr.Fail(broken)
		tr.Fail(errors.New("later"))
		if err := tr.Await(t.Context(), "two are seen", two); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}

func TestDuplicates(t *testing.T) {
	lives := []Life{{Name: "a", Addresses: "10.0.0.1,fd00::1"}, {Name: "b", Addresses: "10.0.0.2,fd00::1"}, {Name: "c", Addresses: "10.0.0.1", Gone: time.Unix(1, 0)}, {Name: "d"}, {Name: "e"}}
	if d := cmp.Diff([]string{"fd00::1 of a and b"}, Duplicates(lives)); d != "" {
		t.Error(d)
	}
}

func TestEach(t *testing.T) {
	done := make([]bool, 50)
	if err := each(t.Context(), 7, len(done), func(_ context.Context, n int) error { done[n] = true; return nil }); err != nil {
		t.Fatal(err)
	}
	for n, d := range done {
		if !d {
			t.Errorf("%d was left out", n)
		}
	}
	broken := errors.New("broken")
	err := each(t.Context(), 3, 1000, func(ctx context.Context, n int) error {
		if n == 5 {
			return broken
		}
		if n > 20 {
			<-ctx.Done()
		}
		return ctx.Err()
	})
	if !errors.Is(err, broken) {
		t.Error(err)
	}
}
