//go:build e2e

package e2e

import (
	"bufio"
	"context"
	"net/http"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/node"
)

// TestLeaderSuspended stops the leading worker in the middle of creation: the standby takes over, and the old leader,
// when it goes on, changes nothing. Then the leader is killed for good.
func TestLeaderSuspended(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	c.scale(ctx, t, "berth-worker", 2)
	c.deployment(ctx, t, "demo", "app", 20)
	c.until(ctx, t, "some pods are routed", func() bool { return c.routed(ctx, t) > 3 })
	old := c.leader(ctx, t)
	if err := old.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.statefulSet(ctx, t, "web", "db", 3)
	pods := append(c.ready(ctx, t, "demo", 20), c.ready(ctx, t, "web", 3)...)
	t.Logf("the standby had served all pods %s after the leader stopped", time.Since(began).Round(time.Millisecond))
	if err := old.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	c.until(ctx, t, "the old leader ended", func() bool { return !old.Process.Alive() })
	c.noDuplicates(ctx, t, pods)
	c.pingAll(ctx, t, pods[0], pods[1:])
	c.startDeleting(ctx, t)
	if err := c.leader(ctx, t).Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	c.deleteAll(ctx, t)
	c.empty(ctx, t)
	c.scale(ctx, t, "berth-worker", 1)
}

// leader finds the worker that leads, by its own word.
func (h *harness) leader(ctx context.Context, t *testing.T) node.Record {
	t.Helper()
	var found node.Record
	h.until(ctx, t, "one worker leads", func() bool {
		all, err := h.Containers(cluster.WorkerImage)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, r := range all {
			p, err := h.Client().CoreV1().Pods(r.Namespace).Get(ctx, r.Pod, metav1.GetOptions{})
			if err == nil && slices.Contains(metrics(ctx, p.Status.PodIP), "berth_worker_leading 1") {
				found = r
				n++
			}
		}
		return n == 1
	})
	return found
}

// metrics gives the lines of a program's metrics; none when it doesn't answer.
func metrics(ctx context.Context, ip string) []string {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+ip+":8082/metrics", nil)
	if err != nil {
		return nil
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil
	}
	defer func() { _ = resp.Body.Close() }()
	var out []string
	if resp.StatusCode != http.StatusOK {
		return nil
	}
	for s := bufio.NewScanner(resp.Body); s.Scan(); {
		out = append(out, strings.TrimSpace(s.Text()))
	}
	return out
}
