package faults

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/pkg/network"
)

const (
	// crowd is how many pods there are before no more are asked for: what two nodes on a small machine can carry.
	crowd = 45
	// pace is the time between two changes, on average.
	pace = 900 * time.Millisecond
	// hands is how many do so at once: one may wait for the API server.
	hands = 4
)

// churn makes, changes and deletes workloads, until it is stopped.
type churn struct {
	world *World

	mu sync.Mutex
	// did counts what was done, and failed what the API server could not do, by their names.
	did, failed map[string]int
	// denied are refusals that nobody could expect.
	denied []string
}

func newChurn(w *World) *churn {
	return &churn{world: w, did: map[string]int{}, failed: map[string]int{}}
}

// hand is one of those who do it.
type hand struct {
	*churn
	random *rand.Rand
}

// run has all hands work until the context ends.
func (c *churn) run(ctx context.Context, seed uint64) {
	var all sync.WaitGroup
	for n := range uint64(hands) {
		all.Go(func() { hand{c, rand.New(rand.NewPCG(seed, 3+n))}.work(ctx) })
	}
	all.Wait()
}

// chore is something that the churn does.
type chore struct {
	name   string
	weight int
	do     func(context.Context) error
}

func (c hand) chores() []chore {
	pool := map[string]string{network.Key(network.DefaultProvider, network.SuffixPool): poolName}
	list := map[string]string{network.Key(network.DefaultProvider, network.SuffixPool): "10.17.0.220,10.17.0.221,10.17.0.222,10.17.0.223"}
	return []chore{
		{"deployment", 5, func(ctx context.Context) error { return c.deployment(ctx, nsRoomy, c.pick("a", "b", "c"), 8, nil) }},
		{"deployment in a full subnet", 3, func(ctx context.Context) error { return c.deployment(ctx, nsSmall, "crowd", smallRoom+4, nil) }},
		{"deployment with a pool", 3, func(ctx context.Context) error { return c.deployment(ctx, nsPooled, "pooled", 10, pool) }},
		{"stateful set", 4, func(ctx context.Context) error { return c.statefulSet(ctx, nsWeb, c.pick("db", "queue"), 4, nil) }},
		{"stateful set with a list of addresses", 2, func(ctx context.Context) error { return c.statefulSet(ctx, nsWeb, "listed", 4, list) }},
		{"job", 3, c.job},
		{"pod with a static address", 4, func(ctx context.Context) error {
			n := c.random.IntN(4)
			return c.bare(ctx, nsWeb, fmt.Sprintf("static-%d", n), map[string]string{
				network.Key(network.DefaultProvider, network.SuffixAddress): fmt.Sprintf("10.17.0.%d", 200+n)})
		}},
		{"pod", 2, func(ctx context.Context) error { return c.bare(ctx, nsRoomy, "bare-"+c.pick("1", "2", "3"), nil) }},
		{"pod that no webhook sees", 2, func(ctx context.Context) error { return c.bare(ctx, nsLate, "late-"+c.pick("1", "2", "3"), nil) }},
		{"deletion of a pod", 5, c.deletePod},
	}
}

// work does one chore after the other.
func (c hand) work(ctx context.Context) {
	chores, sum := c.chores(), 0
	for _, x := range chores {
		sum += x.weight
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pace/2 + time.Duration(c.random.Int64N(int64(pace)))):
		}
		n := c.random.IntN(sum)
		for _, x := range chores {
			if n -= x.weight; n < 0 {
				c.note(x.name, x.do(ctx))
				break
			}
		}
	}
}

// note counts a chore.
func (c *churn) note(name string, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err == nil:
		c.did[name]++
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err):
		// It was changed meanwhile.
	case strings.Contains(err.Error(), "denied the request"):
		c.failed[name+": denied"]++
		// A static address may still be that of the pod before.
		if !strings.Contains(name, "static") || !strings.Contains(err.Error(), "held") {
			c.denied = append(c.denied, name+": "+err.Error())
		}
	default:
		c.failed[name]++
	}
}

// totals gives what was done until now.
func (c *churn) totals() (did, failed map[string]int, denied []string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return maps.Clone(c.did), maps.Clone(c.failed), append([]string(nil), c.denied...)
}

func (c hand) pick(from ...string) string { return from[c.random.IntN(len(from))] }

// full tells that there are pods enough.
func (c *churn) full(ctx context.Context) (bool, error) {
	n := 0
	for _, ns := range namespaces() {
		var pods corev1.PodList
		if err := c.world.objs.List(ctx, &pods, client.InNamespace(ns)); err != nil {
			return false, err
		}
		n += len(pods.Items)
	}
	return n >= crowd, nil
}

// workload is a Deployment or a StatefulSet, seen as one.
type workload struct {
	client.Object
	replicas *int32
	template *corev1.PodTemplateSpec
}

func (c hand) deployment(ctx context.Context, ns, name string, most int, annotations map[string]string) error {
	sel, tmpl := template(name, annotations)
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(0)), Selector: sel, Template: tmpl}}
	return c.change(ctx, most, d, func() workload { return workload{d, d.Spec.Replicas, &d.Spec.Template} })
}

func (c hand) statefulSet(ctx context.Context, ns, name string, most int, annotations map[string]string) error {
	sel, tmpl := template(name, annotations)
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name},
		Spec: appsv1.StatefulSetSpec{Replicas: new(int32(0)), Selector: sel, Template: tmpl, ServiceName: name}}
	return c.change(ctx, most, s, func() workload { return workload{s, s.Spec.Replicas, &s.Spec.Template} })
}

// change makes a workload that isn't there, and else scales it, rolls it out anew or deletes it. now gives what was read.
func (c hand) change(ctx context.Context, most int, fresh client.Object, now func() workload) error {
	full, err := c.full(ctx)
	if err != nil {
		return err
	}
	wanted := func() int32 {
		if full {
			return 0
		}
		return int32(c.random.IntN(most + 1))
	}
	had := fresh.DeepCopyObject().(client.Object)
	err = c.world.objs.Get(ctx, client.ObjectKeyFromObject(fresh), fresh)
	if apierrors.IsNotFound(err) {
		// What was read into fresh is nothing; what had is what shall be.
		if full {
			return nil
		}
		return c.world.objs.Create(ctx, withReplicas(had, wanted()))
	}
	if err != nil {
		return err
	}
	w := now()
	switch n := c.random.IntN(8); {
	case n == 0:
		return c.world.objs.Delete(ctx, w.Object, client.PropagationPolicy(metav1.DeletePropagationBackground))
	case n == 1 && !full:
		if w.template.Annotations == nil {
			w.template.Annotations = map[string]string{}
		}
		w.template.Annotations["e2e.berth.dev/rollout"] = fmt.Sprint(c.random.IntN(1 << 30))
	default:
		*w.replicas = wanted()
	}
	return c.world.objs.Update(ctx, w.Object)
}

func withReplicas(o client.Object, n int32) client.Object {
	switch o := o.(type) {
	case *appsv1.Deployment:
		o.Spec.Replicas = &n
	case *appsv1.StatefulSet:
		o.Spec.Replicas = &n
	}
	return o
}

// job makes a Job whose pods end by themselves, some of them badly.
func (c hand) job(ctx context.Context) error {
	if full, err := c.full(ctx); full || err != nil {
		return err
	}
	_, tmpl := template("job", map[string]string{node.ExitAfter: c.pick("200ms", "1s", "3s"), node.ExitCode: c.pick("0", "0", "1")})
	tmpl.Spec.RestartPolicy = corev1.RestartPolicyNever
	n := int32(1 + c.random.IntN(3))
	return c.world.objs.Create(ctx, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: nsRoomy, GenerateName: "job-"},
		Spec: batchv1.JobSpec{Parallelism: &n, Completions: &n, BackoffLimit: new(int32(1)), TTLSecondsAfterFinished: new(int32(5)), Template: tmpl}})
}

// bare makes a pod of nobody's, or deletes it when it is there.
func (c hand) bare(ctx context.Context, ns, name string, annotations map[string]string) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, Annotations: annotations}, Spec: podSpec()}
	err := c.world.objs.Create(ctx, pod)
	if apierrors.IsAlreadyExists(err) {
		return c.world.objs.Delete(ctx, pod)
	}
	return err
}

// deletePod deletes some pod, as users do it: with its grace, with less, or by force.
func (c hand) deletePod(ctx context.Context) error {
	var pods corev1.PodList
	ns := c.pick(namespaces()...)
	if err := c.world.objs.List(ctx, &pods, client.InNamespace(ns)); err != nil || len(pods.Items) == 0 {
		return err
	}
	p := &pods.Items[c.random.IntN(len(pods.Items))]
	switch c.random.IntN(4) {
	case 0:
		return c.world.objs.Delete(ctx, p, client.GracePeriodSeconds(0))
	case 1:
		return c.world.objs.Delete(ctx, p, client.GracePeriodSeconds(1))
	}
	return c.world.objs.Delete(ctx, p)
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(2)), Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}}
}

func template(name string, annotations map[string]string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": name}
	return &metav1.LabelSelector{MatchLabels: labels},
		corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: maps.Clone(annotations)}, Spec: podSpec()}
}
