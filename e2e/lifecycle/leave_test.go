//go:build e2e

package lifecycle

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/pkg/network"
)

// TestPreStopHookTalks has a preStop hook talk to another pod until its grace is over: no packet is lost.
func TestPreStopHookTalks(t *testing.T) {
	h := start(t)
	ns := h.namespace(t, "hooks", "enabled")
	h.create(t, pod(ns, "peer"))
	peer := h.ready(t, ns, 1)["peer"]
	address, _, _ := strings.Cut(peer.Annotations[addressKey], ",")
	said := filepath.Join(t.TempDir(), "said")
	const grace = 5
	talker := pod(ns, "talker", func(s *corev1.PodSpec) {
		s.TerminationGracePeriodSeconds = new(int64(grace))
		s.Containers[0].Lifecycle = &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{Exec: &corev1.ExecAction{
			Command: []string{"sh", "-c", "exec ping -n -i 0.2 " + address + " > " + said}}}}
	})
	h.create(t, talker)
	h.ready(t, ns, 2)
	began := time.Now()
	h.remove(t, talker)
	text, err := os.ReadFile(said)
	if err != nil {
		t.Fatal(err)
	}
	answers := regexp.MustCompile(`bytes from .*icmp_seq=(\d+)`).FindAllStringSubmatch(string(text), -1)
	if len(answers) == 0 {
		t.Fatalf("the hook heard nothing: %s", text)
	}
	last := answers[len(answers)-1][1]
	t.Logf("the hook heard %d answers, the last to packet %s; the pod was gone after %s", len(answers), last, time.Since(began).Round(time.Millisecond))
	if len(answers) < (grace-1)*5 || last != strconv.Itoa(len(answers)) {
		t.Errorf("the hook said:\n%s", text)
	}
}

// ends notes when pods were confirmed to have ended, and when our finalizer was off.
type ends struct {
	mu              sync.Mutex
	confirmed, free map[types.UID]time.Time
}

// watchEnds watches the pods of a namespace until the test ends.
func (h *harness) watchEnds(t *testing.T, namespace string) *ends {
	t.Helper()
	w, err := h.Client().CoreV1().Pods(namespace).Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e := &ends{confirmed: map[types.UID]time.Time{}, free: map[types.UID]time.Time{}}
	go func() {
		for event := range w.ResultChan() {
			p, ok := event.Object.(*corev1.Pod)
			if !ok || p.DeletionTimestamp == nil {
				continue
			}
			now := time.Now()
			e.mu.Lock()
			if g := p.DeletionGracePeriodSeconds; g != nil && *g == 0 && e.confirmed[p.UID].IsZero() {
				e.confirmed[p.UID] = now
			}
			// What is told of the end is the pod as it was before its last finalizer went.
			off := event.Type == watch.Deleted || !slices.Contains(p.Finalizers, network.Finalizer)
			if off && e.free[p.UID].IsZero() {
				e.free[p.UID] = now
			}
			e.mu.Unlock()
		}
	}()
	t.Cleanup(w.Stop)
	return e
}

// stops reads from the nodes when the last container of each pod stopped.
func (h *harness) stops(t *testing.T) map[types.UID]time.Time {
	t.Helper()
	out := map[types.UID]time.Time{}
	for _, name := range h.NodeNames() {
		agent, err := h.Process(name + "-agent")
		if err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(agent.Log())
		if err != nil {
			t.Fatal(err)
		}
		for s := bufio.NewScanner(f); s.Scan(); {
			line := s.Text()
			if !strings.Contains(line, node.Stopped) {
				continue
			}
			at, err := time.Parse(time.RFC3339Nano, field(line, "time="))
			if err != nil {
				t.Fatal(err)
			}
			out[types.UID(field(line, "uid="))] = at
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	return out
}

// field is the value behind a key of a log line.
func field(line, key string) string {
	_, rest, _ := strings.Cut(line, key)
	value, _, _ := strings.Cut(rest, " ")
	return value
}

// quantile gives one of several durations.
func quantile(ds []time.Duration, q float64) time.Duration {
	slices.Sort(ds)
	return ds[min(len(ds)-1, int(q*float64(len(ds))))]
}

// TestB86RollingRestart restarts a StatefulSet of 20 pods: they keep their addresses, and the finalizer holds none of
// them up.
func TestB86RollingRestart(t *testing.T) {
	h := start(t)
	ns := h.namespace(t, "rolling", "enabled")
	const n = 20
	s := set(ns, "db", n)
	h.create(t, s)
	before := h.ready(t, ns, n)
	ends := h.watchEnds(t, ns)
	began := time.Now()
	change(t, h, s, func(s *appsv1.StatefulSet) { s.Spec.Template.Annotations = map[string]string{"restarted": "yes"} })
	until(t.Context(), t, "all pods are new", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(s), s); err != nil {
			return err
		}
		if s.Status.ObservedGeneration < s.Generation || s.Status.UpdatedReplicas != n || s.Status.ReadyReplicas != n {
			return fmt.Errorf("%d of them, %d are ready", s.Status.UpdatedReplicas, s.Status.ReadyReplicas)
		}
		return nil
	})
	t.Logf("restarted %d pods in %s", n, time.Since(began).Round(time.Millisecond))
	after := h.ready(t, ns, n)
	if d := cmp.Diff(addresses(before), addresses(after)); d != "" {
		t.Errorf("addresses (-before +after):\n%s", d)
	}
	var fromStop, fromConfirmed []time.Duration
	stops := h.stops(t)
	ends.mu.Lock()
	defer ends.mu.Unlock()
	for name, p := range before {
		stop, confirmed, free := stops[p.UID], ends.confirmed[p.UID], ends.free[p.UID]
		if stop.IsZero() || free.IsZero() {
			t.Errorf("%s: stopped at %s, finalizer off at %s", name, stop, free)
			continue
		}
		fromStop, fromConfirmed = append(fromStop, free.Sub(stop)), append(fromConfirmed, free.Sub(confirmed))
	}
	p95 := quantile(fromConfirmed, 0.95)
	t.Logf("finalizer off after the last container's stop: p50 %s, p95 %s; after kubelet's confirmation: p50 %s, p95 %s",
		quantile(fromStop, 0.5), quantile(fromStop, 0.95), quantile(fromConfirmed, 0.5), p95)
	// How long the node takes from the stop to its confirmation is the node's.
	if p95 > time.Second {
		t.Errorf("the finalizer is off %s after the confirmation at p95, more than 1 s", p95)
	}
	h.remove(t, s, client.PropagationPolicy(metav1.DeletePropagationForeground))
}

// TestB75ScaledToNoneAndBack scales a StatefulSet 3-0-3 while its pods terminate: they come back to their addresses.
func TestB75ScaledToNoneAndBack(t *testing.T) {
	h := start(t)
	ns := h.namespace(t, "scaled", "enabled")
	s := set(ns, "db", 3)
	s.Spec.Template.Annotations = map[string]string{node.StopAfter: "2s"}
	h.create(t, s)
	before := h.ready(t, ns, 3)
	scale := func(n int32) {
		change(t, h, s, func(s *appsv1.StatefulSet) { s.Spec.Replicas = &n })
	}
	scale(0)
	until(t.Context(), t, "all pods terminate", func(ctx context.Context) error {
		pods, err := h.pods(ctx, ns)
		if slices.ContainsFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp == nil }) {
			err = errors.Join(err, errors.New("not all of them"))
		}
		return err
	})
	scale(3)
	until(t.Context(), t, "all pods are new", func(ctx context.Context) error {
		pods, err := h.pods(ctx, ns)
		for _, p := range pods {
			if p.UID == before[p.Name].UID {
				err = errors.Join(err, fmt.Errorf("%s is the former one", p.Name))
			}
		}
		return err
	})
	if d := cmp.Diff(addresses(before), addresses(h.ready(t, ns, 3))); d != "" {
		t.Errorf("addresses (-before +after):\n%s", d)
	}
	h.remove(t, s, client.PropagationPolicy(metav1.DeletePropagationForeground))
}
