package worker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	testclock "k8s.io/utils/clock/testing"
	"pgregory.net/rapid"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

// After some runs nearly every kind of event must have happened, after many each.
const someRuns, manyRuns, rare = 50, 1000, 5

// Whatever happens to pods, owners, nodes and workers, in whatever order and with whatever delay: nobody takes an address
// from a pod that needs it, no two have one, and when all have gone nothing is left. RAPID_CHECKS has it look longer.
func TestLivesInAnyOrder(t *testing.T) {
	count := map[string]int{}
	var s *sim
	runs := 0
	rapid.Check(t, func(rt *rapid.T) {
		if s == nil { // the one before ended amid things
			s = newSim(t)
		}
		x := s
		s = nil
		x.run(rt, count)
		s = x
		runs++
	})
	if s != nil {
		s.dismiss()
	}
	t.Logf("%v", count)
	var never []string
	for _, e := range new(sim).events() {
		if count[e.name] == 0 {
			never = append(never, e.name)
		}
	}
	if runs >= manyRuns && len(never) > 0 || runs >= someRuns && len(never) > rare {
		t.Errorf("never happened: %q", never)
	}
}

// trouble is what happens to a call of the worker, to the API server or to the ledger's store.
type trouble struct {
	kube  memkube.Fault
	store memstore.Fault
}

// hand is a worker whose every look is an event.
type hand struct {
	*Worker
	cancel context.CancelFunc
	ended  chan error
	// looked are the versions of pods that it has looked at, and due is when it is to look again.
	looked map[client.ObjectKey]string
	due    map[client.ObjectKey]time.Time
}

// sim is a world in which nothing happens by itself.
type sim struct {
	*world
	rt     *rapid.T
	time   *testclock.FakeClock
	hand   *hand
	former []*hand
	// resume ends the holding back of the pods' watch; nil: it isn't held.
	resume func()
	next   int
	// last is the worker's last failure.
	last error

	mu       sync.Mutex
	troubles []trouble
	calm     bool

	fates    map[types.UID]*fate
	nodes    map[string]string
	kept     map[string]keep
	set      *setOwner
	machine  bool
	labelled bool
}

func newSim(t *testing.T) *sim {
	t.Helper()
	s := &sim{time: testclock.NewFakeClock(time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)), calm: true}
	s.world = newWorld(t, s.options())
	s.serving("tiny", "10.17.0.0/29", "ovn")
	s.serving("mv", "10.32.0.0/24", "mv.app")
	s.attachment("mv", `{"type":"macvlan","master":"eth0","ipam":{"type":"kube-ovn","provider":"mv.app"}}`)
	s.stop()
	s.must(s.client.Delete(s.ctx, s.node("n1")))
	s.store.SetFault(func(c memstore.Call) memstore.Fault {
		if c.Verb != memstore.Write {
			return memstore.Fault{}
		}
		return s.trouble().store
	})
	return s
}

func (s *sim) options() worldOptions {
	return worldOptions{intercept: s.intercept, clock: s.time, limit: 4 * time.Hour, change: func(o *Options) {
		o.SweepPeriod, o.PendingAge, o.Recorder = 30*time.Second, time.Minute, &events.FakeRecorder{}
	}}
}

// intercept has a call of the worker fail, but those by which its cache follows.
func (s *sim) intercept(r memkube.Request) memkube.Fault {
	if r.HTTP.UserAgent() == testAgent || r.Verb == "watch" || r.Verb == "list" && r.HTTP.URL.Query().Has("resourceVersion") {
		return memkube.Fault{}
	}
	f := s.trouble().kube
	if f.DropAnswer && r.Verb == "get" {
		return memkube.Fault{}
	}
	return f
}

func (s *sim) trouble() trouble {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calm || len(s.troubles) == 0 {
		return trouble{}
	}
	next := s.troubles[0]
	s.troubles = s.troubles[1:]
	return next
}

// calmly does something to which no trouble happens.
func (s *sim) calmly(do func()) {
	set := func(calm bool) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.calm = calm
	}
	set(true)
	defer set(false)
	do()
}

func (s *sim) ok(err error) {
	s.rt.Helper()
	if err != nil {
		s.rt.Fatal(err)
	}
}

// run is one sequence of events, from an empty world to an empty world.
func (s *sim) run(rt *rapid.T, count map[string]int) {
	s.rt = rt
	s.fates, s.nodes, s.kept = map[types.UID]*fate{}, map[string]string{}, map[string]keep{}
	s.set, s.machine, s.labelled = nil, false, true
	for _, name := range []string{"n1", "n2"} {
		s.raise(name)
	}
	if s.hand == nil {
		s.employAnother()
	}
	if rapid.Bool().Draw(rt, "owners") {
		s.makeOwner()
		s.make()
	}
	all := s.events()
	turn := rapid.IntRange(0, 1<<16).Draw(rt, "turn") // small numbers are drawn more often than others
	for range rapid.IntRange(5, 25).Draw(rt, "events") {
		var can []happening
		for _, e := range all {
			if e.can == nil || e.can() {
				can = append(can, slices.Repeat([]happening{e}, often(e.name))...)
			}
		}
		e := can[(rapid.IntRange(0, len(can)-1).Draw(rt, "event")+turn)%len(can)]
		rt.Log(e.name)
		e.do()
		count[e.name]++
		s.check(nil)
	}
	s.bury()
}

// often is how many times as likely as others an event is: those without which others can't happen, or don't matter.
func often(name string) int {
	switch name {
	case "the set adopts a pod", "kubelet confirms":
		return 12
	case "create a pod of the set", "bind", "make the set", "the former leader looks at one pod", "a node is deleted":
		return 4
	case "look at all", "rest", "rest for a minute":
		return 2
	}
	if strings.HasPrefix(name, "containers: ") {
		return 4
	}
	return 1
}

// employ has a new worker take the lead, which does nothing by itself.
func (w *world) employ(o worldOptions) *hand {
	w.t.Helper()
	x, mgr := w.hire(o)
	ctx, cancel := context.WithCancel(w.ctx)
	h := &hand{Worker: x, cancel: cancel, ended: make(chan error, 2), looked: map[client.ObjectKey]string{}, due: map[client.ObjectKey]time.Time{}}
	w.must(x.follow(ctx, mgr))
	go func() { h.ended <- mgr.Start(ctx) }()
	go func() { h.ended <- x.lead(ctx) }()
	w.must(x.awaitLead(ctx))
	if !mgr.GetCache().WaitForCacheSync(ctx) {
		w.t.Fatal("the cache is not there")
	}
	w.worker = x
	return h
}

func (s *sim) employAnother() { s.calmly(func() { s.hand = s.employ(s.options()) }) }

// end has a worker end, whatever it has to say.
func (h *hand) end() {
	h.cancel()
	for range cap(h.ended) {
		<-h.ended //nolint:errcheck // it ends with its context
	}
}

func (s *sim) dismiss() {
	s.leave()
	if s.hand != nil {
		s.hand.end()
		s.hand = nil
	}
}

// leave has the former workers end.
func (s *sim) leave() {
	for _, h := range s.former {
		h.end()
	}
	s.former = nil
}

// await waits for what others' goroutines do: caches follow, and connections.
func (s *sim) await(what string, check func() error) {
	s.rt.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			s.rt.Fatalf("%s: %v (the worker's last failure: %v)", what, err, s.last)
		}
	}
}

func (s *sim) versions(c client.Reader, list client.ObjectList) map[client.ObjectKey]string {
	s.ok(c.List(s.ctx, list))
	items, err := meta.ExtractList(list)
	s.ok(err)
	out := map[client.ObjectKey]string{}
	for _, i := range items {
		o, ok := i.(client.Object)
		if !ok {
			s.rt.Fatalf("%T", i)
		}
		out[client.ObjectKeyFromObject(o)] = string(o.GetUID()) + " " + o.GetResourceVersion()
	}
	return out
}

// follow waits until the worker's cache is up to date, but for what is held back.
func (s *sim) follow() {
	s.rt.Helper()
	for _, of := range []func() client.ObjectList{
		func() client.ObjectList { return &corev1.PodList{} }, func() client.ObjectList { return &kubeovnv1.IPList{} },
		func() client.ObjectList { return &corev1.NodeList{} }, func() client.ObjectList { return &corev1.NamespaceList{} },
	} {
		if _, pods := of().(*corev1.PodList); pods && s.resume != nil {
			continue
		}
		s.await("the worker's cache", func() error {
			if want, got := s.versions(s.client, of()), s.versions(s.hand.Client, of()); !maps.Equal(want, got) {
				return fmt.Errorf("it has %v, not %v", got, want)
			}
			return nil
		})
	}
}

// dirty are the pods that the worker has to look at by then, by what it knows.
func (s *sim) dirty(then time.Time) []client.ObjectKey {
	s.follow()
	h := s.hand
	have := s.versions(h.Client, &corev1.PodList{})
	for len(h.wake) > 0 {
		h.due[client.ObjectKeyFromObject((<-h.wake).Object)] = time.Time{}
	}
	var out []client.ObjectKey
	for k, v := range have {
		if at, again := h.due[k]; h.looked[k] != v || again && !at.After(then) {
			out = append(out, k)
		}
	}
	for k := range h.looked {
		if have[k] == "" {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b client.ObjectKey) int { return cmp.Compare(a.Name, b.Name) })
	return out
}

// looks has a worker look at a pod, and the world checked after it.
func (s *sim) looks(h *hand, key client.ObjectKey) {
	s.rt.Helper()
	if v := s.versions(h.Client, &corev1.PodList{})[key]; v != "" {
		h.looked[key] = v
	} else {
		delete(h.looked, key)
	}
	delete(h.due, key)
	s.time.Step(time.Second) // what is remembered for a second is old
	result, err := h.Reconcile(s.ctx, reconcile.Request{NamespacedName: key})
	s.rt.Log("  looked at", key.Name, result.RequeueAfter, err)
	if err != nil {
		s.last = fmt.Errorf("pod %s: %w", key.Name, err)
		h.due[key] = time.Time{}
	} else if result.RequeueAfter > 0 {
		h.due[key] = s.time.Now().Add(result.RequeueAfter)
	}
	s.check(nil)
}

// settle has the worker look until it has seen all, and nothing goes wrong any more.
func (s *sim) settle() {
	s.rt.Helper()
	if s.resume != nil {
		s.resume()
		s.resume = nil
	}
	s.mu.Lock()
	s.troubles = nil
	s.mu.Unlock()
	then := s.time.Now()
	for round := 0; ; round++ {
		keys := s.dirty(then)
		if len(keys) == 0 {
			return
		}
		if round > 40 {
			s.rt.Fatalf("the worker never comes to rest: %v: %v\nleases %v", keys, s.last, s.podLeases())
		}
		if round > 36 {
			for _, f := range s.some() {
				s.rt.Log("  restless:", f.key.Name, f.pod.ResourceVersion, f.pod.Annotations)
			}
		}
		for _, k := range keys {
			s.looks(s.hand, k)
		}
	}
}

// sweep has the worker sweep once. Under faults it may fail.
func (s *sim) sweep() {
	s.follow()
	s.hand.forgetExits(s.ledger.Leases())
	if err := s.hand.sweep(s.ctx); err != nil {
		s.last = fmt.Errorf("sweep: %w", err)
	}
	s.check(nil)
}

// rest has the worker do all that it can do at this time, and checks what must hold then.
func (s *sim) rest() {
	s.rt.Helper()
	s.settle()
	for range 2 {
		s.sweep()
	}
	s.ok(s.hand.rebuild(s.ctx))
	for k := range s.versions(s.hand.Client, &corev1.PodList{}) {
		s.hand.due[k] = s.time.Now()
	}
	s.settle()
	s.check(s.atRest)
}

// bury ends everything that there is. Nothing may be left then.
func (s *sim) bury() {
	s.rt.Helper()
	s.leave()
	s.settle()
	s.opt(network.InjectEnabled)
	s.disown(true)
	s.demolish()
	for _, p := range s.pods() {
		s.report(p, "stopped")
		s.ok(client.IgnoreNotFound(s.client.Delete(s.ctx, p, client.GracePeriodSeconds(0))))
		s.edit(p, func(p *corev1.Pod) {
			p.Finalizers = slices.DeleteFunc(p.Finalizers, func(f string) bool { return f == foreignFinalizer })
		})
	}
	s.check(nil)
	s.settle()
	for _, name := range []string{"n1", "n2"} {
		s.fell(name)
	}
	for range 3 {
		s.rest()
		s.time.Step(61 * time.Second)
	}
	s.await("nothing is left", s.empty)
}

// empty tells that nothing is left of any pod.
func (s *sim) empty() error {
	var ips kubeovnv1.IPList
	s.ok(s.client.List(s.ctx, &ips))
	var errs []error
	for _, g := range s.nb.Groups() {
		if len(g.Ports) > 0 {
			errs = append(errs, fmt.Errorf("group %s has %d members", g.Name, len(g.Ports)))
		}
	}
	h := s.hand.Worker
	h.mu.Lock()
	defer h.mu.Unlock()
	pods := s.pods()
	if n := len(pods) + len(ips.Items) + len(s.podPorts()) + len(s.podLeases()) + len(h.waiting) + len(h.started) + h.watch.Len() + len(h.exits) + len(h.unseen); n > 0 {
		errs = append(errs, fmt.Errorf("%d pods, %d records, ports %v, leases %v, %d wait, %d begun", len(pods), len(ips.Items), s.podPorts(), s.podLeases(),
			len(h.waiting), len(h.started)))
	}
	return errors.Join(append(errs, s.opened())...)
}
