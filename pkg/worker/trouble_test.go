package worker

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/sampler"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Every fifth call of the worker fails, each time in another way. All is done in the end, and nothing breaks.
func TestB98TransientErrors(t *testing.T) {
	var mu sync.Mutex
	calls := 0
	resource := schema.GroupResource{Resource: "x"}
	faults := []error{errors.New("internal"), memkube.ErrAbort, apierrors.NewForbidden(resource, "x", errors.New("no")),
		apierrors.NewTooManyRequests("later", 0), apierrors.NewTimeoutError("too slow", 0)}
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		mu.Lock()
		defer mu.Unlock()
		if r.HTTP.UserAgent() == testAgent || r.Verb == "watch" || r.Resource == "events" {
			return memkube.Fault{}
		}
		if calls++; calls%5 != 0 {
			return memkube.Fault{}
		}
		if r.HTTP.Method != http.MethodGet && calls%2 == 0 {
			return memkube.Fault{DropAnswer: true}
		}
		return memkube.Fault{Err: faults[calls/5%len(faults)]}
	}})
	for i := range 10 {
		w.admit(podNamed(fmt.Sprintf("p%d", i), onNode))
		w.must(w.client.Create(w.ctx, podNamed(fmt.Sprintf("late%d", i), onNode)))
	}
	for i := range 10 {
		w.wired(fmt.Sprintf("p%d", i))
		w.wired(fmt.Sprintf("late%d", i))
	}
	for i := range 10 {
		w.end(fmt.Sprintf("p%d", i))
		w.end(fmt.Sprintf("late%d", i))
	}
	w.clean()
}

// Each stage that fails says so on the pod that it fails for.
func TestB112FailuresAreToldOnThePod(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tiny"},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/30", Gateway: "10.17.0.1", Protocol: "IPv4", Provider: "ovn", Vpc: "ovn-cluster"}}))
	w.seen(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tiny"}})
	with := func(pairs ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Annotations = map[string]string{}
			for i := 0; i < len(pairs); i += 2 {
				p.Annotations[pairs[i]] = pairs[i+1]
			}
		}
	}
	const subnetKey = "ovn.kubernetes.io/logical_switch"
	w.must(w.client.Create(w.ctx, podNamed("holder", onNode, with(subnetKey, "tiny"))))
	w.wired("holder")
	for name, c := range map[string]struct {
		asks   func(*corev1.Pod)
		reason string
	}{
		"full":      {with(subnetKey, "tiny"), reasonWaiting},
		"conflict":  {with(subnetKey, "tiny", addressKey, "10.17.0.2"), reasonWaiting},
		"malformed": {with(addressKey, "10.16.0"), reasonRefused},
		"outside":   {with(addressKey, "192.0.2.1"), reasonRefused},
		"unknown":   {with(subnetKey, "none"), reasonRefused},
	} {
		w.must(w.client.Create(w.ctx, podNamed(name, onNode, c.asks)))
		w.until("event of "+name, func() error { return w.told(name, c.reason) })
	}
}

// While the northbound database is away, those that wait for it say so: one that begins, and one that ends.
func TestB112AnAbsentDatabaseIsToldOnThePod(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("ends", onNode))
	w.wired("ends")
	w.nb.Close()
	w.admit(podNamed("begins", onNode))
	w.end("ends")
	for _, name := range []string{"begins", "ends"} {
		w.until("event of "+name, func() error { return w.told(name, reasonUnwired) })
	}
}

// snapshot is the cluster as it is now.
func (w *world) snapshot() sampler.Snapshot {
	w.t.Helper()
	var pods corev1.PodList
	w.must(w.client.List(w.ctx, &pods))
	s := sampler.Snapshot{Leases: w.podLeases(), Ports: w.nb.Ports(), Keeps: func(ipam.Held) lifecycle.Answer { return lifecycle.No }}
	for i := range pods.Items {
		s.Pods = append(s.Pods, facts.Pod(&pods.Items[i]))
	}
	return s
}

// Whatever happens to pods and to the worker, in whatever order: no two have one address at any time, and when it is
// quiet everything belongs to somebody.
func TestInvariantsHoldThroughRandomEvents(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, worldOptions{})
			w.unique()
			r := rand.New(rand.NewPCG(seed, 1))
			s := sampler.New(sampler.Allowed{Duplicates: 2 * time.Second, Orphans: time.Minute, Missing: 5 * time.Second, Quiet: time.Hour})
			next := 0
			for range 60 {
				w.event(r, &next)
				for _, v := range s.Look(time.Now(), w.snapshot()) {
					t.Errorf("%v", v)
				}
			}
			w.until("everything belongs to somebody", func() error {
				strict := sampler.New(sampler.Allowed{})
				at := time.Now()
				strict.Look(at, w.snapshot())
				if vs := strict.Look(at.Add(time.Second), w.snapshot()); len(vs) > 0 {
					return fmt.Errorf("%v", vs)
				}
				return w.opened()
			})
			var pods corev1.PodList
			w.must(w.client.List(w.ctx, &pods))
			for i := range pods.Items {
				w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, &pods.Items[i], client.GracePeriodSeconds(0))))
			}
			w.clean()
		})
	}
}

// event is one thing that happens.
func (w *world) event(r *rand.Rand, next *int) {
	w.t.Helper()
	var pods corev1.PodList
	w.must(w.client.List(w.ctx, &pods))
	*next++
	name := fmt.Sprintf("p%d", *next)
	what := r.IntN(10)
	if len(pods.Items) == 0 && what > 2 && what < 9 {
		what = 0
	}
	var p *corev1.Pod
	if len(pods.Items) > 0 {
		p = &pods.Items[r.IntN(len(pods.Items))]
	}
	patch := func(change func()) {
		old := p.DeepCopy()
		change()
		if err := w.client.Patch(w.ctx, p, client.MergeFrom(old)); err != nil && !apierrors.IsNotFound(err) {
			w.t.Fatal(err)
		}
	}
	switch what {
	case 0, 1:
		w.admit(podNamed(name, onNode))
	case 2:
		w.must(w.client.Create(w.ctx, podNamed(name, onNode)))
	case 3, 4:
		w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, p, client.GracePeriodSeconds(0))))
	case 5: // its finalizer is stripped and it goes at once
		patch(func() { p.Finalizers = nil })
		w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, p, client.GracePeriodSeconds(0))))
	case 6:
		old := p.DeepCopy()
		p.Status.Phase = corev1.PodSucceeded
		w.must(client.IgnoreNotFound(w.client.Status().Patch(w.ctx, p, client.MergeFrom(old))))
	case 7:
		if p.DeletionTimestamp == nil {
			patch(func() { p.Finalizers = nil })
		}
	case 8: // a copy of its manifest; the API server refuses one that says that its network is ready
		c := podNamed(name, onNode)
		c.Annotations, c.Finalizers = maps.Clone(p.Annotations), p.Finalizers
		maps.DeleteFunc(c.Annotations, func(k, _ string) bool { return network.Progress(k) })
		w.must(w.client.Create(w.ctx, c))
	case 9:
		w.stop()
		w.start(worldOptions{})
	}
}
