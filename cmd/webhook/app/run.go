package app

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/certs"
	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/admission"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

// Run serves until the context ends, and then drains.
func Run(ctx context.Context, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	p, err := newProgram(o)
	if err != nil {
		return err
	}
	return p.run(ctx)
}

// program is the pieces of one webhook.
type program struct {
	Options
	registry *prometheus.Registry
	cache    cache.Cache
	changes  catalog.Changes
	eips     []schema.GroupVersionKind
	topology *catalog.Catalog
	losses   *catalog.Losses
	synced   atomic.Bool
	store    *blockstore.Store
	ledger   *ipam.Ledger
	stock    *ipam.Stock // nil: no leases are taken ahead
	source   certs.Source
	injector *certs.Injector
	handler  http.Handler
	ready    serve.Checks
}

func newProgram(o Options) (*program, error) {
	p := &program{Options: o, registry: prometheus.NewRegistry()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := serve.RegisterBuildInfo(p.registry, "webhook", serve.BuildInfo()); err != nil {
		return nil, err
	}
	for _, make := range []func() error{p.makeCache, p.makeLedger, p.makeCerts, p.makeHandler} {
		if err := make(); err != nil {
			return nil, err
		}
	}
	p.ready.Add("topology", func() error {
		if !p.synced.Load() {
			return errors.New("subnets, VPCs, VLANs and namespaces are still being read")
		}
		return nil
	})
	p.ready.Add("ledger", func() error {
		if !p.store.Synced() {
			return errors.New("the ledger is still being read")
		}
		return nil
	})
	p.ready.Add("certificate", p.source.Healthy)
	if p.injector != nil {
		p.ready.Add("ca-bundle", p.injector.Healthy)
	}
	return p, nil
}

func (p *program) makeCache() error {
	scheme := runtime.NewScheme()
	if err := catalog.AddToScheme(scheme); err != nil {
		return fmt.Errorf("registering the kinds: %w", err)
	}
	live, err := client.New(p.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("making the client of the topology: %w", err)
	}
	if p.cache, err = cache.New(p.Config, catalog.CacheOptions(scheme)); err != nil {
		return fmt.Errorf("making the cache of the topology, check that the API server can be reached: %w", err)
	}
	if p.eips, err = catalog.ServedEIPs(live.RESTMapper()); err != nil {
		return err
	}
	p.losses = catalog.NewLosses()
	p.losses.Client = live
	p.topology = catalog.New(catalog.Options{Cache: p.cache, Live: live, EIPs: p.eips, Changes: p.changes.Count})
	return nil
}

func (p *program) makeLedger() error {
	var err error
	if p.store, err = blockstore.New(p.Config); err != nil {
		return fmt.Errorf("making the store of the ledger: %w", err)
	}
	counters, err := newLedgerMetrics(p.registry)
	if err != nil {
		return err
	}
	p.ledger, err = ipam.New(ipam.Options{Store: p.store, Replica: p.Replica, Clock: p.Clock, Random: p.Random, Rest: p.Rest, Metrics: counters,
		Lost: p.losses.Lost})
	p.losses.Ledger, p.losses.Random, p.losses.Clock = p.ledger, p.Random, p.Clock
	p.losses.Failed = func(err error) { p.Log.Error(err, "A subnet whose leases are lost could not be marked") }
	if err != nil || p.Ahead == 0 {
		return err
	}
	p.stock = ipam.NewStock(p.ledger, p.Ahead)
	return registerStock(p.registry, p.stock)
}

func (p *program) makeCerts() error {
	kube, err := kubernetes.NewForConfig(p.Config)
	if err != nil {
		return fmt.Errorf("making the client of the certificates: %w", err)
	}
	p.source, p.injector, err = p.Certs.Build(certs.Deps{Client: kube, Clock: p.Clock, Log: p.Log.WithName("certs"), Metrics: p.registry})
	return err
}

func (p *program) makeHandler() error {
	var ledger admission.Ledger = p.ledger
	if p.stock != nil {
		ledger = p.stock
	}
	h, err := admission.NewHandler(admission.Options{Ledger: ledger, Topology: p.topology, Config: p.Network, Pods: p.topology.Claims,
		Random: p.Random, Clock: p.Clock, Margin: p.Margin, Concurrency: p.Concurrency, Metrics: p.registry, Log: p.Log.WithName("admission")})
	if err != nil {
		return err
	}
	apiServer, _ := netip.ParseAddr(os.Getenv("KUBERNETES_SERVICE_HOST")) // outside of a cluster it is not known
	v, err := admission.NewValidateHandler(admission.ValidateOptions{Ledger: p.ledger, Surroundings: p.topology, Config: p.Network, APIServer: apiServer,
		Clock: p.Clock, Margin: p.Margin, Metrics: p.registry, Log: p.Log.WithName("validation")})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle("/mutate", p.whenLoaded(h))
	mux.Handle("/validate", p.whenLoaded(v))
	p.handler = mux
	return nil
}

// whenLoaded fails calls that come before topology and ledger are read: plans and refusals would be made of half of
// them.
func (p *program) whenLoaded(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !p.synced.Load() || !p.store.Synced() {
			http.Error(w, "not ready: topology and ledger are still being read", http.StatusServiceUnavailable)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// run runs all pieces. What admission needs outlives the context until admission has drained.
func (p *program) run(ctx context.Context) error {
	backing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, backing := errgroup.WithContext(backing)
	front, end := context.WithCancel(ctx)
	defer end()
	go func() { // a piece that fails ends the rest
		<-backing.Done()
		end()
	}()
	p.startBacking(backing, g)
	g.Go(func() error {
		defer stop()
		return p.serveAdmission(front)
	})
	err := g.Wait()
	if ctx.Err() != nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

func (p *program) startBacking(ctx context.Context, g *errgroup.Group) {
	piece := func(name string, run func(context.Context) error) {
		g.Go(func() error {
			if err := run(ctx); err != nil && ctx.Err() == nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	piece("cache of the topology", p.cache.Start)
	piece("reading the topology", p.sync)
	piece("watch of the ledger", func(ctx context.Context) error { return p.store.Watch(ctx, p.ledger) })
	piece("losses of the ledger", p.losses.Run)
	if p.stock != nil {
		piece("leases taken ahead", p.stock.Run)
	}
	piece("certificate", p.source.Run)
	if p.injector != nil {
		piece("CA bundle", p.injector.Run)
	}
	piece("health and metrics", func(ctx context.Context) error {
		o := serve.OpsOptions{MetricsAddr: p.Serve.MetricsAddr, HealthAddr: p.Serve.HealthAddr, Gatherer: p.registry, Ready: &p.ready, Log: p.Log}
		if p.OpsListener != nil { // one listener for both
			return serveOps(ctx, p.OpsListener, o)
		}
		return serve.Ops(ctx, o)
	})
}

// sync starts the informers and waits for them.
func (p *program) sync(ctx context.Context) error {
	if err := p.changes.Watch(ctx, p.cache, p.eips); err != nil {
		return err
	}
	if !p.cache.WaitForCacheSync(ctx) {
		return nil // the context ended
	}
	p.synced.Store(true)
	return nil
}

func (p *program) serveAdmission(ctx context.Context) error {
	return serve.HTTPS(ctx, serve.HTTPSOptions{Addr: fmt.Sprintf(":%d", p.Port), Listener: p.Listener, Handler: p.handler,
		GetCertificate: p.source.GetCertificate, Clients: p.Clients, Ready: &p.ready, DrainDelay: p.Serve.DrainDelay, Grace: p.Serve.Grace, Log: p.Log})
}
