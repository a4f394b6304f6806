//go:build e2e

// Package e2e runs the shipped manifests and programs on a real control plane, real OVN and two nodes, and sends
// packets between pods. It needs root; `make e2e` installs what it needs.
package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/sampler"
	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// harness is the cluster that all tests of this package share, one after the other.
type harness struct {
	*cluster.Cluster
	dynamic  dynamic.Interface
	sampling *sampling.Sampling
}

// shared is the one cluster of this test binary: starting one takes longer than any test.
var shared struct {
	sync.Once
	h   *harness
	err error
}

func start(t *testing.T) *harness {
	t.Helper()
	shared.Do(func() {
		dir, err := os.MkdirTemp("", "be")
		if err != nil {
			shared.err = err
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, Progress: os.Stderr, Bin: suite.Bin()})
		if err != nil {
			shared.err = err
			return
		}
		d, err := dynamic.NewForConfig(c.Config())
		if err != nil {
			shared.err = err
			return
		}
		shared.h = &harness{Cluster: c, dynamic: d}
		shared.h.sampling, shared.err = sampling.Start(ctx, c.Config(), c.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		suite.Broken(t, shared.h.sampling)
		suite.Logs(t, shared.h.LogDir(), "berth-w*")
	})
	return shared.h
}

func stopCluster() {
	if shared.h == nil || suite.Keep() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := errors.Join(shared.h.sampling.Stop(), shared.h.Down(ctx)); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (h *harness) until(ctx context.Context, t *testing.T, what string, ok func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, 2*time.Minute, true, func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func (h *harness) namespaces() []string { return []string{"demo", "web", "late", "default"} }

// pods lists the pods of all test namespaces.
func (h *harness) pods(ctx context.Context, t *testing.T) []corev1.Pod {
	t.Helper()
	var ps []corev1.Pod
	for _, n := range h.namespaces() {
		l, err := h.Client().CoreV1().Pods(n).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ps = append(ps, l.Items...)
	}
	return ps
}

func (h *harness) routed(ctx context.Context, t *testing.T) int {
	n := 0
	for _, p := range h.pods(ctx, t) {
		if p.Annotations["ovn.kubernetes.io/routed"] == "true" {
			n++
		}
	}
	return n
}

// ready waits until n pods of a namespace are Ready and gives them.
func (h *harness) ready(ctx context.Context, t *testing.T, namespace string, n int) []corev1.Pod {
	t.Helper()
	var got []corev1.Pod
	h.until(ctx, t, fmt.Sprintf("%d pods of %s are Ready", n, namespace), func() bool {
		l, err := h.Client().CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false
		}
		got = slices.DeleteFunc(l.Items, func(p corev1.Pod) bool {
			return !slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
			})
		})
		return len(got) == n
	})
	return got
}

func (h *harness) scale(ctx context.Context, t *testing.T, deployment string, replicas int32) {
	t.Helper()
	patch := fmt.Appendf(nil, `{"spec":{"replicas":%d}}`, replicas)
	if _, err := h.Client().AppsV1().Deployments("berth-system").Patch(ctx, deployment, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	h.until(ctx, t, fmt.Sprintf("%s has %d replicas", deployment, replicas), func() bool {
		d, err := h.Client().AppsV1().Deployments("berth-system").Get(ctx, deployment, metav1.GetOptions{})
		if err != nil || d.Status.Replicas != replicas || d.Status.ReadyReplicas != replicas {
			return false
		}
		// Those that end still answer while they drain, and the Deployment does not count them.
		l, err := h.Client().CoreV1().Pods("berth-system").List(ctx, metav1.ListOptions{})
		n := int32(0)
		if err == nil {
			for _, p := range l.Items {
				if strings.HasPrefix(p.Name, deployment+"-") {
					n++
				}
			}
		}
		return err == nil && n == replicas
	})
}

// startDeleting deletes all workloads and does not wait.
func (h *harness) startDeleting(ctx context.Context, t *testing.T) {
	t.Helper()
	policy := metav1.DeletePropagationBackground
	o := metav1.DeleteOptions{PropagationPolicy: &policy}
	for _, n := range h.namespaces() {
		for what, err := range map[string]error{
			"Deployments":  h.Client().AppsV1().Deployments(n).DeleteCollection(ctx, o, metav1.ListOptions{}),
			"StatefulSets": h.Client().AppsV1().StatefulSets(n).DeleteCollection(ctx, o, metav1.ListOptions{}),
			"Pods":         h.Client().CoreV1().Pods(n).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
		} {
			if err != nil {
				t.Fatalf("deleting %s of %s: %v", what, n, err)
			}
		}
	}
}

// deleteAll deletes all workloads and waits until no pod is left.
func (h *harness) deleteAll(ctx context.Context, t *testing.T) {
	t.Helper()
	h.startDeleting(ctx, t)
	began := time.Now()
	h.until(ctx, t, "all pods are gone", func() bool { return len(h.pods(ctx, t)) == 0 })
	t.Logf("all pods gone after %s", time.Since(began).Round(time.Millisecond))
}

func resource(group, version, name string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: name}
}

// leases counts the leases in the ledger, as they are stored, without what is reserved for others than pods.
func (h *harness) leases(ctx context.Context, t *testing.T) (n int, who []string) {
	t.Helper()
	l, err := h.dynamic.Resource(resource("berth.dev", "v1alpha1", "addressblocks")).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, b := range l.Items {
		spec, _ := b.Object["spec"].(map[string]any)
		ls, _ := spec["leases"].([]any)
		for _, x := range ls {
			lease, err := v1alpha1.ParseLease(fmt.Sprint(x))
			if err != nil {
				t.Fatal(err)
			}
			if o, err := ipam.ParseOwner(lease.Owner); err == nil && o.Reserves() {
				continue
			}
			n++
			who = append(who, fmt.Sprint(b.GetName(), " ", x))
		}
	}
	return n, who
}

// empty waits for empty accounts: no lease, pod port, group member or IP record is left.
func (h *harness) empty(ctx context.Context, t *testing.T) {
	t.Helper()
	var leases, ports, members, records int
	var who []string
	began := time.Now()
	defer func() {
		if t.Failed() {
			t.Logf("left: %d leases, %d ports, %d group members, %d IP records: %v", leases, ports, members, records, who)
		}
	}()
	h.until(ctx, t, "the accounts are empty", func() bool {
		leases, who = h.leases(ctx, t)
		ports = len(h.nbctl(ctx, t, "--bare", "--columns=name", "find", "Logical_Switch_Port", "external_ids:pod!=\"\""))
		members = h.members(ctx, t)
		l, err := h.dynamic.Resource(resource("kubeovn.io", "v1", "ips")).List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		records = 0
		for _, ip := range l.Items { // nodes have theirs on the join switch
			if !strings.HasPrefix(ip.GetName(), "node-") {
				records++
			}
		}
		return leases+ports+members+records == 0
	})
	t.Logf("accounts empty after another %s", time.Since(began).Round(time.Millisecond))
}

// members counts the members of port groups that are no nodes' ports.
func (h *harness) members(ctx context.Context, t *testing.T) (n int) {
	t.Helper()
	all := h.nbctl(ctx, t, "--bare", "--columns=_uuid,name", "list", "Logical_Switch_Port")
	nodes := map[string]bool{}
	for i := 1; i < len(all); i++ {
		if strings.HasPrefix(all[i], "node-") {
			nodes[all[i-1]] = true
		}
	}
	for _, m := range h.nbctl(ctx, t, "--bare", "--columns=ports", "list", "Port_Group") {
		if !nodes[m] {
			n++
		}
	}
	return n
}

// nbctl gives the words that ovn-nbctl prints.
func (h *harness) nbctl(ctx context.Context, t *testing.T, args ...string) []string {
	t.Helper()
	out, err := proc.Run(ctx, "", "ovn-nbctl", append([]string{"--db=" + h.NBSocket(), "--timeout=10"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Fields(out)
}

// watchCreated notes the address that each pod of the test namespaces was first stored with.
func (h *harness) watchCreated(ctx context.Context, t *testing.T) (stop func() map[types.UID]string) {
	t.Helper()
	w, err := h.Client().CoreV1().Pods("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	first := map[types.UID]string{}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok {
				continue
			}
			if _, seen := first[p.UID]; !seen {
				first[p.UID] = p.Annotations["ovn.kubernetes.io/ip_address"]
			}
		}
	}()
	return func() map[types.UID]string {
		w.Stop()
		<-done
		return first
	}
}

// writes gives the API server's count of writes by "VERB resource/subresource", and of northbound transactions.
func (h *harness) writes(ctx context.Context, t *testing.T) map[string]float64 {
	t.Helper()
	b, err := h.Client().CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for s := bufio.NewScanner(strings.NewReader(string(b))); s.Scan(); {
		line := s.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") {
			continue
		}
		label := func(name string) string {
			_, rest, _ := strings.Cut(line, name+`="`)
			v, _, _ := strings.Cut(rest, `"`)
			return v
		}
		verb := label("verb")
		if verb != "POST" && verb != "PUT" && verb != "PATCH" && verb != "DELETE" && verb != "APPLY" || label("dry_run") != "" {
			continue
		}
		v, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.TrimSuffix(verb+" "+label("resource")+"/"+label("subresource"), "/")] += v
	}
	got["northbound transactions"] = h.transactions(ctx, t)
	return got
}

// transactions gives what the workers have committed to the northbound database, by their own metrics.
func (h *harness) transactions(ctx context.Context, t *testing.T) (n float64) {
	t.Helper()
	pods, err := h.Client().CoreV1().Pods("berth-system").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range pods.Items {
		if !strings.HasPrefix(p.Name, "berth-worker") || p.Status.PodIP == "" {
			continue
		}
		lines := metrics(ctx, p.Status.PodIP)
		if len(lines) == 0 {
			t.Fatalf("worker %s tells no metrics", p.Name)
		}
		for _, line := range lines {
			if strings.HasPrefix(line, "berth_northbound_transactions_total") {
				v, err := strconv.ParseFloat(line[strings.LastIndex(line, " ")+1:], 64)
				if err != nil {
					t.Fatal(err)
				}
				n += v
			}
		}
	}
	return n
}

// report prints what the pods cost in API writes.
func report(t *testing.T, before, after map[string]float64, pods float64) {
	t.Helper()
	var keys []string
	for k := range after {
		if after[k] > before[k] {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	for _, k := range keys {
		t.Logf("%-40s %6.0f  %.2f a pod", k, after[k]-before[k], (after[k]-before[k])/pods)
	}
}

func median(ds []time.Duration) time.Duration {
	slices.Sort(ds)
	return ds[len(ds)/2]
}
