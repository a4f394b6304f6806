package app

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/network"
)

const claim = "0123456789abcdef0123456789abcdef"

func podIn(namespace, name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	for _, f := range change {
		f(p)
	}
	return p
}

// Pods behind our gate wait wherever they are, those without a claim where the namespace is served, and nobody else.
func TestWaiting(t *testing.T) {
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
	}
	claimed := func(p *corev1.Pod) { p.Annotations = map[string]string{network.ClaimKey: claim} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }
	onHost := func(p *corev1.Pod) { p.Spec.HostNetwork = true }
	runs := func(p *corev1.Pod) { p.Status.PodIP = "10.0.0.1" }
	deleted := func(p *corev1.Pod) {
		now := metav1.Now()
		p.DeletionTimestamp, p.Finalizers = &now, []string{"x"}
	}
	objects := []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "served", Labels: map[string]string{network.LabelInject: network.InjectEnabled}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "late", Labels: map[string]string{network.LabelInject: network.InjectLate}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}},
		podIn("served", "gated", gated, claimed), podIn("served", "slipped"), podIn("late", "late"), podIn("other", "gated", gated),
		podIn("served", "fine", claimed), podIn("served", "ended", ended), podIn("served", "host", onHost), podIn("served", "runs", runs),
		podIn("served", "deleted", gated, deleted), podIn("other", "not-ours"),
	}
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(objects...).WithIndex(&corev1.Pod{}, indexWaits, waits).Build()
	pods, err := waiting(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range pods {
		got = append(got, p.Namespace+"/"+p.Name)
	}
	slices.Sort(got)
	if d := cmp.Diff([]string{"late/late", "other/gated", "served/gated", "served/slipped"}, got); d != "" {
		t.Error(d)
	}
}

func TestLeader(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	renewed, seconds, holder := metav1.NewMicroTime(now), int32(15), "berth-worker-0"
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: leaseName},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &renewed, LeaseDurationSeconds: &seconds}}
	for name, c := range map[string]struct {
		elect   bool
		objects []client.Object
		later   time.Duration
		want    report.Leader
	}{
		"nobody yet":      {true, nil, 0, report.Leader{}},
		"one":             {true, []client.Object{lease}, 10 * time.Second, report.Leader{Holder: holder, Alive: true}},
		"one that is out": {true, []client.Object{lease}, 15 * time.Second, report.Leader{Holder: holder}},
		"without any":     {false, nil, 0, report.Leader{Holder: "self", Alive: true}},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{LeaderElect: c.elect, Namespace: "berth-system", Clock: clocktesting.NewFakeClock(now.Add(c.later))}
			got, err := o.leader(t.Context(), fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(c.objects...).Build(), "self")
			got.Renewed = nil
			if d := cmp.Diff(c.want, got); err != nil || d != "" {
				t.Errorf("%v %s", err, d)
			}
		})
	}
}

// counted counts the reads that come through.
type counted struct {
	client.Reader
	n int
}

func (c *counted) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	c.n++
	return c.Reader.Get(ctx, key, obj, opts...)
}

// What was read, or found missing, is remembered for half a minute.
func TestMemo(t *testing.T) {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"k": "v"}}}
	from := &counted{Reader: fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(ns).Build()}
	clk := clocktesting.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC))
	m := &memo{Reader: from, clock: clk}
	for _, step := range []struct {
		name  string
		after time.Duration
		reads int
	}{{"a", 0, 1}, {"a", 29 * time.Second, 1}, {"b", 0, 2}, {"b", 0, 2}, {"a", 2 * time.Second, 3}} {
		clk.Step(step.after)
		var got corev1.Namespace
		err := m.Get(t.Context(), client.ObjectKey{Name: step.name}, &got)
		if found := step.name == "a"; (err == nil) != found || found && got.Labels["k"] != "v" || from.n != step.reads {
			t.Errorf("%+v: %v %v after %d reads", step, err, got.Labels, from.n)
		}
		if got.Labels != nil {
			got.Labels["k"] = "changed by whoever asked"
		}
	}
}

// A page that would send tokens in the clear is refused at the start.
func TestPageInTheClear(t *testing.T) {
	o := DefaultOptions()
	o.Page.Addr = ":8084"
	if err := o.complete(t.Output()); !errors.Is(err, serve.ErrOpenPage) {
		t.Errorf("%v", err)
	}
}
