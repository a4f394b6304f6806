//go:build e2e

package lifecycle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/fault"
)

// TestWorkerDiesAtEveryPoint kills the worker by SIGKILL at each fault point, one after the other, while pods come and go
// all the time. Whatever was half done, the next worker ends it.
func TestWorkerDiesAtEveryPoint(t *testing.T) {
	h := start(t)
	h.noTraceIn(t)
	if err := <-h.worker.built; err != nil {
		t.Fatal(err)
	}
	h.hand(t)
	const tight = "faults-tight"
	h.subnet(t, tight, "10.99.0.0/29", "10.99.0.1")
	h.namespace(t, tight, "enabled")
	seen, late := h.namespace(t, "faults", "enabled"), h.namespace(t, "faults-late", "late")
	h.create(t, deployment(tight, "crowd", 8, podSpec(onHand))) // five of them get an address
	var points []string
	for _, p := range fault.Points() {
		points = append(points, string(p))
	}
	if err := h.worker.order(points); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.worker.pardon(); err != nil {
			t.Error(err)
		}
	})
	if err := h.KillWorker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		h.churn(ctx, t, seen, late, tight)
	}()
	t.Cleanup(func() { <-stopped })
	defer cancel()
	began := time.Now()
	within(t.Context(), t, 2*limit, "the worker has died at every point", func(context.Context) error {
		deaths, err := h.worker.deaths()
		if err == nil && len(deaths) < len(points) {
			err = fmt.Errorf("it died %d times: %q", len(deaths), deaths)
		}
		return err
	})
	deaths, err := h.worker.deaths()
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range points {
		if deaths[i] != p+" 137" { // 128 + SIGKILL
			t.Errorf("ended with %q, want a kill at %s", deaths[i], p)
		}
	}
	t.Logf("killed at %d points in %s", len(deaths), time.Since(began).Round(time.Millisecond))
}

// noTraceIn holds that the program that is shipped knows nothing of fault points.
func (h *harness) noTraceIn(t *testing.T) {
	t.Helper()
	for _, p := range []string{h.WebhookBin, h.worker.shipped} {
		program, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(program, []byte("BERTH_FAULT")) {
			t.Errorf("%s has fault points", p)
		}
	}
}

// churn creates and deletes pods in every way that a fault point lies on, until the context ends.
func (h *harness) churn(ctx context.Context, t *testing.T, seen, late, tight string) {
	for n := 0; ctx.Err() == nil; n++ {
		hurried := pod(seen, fmt.Sprintf("hurried-%d", n), onHand)
		err := errors.Join(
			h.api.Create(ctx, pod(seen, fmt.Sprintf("p-%d", n), onHand)),
			h.api.Create(ctx, pod(late, fmt.Sprintf("p-%d", n), onHand)),
			h.api.Create(ctx, hurried),
			h.api.Delete(ctx, hurried, client.GracePeriodSeconds(0)), // most likely before it is served
			h.endRunning(ctx, seen, late),
			h.endOldest(ctx, tight)) // makes room for one that waits
		if err != nil && ctx.Err() == nil {
			t.Logf("pods that come and go: %v", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(300 * time.Millisecond):
		}
	}
}

func (h *harness) endRunning(ctx context.Context, namespaces ...string) error {
	for _, n := range namespaces {
		pods, err := h.pods(ctx, n)
		if err != nil {
			return err
		}
		for i := range pods {
			if isReady(pods[i]) {
				if err := client.IgnoreNotFound(h.api.Delete(ctx, &pods[i])); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (h *harness) endOldest(ctx context.Context, namespace string) error {
	pods, err := h.pods(ctx, namespace)
	if err != nil {
		return err
	}
	pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !isReady(p) || p.DeletionTimestamp != nil })
	if len(pods) == 0 {
		return nil
	}
	oldest := slices.MinFunc(pods, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return client.IgnoreNotFound(h.api.Delete(ctx, &oldest))
}
