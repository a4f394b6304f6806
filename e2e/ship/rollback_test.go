//go:build e2e

package ship

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/pkg/network"
)

// earlier is a release that writes leases as texts too, but knows nothing of their owners' UIDs.
const earlier = "1424aae5a3ac267df5f8d0cd3308710b5f6fae4a"

// TestRollback goes to an earlier release and comes back while pods come and go. On the way both releases' webhooks serve
// at once. No pod is without an address, none has another's, and nothing is left in the end.
func TestRollback(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	tree := h.buildEarlier(ctx, t)
	c := h.startChurn(ctx, t)
	h.make(ctx, t, workload("demo", "app", 6, false), workload("web", "db", 3, true))
	h.ready(ctx, t, "web", "db", 3)
	addresses := h.addresses(ctx, t, "web")

	before := h.overlay(t, "before", tree, nil, map[string]string{"berth.dev/webhook": webhookBefore, "berth.dev/finalizer-worker": workerBefore})
	now := h.overlay(t, "local", h.Repo, nil, nil)
	t.Cleanup(func() {
		if ctx := context.WithoutCancel(ctx); t.Failed() {
			h.kubectl(ctx, t, "-n", system, "patch", "deployment", webhook, "--type=merge", "-p", `{"spec":{"paused":false}}`)
			h.install(ctx, t, now)
		}
	})
	for _, way := range []struct{ what, overlay, image string }{{"back", before, webhookBefore}, {"forth", now, "berth.dev/webhook"}} {
		h.mix(ctx, t, way.overlay, way.image)
		c.spell(t, way.what+", with webhooks of both")
		h.kubectl(ctx, t, "-n", system, "rollout", "resume", "deployment", webhook)
		h.install(ctx, t, way.overlay)
		h.renew(ctx, t)
		c.spell(t, way.what)
		if got := h.addresses(ctx, t, "web"); fmt.Sprint(got) != fmt.Sprint(addresses) {
			t.Errorf("%s: the StatefulSet's pods have %v, and had %v", way.what, got, addresses)
		}
	}
	c.stop(ctx)
	c.tell(t, "in the end")
	h.remove(ctx, t, workload("demo", "app", 0, false), workload("web", "db", 0, true))
	h.empty(ctx, t)
}

// buildEarlier builds the earlier release's programs where the nodes look for them, and gives its tree.
func (h *harness) buildEarlier(ctx context.Context, t *testing.T) string {
	t.Helper()
	tree := filepath.Join(h.Dir, "earlier")
	if err := os.MkdirAll(tree, 0o755); err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(h.Dir, "earlier.tar")
	if out, err := exec.CommandContext(ctx, "git", "-C", h.Repo, "archive", "-o", archive, earlier).CombinedOutput(); err != nil {
		t.Skipf("no earlier release to go to: commit %s is not in this clone, fetch all of its history: %v %s", earlier, err, out)
	}
	if _, err := proc.Run(ctx, "", "tar", "-x", "-f", archive, "-C", tree); err != nil {
		t.Fatal(err)
	}
	for name, image := range map[string]string{"webhook": webhookBefore, "finalizer-worker": workerBefore} {
		began := time.Now()
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", filepath.Join(h.before, name), "./cmd/"+name)
		cmd.Dir, cmd.Env = tree, append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-buildvcs=false")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build the earlier %s: %v %s", name, err, out)
		}
		t.Logf("%s of %s built in %s", image, earlier, time.Since(began).Round(time.Second))
	}
	return tree
}

// mix applies an overlay, and holds the webhook's rolling update where one replica is of either release.
func (h *harness) mix(ctx context.Context, t *testing.T, overlay, image string) {
	t.Helper()
	if err := h.Apply(ctx, overlay); err != nil {
		t.Fatal(err)
	}
	count := func(ctx context.Context) (of, others int, err error) {
		pods, err := h.podsOf(ctx, webhook)
		for _, p := range pods {
			if p.Spec.Containers[0].Image == image {
				of++
			} else {
				others++
			}
		}
		return of, others, err
	}
	until(ctx, t, "the first webhook is replaced", func(ctx context.Context) error {
		of, _, err := count(ctx)
		if err == nil && of == 0 {
			err = fmt.Errorf("no pod runs %s", image)
		}
		return err
	})
	h.pause(ctx, t, webhook) // before the first one is ready: then the second is replaced
	until(ctx, t, "webhooks of both releases serve", func(ctx context.Context) error {
		var d appsv1.Deployment
		if err := h.api.Get(ctx, client.ObjectKey{Namespace: system, Name: webhook}, &d); err != nil {
			return err
		}
		of, others, err := count(ctx)
		if err == nil && (of != 1 || others != 1 || d.Status.ReadyReplicas != 2) {
			err = fmt.Errorf("%d and %d, %d of them ready", of, others, d.Status.ReadyReplicas)
		}
		return err
	})
}

// pause holds a Deployment's rolling update, at once: kubectl would have to start first, and could come too late.
func (h *harness) pause(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	d := h.deployment(ctx, t, name)
	was := d.DeepCopy()
	d.Spec.Paused = true
	if err := h.api.Patch(ctx, d, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
}

// renew replaces half of the pods of the workloads, so that each release ends what the other began.
func (h *harness) renew(ctx context.Context, t *testing.T) {
	t.Helper()
	var all corev1.PodList
	if err := h.api.List(ctx, &all, client.InNamespace("demo"), client.MatchingLabels{"app": "app"}); err != nil {
		t.Fatal(err)
	}
	for i := range all.Items {
		if i%2 == 0 {
			h.remove(ctx, t, &all.Items[i])
		}
	}
	h.remove(ctx, t, pod("web", "db-1"))
	h.ready(ctx, t, "demo", "app", 6)
	h.ready(ctx, t, "web", "db", 3)
}

// addresses of the pods of a namespace, by name.
func (h *harness) addresses(ctx context.Context, t *testing.T, namespace string) map[string]string {
	t.Helper()
	var all corev1.PodList
	if err := h.api.List(ctx, &all, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, p := range all.Items {
		out[p.Name] = p.Annotations["ovn.kubernetes.io/ip_address"]
	}
	return out
}

// churn makes pods that no scheduler knows, and deletes them again.
type churn struct {
	h      *harness
	cancel context.CancelFunc
	done   sync.WaitGroup

	mu    sync.Mutex
	made  int
	wrong []string
}

// window is how many pods of the churn there are at once.
const window = 20

func (h *harness) startChurn(ctx context.Context, t *testing.T) *churn {
	t.Helper()
	c := &churn{h: h}
	ctx, c.cancel = context.WithCancel(ctx)
	t.Cleanup(func() { c.stop(context.WithoutCancel(ctx)) })
	c.done.Go(func() { c.run(ctx) })
	return c
}

func (c *churn) run(ctx context.Context) {
	tick := time.NewTicker(150 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		whole := context.WithoutCancel(ctx)
		c.note(c.create(whole, n))
		if n >= window {
			c.note("", client.IgnoreNotFound(c.h.api.Delete(whole, churned(n-window))))
		}
	}
}

func churned(n int) *corev1.Pod {
	p := pod("demo", fmt.Sprintf("churn-%d", n))
	p.Spec.SchedulerName, p.Labels["e2e"] = "nobody", "churn"
	return p
}

// create makes one pod, and tells what is wrong with the answer.
func (c *churn) create(ctx context.Context, n int) (string, error) {
	p := churned(n)
	if err := c.h.api.Create(ctx, p); err != nil {
		return "", err
	}
	c.mu.Lock()
	c.made++
	c.mu.Unlock()
	if _, ok := network.ClaimOf(p.Annotations); !ok || strings.Count(p.Annotations["ovn.kubernetes.io/ip_address"], ",") != 1 {
		return fmt.Sprintf("%s has annotations %v", p.Name, p.Annotations), nil
	}
	return "", nil
}

func (c *churn) note(wrong string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		wrong = err.Error()
	}
	if wrong != "" {
		c.wrong = append(c.wrong, wrong)
	}
}

// spell lets the churn make as many pods again as there are at once, twice, and tells what was wrong until then.
func (c *churn) spell(t *testing.T, during string) {
	t.Helper()
	c.mu.Lock()
	from := c.made
	c.mu.Unlock()
	until(t.Context(), t, "the churn went on", func(context.Context) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.made < from+2*window {
			return fmt.Errorf("%d pods were made, %d before", c.made, from)
		}
		return nil
	})
	c.tell(t, during)
}

// tell tells what was made and what was wrong since it was asked last.
func (c *churn) tell(t *testing.T, during string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	t.Logf("%s: %d pods made", during, c.made)
	for _, w := range c.wrong[:min(len(c.wrong), 10)] {
		t.Errorf("%s: %s", during, w)
	}
	c.made, c.wrong = 0, nil
}

// stop ends the churn and deletes what is left of it.
func (c *churn) stop(ctx context.Context) {
	c.cancel()
	c.done.Wait()
	c.note("", c.h.api.DeleteAllOf(ctx, &corev1.Pod{}, client.InNamespace("demo"), client.MatchingLabels{"e2e": "churn"}))
}
