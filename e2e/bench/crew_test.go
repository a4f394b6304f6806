package bench

import (
	"context"
	"io"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-net/berth/internal/memkube"
)

// crewOf is a crew over an API server in memory.
func crewOf(t *testing.T, nodes ...string) (*Crew, kubernetes.Interface, context.Context) {
	t.Helper()
	server, err := memkube.Start(memkube.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	config := server.Config()
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: roomyName}}
	if _, err := client.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, n := range nodes {
		if _, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	crew, err := newCrew(ctx, client, roomyName, nodes)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(crew.Close)
	return crew, client, ctx
}

// A crew takes pods from their creation to their end, over all its nodes.
func TestCrew(t *testing.T) {
	crew, client, ctx := crewOf(t, "a", "b")
	const n = 40
	list := pods("p", n, nil)
	created, err := crew.create(ctx, 8, list)
	if err != nil || created.Refused > 0 || len(created.Took) != n || slices.Contains(created.Took, 0) || created.All <= 0 {
		t.Fatalf("%+v %v", created, err)
	}
	if err := crew.Await(ctx, "all are bound", func(c Counts) bool { return c.Bound == n }); err != nil {
		t.Fatal(err)
	}
	if err := crew.run(ctx, 4, namesOf(list)); err != nil {
		t.Fatal(err)
	}
	if err := crew.Await(ctx, "all run", func(c Counts) bool { return c.Running == n }); err != nil {
		t.Fatal(err)
	}
	there, err := client.CoreV1().Pods(roomyName).List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]int{}
	for _, p := range there.Items {
		on[p.Spec.NodeName]++
	}
	if on["a"] != n/2 || on["b"] != n/2 {
		t.Errorf("on nodes: %v", on)
	}
	seconds, err := crew.clear(ctx, namesOf(list))
	if err != nil || seconds <= 0 {
		t.Errorf("%v s, %v", seconds, err)
	}
	if there, err = client.CoreV1().Pods(roomyName).List(ctx, metav1.ListOptions{}); err != nil || len(there.Items) > 0 {
		t.Errorf("%d are left, %v", len(there.Items), err)
	}
	for _, l := range crew.Lives() {
		if l.Seen.IsZero() || l.Bound.Before(l.Seen) || l.Gone.Before(l.Bound) {
			t.Errorf("%+v", l)
		}
	}
}

// A crew without nodes binds nothing, and ends what is deleted all the same.
func TestCrewWithoutNodes(t *testing.T) {
	crew, client, ctx := crewOf(t)
	list := pods("p", 5, nil)
	if _, err := crew.create(ctx, 2, list); err != nil {
		t.Fatal(err)
	}
	if _, err := crew.clear(ctx, namesOf(list)); err != nil {
		t.Fatal(err)
	}
	if c := crew.Counts(); c.Bound != 0 || c.Gone != 5 {
		t.Errorf("%+v", c)
	}
	there, err := client.CoreV1().Pods(roomyName).List(ctx, metav1.ListOptions{})
	if err != nil || len(there.Items) > 0 {
		t.Errorf("%d are left, %v", len(there.Items), err)
	}
}

// Pods that come and go: each one is deleted after its life, and a worker's mark is seen.
func TestCrewFillsAndChurns(t *testing.T) {
	crew, client, ctx := crewOf(t, "a")
	go func() { // plays the worker
		done := map[string]bool{}
		for ctx.Err() == nil {
			for _, l := range crew.Lives() {
				if l.Bound.IsZero() || !l.Routed.IsZero() || done[l.Name] {
					continue
				}
				patch := []byte(`{"metadata":{"annotations":{"ovn.kubernetes.io/routed":"true"}}}`)
				_, err := client.CoreV1().Pods(roomyName).Patch(ctx, l.Name, types.MergePatchType, patch, metav1.PatchOptions{})
				done[l.Name] = err == nil
			}
			if pause(ctx, time.Millisecond) != nil {
				return
			}
		}
	}()
	r, err := crew.fill(ctx, "filled", 7, nil)
	if err != nil || r.Refused+r.Waited != 0 || r.Seconds <= 0 {
		t.Errorf("%+v %v", r, err)
	}
	s, err := crew.singles(ctx, "single", 3)
	if err != nil || s.Connect.Count != 3 || s.Ready.P50 < s.Connect.P50 {
		t.Errorf("%+v %v", s, err)
	}
	crew.churn(ctx, Churn{For: 200 * time.Millisecond, Rate: 50, Life: 20 * time.Millisecond}, time.Now())
	if err := crew.emptied(ctx); err != nil {
		t.Fatal(err)
	}
	if c := crew.Counts(); c.Gone != c.Seen || c.Seen < 12 {
		t.Errorf("%+v", c)
	}
}

// Nodes are ready, keep the scheduler's pods away, and have leases.
func TestMakeNodes(t *testing.T) {
	_, client, ctx := crewOf(t)
	w := &World{client: client, out: io.Discard}
	if err := w.makeNodes(ctx); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.stop)
	l, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil || len(l.Items) != nodeCount || len(w.nodes) != nodeCount {
		t.Fatalf("%d nodes, %v", len(l.Items), err)
	}
	for _, n := range l.Items {
		ready := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		})
		if !ready || len(n.Spec.Taints) != 1 || len(n.Status.Addresses) != 1 || n.Status.Allocatable.Pods().Value() != 20000 {
			t.Errorf("%s: %+v", n.Name, n.Status)
		}
		if err := w.renew(ctx, n.Name); err != nil {
			t.Error(err)
		}
	}
}
