package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// looks counts the pods that a worker has looked at, through the client that it reads them with.
type looks struct {
	client.Client
	// slow is how much longer each look takes.
	slow time.Duration

	mu   sync.Mutex
	pods map[string]bool
}

func (l *looks) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	if _, ok := obj.(*corev1.Pod); ok && strings.HasPrefix(key.Name, "old-") {
		time.Sleep(l.slow) // as a comparison that takes longer would
		l.mu.Lock()
		l.pods[key.Name] = true
		l.mu.Unlock()
	}
	return l.Client.Get(ctx, key, obj, opts...)
}

func (l *looks) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pods)
}

// writes notes what the worker writes to the API server.
type writes struct {
	mu   sync.Mutex
	made []string
}

func (n *writes) note(r memkube.Request) memkube.Fault {
	reads := r.Verb == "get" || r.Verb == "list" || r.Verb == "watch"
	if !reads && r.HTTP.UserAgent() != testAgent {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.made = append(n.made, strings.Join([]string{r.Verb, r.Resource, r.Subresource, r.Name}, " "))
	}
	return memkube.Fault{}
}

// take gives what was written since it was asked last.
func (n *writes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	out := n.made
	n.made = nil
	return out
}

// town is a cluster whose pods are all served, and whose worker is away.
type town struct {
	*world
	wide   network.Catalog
	pods   int
	writes writes
	looks  *looks
}

// onWide chooses the subnet that has room for all of them.
const onWide = "wide"

func newTown(t testing.TB, nodes, pods int) *town {
	t.Helper()
	x := &town{pods: pods}
	x.world = newWorld(t, worldOptions{limit: 10 * time.Minute, intercept: x.writes.note, change: x.options(0)})
	x.makeSubnet(onWide, kubeovnv1.SubnetSpec{CIDRBlock: "10.64.0.0/16", Gateway: "10.64.0.1", Vpc: "ovn-cluster"})
	x.wide = network.Catalog{Subnets: map[string]network.Subnet{onWide: network.NewSubnet(x.subnet(onWide), network.Around{})}}
	for i := range nodes {
		x.makeNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("192.168.%d.%d", i/250, i%250+1), nil)
	}
	var group errgroup.Group
	group.SetLimit(8)
	for i := range pods {
		group.Go(func() error {
			return x.admitWide(fmt.Sprintf("old-%d", i), fmt.Sprintf("node-%d", i%nodes))
		})
	}
	x.must(group.Wait())
	served := func() bool { // a list of all pods is asked for only when it may say yes
		return x.kube.Requests()["patch pods"] >= pods && x.unmarked() == 0
	}
	for deadline := time.Now().Add(8 * time.Minute); !served(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d pods are not served", x.unmarked())
		}
	}
	x.leave()
	return x
}

// leave ends the worker when it has written the figures of all pods: the next one finds nothing to do.
func (x *town) leave() {
	x.t.Helper()
	x.until("the figures", func() error {
		x.must(x.worker.writeStatus(x.ctx))
		using := x.subnet(onWide).Status.V4UsingIPs
		if n := len(x.podLeases()); using.String() != fmt.Sprint(n) {
			return fmt.Errorf("%s of %d", using.String(), n)
		}
		return nil
	})
	x.stop()
	x.writes.take()
}

// options of a worker whose looks at pods take longer.
func (x *town) options(slow time.Duration) func(*Options) {
	return func(o *Options) {
		o.SweepPeriod, o.PendingAge = time.Minute, time.Minute
		if slow == 0 {
			o.Concurrency = 128
		}
		o.Network.DefaultSubnet = onWide
		x.looks = &looks{Client: o.Client, slow: slow, pods: map[string]bool{}}
		o.Client = x.looks
	}
}

// admitWide creates a pod as admission would have it. It may be called from several goroutines.
func (x *town) admitWide(name, node string) error {
	p := podNamed(name, func(p *corev1.Pod) { p.Spec.NodeName = node })
	plan, bad := network.Plan(network.PodOf(p), network.Namespace{Name: "app"}, x.wide, network.Config{DefaultSubnet: onWide,
		ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"})
	if err := bad.ToAggregate(); err != nil {
		return err
	}
	claim, err := ipam.NewClaim(rand.Reader)
	if err != nil {
		return err
	}
	a, err := x.ledger.Take(x.ctx, plan.Request(claim, false))
	if err != nil {
		return err
	}
	p.Annotations = maps.Clone(network.Annotations(plan, a, x.wide, network.Config{}))
	p.Finalizers = []string{network.Finalizer}
	return x.client.Create(x.ctx, p)
}

// unmarked counts the pods that don't say that their network is ready.
func (x *town) unmarked() int {
	x.t.Helper()
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	x.must(x.client.List(x.ctx, &list))
	n := 0
	for _, p := range list.Items {
		if p.Annotations["ovn.kubernetes.io/routed"] != "true" {
			n++
		}
	}
	return n
}

// begin starts a worker and returns when it leads.
func (x *town) begin(slow time.Duration) time.Time {
	x.t.Helper()
	began := time.Now()
	x.start(worldOptions{change: x.options(slow)})
	return began
}

// compared waits until all pods were looked at, and sweeps.
func (x *town) compared() {
	x.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); x.looks.count() < x.pods; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			x.t.Fatalf("%d of %d pods were looked at", x.looks.count(), x.pods)
		}
	}
	x.must(x.worker.sweep(x.ctx))
}

// routed waits until a new pod is served, however slow the machine is.
func (x *town) routed(name string) {
	x.t.Helper()
	for deadline := time.Now().Add(4 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		p, err := x.get(name)
		x.must(err)
		if p.Annotations["ovn.kubernetes.io/routed"] == "true" {
			return
		}
		if time.Now().After(deadline) {
			x.t.Fatalf("pod %s is not served: %v", name, p.Annotations)
		}
	}
}

// unwritten tells that nothing was written since the worker started.
func (x *town) unwritten() {
	x.t.Helper()
	if made := x.writes.take(); len(made) > 0 {
		x.t.Errorf("%d writes without a change: %v", len(made), made[:min(len(made), 10)])
	}
	if n := x.worker.writer.Transactions(); n > 0 {
		x.t.Errorf("%d transactions without a change", n)
	}
}

// A worker that starts over many pods compares all of them and writes nothing, and meanwhile it serves new ones.
func TestB100NewPodsDoNotWaitForTheComparison(t *testing.T) {
	x := newTown(t, 20, 400)
	began := x.begin(0)
	x.compared()
	t.Logf("%d pods compared %s after the start", x.pods, time.Since(began).Round(time.Millisecond))
	x.unwritten()
	x.stop()

	x.must(x.admitWide("away", "node-0"))
	began = x.begin(20 * time.Millisecond)
	x.until("the comparison goes on", func() error {
		if x.looks.count() == 0 {
			return errors.New("no pod was looked at")
		}
		return nil
	})
	x.must(x.admitWide("new", "node-0"))
	for _, name := range []string{"away", "new"} {
		x.routed(name)
		looked := x.looks.count()
		t.Logf("pod %q was wired %s after the start, when %d of %d old ones were looked at", name, time.Since(began).Round(time.Millisecond), looked, x.pods)
		if looked > x.pods*3/4 {
			t.Errorf("pod %q waited for the comparison", name)
		}
	}
	x.compared()
	for _, w := range x.writes.take() {
		if strings.Contains(w, "old-") {
			t.Errorf("a write to an old pod: %s", w)
		}
	}
}

// BenchmarkB100Start is the same at its full size.
func BenchmarkB100Start(b *testing.B) {
	x := newTown(b, 500, 10_000)
	for n := 0; b.Loop(); n++ {
		began := x.begin(0)
		x.compared()
		b.ReportMetric(time.Since(began).Seconds(), "s-to-full-comparison")
		x.unwritten()
		x.leave()

		name := fmt.Sprintf("new-%d", n)
		x.must(x.admitWide(name, "node-0"))
		began = x.begin(0)
		x.routed(name)
		b.ReportMetric(time.Since(began).Seconds(), "s-to-first-new-pod")
		x.leave()
	}
}
