package worker

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// watching is a ledger over AddressBlocks, fed by a watch of its own until the test ends.
func (w *world) watching(replica string, lost func(subnet, why string)) (l *ipam.Ledger, synced func() bool) {
	w.t.Helper()
	store, err := blockstore.New(w.kube.Config())
	w.must(err)
	l, err = ipam.New(ipam.Options{Store: store, Replica: replica, Clock: clock.RealClock{}, Random: rand.Reader, Lost: lost})
	w.must(err)
	ctx, cancel := context.WithCancel(w.ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = store.Watch(ctx, l) })
	w.t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	w.until("blocks are read", func() error {
		if !store.Synced() {
			return fmt.Errorf("not yet")
		}
		return nil
	})
	return l, store.Synced
}

// webhook is a replica of the webhook: its ledger, and what keeps that closed after a loss.
func (w *world) webhook() *ipam.Ledger {
	w.t.Helper()
	losses := catalog.NewLosses()
	l, _ := w.watching("webhook", losses.Lost)
	losses.Client, losses.Ledger, losses.Random, losses.Clock = w.client, l, rand.Reader, clock.RealClock{}
	ctx, cancel := context.WithCancel(w.ctx)
	var done sync.WaitGroup
	done.Go(func() { _ = losses.Run(ctx) })
	w.t.Cleanup(func() {
		cancel()
		done.Wait()
	})
	return l
}

// create creates a pod as the webhook with that ledger would have it.
func (w *world) create(l *ipam.Ledger, p *corev1.Pod) error {
	var subnet kubeovnv1.Subnet
	if err := w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &subnet); err != nil {
		return err
	}
	cat := network.Catalog{Subnets: map[string]network.Subnet{"s": network.NewSubnet(&subnet, network.Around{})}}
	plan, bad := network.Plan(network.PodOf(p), network.Namespace{Name: "app"}, cat, w.worker.Network)
	if err := bad.ToAggregate(); err != nil {
		return err
	}
	claim, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		return err
	}
	a, err := l.Take(w.ctx, plan.Request(claim, false))
	if err != nil {
		return err
	}
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, network.Annotations(plan, a, cat, w.worker.Network))
	p.Finalizers = []string{network.Finalizer}
	return w.client.Create(w.ctx, p)
}

const addressKey = "ovn.kubernetes.io/ip_address"

// many creates pods, wired ones, and gives their addresses by name.
func (w *world) many(l *ipam.Ledger, prefix string, n int) map[string]string {
	w.t.Helper()
	for i := range n {
		w.must(w.create(l, podNamed(fmt.Sprintf("%s%d", prefix, i), onNode)))
	}
	out := map[string]string{}
	for i := range n {
		p := w.wired(fmt.Sprintf("%s%d", prefix, i))
		out[p.Name] = p.Annotations[addressKey]
	}
	return out
}

func (w *world) blocks() []unstructured.Unstructured {
	w.t.Helper()
	var list unstructured.UnstructuredList
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "berth.dev", Version: "v1alpha1", Kind: "AddressBlockList"})
	w.must(w.client.List(w.ctx, &list))
	return list.Items
}

// flood creates pods from several goroutines until it is told to stop, which it doesn't before some were created.
func (w *world) flood(l *ipam.Ledger) (stop func()) {
	ctx, cancel := context.WithCancel(w.ctx)
	var made sync.WaitGroup
	var n atomic.Int32
	for k := range 3 {
		made.Go(func() {
			for i := 0; ctx.Err() == nil && i < 12; {
				if w.create(l, podNamed(fmt.Sprintf("new-%d-%d", k, i), onNode)) == nil {
					i++
					n.Add(1)
				}
				time.Sleep(5 * time.Millisecond) // the pace of creations
			}
		})
	}
	return func() {
		w.t.Helper()
		w.until("some are created", func() error {
			if n.Load() < 10 {
				return fmt.Errorf("%d", n.Load())
			}
			return nil
		})
		cancel()
		made.Wait()
	}
}

// consistent waits until every pod is wired with a lease of its own, the named ones with the addresses that they had.
func (w *world) consistent(before map[string]string) {
	w.t.Helper()
	w.until("all pods have their own", func() error {
		var pods corev1.PodList
		if err := w.client.List(w.ctx, &pods); err != nil {
			return err
		}
		leases := map[string]ipam.Held{}
		for _, h := range w.podLeases() {
			leases[h.Address.String()] = h
		}
		now, owners := map[string]string{}, map[string]string{}
		for i := range pods.Items {
			p := &pods.Items[i]
			a := p.Annotations[addressKey]
			if other := owners[a]; other != "" {
				return fmt.Errorf("%s and %s have %q", other, p.Name, a)
			}
			owners[a] = p.Name
			h, ok := leases[a]
			if !ok || h.PodUID != string(p.UID) || string(h.Claim) != p.Annotations[network.ClaimKey] || p.Annotations["ovn.kubernetes.io/routed"] != "true" {
				return fmt.Errorf("pod %s: lease %+v, annotations %v", p.Name, h, p.Annotations)
			}
			if _, old := before[p.Name]; old {
				now[p.Name] = a
			}
		}
		if d := cmp.Diff(before, now); d != "" {
			return fmt.Errorf("addresses (-want +got):\n%s", d)
		}
		if len(leases) != len(pods.Items) {
			return fmt.Errorf("%d leases of %d pods", len(leases), len(pods.Items))
		}
		return w.opened()
	})
}

// unique watches the ports until the test ends: no address is ever on two of them.
func (w *world) unique() {
	ctx, cancel := context.WithCancel(w.ctx)
	var done sync.WaitGroup
	done.Go(func() {
		for ctx.Err() == nil {
			seen := map[netip.Addr]string{}
			for _, p := range w.nb.Ports() {
				if p.ExternalIDs[nb.KeyPod] == "" {
					continue
				}
				for _, a := range lifecycle.PortAddresses(p) {
					if other := seen[a]; other != "" {
						w.t.Errorf("ports %s and %s have %s", other, p.Name, a)
						return
					}
					seen[a] = p.Name
				}
			}
			time.Sleep(2 * time.Millisecond) // a sampler's period
		}
	})
	w.t.Cleanup(func() {
		cancel()
		done.Wait()
	})
}

// All blocks are deleted under 200 pods while others are being created.
func TestLedgerIsDeletedUnderPods(t *testing.T) {
	w := newWorld(t, worldOptions{blocks: true})
	hook := w.webhook()
	w.unique()
	before := w.many(hook, "p", 200)
	stop := w.flood(hook)
	for _, b := range w.blocks() {
		w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, &b)))
	}
	w.until("the leases are back", func() error {
		if n := len(w.podLeases()); n < len(before) {
			return fmt.Errorf("%d leases", n)
		}
		return w.opened()
	})
	w.until("the webhook gives again", func() error {
		if here := hook.ClosedHere(); len(here) > 0 {
			return fmt.Errorf("closed: %v", here)
		}
		return nil
	})
	stop()
	w.consistent(before)
}

// What nodes have on the join switch is theirs again as soon as that is open, and no node that comes meanwhile gets it.
func TestPlacesOfNodesAreTakenAgain(t *testing.T) {
	w := newWorld(t, worldOptions{blocks: true})
	w.makeSubnet("join", kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16", Gateway: "100.64.0.1", Vpc: "ovn-cluster"})
	before := map[string]string{}
	for i := range 4 {
		name := fmt.Sprintf("old-%d", i)
		w.makeNode(name, fmt.Sprintf("192.168.0.%d", 10+i), nil)
		before[name] = w.announced(name)["ip_address"]
	}
	for _, b := range w.blocks() {
		w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, &b)))
	}
	for i := range 4 {
		w.makeNode(fmt.Sprintf("new-%d", i), fmt.Sprintf("192.168.0.%d", 20+i), nil)
	}
	w.until("every node has its place", func() error {
		now, holders := map[string]string{}, map[string]string{}
		for _, h := range w.ledger.Leases() {
			if h.Subnet != "join" || !h.Address.IsValid() {
				continue
			}
			if _, old := before[h.Owner.Name]; old {
				now[h.Owner.Name] = h.Address.String()
			}
			holders[h.Address.String()] = h.Owner.Name
		}
		if d := cmp.Diff(before, now); d != "" || len(holders) != 9 { // with the node that every world has
			return fmt.Errorf("%d places (-before +now):\n%s", len(holders), d)
		}
		return w.opened()
	})
}

// Who closes a subnet may be a webhook, which tells nobody: the worker does.
func TestLossIsTold(t *testing.T) {
	told := events.NewFakeRecorder(100)
	w := newWorld(t, worldOptions{blocks: true, change: func(o *Options) { o.Recorder = told }})
	_, err := catalog.MarkClosed(w.ctx, w.client, rand.Reader, w.subnet("s"), "a block is gone")
	w.must(err)
	w.until("the subnet is open again", w.opened)
	for _, want := range []string{"Warning LeasesLost a block is gone", "Normal LeasesRestored"} {
		select {
		case got := <-told.Events:
			if !strings.HasPrefix(got, want) {
				t.Errorf("told %q, want %q", got, want)
			}
		case <-w.ctx.Done():
			t.Fatalf("not told %q", want)
		}
	}
}

// robbedOf has a subnet of which n pods have lost their leases, marked as closed, and a worker that does nothing by itself.
func (w *world) robbedOf(n int, o worldOptions) *hand {
	w.t.Helper()
	for i := range n {
		w.admit(podNamed(fmt.Sprintf("p%d", i), onNode))
		w.wired(fmt.Sprintf("p%d", i))
	}
	w.until("bound", w.allBound)
	w.stop()
	for _, l := range w.podLeases() {
		w.must(w.ledger.Free(w.ctx, l.Ref()))
	}
	_, err := catalog.MarkClosed(w.ctx, w.client, rand.Reader, w.subnet("s"), "a block is gone")
	w.must(err)
	h := w.employ(o)
	w.seen(w.subnet("s"))
	return h
}

// drain gives what was told so far, without what is drawn at random.
func drain(told *events.FakeRecorder) []string {
	var out []string
	for {
		select {
		case e := <-told.Events:
			before, _, _ := strings.Cut(e, " (")
			out = append(out, before)
		default:
			return out
		}
	}
}

// A subnet that is marked again while its leases are restored takes one more round, in which nothing is missing. What is
// told at the end is what came back in both.
func TestRestoredInTwoRoundsIsToldAsOne(t *testing.T) {
	told := events.NewFakeRecorder(100)
	var armed atomic.Bool
	var again func() error
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Verb == "patch" && r.Resource == "subnets" && r.HTTP.UserAgent() != testAgent && armed.CompareAndSwap(true, false) {
			if err := again(); err != nil {
				t.Error(err)
			}
		}
		return memkube.Fault{}
	}})
	h := w.robbedOf(3, worldOptions{change: func(o *Options) { o.Recorder = told }})
	defer h.end()
	subnet := w.subnet("s")
	again = func() error {
		_, err := catalog.MarkClosed(w.ctx, w.client, rand.Reader, subnet, "another block is gone")
		return err
	}
	armed.Store(true)
	w.must(h.rebuild(w.ctx))
	if armed.Load() || w.opened() == nil {
		t.Error("it was not marked again")
	}
	w.must(h.rebuild(w.ctx))
	w.must(w.opened())
	w.must(h.rebuild(w.ctx))
	want := []string{"Warning LeasesLost a block is gone", "Normal LeasesRestored 3 leases were restored: addresses are given again"}
	if d := cmp.Diff(want, drain(told)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	w.must(w.leased(3)())
}

// A subnet that can't be understood keeps no other one closed.
func TestBrokenSubnetKeepsNoOtherClosed(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "broken", Annotations: map[string]string{network.ClosedKey: "a block is gone"}},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.99.0.0/99", Provider: "ovn", Vpc: "ovn-cluster"}}))
	h := w.robbedOf(2, worldOptions{})
	defer h.end()
	w.seen(w.subnet("broken"))
	if err := h.rebuild(w.ctx); err == nil || !strings.Contains(err.Error(), "broken") {
		t.Errorf("it tells %v", err)
	}
	if s := w.subnet("s"); s.Annotations[network.ClosedKey] != "" {
		t.Errorf("it is closed: %s", s.Annotations[network.ClosedKey])
	}
	if s := w.subnet("broken"); s.Annotations[network.ClosedKey] == "" {
		t.Error("the broken one is open")
	}
	w.must(w.leased(2)())
}

// A mark that was taken off, and that the cache still shows, closes nothing.
func TestMarkOfTheCacheAlone(t *testing.T) {
	told := events.NewFakeRecorder(100)
	w := newWorld(t, worldOptions{})
	h := w.robbedOf(2, worldOptions{change: func(o *Options) { o.Recorder = told }})
	defer h.end()
	defer w.kube.PauseWatch("subnets")()
	for range 3 {
		w.must(h.rebuild(w.ctx))
		w.must(w.opened())
	}
	want := []string{"Warning LeasesLost a block is gone", "Normal LeasesRestored 2 leases were restored: addresses are given again"}
	if d := cmp.Diff(want, drain(told)); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if n := len(h.restored); n > 0 {
		t.Errorf("%d subnets are remembered", n)
	}
}

// The blocks are put back to an older state, in which the younger half of the pods is not, and some are that went since.
func TestOlderLedgerIsRestoredUnderPods(t *testing.T) {
	w := newWorld(t, worldOptions{blocks: true})
	hook := w.webhook()
	w.unique()
	before := w.many(hook, "old", 100)
	backup := map[string]unstructured.Unstructured{}
	for _, b := range w.blocks() {
		backup[b.GetName()] = b
	}
	for i := range 10 {
		w.end(fmt.Sprintf("old%d", i))
		w.gone(fmt.Sprintf("old%d", i))
		delete(before, fmt.Sprintf("old%d", i))
	}
	maps.Copy(before, w.many(hook, "young", 90))
	stop := w.flood(hook)
	for _, b := range w.blocks() {
		w.must(w.putBack(b, backup[b.GetName()]))
	}
	w.until("the subnet is marked and open again", func() error {
		if err := w.opened(); err != nil {
			return err
		}
		for name := range before {
			if p, err := w.get(name); err != nil || len(w.ledger.ByClaim(ipam.Claim(p.Annotations[network.ClaimKey]))) == 0 {
				return fmt.Errorf("pod %s has no lease: %w", name, err)
			}
		}
		return nil
	})
	stop()
	w.consistent(before)
}

// putBack gives a block the content that it had; none deletes it.
func (w *world) putBack(now, old unstructured.Unstructured) error {
	for {
		key := client.ObjectKeyFromObject(&now)
		if err := w.client.Get(w.ctx, key, &now); err != nil {
			return client.IgnoreNotFound(err)
		}
		if old.Object == nil {
			return client.IgnoreNotFound(w.client.Delete(w.ctx, &now))
		}
		now.Object["spec"] = old.Object["spec"]
		if err := w.client.Update(w.ctx, &now); !apierrors.IsConflict(err) {
			return err
		}
	}
}
