package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/worker"
)

// leaseName is the name of the leader's lease.
const leaseName = "berth-worker"

// NewCommand returns the program.
func NewCommand() *cobra.Command {
	o := DefaultOptions()
	cmd := &cobra.Command{
		Use: "finalizer-worker", Short: "Wire pods, and take their addresses back when they are gone",
		Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
	}
	o.AddFlags(cmd.Flags())
	var config serve.Config
	config.Command(cmd, func(cmd *cobra.Command) error {
		var err error
		if o.Log, err = o.Serve.ProcessLogger(cmd.ErrOrStderr()); err != nil {
			return err
		}
		return Run(cmd.Context(), o)
	})
	return cmd
}

// Run works until the context ends, or until it must not go on.
func Run(ctx context.Context, o Options) error {
	if err := o.complete(os.Stderr); err != nil {
		return err
	}
	registry := prometheus.NewRegistry()
	if err := serve.RegisterBuildInfo(registry, "finalizer-worker", serve.BuildInfo()); err != nil {
		return err
	}
	ready := &serve.Checks{}
	var started atomic.Bool
	ready.Add("started", func() error {
		if !started.Load() {
			return errors.New("still connecting to the API server and the northbound database")
		}
		return nil
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		return serve.Ops(ctx, serve.OpsOptions{MetricsAddr: o.Serve.MetricsAddr, HealthAddr: o.Serve.HealthAddr,
			HealthListener: o.OpsListener, Gatherer: gatherer(registry), Ready: ready, Log: o.Log})
	})
	group.Go(func() error { return o.work(ctx, registry, ready, &started) })
	return group.Wait()
}

// linger lets binds and releases of one block share a write: nobody waits for a single one.
const linger = 4 * time.Millisecond

// gatherer adds our metrics to controller-runtime's, which have those of Go and of the process.
func gatherer(ours prometheus.Gatherer) prometheus.Gatherer {
	return prometheus.Gatherers{ours, ctrlmetrics.Registry}
}

// work connects and runs the manager.
func (o *Options) work(ctx context.Context, registry *prometheus.Registry, ready *serve.Checks, started *atomic.Bool) error {
	cfg, err := o.OVN.config()
	if err != nil {
		return err
	}
	cfg.Logger, cfg.Registerer = o.Log, registry
	northbound, err := ovn.Connect(ctx, cfg)
	if err != nil {
		return err
	}
	defer northbound.Close()
	mgr, err := o.manager()
	if err != nil {
		return err
	}
	w, store, ledger, err := o.worker(mgr, northbound, registry)
	if err != nil {
		return err
	}
	bindings, err := o.bindServer(mgr, w, registry)
	if err != nil {
		return err
	}
	if err := w.Setup(ctx, mgr); err != nil {
		return err
	}
	ready.Add("northbound", northbound.Ready)
	synced := make(chan struct{})
	ready.Add("ledger", func() error { return ledgerRead(store) })
	ready.Add("cache", func() error { return cacheFilled(synced) })
	full := func() error { return errors.Join(ledgerRead(store), cacheFilled(synced)) }
	servePage, err := o.pageServer(ctx, mgr, ledger, full)
	if err := errors.Join(err, countAddresses(ctx, registry, w, ledger, full)); err != nil {
		return err
	}
	started.Store(true)
	outer := ctx
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { servePage(ctx); return nil })
	group.Go(func() error { return bindings.keepCertificate(ctx) })
	group.Go(func() error { return store.Watch(ctx, ledger) })
	group.Go(func() error {
		if mgr.GetCache().WaitForCacheSync(ctx) {
			close(synced)
		}
		return nil
	})
	group.Go(func() error {
		err := mgr.Start(ctx)
		if err == nil && ctx.Err() == nil {
			err = errors.New("the manager ended by itself")
		}
		return err
	})
	if err := group.Wait(); outer.Err() == nil || !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

func ledgerRead(store *blockstore.Store) error {
	if !store.Synced() {
		return errors.New("the address blocks are not all read yet")
	}
	return nil
}

func cacheFilled(synced <-chan struct{}) error {
	select {
	case <-synced:
		return nil
	default:
		return errors.New("the caches are not filled yet")
	}
}

func (o *Options) manager() (manager.Manager, error) {
	types, err := worker.Scheme()
	if err != nil {
		return nil, err
	}
	mgr, err := ctrl.NewManager(o.Config, manager.Options{
		Scheme: types, Cache: worker.CacheOptions(o.Routing), Logger: o.Log,
		Client:         client.Options{Cache: &client.CacheOptions{Unstructured: true}},
		LeaderElection: o.LeaderElect, LeaderElectionID: leaseName, LeaderElectionNamespace: o.Namespace,
		LeaderElectionReleaseOnCancel: true,
		Metrics:                       metricsserver.Options{BindAddress: "0"},
	})
	if err != nil {
		return nil, fmt.Errorf("make the manager: %w", err)
	}
	return mgr, nil
}

func (o *Options) worker(mgr manager.Manager, northbound *ovn.Client, registry *prometheus.Registry) (*worker.Worker, *blockstore.Store, *ipam.Ledger, error) {
	store, err := blockstore.New(o.Config)
	if err != nil {
		return nil, nil, nil, err
	}
	random := o.Random
	if random == nil {
		random = rand.Reader
	}
	replica, err := os.Hostname()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("name this replica: %w", err)
	}
	var w *worker.Worker // it hears of freed leases from when it is made
	ledger, err := ipam.New(ipam.Options{Store: store, Replica: "worker-" + replica, Clock: o.Clock, Random: random, Linger: linger,
		Freed: func(h ipam.Held) {
			if w != nil {
				w.Freed(h)
			}
		}, Lost: func(subnet, reason string) {
			if w != nil { // else its first look finds it
				w.Lost(subnet, reason)
			}
		}})
	if err != nil {
		return nil, nil, nil, err
	}
	metrics, err := worker.NewMetrics(registry)
	if err != nil {
		return nil, nil, nil, err
	}
	w, err = worker.New(worker.Options{
		Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Ledger: ledger, LedgerSynced: store.Synced, Northbound: northbound,
		Network: o.Network, Routing: o.Routing, Recorder: mgr.GetEventRecorder("berth-worker"), Metrics: metrics, Clock: o.Clock, Random: random,
		Log: o.Log.WithName("worker"), Topology: worker.Topology(o.Topology), Networks: o.Networks, SweepPeriod: o.SweepPeriod, PendingAge: o.PendingAge,
		Concurrency: o.Concurrency, PrepareAfter: o.PrepareAfter,
	})
	return w, store, ledger, err
}
