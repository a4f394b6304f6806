package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	workerapp "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhookapp "github.com/berth-net/berth/cmd/webhook/app"
	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/internal/sampler"
	"github.com/berth-net/berth/internal/serve"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

// The lab has the programs in this process, on an API in memory behind the proxy and on a northbound database in memory:
// for what can be done to requests, watches, the ledger and the number of workers.

const (
	labSweep = time.Second
	// labPending is longer than a creation takes here: the webhook's time limit and what the proxy adds.
	labPending = 8 * time.Second
)

func labKinds() []Kind {
	return []Kind{WebhookKilled, WorkerKilled, WorkerTwice, WatchStalled, WatchCut, WatchExpired, AnswerLost, APISlow, APIRefuses, BlocksDeleted,
		ClockWrong}
}

type lab struct {
	t        *testing.T
	api      *memkube.Server
	kube     kubernetes.Interface
	objs     client.Client
	nb       *ovn.Client
	northern *memnb.Server
	proxy    *Proxy
	through  *rest.Config
	hooks    string
	logs     string
	programs []*program
	sampling *sampling.Sampling

	mu   sync.Mutex
	made int
	// denied are refusals that nobody could expect.
	denied []string
}

func startLab(t *testing.T, seed uint64) *lab {
	t.Helper()
	l := &lab{t: t}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.MkdirTemp("", "bf") // short, for sockets
	must(err)
	l.logs = dir
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the logs are in %s", dir)
			return
		}
		_ = os.RemoveAll(dir)
	})
	first := l.listen("127.0.0.1:0")
	l.hooks = first.Addr().String()
	must(first.Close())
	l.api, err = memkube.Start(memkube.Options{Namespaces: []string{system}, ServiceURL: map[string]string{system + "/" + webhook: "https://" + l.hooks}})
	must(err)
	t.Cleanup(l.api.Close)
	target, err := url.Parse(l.api.URL())
	must(err)
	l.proxy = newProxy(seed)
	u := &upstream{handler: passOn(target, &http.Transport{MaxIdleConnsPerHost: 100})}
	l.proxy.where = func() (*upstream, error) { return u, nil }
	front := httptest.NewServer(l.proxy)
	t.Cleanup(front.CloseClientConnections)
	l.through = l.config()
	l.through.Host = front.URL
	l.northern, err = memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(dir, "nb.sock")})
	must(err)
	t.Cleanup(func() { _ = l.northern.Close() })
	l.nb, err = ovn.Connect(t.Context(), ovn.Config{Endpoints: []string{l.northern.Endpoint()}})
	must(err)
	t.Cleanup(l.nb.Close)
	l.kube, err = kubernetes.NewForConfig(l.config())
	must(err)
	types := runtime.NewScheme()
	must(errors.Join(scheme.AddToScheme(types), berthv1alpha1.AddToScheme(types), kubeovnv1.AddToScheme(types)))
	l.objs, err = client.New(l.config(), client.Options{Scheme: types})
	must(err)
	l.objects()
	l.run()
	allowed := sampler.Allowed{Duplicates: time.Second, Orphans: 2 * time.Minute, Missing: time.Minute, Quiet: 2 * time.Minute}
	l.sampling, err = sampling.Start(t.Context(), l.config(), l.northern.Endpoint(), allowed)
	must(err)
	t.Cleanup(func() { must(l.sampling.Stop()) })
	return l
}

// config reaches the API itself, and tells of no warnings.
func (l *lab) config() *rest.Config {
	c := l.api.Config()
	c.WarningHandler = rest.NoWarnings{}
	return c
}

// listen lets several listeners have one address: the kernel spreads connections over them.
func (l *lab) listen(address string) net.Listener {
	l.t.Helper()
	c := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
		var err error
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1) }), err)
	}}
	got, err := c.Listen(context.WithoutCancel(l.t.Context()), "tcp", address)
	if err != nil {
		l.t.Error(err)
	}
	return got
}

// run starts two webhooks and two workers.
func (l *lab) run() {
	ctx, stop := context.WithCancel(context.WithoutCancel(l.t.Context()))
	var running sync.WaitGroup
	l.t.Cleanup(func() { stop(); running.Wait() })
	for n := range 2 {
		l.programs = append(l.programs, supervise(ctx, &running, func(ctx context.Context, c clock.WithTicker) error {
			o := webhookapp.DefaultOptions()
			o.Config, o.Listener, o.OpsListener = rest.CopyConfig(l.through), l.listen(l.hooks), l.listen("127.0.0.1:0")
			o.Replica, o.Namespace, o.Serve.DrainDelay, o.Clock = fmt.Sprint("webhook-", n), system, 0, c
			o.Log, _ = serve.NewLogger(l.log(o.Replica), "info", "json")
			return webhookapp.Run(ctx, o)
		}))
	}
	for n := range 2 {
		l.programs = append(l.programs, supervise(ctx, &running, l.worker(fmt.Sprint("worker-", n), true)))
	}
}

func (l *lab) log(name string) *os.File {
	f, err := os.OpenFile(filepath.Join(l.logs, name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Error(err)
	}
	return f
}

func (l *lab) worker(name string, elect bool) func(context.Context, clock.WithTicker) error {
	return func(ctx context.Context, c clock.WithTicker) error {
		o := workerapp.DefaultOptions()
		o.Clock = c
		o.Config, o.OpsListener, o.Namespace = rest.CopyConfig(l.through), l.listen("127.0.0.1:0"), system
		o.Serve.MetricsAddr, o.OVN.Addr, o.Topology = "0", l.northern.Endpoint(), "ensure"
		o.Networks.PodCIDR, o.Networks.NodeCIDR = "", ""
		o.LeaderElect, o.SweepPeriod, o.PendingAge = elect, labSweep, labPending
		o.Log, _ = serve.NewLogger(l.log(name), "info", "json")
		return workerapp.Run(ctx, o)
	}
}

func (l *lab) objects() {
	path := "/mutate"
	none, ignore := registration.SideEffectClassNoneOnDryRun, registration.Ignore
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	all := []client.Object{
		&corev1.Node{ObjectMeta: meta("node-1")}, &corev1.Node{ObjectMeta: meta("node-2")},
		&kubeovnv1.Vpc{ObjectMeta: meta("ovn-cluster")},
		&kubeovnv1.Subnet{ObjectMeta: meta("ovn-default"), Spec: kubeovnv1.SubnetSpec{Default: true, CIDRBlock: "10.16.0.0/16,fd00:10:16::/112"}},
		&kubeovnv1.Subnet{ObjectMeta: meta(nsWeb), Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/24", Namespaces: []string{nsWeb}}},
		&kubeovnv1.Subnet{ObjectMeta: meta(smallSubnet), Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.18.0.0/28", Namespaces: []string{nsSmall}}},
		&registration.MutatingWebhookConfiguration{ObjectMeta: meta(webhook), Webhooks: []registration.MutatingWebhook{{
			Name: "pod.berth.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &ignore, TimeoutSeconds: new(int32(5)),
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{network.LabelInject: network.InjectEnabled}},
			ClientConfig:      registration.WebhookClientConfig{Service: &registration.ServiceReference{Namespace: system, Name: webhook, Path: &path}},
			Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
				Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}},
	}
	for _, ns := range labNamespaces() {
		all = append(all, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{network.LabelInject: network.InjectEnabled}}})
	}
	for _, o := range all {
		if err := l.objs.Create(l.t.Context(), o); err != nil {
			l.t.Fatalf("make %T %s: %v", o, o.GetName(), err)
		}
	}
}

func labNamespaces() []string { return []string{nsRoomy, nsWeb, nsSmall} }

// note counts a creation.
func (l *lab) note(p *corev1.Pod, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.made++
	} else if strings.Contains(err.Error(), "denied") && p.Name == "" && !apierrors.IsTooManyRequests(err) {
		l.denied = append(l.denied, err.Error()) // a static address may still be that of the pod before
	}
}

// churn creates, binds, ends and deletes pods until the context ends.
func (l *lab) churn(ctx context.Context, seed, who uint64) {
	random := rand.New(rand.NewPCG(seed, 3+who))
	yes := true
	set := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "set", UID: "set", Controller: &yes}}
	for ctx.Err() == nil {
		pods := l.pods(ctx)
		ns := labNamespaces()[random.IntN(3)]
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "p-", OwnerReferences: set}, Spec: podSpec()}
		switch n := random.IntN(10); {
		case n < 4 && len(pods) > 0 || len(pods) > 40:
			old := pods[random.IntN(len(pods))]
			if n%2 == 0 && old.Spec.NodeName != "" && old.DeletionTimestamp == nil {
				old.Status.Phase = corev1.PodSucceeded
				_ = l.objs.Status().Update(ctx, &old) // it may be gone
			}
			_ = l.objs.Delete(ctx, &old, client.GracePeriodSeconds(0))
		case n == 4:
			k := random.IntN(4)
			p.Namespace, p.GenerateName, p.Name, p.OwnerReferences = nsWeb, "", fmt.Sprint("static-", k), nil
			p.Annotations = map[string]string{network.Key(network.DefaultProvider, network.SuffixAddress): fmt.Sprintf("10.17.0.%d", 200+k)}
			fallthrough
		default:
			got, err := l.kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{})
			if l.note(p, err); err == nil {
				l.place(ctx, got, random.IntN(2))
			}
		}
		l.schedule(ctx, random)
		time.Sleep(time.Duration(50+random.IntN(200)) * time.Millisecond) // the pace of the churn
	}
}

// place binds a pod that no gate holds.
func (l *lab) place(ctx context.Context, p *corev1.Pod, n int) {
	if len(p.Spec.SchedulingGates) > 0 || p.Spec.NodeName != "" || p.DeletionTimestamp != nil {
		return
	}
	b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: fmt.Sprintf("node-%d", n+1)}}
	_ = l.kube.CoreV1().Pods(p.Namespace).Bind(ctx, b, metav1.CreateOptions{}) // it may be gone
}

// schedule binds what waits, sometimes.
func (l *lab) schedule(ctx context.Context, random *rand.Rand) {
	if random.IntN(8) > 0 {
		return
	}
	for _, p := range l.pods(ctx) {
		l.place(ctx, &p, random.IntN(2))
	}
}

func (l *lab) pods(ctx context.Context) []corev1.Pod {
	var list corev1.PodList
	_ = l.objs.List(ctx, &list) // an end of the context
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !slices.Contains(labNamespaces(), p.Namespace) })
}

// begin begins a fault.
func (l *lab) begin(ctx context.Context, s Step) func() {
	kill := func(ps ...*program) func() {
		if s.Target < len(ps) {
			ps = ps[s.Target : s.Target+1]
		}
		for _, p := range ps {
			p.end()
		}
		return func() {}
	}
	switch s.Kind {
	case WebhookKilled:
		return kill(l.programs[:2]...)
	case WorkerKilled:
		return kill(l.programs[2:]...)
	case WorkerTwice:
		ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
		var running sync.WaitGroup
		supervise(ctx, &running, l.worker("second", false))
		return func() { stop(); running.Wait() }
	case ClockWrong:
		p := l.programs[s.Target%len(l.programs)]
		p.setClock(time.Hour * time.Duration(1-2*(s.Target/len(l.programs))))
		return func() { p.setClock(0) }
	case BlocksDeleted:
		var list berthv1alpha1.AddressBlockList
		if err := l.objs.List(ctx, &list); err != nil {
			l.t.Error(err)
		}
		for n := 0; n < len(list.Items); n += s.Target + 1 {
			if err := client.IgnoreNotFound(l.objs.Delete(ctx, &list.Items[n])); err != nil {
				l.t.Error(err)
			}
		}
		return func() {}
	}
	return l.proxy.Begin(s.Kind)
}

// answers tells whether a pod would get an address, and a switch is there for it.
func (l *lab) answers(ctx context.Context) error {
	for _, ns := range labNamespaces() {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "try-"}, Spec: podSpec()}
		got, err := l.kube.CoreV1().Pods(ns).Create(ctx, p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if s, ok := l.nb.Switch(got.Annotations[network.Key(network.DefaultProvider, network.SuffixSubnet)]); !ok {
			return fmt.Errorf("no switch %q for %s", s.Name, ns)
		}
	}
	return nil
}

// settled tells what is not as it should be in the end.
func (l *lab) settled(ctx context.Context) error {
	var errs []error
	served, gated := map[string]int{}, map[string]int{}
	for _, p := range l.pods(ctx) {
		l.place(ctx, &p, 0)
		switch {
		case lifecycle.Ended(&p):
		case p.DeletionTimestamp == nil && p.Annotations[network.Key(network.DefaultProvider, network.SuffixRouted)] == "true":
			served[p.Namespace]++
		case p.DeletionTimestamp == nil && len(p.Spec.SchedulingGates) > 0:
			gated[p.Namespace]++
		default:
			errs = append(errs, fmt.Errorf("%s/%s is not routed", p.Namespace, p.Name))
		}
	}
	for ns, n := range gated {
		if ns != nsSmall || served[ns] < smallRoom {
			errs = append(errs, fmt.Errorf("%d of %s wait, %d are served", n, ns, served[ns]))
		}
	}
	found, err := l.sampling.Findings(ctx)
	for _, f := range found {
		errs = append(errs, fmt.Errorf("%s %s %s/%s: %s", f.Kind, f.Subject, f.Namespace, f.Pod, f.Detail))
	}
	return errors.Join(append(errs, err)...)
}

// left counts what is left after everything was deleted.
func (l *lab) left(ctx context.Context) error {
	pods := l.pods(ctx)
	for i := range pods {
		_ = l.objs.Delete(ctx, &pods[i], client.GracePeriodSeconds(0)) // it may be gone
	}
	var blocks berthv1alpha1.AddressBlockList
	var records kubeovnv1.IPList
	if err := errors.Join(l.objs.List(ctx, &blocks), l.objs.List(ctx, &records, client.HasLabels{network.ClaimKey})); err != nil {
		return err
	}
	var leases, ports []string
	for _, b := range blocks.Items {
		for _, text := range b.Spec.Leases {
			lease, err := berthv1alpha1.ParseLease(text)
			if err != nil {
				return err
			}
			if o, err := ipam.ParseOwner(lease.Owner); err != nil || !o.Reserves() {
				leases = append(leases, text)
			}
		}
	}
	for _, p := range l.nb.Ports() {
		if p.ExternalIDs["pod"] != "" {
			ports = append(ports, p.Name)
		}
	}
	if len(pods)+len(leases)+len(ports)+len(records.Items) > 0 {
		return fmt.Errorf("%d pods, %d records, leases %v, ports %v", len(pods), len(records.Items), leases, ports)
	}
	return nil
}

func (l *lab) within(limit time.Duration, what string, holds func(context.Context) error) {
	l.t.Helper()
	began := time.Now()
	if err := await.Until(l.t.Context(), what, 200*time.Millisecond, limit, holds); err != nil {
		l.t.Error(err)
		return
	}
	l.t.Logf("%s after %.1f s", what, time.Since(began).Seconds())
}

// TestFaultsInMemory plays a schedule of what needs no machine: always the same one, unless another is asked for.
func TestFaultsInMemory(t *testing.T) {
	seed := number(t, seedVariable, 1)
	t.Logf("%s=%d", seedVariable, seed)
	l := startLab(t, seed)
	l.within(time.Minute, "ready", l.answers)
	length := time.Duration(number(t, secondsVariable, 12)) * time.Second
	steps := Schedule(seed, Plan{Length: length, Every: 1200 * time.Millisecond, AtOnce: 3,
		Kinds: kinds(t, labKinds())})
	churning, stop := context.WithCancel(t.Context())
	defer stop()
	var churn, lasting sync.WaitGroup
	for who := range uint64(4) {
		churn.Go(func() { l.churn(churning, seed, who) })
	}
	began := time.Now()
	for _, s := range steps {
		time.Sleep(time.Until(began.Add(s.At))) // by the schedule, as the next two
		t.Logf("%v", s)
		lasting.Go(func() {
			end := l.begin(t.Context(), s)
			time.Sleep(s.For)
			end()
		})
	}
	lasting.Wait()
	time.Sleep(time.Until(began.Add(length)))
	stop()
	churn.Wait()
	l.within(90*time.Second, "settled", l.settled)
	l.within(90*time.Second, "empty", l.left)
	broken, samples := l.sampling.Broken()
	t.Logf("%d pods made, %d samples", l.made, samples)
	for _, v := range broken {
		t.Errorf("%v", v)
	}
	for _, d := range l.denied {
		t.Errorf("refused: %s", d)
	}
	if l.made == 0 || samples == 0 {
		t.Error("too little happened to show anything")
	}
}
