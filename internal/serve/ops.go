package serve

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// OpsOptions configures Ops.
type OpsOptions struct {
	// MetricsAddr and HealthAddr are as in Flags ("0" or empty: off); listeners take precedence and are closed by Ops.
	MetricsAddr, HealthAddr         string
	MetricsListener, HealthListener net.Listener
	// Gatherer is what /metrics serves.
	Gatherer prometheus.Gatherer
	// Live and Ready are behind /healthz (and /livez) and /readyz. Nil answers ok.
	Live, Ready *Checks
	// Linger keeps the endpoints up for this time after the context's end, so that a drain is seen.
	Linger time.Duration
	// Log gets the addresses. The zero value discards.
	Log logr.Logger
}

// Ops serves /healthz, /readyz and /metrics over plain HTTP until the context ends. Equal addresses share one server.
func Ops(ctx context.Context, o OpsOptions) error {
	servers, err := o.servers(ctx)
	if err != nil {
		return err
	}
	errs := make(chan error, len(servers))
	for l, handler := range servers {
		o.Log.Info("serving health and metrics", "address", l.Addr().String())
		server := &http.Server{Handler: handler, ReadTimeout: 10 * time.Second, WriteTimeout: time.Minute}
		go func() {
			errs <- fmt.Errorf("listener %s ended by itself, restart the program: %w", l.Addr(), server.Serve(l))
		}()
		defer func() { _ = server.Close() }() // probes and scrapes may be cut
	}
	select {
	case <-ctx.Done():
		wait(context.WithoutCancel(ctx), o.Linger)
		return nil
	case err := <-errs:
		return err
	}
}

func (o *OpsOptions) servers(ctx context.Context) (map[net.Listener]http.Handler, error) {
	health, metrics := http.NewServeMux(), http.NewServeMux()
	if o.HealthAddr == o.MetricsAddr && o.HealthListener == nil && o.MetricsListener == nil {
		metrics = health
	}
	live, ready := o.Live, o.Ready
	if live == nil {
		live = &Checks{}
	}
	if ready == nil {
		ready = &Checks{}
	}
	health.Handle("/healthz", live)
	health.Handle("/livez", live)
	health.Handle("/readyz", ready)
	if o.Gatherer != nil {
		metrics.Handle("/metrics", promhttp.HandlerFor(o.Gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	}
	servers := map[net.Listener]http.Handler{}
	for _, e := range []struct {
		listener net.Listener
		addr     string
		handler  *http.ServeMux
		skip     bool
	}{{o.HealthListener, o.HealthAddr, health, false}, {o.MetricsListener, o.MetricsAddr, metrics, metrics == health}} {
		if e.skip || e.listener == nil && (e.addr == "" || e.addr == "0") {
			continue
		}
		l, err := listen(ctx, e.listener, e.addr)
		if err != nil {
			for open := range servers {
				_ = open.Close() // the reason is the other error
			}
			return nil, err
		}
		servers[l] = e.handler
	}
	return servers, nil
}

// Build names a build.
type Build struct {
	// Version is the module's version, Revision the commit, GoVersion the toolchain.
	Version, Revision, GoVersion string
}

// BuildInfo reads the build from the binary itself.
func BuildInfo() Build {
	b := Build{Version: "unknown", Revision: "unknown", GoVersion: runtime.Version()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" {
			b.Revision = s.Value
		}
	}
	return b
}

// RegisterBuildInfo registers berth_build_info{program,version,revision,goversion} with the value 1.
func RegisterBuildInfo(reg prometheus.Registerer, program string, b Build) error {
	gauge := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "berth_build_info", Help: "1, labelled with the build of this program.",
		ConstLabels: prometheus.Labels{"program": program, "version": b.Version, "revision": b.Revision, "goversion": b.GoVersion},
	})
	gauge.Set(1)
	if err := reg.Register(gauge); err != nil {
		return fmt.Errorf("berth_build_info is registered twice, register it once for each registry: %w", err)
	}
	return nil
}
