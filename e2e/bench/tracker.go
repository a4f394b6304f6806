package bench

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/pkg/network"
)

// Life is when a pod was seen in each of its states; the zero time: not yet.
type Life struct {
	Name, Addresses           string
	Seen, Bound, Routed, Gone time.Time
	// Ungated is when the last scheduling gate went, of a pod that had one.
	Ungated             time.Time
	Gated, Running      bool
	bindAsked, endAsked bool
}

// Counts are how many pods have come how far. A pod that is gone still counts for what it was.
type Counts struct{ Seen, Bound, Routed, Running, Gone, Gated int }

// deed is what a scheduler or a kubelet would do for a pod now.
type deed int

const (
	nothing deed = iota
	bind
	end
)

// Tracker follows pods by what a watch shows of them.
type Tracker struct {
	mu      sync.Mutex
	lives   map[types.UID]*Life
	counts  Counts
	changed chan struct{}
	failed  error
}

// NewTracker makes one that has seen nothing.
func NewTracker() *Tracker {
	return &Tracker{lives: map[types.UID]*Life{}, changed: make(chan struct{})}
}

// observe notes a pod as it was seen, and tells what is to be done for it. Each deed is told once.
func (t *Tracker) observe(at time.Time, p *corev1.Pod) deed {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[p.UID]
	if l == nil {
		l = &Life{Name: p.Name, Seen: at}
		t.lives[p.UID] = l
		t.counts.Seen++
	}
	l.Addresses = p.Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)]
	switch gated := len(p.Spec.SchedulingGates) > 0; {
	case gated && !l.Gated:
		l.Gated = true
		t.counts.Gated++
	case !gated && l.Gated:
		l.Gated, l.Ungated = false, at
		t.counts.Gated--
	}
	mark(&l.Bound, p.Spec.NodeName != "", at, &t.counts.Bound)
	mark(&l.Routed, p.Annotations[network.Key(network.DefaultProvider, network.SuffixRouted)] == "true", at, &t.counts.Routed)
	if p.Status.Phase == corev1.PodRunning && !l.Running {
		l.Running = true
		t.counts.Running++
	}
	t.tell()
	switch {
	case p.DeletionTimestamp != nil:
		if !l.endAsked && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds > 0 {
			l.endAsked = true
			return end
		}
	case p.Spec.NodeName == "" && !l.Gated && !l.bindAsked:
		l.bindAsked = true
		return bind
	}
	return nothing
}

// mark notes the first time that something was so.
func mark(first *time.Time, so bool, at time.Time, count *int) {
	if so && first.IsZero() {
		*first = at
		*count++
	}
}

// Vanish notes that a pod is gone.
func (t *Tracker) Vanish(at time.Time, uid types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	l := t.lives[uid]
	if l == nil || !l.Gone.IsZero() {
		return
	}
	if l.Gated {
		l.Gated = false
		t.counts.Gated--
	}
	mark(&l.Gone, true, at, &t.counts.Gone)
	t.tell()
}

// Fail notes that something went wrong: whoever waits hears of the first.
func (t *Tracker) Fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.failed == nil {
		t.failed = err
	}
	t.tell()
}

func (t *Tracker) tell() {
	close(t.changed)
	t.changed = make(chan struct{})
}

// Counts gives the counts of now.
func (t *Tracker) Counts() Counts {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.counts
}

// Await returns when the counts are as they should be, or when something went wrong.
func (t *Tracker) Await(ctx context.Context, what string, so func(Counts) bool) error {
	for {
		t.mu.Lock()
		counts, changed, failed := t.counts, t.changed, t.failed
		t.mu.Unlock()
		switch {
		case failed != nil:
			return fmt.Errorf("waiting until %s: %w", what, failed)
		case so(counts):
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting until %s, got as far as %+v: %w", what, counts, ctx.Err())
		}
	}
}

// Lives gives what was seen of every pod.
func (t *Tracker) Lives() []Life {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := make([]Life, 0, len(t.lives))
	for _, l := range t.lives {
		out = append(out, *l)
	}
	return out
}

// Life gives what was seen of one pod.
func (t *Tracker) Life(uid types.UID) Life {
	t.mu.Lock()
	defer t.mu.Unlock()
	if l := t.lives[uid]; l != nil {
		return *l
	}
	return Life{}
}

// last is the latest of some moments of pods.
func last(lives []Life, of func(Life) time.Time) time.Time {
	var out time.Time
	for _, l := range lives {
		if t := of(l); t.After(out) {
			out = t
		}
	}
	return out
}

// connects gives how long each pod took from its node to its network.
func connects(lives []Life) []time.Duration {
	var out []time.Duration
	for _, l := range lives {
		if !l.Bound.IsZero() && !l.Routed.IsZero() {
			out = append(out, l.Routed.Sub(l.Bound))
		}
	}
	return out
}

// Duplicates names the addresses that two of the pods that are there have.
func Duplicates(lives []Life) []string {
	var out []string
	has := map[string]string{}
	for _, l := range lives {
		if !l.Gone.IsZero() {
			continue
		}
		for a := range strings.SplitSeq(l.Addresses, ",") {
			if a == "" {
				continue
			}
			if other, taken := has[a]; taken {
				out = append(out, fmt.Sprintf("%s of %s and %s", a, other, l.Name))
			}
			has[a] = l.Name
		}
	}
	return out
}
