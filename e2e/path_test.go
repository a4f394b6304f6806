//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/network"
)

// TestPath takes 30 pods of a Deployment and 3 of a StatefulSet over two subnets and two nodes, from CREATE to
// packets to reclaim.
func TestPath(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	stop := c.watchCreated(ctx, t)
	before := c.writes(ctx, t)
	began := time.Now()
	c.deployment(ctx, t, "demo", "app", 30)
	c.statefulSet(ctx, t, "web", "db", 3)
	pods := append(c.ready(ctx, t, "demo", 30), c.ready(ctx, t, "web", 3)...)
	t.Logf("33 pods Ready in %s", time.Since(began).Round(time.Millisecond))

	created := stop()
	nodes := map[string]bool{}
	for _, p := range pods {
		nodes[p.Spec.NodeName] = true
		if created[p.UID] == "" || created[p.UID] != p.Annotations["ovn.kubernetes.io/ip_address"] {
			t.Errorf("%s/%s was stored with address %q and has %q", p.Namespace, p.Name, created[p.UID], p.Annotations["ovn.kubernetes.io/ip_address"])
		}
	}
	if len(nodes) != 2 {
		t.Errorf("pods are on %d nodes, want 2", len(nodes))
	}
	c.noDuplicates(ctx, t, pods)
	c.pingAll(ctx, t, pods[0], pods[1:])

	c.deleteAll(ctx, t)
	c.empty(ctx, t)
	after := c.writes(ctx, t)
	report(t, before, after, 33)
}

// TestCreateResponse sees the address in the answer to CREATE itself, and refusals in it.
func TestCreateResponse(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	p, err := c.Client().CoreV1().Pods("demo").Create(ctx, pod("static", map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.77"}), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Annotations["ovn.kubernetes.io/ip_address"]; !strings.HasPrefix(got, "10.16.0.77,fd00:10:16::") {
		t.Errorf("address %q in the answer", got)
	}
	if _, ok := network.ClaimOf(p.Annotations); !ok {
		t.Error("no claim in the answer")
	}
	for name, a := range map[string]map[string]string{
		"held":    {"ovn.kubernetes.io/ip_address": "10.16.0.77"},
		"outside": {"ovn.kubernetes.io/ip_address": "10.99.0.7"},
		"unknown": {"ovn.kubernetes.io/logical_switch": "nowhere"},
		"garbage": {"ovn.kubernetes.io/ip_address": "foo"},
	} {
		_, err := c.Client().CoreV1().Pods("demo").Create(ctx, pod(name, a), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "denied the request") {
			t.Errorf("%s: %v, want a refusal", name, err)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
	dry, err := c.Client().CoreV1().Pods("demo").Create(ctx, pod("dry", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil || dry.Annotations["berth.dev/claim"] != "preview" {
		t.Errorf("dry run: %v, annotations %v", err, dry.Annotations)
	}
	c.deleteAll(ctx, t)
	c.empty(ctx, t)
}

// TestWorkerKilled kills the worker in the middle of creation and of deletion: the end is the same.
func TestWorkerKilled(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	c.deployment(ctx, t, "demo", "app", 20)
	c.statefulSet(ctx, t, "web", "db", 3)
	c.until(ctx, t, "some pods are routed", func() bool { return c.routed(ctx, t) > 3 })
	kill(t, c)
	pods := append(c.ready(ctx, t, "demo", 20), c.ready(ctx, t, "web", 3)...)
	c.noDuplicates(ctx, t, pods)
	c.pingAll(ctx, t, pods[0], pods[1:])
	c.startDeleting(ctx, t)
	c.until(ctx, t, "some pods are gone", func() bool { return len(c.pods(ctx, t)) < 20 })
	kill(t, c)
	c.deleteAll(ctx, t)
	c.empty(ctx, t)
}

func kill(t *testing.T, c *harness) {
	t.Helper()
	if err := c.KillWorker(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
}

// TestWebhooksDown creates pods that never meet a webhook: one in an enabled namespace while both replicas are down,
// one in a namespace that only the worker serves.
func TestWebhooksDown(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	late, err := c.Client().CoreV1().Pods("late").Create(ctx, pod("late", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if late.Annotations["ovn.kubernetes.io/ip_address"] != "" {
		t.Errorf("the webhook served namespace late: %v", late.Annotations)
	}
	c.scale(ctx, t, "berth-webhook", 0)
	slipped, err := c.Client().CoreV1().Pods("demo").Create(ctx, pod("slipped", nil), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if slipped.Annotations["ovn.kubernetes.io/ip_address"] != "" {
		t.Errorf("a webhook answered: %v", slipped.Annotations)
	}
	pods := append(c.ready(ctx, t, "late", 1), c.ready(ctx, t, "demo", 1)...)
	c.pingAll(ctx, t, pods[0], pods[1:])
	c.scale(ctx, t, "berth-webhook", 2)
	c.deleteAll(ctx, t)
	c.empty(ctx, t)
}

// TestLatency compares CREATE with the webhook and without it, one client after the other.
func TestLatency(t *testing.T) {
	c := start(t)
	ctx := t.Context()
	const n = 50
	measure := func(namespace string) time.Duration {
		var ds []time.Duration
		for i := range n {
			p := pod(fmt.Sprintf("lat-%d", i), nil)
			p.Spec.NodeSelector = map[string]string{"e2e.berth.dev/nowhere": "true"} // it costs nobody but the API server and the webhook
			began := time.Now()
			made, err := c.Client().CoreV1().Pods(namespace).Create(ctx, p, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			ds = append(ds, time.Since(began))
			if _, served := network.ClaimOf(made.Annotations); served != (namespace == "demo") {
				t.Fatalf("in namespace %s: %v", namespace, made.Annotations)
			}
		}
		return median(ds)
	}
	without, with := measure("default"), measure("demo")
	t.Logf("CREATE at p50: %s without the webhook, %s with it, ratio %.2f", without, with, float64(with)/float64(without))
	c.deleteAll(ctx, t)
	c.empty(ctx, t)
}

func pod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"e2e": "true"}}, Spec: podSpec()}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(2)), Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}}
}

func template(name string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": name}
	return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec()}
}

func (c *harness) deployment(ctx context.Context, t *testing.T, namespace, name string, replicas int32) {
	t.Helper()
	sel, tmpl := template(name)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: sel, Template: tmpl}}
	if _, err := c.Client().AppsV1().Deployments(namespace).Create(ctx, d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (c *harness) statefulSet(ctx context.Context, t *testing.T, namespace, name string, replicas int32) {
	t.Helper()
	sel, tmpl := template(name)
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: sel, Template: tmpl, ServiceName: name}}
	if _, err := c.Client().AppsV1().StatefulSets(namespace).Create(ctx, s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// pingAll pings every address of every pod of others from one pod.
func (c *harness) pingAll(ctx context.Context, t *testing.T, from corev1.Pod, others []corev1.Pod) {
	t.Helper()
	var wg sync.WaitGroup
	slots := make(chan struct{}, 6)
	for _, p := range others {
		for a := range strings.SplitSeq(p.Annotations["ovn.kubernetes.io/ip_address"], ",") {
			if _, err := netip.ParseAddr(a); err != nil {
				t.Errorf("%s/%s has address %q", p.Namespace, p.Name, a)
				continue
			}
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				if out, err := c.Exec(ctx, from.Namespace, from.Name, "ping", "-n", "-c", "5", "-i", "0.3", "-W", "3", a); err != nil {
					t.Errorf("ping %s/%s -> %s/%s %s: %v %s", from.Namespace, from.Name, p.Namespace, p.Name, a, err, out)
				}
			})
		}
	}
	wg.Wait()
}

// noDuplicates looks for two pods with one address.
func (c *harness) noDuplicates(_ context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	has := map[string]string{}
	for _, p := range pods {
		for a := range strings.SplitSeq(p.Annotations["ovn.kubernetes.io/ip_address"], ",") {
			if other := has[a]; other != "" {
				t.Errorf("%s and %s both have %s", other, p.Name, a)
			}
			has[a] = p.Name
		}
	}
}

func TestMain(m *testing.M) {
	code := m.Run()
	stopCluster()
	os.Exit(code)
}
