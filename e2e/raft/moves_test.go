//go:build e2e

package raft

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
)

const (
	// moveEvery is how often the leader moves.
	moveEvery = 10 * time.Second
	// mostRecovery is how long it may take until somebody's pod is routed again: a server that hangs is found by the
	// second of two unanswered probes.
	mostRecovery = 30 * time.Second
)

// way is a way to lose the leader.
type way struct {
	name string
	// lose takes leadership from the server, restore undoes what else that did.
	lose, restore func(context.Context, cluster.NorthboundServer) error
}

func nothing(context.Context, cluster.NorthboundServer) error { return nil }

func handOver() way {
	return way{"handed over", func(ctx context.Context, s cluster.NorthboundServer) error {
		_, err := s.Command(ctx, "cluster/failure-test", "transfer-leadership")
		return err
	}, nothing}
}

func suspended() way {
	return way{"suspended", func(_ context.Context, s cluster.NorthboundServer) error { return s.Signal(syscall.SIGSTOP) },
		func(_ context.Context, s cluster.NorthboundServer) error { return s.Signal(syscall.SIGCONT) }}
}

// killed has the server lose its connections without a word, and come back with what it has on disk.
func killed() way {
	return way{"killed", func(ctx context.Context, s cluster.NorthboundServer) error {
		id := s.ID()
		return errors.Join(s.Signal(syscall.SIGKILL), id.Wait(ctx))
	}, func(_ context.Context, s cluster.NorthboundServer) error { return s.Start() }}
}

// leader waits for one of the servers to lead.
func (h *harness) leader(ctx context.Context, t *testing.T, but string) cluster.NorthboundServer {
	t.Helper()
	var found cluster.NorthboundServer
	until(ctx, t, "a server leads", func(ctx context.Context) error {
		for _, s := range h.servers {
			if s.Socket == but {
				continue // it may hang, or not know yet
			}
			if leads, err := s.Leads(ctx); err == nil && leads {
				found = s
				return nil
			}
		}
		return errors.New("none does")
	})
	return found
}

// joined waits until a server is in touch with the others.
func (h *harness) joined(ctx context.Context, t *testing.T, s cluster.NorthboundServer) {
	t.Helper()
	until(ctx, t, s.Socket+" is back", func(ctx context.Context) error {
		_, err := proc.Run(ctx, "", "ovsdb-client", "--timeout=5", "wait", s.Socket, "OVN_Northbound", "connected")
		return err
	})
}

// move loses the leader in one way, and gives the time until a pod was routed that was made after that.
func (h *harness) move(ctx context.Context, t *testing.T, c *churn, w way) time.Duration {
	t.Helper()
	old := h.leader(ctx, t, "")
	began := time.Now()
	if err := w.lose(ctx, old); err != nil {
		t.Fatalf("%s is %s: %v", old.Socket, w.name, err)
	}
	next := h.leader(ctx, t, old.Socket)
	elected := time.Since(began)
	var recovered time.Duration
	until(ctx, t, "a pod is routed after the leader was "+w.name, func(context.Context) error {
		at, ok := c.routedAfter(began)
		if !ok {
			return errors.New("none was")
		}
		recovered = at.Sub(began)
		return nil
	})
	if err := w.restore(ctx, old); err != nil {
		t.Fatalf("%s comes back: %v", old.Socket, err)
	}
	h.joined(ctx, t, old)
	t.Logf("%-11s: another leads after %s (%s), the next pod is routed after %s", w.name, elected.Round(time.Millisecond), next.Socket,
		recovered.Round(time.Millisecond))
	return recovered
}

// TestNorthboundLeaderMoves moves the leader every ten seconds, in every way, while five pods a second come and go.
// Nothing is lost and nothing is there twice, neither in the meantime nor at the end.
func TestNorthboundLeaderMoves(t *testing.T) {
	h, ctx := start(t), t.Context()
	for n := range 6 {
		if _, err := h.Client().CoreV1().Pods(namespace).Create(ctx, pod(fmt.Sprintf("standing-%d", n)), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	standing := h.wired(ctx, t)
	c := h.churn(ctx, t)
	longest := map[string]time.Duration{}
	for _, w := range []way{handOver(), handOver(), suspended(), handOver(), killed(), handOver(), suspended(), handOver(), killed()} {
		next := time.NewTimer(moveEvery)
		took := h.move(ctx, t, c, w)
		longest[w.name] = max(longest[w.name], took)
		if took > mostRecovery {
			t.Errorf("%s after the leader was %s, want at most %s", took, w.name, mostRecovery)
		}
		<-next.C
	}
	c.end(t)
	t.Logf("longest from a leader's move until a pod made after it was routed: %s of %v",
		slices.Max(slices.Collect(maps.Values(longest))).Round(time.Millisecond), longest)

	ports := h.wired(ctx, t)
	h.distinct(t, ports)
	for name, p := range standing {
		if diff := cmp.Diff(p, ports[name], cmp.AllowUnexported(port{})); diff != "" {
			t.Errorf("port %s was made anew (-before +after):\n%s", name, diff)
		}
	}
	h.empty(ctx, t)
}
