package worker

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

// world is an API server, a northbound database, a ledger and a worker.
type world struct {
	t      testing.TB
	ctx    context.Context
	kube   *memkube.Server
	client client.Client
	nb     *ovn.Client
	remote string // of the northbound database
	store  *memstore.Store
	ledger *ipam.Ledger
	synced func() bool
	worker *Worker
	cancel context.CancelFunc
	ended  chan error
}

// testAgent tells the test's own calls from the worker's.
const testAgent = "test"

type worldOptions struct {
	intercept func(memkube.Request) memkube.Fault
	age       time.Duration
	// limit of the whole test; zero means a minute.
	limit time.Duration
	// blocks keeps the ledger in AddressBlocks, as in a cluster.
	blocks bool
	// clock of the API server and of the worker; nil is the real one.
	clock clock.WithTicker
	// change has a last look at the worker's options.
	change func(*Options)
	// made is given the worker before it runs.
	made func(*Worker)
}

func newWorld(t testing.TB, o worldOptions) *world {
	t.Helper()
	ctrl.SetLogger(logr.Discard())
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(o.limit, time.Minute))
	kube, err := memkube.Start(memkube.Options{Namespaces: []string{"app"}, Intercept: o.intercept, Clock: o.clock, Kinds: []memkube.Kind{
		{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine", Resource: "virtualmachines", Namespaced: true, Custom: true},
		{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstance", Resource: "virtualmachineinstances", Namespaced: true, Custom: true},
		{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet", Resource: "statefulsets", Namespaced: true, Custom: true},
		{Group: "example.com", Version: "v1", Kind: "Farm", Resource: "farms", Namespaced: true, Custom: true},
		{Group: "k8s.cni.cncf.io", Version: "v1", Kind: "NetworkAttachmentDefinition", Resource: "network-attachment-definitions", Namespaced: true, Custom: true},
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(kube.Close)
	w := &world{t: t, ctx: ctx, kube: kube, cancel: cancel, store: memstore.New()}
	types, err := Scheme()
	w.must(err)
	cfg := kube.Config()
	cfg.UserAgent = testAgent
	w.client, err = client.New(cfg, client.Options{Scheme: types})
	w.must(err)
	w.remote = startOVSDB(t)
	w.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{w.remote}})
	w.must(err)
	t.Cleanup(w.nb.Close)
	w.synced = func() bool { return true }
	w.ledger, err = ipam.New(ipam.Options{Store: w.store, Replica: "test", Clock: clock.RealClock{}, Random: rand.Reader})
	w.must(err)
	if o.blocks {
		w.ledger, w.synced = w.watching("worker", func(subnet, why string) {
			if w.worker != nil {
				w.worker.Lost(subnet, why)
			}
		})
	}
	w.label("app", network.InjectEnabled)
	w.must(w.client.Create(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/24", Gateway: "10.16.0.1", Protocol: "IPv4", Provider: "ovn", Vpc: "ovn-cluster"}}))
	w.must(w.client.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1",
		Annotations: map[string]string{"ovn.kubernetes.io/ip_address": "100.64.0.2"}}}))
	w.start(o)
	t.Cleanup(w.stop)
	return w
}

// hire makes a worker that does nothing yet, and its manager.
func (w *world) hire(o worldOptions) (*Worker, manager.Manager) {
	w.t.Helper()
	types, err := Scheme()
	w.must(err)
	mgr, err := ctrl.NewManager(w.kube.Config(), manager.Options{Scheme: types, Cache: CacheOptions(Routing{}), Metrics: metricsserver.Options{BindAddress: "0"}})
	w.must(err)
	m, err := NewMetrics(nil)
	w.must(err)
	if o.age == 0 {
		o.age = 200 * time.Millisecond
	}
	options := Options{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Ledger: w.ledger, LedgerSynced: w.synced,
		Northbound: w.nb, Network: network.Config{DefaultSubnet: "s", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"},
		Recorder: mgr.GetEventRecorder("berth"), Metrics: m, Clock: clock.RealClock{}, Random: rand.Reader, Topology: Ensure,
		PendingAge: o.age, SweepPeriod: 100 * time.Millisecond, Concurrency: 8}
	if o.clock != nil {
		options.Clock = o.clock
	}
	if o.change != nil {
		o.change(&options)
	}
	x, err := New(options)
	w.must(err)
	return x, mgr
}

func (w *world) start(o worldOptions) {
	w.t.Helper()
	var mgr manager.Manager
	w.worker, mgr = w.hire(o)
	if o.made != nil {
		o.made(w.worker)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	w.must(w.worker.Setup(ctx, mgr))
	w.ended = make(chan error, 1)
	w.cancel = cancel
	go func() { w.ended <- mgr.Start(ctx) }()
	w.until("the topology", func() error {
		if _, ok := w.nb.Switch("s"); !ok {
			return fmt.Errorf("no switch")
		}
		return nil
	})
}

func (w *world) stop() {
	if w.ended != nil {
		w.cancel()
		if err := <-w.ended; err != nil {
			w.t.Error(err)
		}
		w.ended = nil
	}
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// until waits for something to be so.
func (w *world) until(what string, check func() error) {
	w.t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			w.t.Fatalf("%s: %v", what, err)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// label labels a namespace, and has a running worker see it.
func (w *world) label(namespace, value string) {
	w.t.Helper()
	ns := &corev1.Namespace{}
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: namespace}, ns))
	old := ns.DeepCopy()
	ns.Labels = map[string]string{network.LabelInject: value}
	w.must(w.client.Patch(w.ctx, ns, client.MergeFrom(old)))
	if w.ended != nil {
		w.seen(ns)
	}
}

func podNamed(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, c := range change {
		c(p)
	}
	return p
}

func onNode(p *corev1.Pod) { p.Spec.NodeName = "n1" }

// admit creates a pod as admission would have it.
func (w *world) admit(p *corev1.Pod) *corev1.Pod {
	w.t.Helper()
	var subnet kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &subnet))
	cat := network.Catalog{Subnets: map[string]network.Subnet{"s": network.NewSubnet(&subnet, network.Around{})}}
	return w.admitBy(p, catalog.View{Pod: network.PodOf(p), Namespace: network.Namespace{Name: "app"}, Catalog: cat})
}

// admitBy does so by what the view tells of the pod and of the cluster.
func (w *world) admitBy(p *corev1.Pod, view catalog.View) *corev1.Pod {
	w.t.Helper()
	plan, bad := network.Plan(view.Pod, view.Namespace, view.Catalog, w.worker.Network)
	w.must(bad.ToAggregate())
	claim, err := ipam.NewClaim(rand.Reader)
	w.must(err)
	a, err := w.ledger.Take(w.ctx, plan.Request(claim, false))
	w.must(err)
	if p.Annotations == nil {
		p.Annotations = map[string]string{}
	}
	maps.Copy(p.Annotations, network.Annotations(plan, a, view.Catalog, w.worker.Network))
	p.Finalizers = []string{network.Finalizer}
	w.must(w.client.Create(w.ctx, p))
	return p
}

func (w *world) get(name string) (*corev1.Pod, error) {
	var p corev1.Pod
	return &p, w.client.Get(w.ctx, client.ObjectKey{Namespace: "app", Name: name}, &p)
}

// wired waits until the pod is marked routed.
func (w *world) wired(name string) *corev1.Pod {
	w.t.Helper()
	var p *corev1.Pod
	w.until("pod "+name+" routed", func() (err error) {
		if p, err = w.get(name); err == nil && p.Annotations["ovn.kubernetes.io/routed"] != "true" {
			err = fmt.Errorf("not routed: %v", p.Annotations)
		}
		return err
	})
	return p
}

// end deletes the pod as kubelet confirms it.
func (w *world) end(name string) {
	w.t.Helper()
	w.must(w.client.Delete(w.ctx, podNamed(name), client.GracePeriodSeconds(0)))
}

// gone waits until the pod's object is gone. The worker has then taken back what it had.
func (w *world) gone(name string) {
	w.t.Helper()
	w.until("pod "+name+" gone", func() error {
		_, err := w.get(name)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return errors.New("still there")
		}
		return err
	})
}

// seen waits until the worker's cache has the object as it is.
func (w *world) seen(obj client.Object) {
	w.t.Helper()
	key := client.ObjectKeyFromObject(obj)
	w.until(fmt.Sprintf("the worker has seen %T %s", obj, key), func() error {
		if err := w.client.Get(w.ctx, key, obj); err != nil {
			return err
		}
		now := obj.GetResourceVersion()
		if err := w.worker.Client.Get(w.ctx, key, obj); err != nil {
			return err
		}
		if v := obj.GetResourceVersion(); v != now {
			return fmt.Errorf("it sees version %s, not %s", v, now)
		}
		return nil
	})
}

// look has the worker work on the pod as it is now, and returns when it has.
func (w *world) look(name string) {
	w.t.Helper()
	w.seen(podNamed(name))
	_, err := w.worker.Reconcile(w.ctx, reconcile.Request{NamespacedName: client.ObjectKey{Namespace: "app", Name: name}})
	w.must(err)
}

// lookAtTopology has the worker work on a Subnet and all the rest, and returns when it has.
func (w *world) lookAtTopology(subnet string) {
	w.t.Helper()
	w.seen(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: subnet}})
	_, err := w.worker.reconcileTopology(w.ctx, reconcile.Request{NamespacedName: client.ObjectKey{Name: subnet}})
	w.must(err)
}

// clean waits until nothing is left of the pods.
func (w *world) clean() {
	w.t.Helper()
	w.until("nothing left", func() error {
		var pods corev1.PodList
		var ips kubeovnv1.IPList
		if err := w.client.List(w.ctx, &pods); err != nil {
			return err
		}
		if err := w.client.List(w.ctx, &ips); err != nil {
			return err
		}
		var ports []string
		for _, p := range w.nb.Ports() {
			if p.Type == "" {
				ports = append(ports, p.Name)
			}
		}
		if len(pods.Items)+len(ips.Items)+len(ports)+len(w.podLeases()) > 0 {
			return fmt.Errorf("%d pods, %d records, ports %v, leases %v", len(pods.Items), len(ips.Items), ports, w.podLeases())
		}
		return nil
	})
}

// startOVSDB starts an empty northbound database and returns its remote.
func startOVSDB(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	db, sock := filepath.Join(dir, "nb.db"), filepath.Join(dir, "nb.sock")
	if out, err := exec.Command("ovsdb-tool", "create", db, "/usr/share/ovn/ovn-nb.ovsschema").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s: run `apt-get install ovn-central`", err, strings.TrimSpace(string(out)))
	}
	cmd := exec.Command("ovsdb-server", "--remote=punix:"+sock, "--unixctl="+filepath.Join(dir, "ctl"), "--log-file="+filepath.Join(dir, "log"), db)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for range 1000 {
		if c, err := net.Dial("unix", sock); err == nil {
			_ = c.Close()
			return "unix:" + sock
		}
		time.Sleep(5 * time.Millisecond)
	}
	t.Fatal("ovsdb-server doesn't listen")
	return ""
}

// allBound tells that every pod's lease is bound.
func (w *world) allBound() error {
	for _, l := range w.podLeases() {
		if l.PodUID == "" {
			return fmt.Errorf("%v is not", l)
		}
	}
	return nil
}

// opened tells that no subnet is closed, here or by its mark.
func (w *world) opened() error {
	var subnets kubeovnv1.SubnetList
	if err := w.client.List(w.ctx, &subnets); err != nil {
		return err
	}
	for _, s := range subnets.Items {
		if why := s.Annotations[network.ClosedKey]; why != "" {
			return fmt.Errorf("subnet %s is closed: %s", s.Name, why)
		}
	}
	if here := w.ledger.ClosedHere(); len(here) > 0 {
		return fmt.Errorf("closed here: %v", here)
	}
	return nil
}

// podLeases are all leases but those that are reserved for others than pods.
func (w *world) podLeases() []ipam.Held {
	return slices.DeleteFunc(w.ledger.Leases(), func(h ipam.Held) bool { return h.Owner.Reserves() })
}
