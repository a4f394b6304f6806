package app

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-net/berth/certs"
	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/internal/web"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// The index of pods that wait for an address: behind the gate, or of nobody yet.
const (
	indexWaits = "berth.dev/waits"
	waitsGated = "gated"
	waitsLate  = "late"
)

// waits is the index's value of a pod.
func waits(o client.Object) []string {
	pod, ok := o.(*corev1.Pod)
	if !ok || pod.DeletionTimestamp != nil || lifecycle.Ended(pod) {
		return nil
	}
	for _, g := range pod.Spec.SchedulingGates {
		if g.Name == network.AddressGate {
			return []string{waitsGated}
		}
	}
	if _, claimed := network.ClaimOf(pod.Annotations); claimed {
		return nil
	}
	if _, skip := network.Skip(network.PodOf(pod)); skip || pod.Status.PodIP != "" {
		return nil
	}
	return []string{waitsLate}
}

// pageServer gives what serves the page, if there is to be one, until a context ends. Whatever goes wrong with it then, the
// worker goes on: pods' networks don't hang on who looks at them.
func (o *Options) pageServer(ctx context.Context, mgr manager.Manager, ledger *ipam.Ledger, synced func() error) (func(context.Context), error) {
	if !o.Page.On() {
		return func(context.Context) {}, nil
	}
	p, err := o.page(ctx, mgr, ledger, synced)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) {
		if err := o.servePage(ctx, p); err != nil && ctx.Err() == nil {
			o.Log.Error(err, "The page has ended; the worker goes on without it")
		}
	}, nil
}

// page puts the page together from what the worker holds. Each replica has one, whoever leads.
func (o *Options) page(ctx context.Context, mgr manager.Manager, ledger *ipam.Ledger, synced func() error) (*web.Page, error) {
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Pod{}, indexWaits, waits); err != nil {
		return nil, fmt.Errorf("index pods that wait: %w", err)
	}
	eips, err := catalog.ServedEIPs(mgr.GetRESTMapper())
	if err != nil {
		return nil, err
	}
	changes := &catalog.Changes{}
	if err := changes.Watch(ctx, mgr.GetCache(), eips); err != nil {
		return nil, err
	}
	cat := catalog.New(catalog.Options{Cache: mgr.GetClient(), Live: &memo{Reader: mgr.GetAPIReader(), clock: o.Clock}, EIPs: eips, Changes: changes.Count})
	gate, err := web.NewReviewer(mgr.GetConfig(), o.Clock)
	if err != nil {
		return nil, err
	}
	self, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name this replica: %w", err)
	}
	return web.New(web.Options{
		Self: self, Ledger: ledger, Synced: synced, Topology: cat.Topology, View: cat.For, Network: o.Network, Gate: gate, Clock: o.Clock,
		Log:     o.Log.WithName("page"),
		Waiting: func(ctx context.Context) ([]*corev1.Pod, error) { return waiting(ctx, mgr.GetClient()) },
		Leader:  func(ctx context.Context) (report.Leader, error) { return o.leader(ctx, mgr.GetAPIReader(), self) },
	})
}

// waiting gives the pods that wait: those behind the gate, and those of served namespaces that have nothing of us yet.
func waiting(ctx context.Context, from client.Reader) ([]*corev1.Pod, error) {
	var namespaces corev1.NamespaceList
	if err := from.List(ctx, &namespaces, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	var out []*corev1.Pod
	add := func(value string, in ...client.ListOption) error {
		var pods corev1.PodList
		if err := from.List(ctx, &pods, append(in, client.MatchingFields{indexWaits: value}, client.UnsafeDisableDeepCopy)...); err != nil {
			return fmt.Errorf("list pods that wait: %w", err)
		}
		for i := range pods.Items {
			out = append(out, &pods.Items[i])
		}
		return nil
	}
	errs := []error{add(waitsGated)}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		if l := ns.Labels[network.LabelInject]; l == network.InjectEnabled || l == network.InjectLate {
			errs = append(errs, add(waitsLate, client.InNamespace(ns.Name)))
		}
	}
	return out, errors.Join(errs...)
}

// leader reads who leads; where nobody is elected, it is this one.
func (o *Options) leader(ctx context.Context, from client.Reader, self string) (report.Leader, error) {
	if !o.LeaderElect {
		return report.Leader{Holder: self, Alive: true}, nil
	}
	var l coordinationv1.Lease
	err := from.Get(ctx, client.ObjectKey{Namespace: o.Namespace, Name: leaseName}, &l)
	if apierrors.IsNotFound(err) {
		return report.Leader{}, nil
	}
	if err != nil {
		return report.Leader{}, fmt.Errorf("read Lease %s/%s: %w", o.Namespace, leaseName, err)
	}
	return report.LeaderOf(&l, o.Clock.Now()), nil
}

// servePage serves the page until the context ends.
func (o *Options) servePage(ctx context.Context, p *web.Page) error {
	s := serve.PageOptions{Page: o.Page, Listener: o.PageListener, Handler: p.Handler(), Log: o.Log}
	group, ctx := errgroup.WithContext(ctx)
	if o.Page.CertDir != "" {
		files, err := certs.NewFiles(certs.FilesOptions{Dir: o.Page.CertDir, Clock: o.Clock, Log: o.Log.WithName("page")})
		if err != nil {
			return fmt.Errorf("--web-cert-dir: %w", err)
		}
		s.GetCertificate = files.GetCertificate
		group.Go(func() error { return files.Run(ctx) })
	}
	group.Go(func() error { return p.Run(ctx) })
	group.Go(func() error { return serve.RunPage(ctx, s) })
	return group.Wait()
}

// memo reads live what plans look up for single pods, each object at most twice a minute: whoever looks at a page must not
// make the API server work.
type memo struct {
	client.Reader
	clock clock.PassiveClock

	mu   sync.Mutex
	read map[string]remembered
}

type remembered struct {
	obj client.Object
	err error
	at  time.Time
}

const (
	memoFor = 30 * time.Second
	memoMax = 512
)

// Get reads one object, or remembers it.
func (m *memo) Get(ctx context.Context, key client.ObjectKey, obj client.Object, opts ...client.GetOption) error {
	what := fmt.Sprintf("%T %s %s", obj, obj.GetObjectKind().GroupVersionKind(), key)
	m.mu.Lock()
	x, ok := m.read[what]
	m.mu.Unlock()
	if !ok || m.clock.Since(x.at) > memoFor {
		x = remembered{obj: obj, at: m.clock.Now(), err: m.Reader.Get(ctx, key, obj, opts...)}
		if ctx.Err() != nil {
			return x.err
		}
		x.obj, _ = obj.DeepCopyObject().(client.Object)
		m.mu.Lock()
		if m.read == nil || len(m.read) >= memoMax {
			m.read = map[string]remembered{}
		}
		m.read[what] = x
		m.mu.Unlock()
		return x.err
	}
	if x.err != nil {
		return x.err
	}
	reflect.ValueOf(obj).Elem().Set(reflect.ValueOf(x.obj.DeepCopyObject()).Elem())
	return nil
}
