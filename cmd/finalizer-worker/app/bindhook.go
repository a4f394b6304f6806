package app

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/berth-net/berth/certs"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/worker"
)

const (
	// leaderService is the Service that leads to the worker that leads.
	leaderService = "berth-worker-leader"
	// bindRetry is the time until the hook is served again after it could not be.
	bindRetry = 2 * time.Second
	// bindGrace is what answers in flight have at the end; they need less.
	bindGrace = time.Second
)

// BindHook says whether the API server asks this worker about bindings, and where.
type BindHook struct {
	// On has it asked.
	On bool
	// Port is listened on, on all addresses, while this worker leads.
	Port int
	// Address is that of the pod, by which the API server reaches it.
	Address string
	// Limit is how long an answer may take.
	Limit time.Duration
}

// registerBindHook adds the flags, with the present values as defaults. The bundle is the webhook's to write.
func (o *Options) registerBindHook(fs *pflag.FlagSet) {
	fs.BoolVar(&o.BindHook.On, "bind-hook", o.BindHook.On, "have the API server ask about bindings, so that a pod is bound and routed in one write; needs manifests/components/bind-hook")
	fs.IntVar(&o.BindHook.Port, "bind-hook-port", o.BindHook.Port, "port of that, open while this worker leads")
	fs.StringVar(&o.BindHook.Address, "bind-hook-address", o.BindHook.Address, "address by which the API server reaches this pod; empty takes the variable POD_IP")
	fs.DurationVar(&o.BindHook.Limit, "bind-hook-limit", o.BindHook.Limit, "time that a binding is held up at most; what is not done by then follows it")
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.Certs.Register(all)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Name != "webhook-configuration" {
			fs.AddFlag(f)
		}
	})
	o.Clients.Register(fs)
}

// validate tells what is missing.
func (b BindHook) validate() error {
	if !b.On {
		return nil
	}
	var errs []error
	if b.Port < 1 || b.Port > 65535 {
		errs = append(errs, fmt.Errorf("--bind-hook-port %d is no port", b.Port))
	}
	if b.Limit <= 0 || b.Limit > worker.MaxBindLimit {
		errs = append(errs, fmt.Errorf("--bind-hook-limit=%s: choose more than 0 and at most %s", b.Limit, worker.MaxBindLimit))
	}
	if _, err := netip.ParseAddr(b.Address); err != nil {
		errs = append(errs, fmt.Errorf("--bind-hook-address: %q is no address: set POD_IP to the pod's status.podIP", b.Address))
	}
	return errors.Join(errs...)
}

// bindServer serves a BindHook while this worker leads.
type bindServer struct {
	worker   *worker.Worker
	hook     *worker.BindHook
	endpoint *worker.BindEndpoint
	source   certs.Source
	https    serve.HTTPSOptions
	options  *Options
}

// bindServer puts the hook together; nil when it is off.
func (o *Options) bindServer(mgr manager.Manager, w *worker.Worker, registry prometheus.Registerer) (*bindServer, error) {
	if !o.BindHook.On {
		return nil, nil
	}
	kube, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make the client of the certificates: %w", err)
	}
	log := o.Log.WithName("bind")
	source, _, err := o.Certs.Build(certs.Deps{Client: kube, Clock: o.Clock, Log: log, Metrics: registry})
	if err != nil {
		return nil, err
	}
	address, err := netip.ParseAddr(o.BindHook.Address)
	if err != nil {
		return nil, fmt.Errorf("--bind-hook-address: %w", err)
	}
	hook := worker.NewBindHook(w, o.BindHook.Limit)
	s := &bindServer{worker: w, hook: hook, source: source, options: o,
		endpoint: &worker.BindEndpoint{Client: mgr.GetClient(), Live: mgr.GetAPIReader(), Clock: o.Clock, Log: log,
			Service: client.ObjectKey{Namespace: o.Certs.Namespace, Name: o.Certs.Service}, Address: address, Port: int32(o.BindHook.Port)},
		https: serve.HTTPSOptions{Addr: fmt.Sprintf(":%d", o.BindHook.Port), Handler: hook.Handler(), GetCertificate: source.GetCertificate,
			Clients: o.Clients, Grace: bindGrace, Log: log}}
	if err := mgr.Add(s); err != nil { // as all that the leader alone does
		return nil, fmt.Errorf("serve bindings: %w", err)
	}
	return s, nil
}

// keepCertificate keeps the certificate fresh, on standbys too: it is there when one begins to lead. Whatever goes wrong
// with it, the worker goes on, and pods are connected when they have their nodes.
func (s *bindServer) keepCertificate(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return s.again(ctx, "The certificate for bindings is not kept", s.source.Run)
}

// Start serves while this worker leads. Nobody listens on a standby.
func (s *bindServer) Start(ctx context.Context) error {
	select {
	case <-s.worker.Leading():
	case <-ctx.Done():
		return nil
	}
	return s.again(ctx, "Bindings are not answered", func(ctx context.Context) error {
		group, ctx := errgroup.WithContext(ctx)
		group.Go(func() error { return serve.HTTPS(ctx, s.https) })
		group.Go(func() error { return s.endpoint.Run(ctx) })
		group.Go(func() error { return s.hook.Run(ctx) })
		return group.Wait()
	})
}

// again runs something until ctx ends, also when it fails.
func (s *bindServer) again(ctx context.Context, problem string, run func(context.Context) error) error {
	for {
		err := run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		s.options.Log.Error(err, problem+"; it will be tried again")
		select {
		case <-ctx.Done():
			return nil
		case <-s.options.Clock.After(bindRetry):
		}
	}
}
