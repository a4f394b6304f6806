package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// dualPods makes pods with addresses of both families, of which kubelet tells the IPv4 one alone.
func (w *world) dualPods(names ...string) []*corev1.Pod {
	w.t.Helper()
	w.serving("dual", "10.18.0.0/24,fd18::/120", "ovn")
	var out []*corev1.Pod
	for _, name := range names {
		w.admitWhole(podNamed(name, onNode, annotated("ovn.kubernetes.io/logical_switch", "dual")))
		p := w.wired(name)
		four, six, both := strings.Cut(p.Annotations[addressKey], ",")
		if !both || !netip.MustParseAddr(six).Is6() {
			w.t.Fatalf("pod %s has %s", name, p.Annotations[addressKey])
		}
		w.runsOn(name, four)
		out = append(out, p)
	}
	return out
}

// untouched tells that the dual pods have both their leases, and their ports.
func (w *world) untouched(pods []*corev1.Pod) func() error {
	return func() error {
		for _, p := range pods {
			if port, ok := w.nb.Port(p.Name + ".app"); !ok || port.ExternalIDs[nb.KeyPodUID] != string(p.UID) {
				return fmt.Errorf("port %v of pod %s", port, p.Name)
			}
			for text := range strings.SplitSeq(p.Annotations[addressKey], ",") {
				if h, ok := w.ledger.Lookup("dual", netip.MustParseAddr(text)); !ok || h.PodUID != string(p.UID) {
					return fmt.Errorf("lease %+v of %s", h, text)
				}
			}
		}
		return nil
	}
}

// An address that kubelet doesn't tell is in use all the same.
func TestB81OneFamilyInTheStatus(t *testing.T) {
	w := newWorld(t, worldOptions{})
	pods := w.dualPods("a", "b")
	w.keeps("both families", w.untouched(pods))
	w.stop()
	w.start(worldOptions{})
	w.keeps("both families after a start", w.untouched(pods))
}

// As long as the pods are not read nothing is taken from them.
func TestB81PodsAreReadLate(t *testing.T) {
	var late atomic.Bool
	gate := make(chan struct{})
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if late.Load() && r.Resource == "pods" && (r.Verb == "list" || r.Verb == "watch") && r.HTTP.UserAgent() != testAgent {
			return memkube.Fault{Hold: gate}
		}
		return memkube.Fault{}
	}})
	pods := w.dualPods("a", "b")
	w.stop()
	late.Store(true)
	w.start(worldOptions{})
	w.keeps("all while pods are read", w.untouched(pods))
	late.Store(false)
	close(gate)
	w.keeps("all when they are read", w.untouched(pods))
	w.admitWhole(podNamed("c", onNode))
	w.wired("c")
}

// podless lists no pods: an empty answer where there are some.
type podless struct{ client.Client }

func (c podless) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	if _, pods := list.(*corev1.PodList); pods {
		return nil
	}
	return c.Client.List(ctx, list, opts...)
}

// A list of pods that comes back empty frees nothing: before each release the pod itself is read.
func TestB81EmptyListOfPods(t *testing.T) {
	w := newWorld(t, worldOptions{})
	pods := w.dualPods("a", "b")
	var ip kubeovnv1.IP
	w.until("the records are known", func() error {
		for _, p := range pods {
			if err := w.worker.Client.Get(w.ctx, client.ObjectKey{Name: p.Name + ".app"}, &ip); err != nil {
				return err
			}
		}
		return nil
	})
	o := w.worker.Options
	o.Client, o.PendingAge = podless{o.Client}, time.Nanosecond
	blind, err := New(o)
	w.must(err)
	blind.writer = w.worker.writer
	close(blind.leading)
	for range 5 {
		w.must(blind.sweep(w.ctx))
		w.must(w.untouched(pods)())
		for _, p := range pods {
			w.must(w.client.Get(w.ctx, client.ObjectKey{Name: p.Name + ".app"}, &ip))
		}
	}
	if len(blind.noted) == 0 {
		t.Error("it suspected nothing: the list wasn't empty")
	}
}

// Of ten ports of pods that are gone one can't be removed, for its pod can't be read: the others go, and that one is told.
func TestB116OneOfTenPortsStays(t *testing.T) {
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Resource == "pods" && r.Name == "gone3" {
			return memkube.Fault{Err: errors.New("out of order")}
		}
		return memkube.Fault{}
	}})
	w.stale(10)
	w.until("nine are gone", func() error {
		if d := cmp.Diff([]string{"gone3.app"}, w.podPorts()); d != "" {
			return fmt.Errorf("ports (-want +got):\n%s", d)
		}
		return nil
	})
	err := w.worker.sweep(w.ctx)
	if n := strings.Count(fmt.Sprint(err), string(lifecycle.PortOrphaned)); n != 1 || !strings.Contains(fmt.Sprint(err), "gone3.app") {
		t.Errorf("it tells %v", err)
	}
}

// stale makes ports of pods that are gone.
func (w *world) stale(n int) {
	w.t.Helper()
	var rows nb.Rows
	for i := range n {
		name := fmt.Sprintf("gone%d", i)
		claim, err := ipam.NewClaim(w.worker.Random)
		w.must(err)
		rows.Ports = append(rows.Ports, nb.Port{Switch: "s", Row: nb.LogicalSwitchPort{Name: name + ".app",
			Addresses: []string{fmt.Sprintf("0a:58:0a:10:00:%02x 10.16.0.%d", 50+i, 50+i)},
			ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s", nb.KeyPod: "app/" + name,
				nb.KeyPodUID: "uid-of-" + name, nb.KeyClaim: string(claim)}}})
	}
	w.must(w.worker.apply(w.ctx, ovn.Change{Key: "leftovers", Ensure: rows}))
}

// Pods come, end and go in great number, as those of CronJobs do: what is kept of them is kept of the living alone, and of
// those that come back.
func TestB107NothingIsKeptOfPodsThatWent(t *testing.T) {
	const rounds, batch, living = 10, 30, 5
	w := newWorld(t, worldOptions{blocks: true})
	set := w.makeSet()
	w.admit(podNamed("web-0", onNode, ofSet(set)))
	w.wired("web-0")
	w.end("web-0")
	w.gone("web-0")
	for i := range living {
		w.admit(podNamed(fmt.Sprintf("live-%d", i), onNode))
	}
	for round := range rounds {
		for i := range batch {
			w.admit(podNamed(fmt.Sprintf("job-%d-%d", round, i), onNode))
		}
		for i := range batch {
			name := fmt.Sprintf("job-%d-%d", round, i)
			p := w.wired(name)
			if i%3 != 0 { // the others are deleted while they run
				p.Status.Phase = corev1.PodSucceeded
				w.must(w.client.Status().Update(w.ctx, p))
			}
			w.must(client.IgnoreNotFound(w.client.Delete(w.ctx, podNamed(name), client.GracePeriodSeconds(0))))
		}
	}
	w.until("only what lives is kept", func() error {
		var ips kubeovnv1.IPList
		w.must(w.client.List(w.ctx, &ips))
		x := w.worker
		x.mu.Lock()
		defer x.mu.Unlock()
		got := map[string]int{"records": len(ips.Items), "ports": len(w.podPorts()), "leases": len(w.podLeases()), "started": len(x.started),
			"waiting": len(x.waiting), "watched": max(0, x.watch.Len()-1), "noted": max(0, len(x.noted)-1)} // the set's lease is watched
		want := map[string]int{"records": living, "ports": living, "leases": living + 1, "started": 0, "waiting": 0, "watched": 0, "noted": 0}
		if d := cmp.Diff(want, got); d != "" {
			return fmt.Errorf("(-want +got):\n%s", d)
		}
		return nil
	})
	blocks := 0
	for _, b := range w.blocks() {
		if strings.HasPrefix(b.GetName(), "s-0a10") { // the others are of MACs
			blocks++
		}
	}
	if blocks == 0 || blocks > 256/64 {
		t.Errorf("%d blocks of addresses, and the subnet has room for four", blocks)
	}
}
