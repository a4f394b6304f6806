//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// witness sees all that happens to the pods of a namespace, in its order, and notes what must never be: two living pods
// with one address, and a pod that ran with other addresses before. It knows pods by their annotations alone.
type witness struct {
	mu    sync.Mutex
	pods  map[types.UID]carrier
	at    map[string]map[types.UID]string
	wrong []string
}

// carrier is a pod as it was seen last.
type carrier struct {
	name, mac, claim string
	addresses        []string
	runs             bool
}

func newWitness() *witness {
	return &witness{pods: map[types.UID]carrier{}, at: map[string]map[types.UID]string{}}
}

// witness looks until the test's cleanups begin. Call it when all is made that the pods need.
func (h *harness) witness(t *testing.T, namespace string) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	pods := h.Client().CoreV1().Pods(namespace)
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	events, err := watchtools.NewRetryWatcherWithContext(ctx, list.ResourceVersion, &cache.ListWatch{WatchFuncWithContext: pods.Watch})
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	w, done := newWitness(), make(chan struct{})
	for i := range list.Items {
		w.see(&list.Items[i], false)
	}
	go func() {
		defer close(done)
		for e := range events.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				w.see(p, e.Type == watch.Deleted)
			}
		}
		if ctx.Err() == nil {
			w.note("the watch of the pods ended: nobody knows what happened since")
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		for _, wrong := range w.wrong {
			t.Error(wrong)
		}
	})
}

func (w *witness) note(format string, args ...any) {
	w.wrong = append(w.wrong, fmt.Sprintf(format, args...))
}

// see takes a pod in as it is now.
func (w *witness) see(p *corev1.Pod, deleted bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was := w.pods[p.UID]
	for _, a := range was.addresses {
		delete(w.at[a], p.UID)
	}
	delete(w.pods, p.UID)
	if deleted || !living(p) {
		return
	}
	now := carries(p)
	if was.runs && (!slices.Equal(was.addresses, now.addresses) || was.mac != now.mac || was.claim != "" && was.claim != now.claim) {
		w.note("pod %s ran with %v %s %s, and has %v %s %s", p.Name, was.addresses, was.mac, was.claim, now.addresses, now.mac, now.claim)
	}
	w.pods[p.UID] = now
	for _, a := range now.addresses {
		if w.at[a] == nil {
			w.at[a] = map[types.UID]string{}
		}
		for _, other := range w.at[a] {
			w.note("pods %s and %s have %s", other, p.Name, a)
		}
		w.at[a][p.UID] = p.Name
	}
}

// carries reads what was given to a pod. What it only asks for is not its own.
func carries(p *corev1.Pod) carrier {
	c := carrier{name: p.Name, runs: facts.Running(p), claim: p.Annotations[network.ClaimKey]}
	if network.Given(p.Annotations, network.DefaultProvider) {
		c.addresses = given(p)
		c.mac = p.Annotations[network.Key(network.DefaultProvider, network.SuffixMAC)]
	}
	return c
}

// given are the addresses of a pod's first network.
func given(p *corev1.Pod) []string { return strings.Split(p.Annotations[addressKey], ",") }

// living tells that nobody may have a pod's addresses yet: those of one that has ended, or that is deleted before it ran,
// are taken back while its object is there.
func living(p *corev1.Pod) bool {
	if lifecycle.Ended(p) {
		return false
	}
	return p.DeletionTimestamp == nil || *p.DeletionGracePeriodSeconds != 0 && !lifecycle.NeverRan(p)
}

// TestWitness shows it one thing after the other.
func TestWitness(t *testing.T) {
	at := func(uid, address string, change ...func(*corev1.Pod)) *corev1.Pod {
		p := pod("ns", "p-"+uid)
		p.UID = types.UID(uid)
		p.Spec.NodeName = handName
		p.Annotations = map[string]string{addressKey: address, network.Key(network.DefaultProvider, network.SuffixCIDR): "10.0.0.0/24"}
		for _, c := range change {
			c(p)
		}
		return p
	}
	runs := func(p *corev1.Pod) { p.Status.PodIP = given(p)[0] }
	asks := func(p *corev1.Pod) { p.Annotations = map[string]string{addressKey: p.Annotations[addressKey]} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	leaves := func(grace int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metav1.Now()), &grace
		}
	}
	for name, c := range map[string]struct {
		seen []*corev1.Pod
		want string // empty: nothing is wrong
	}{
		"two have one":            {[]*corev1.Pod{at("a", "10.0.0.5,fd00::5"), at("b", "10.0.0.6,fd00::5")}, "pods p-a and p-b have fd00::5"},
		"one has it twice":        {[]*corev1.Pod{at("a", "10.0.0.5"), at("a", "10.0.0.5")}, ""},
		"one only asks":           {[]*corev1.Pod{at("a", "10.0.0.5"), at("b", "10.0.0.5", asks)}, ""},
		"one has ended":           {[]*corev1.Pod{at("a", "10.0.0.5"), at("a", "10.0.0.5", ended), at("b", "10.0.0.5")}, ""},
		"one is confirmed":        {[]*corev1.Pod{at("a", "10.0.0.5", runs), at("a", "10.0.0.5", runs, leaves(0)), at("b", "10.0.0.5")}, ""},
		"one drains":              {[]*corev1.Pod{at("a", "10.0.0.5", runs, leaves(30)), at("b", "10.0.0.5")}, "pods p-a and p-b have 10.0.0.5"},
		"another before it runs":  {[]*corev1.Pod{at("a", "10.0.0.5"), at("a", "10.0.0.6"), at("b", "10.0.0.5")}, ""},
		"another while it runs":   {[]*corev1.Pod{at("a", "10.0.0.5", runs), at("a", "10.0.0.6", runs)}, "pod p-a ran with"},
		"none while it runs":      {[]*corev1.Pod{at("a", "10.0.0.5", runs), at("a", "10.0.0.5", runs, asks)}, "pod p-a ran with"},
		"is taken over as it was": {[]*corev1.Pod{at("a", "10.0.0.5", runs), at("a", "10.0.0.5", runs, func(p *corev1.Pod) { p.Annotations[network.ClaimKey] = "x" })}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWitness()
			for _, p := range c.seen {
				w.see(p, false)
			}
			if all := strings.Join(w.wrong, "\n"); (all == "") != (c.want == "") || !strings.Contains(all, c.want) {
				t.Errorf("noted %q, want %q", all, c.want)
			}
		})
	}
}
