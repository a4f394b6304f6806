package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
)

// DefaultTimeout bounds a request: an API server's create ends by 34 s, later answers have no reader.
const DefaultTimeout = 35 * time.Second

// ErrNoCertificate is returned by HTTPS when nothing gives it a certificate.
var ErrNoCertificate = errors.New("no certificate source: set HTTPSOptions.GetCertificate")

// HTTPSOptions configures HTTPS.
type HTTPSOptions struct {
	// Addr is listened on unless Listener is set; Listener is closed by HTTPS.
	Addr     string
	Listener net.Listener
	// Handler serves the requests. It limits bodies itself.
	Handler http.Handler
	// GetCertificate gives the serving certificate at each handshake.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Clients says who may call.
	Clients Clients
	// Ready, when set, reports the drain to the readiness endpoint.
	Ready *Checks
	// DrainDelay and Grace are as in Flags. While the delay lasts requests are served, each connection being closed
	// after its answer. A Grace of zero waits for the requests in flight as long as they take.
	DrainDelay, Grace time.Duration
	// Timeout bounds reading a request and writing its answer; zero means DefaultTimeout.
	Timeout time.Duration
	// Log gets start and drain; connection errors go to V(1). The zero value discards.
	Log logr.Logger
}

// HTTPS serves HTTP/1.1 over TLS 1.3 until the context ends and then drains: not ready, drain delay, no keep-alive, no
// new connections, grace for the requests in flight. It returns nil after a complete drain.
//
// controller-runtime's webhook.Server is not underneath: it can be given our certificates, TLS 1.3 and HTTP/1.1, but it
// takes no listener (nor port 0), sets no read and write timeouts, shuts down at once when its context ends, with a fixed
// grace of a minute, and goes on keeping connections alive until then. An API server that pools connections would meet
// closed ones in a rolling update, which costs admission its promise not to fail open.
func HTTPS(ctx context.Context, o HTTPSOptions) error {
	if o.GetCertificate == nil {
		return ErrNoCertificate
	}
	listener, err := listen(ctx, o.Listener, o.Addr)
	if err != nil {
		return err
	}
	timeout := o.Timeout
	if timeout <= 0 {
		timeout = DefaultTimeout
	}
	var draining atomic.Bool
	server := &http.Server{
		Handler: closing(o.Handler, &draining), ReadHeaderTimeout: timeout, ReadTimeout: timeout, WriteTimeout: 2 * timeout,
		IdleTimeout: 3 * time.Minute, MaxHeaderBytes: 1 << 20,
		ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(o.Log.V(1)), slog.LevelInfo),
	}
	o.Log.Info("serving HTTPS", "address", listener.Addr().String())
	served := make(chan error, 1)
	go func() {
		served <- server.Serve(tls.NewListener(listener, o.Clients.apply(TLSConfig(o.GetCertificate))))
	}()
	select {
	case err := <-served:
		return fmt.Errorf("HTTPS listener %s ended by itself, restart the program: %w", listener.Addr(), err)
	case <-ctx.Done():
	}
	draining.Store(true)
	return o.drain(ctx, server)
}

// closing ends the connection of every request that is answered while draining. Idle connections are left alone until
// the end of the drain delay: closing one just as a client sends a request on it would fail that request.
func closing(h http.Handler, draining *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if draining.Load() {
			w.Header().Set("Connection", "close")
		}
		h.ServeHTTP(w, r)
	})
}

// TLSConfig is what both ends of this project serve by: TLS 1.3, HTTP/1.1 (an API server speaks that to Services and
// spreads over pooled connections), a certificate asked for at each handshake.
func TLSConfig(get func(*tls.ClientHelloInfo) (*tls.Certificate, error)) *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}, GetCertificate: get}
}

func (o *HTTPSOptions) drain(ctx context.Context, server *http.Server) error {
	if o.Ready != nil {
		o.Ready.Add("drain", func() error { return ErrDraining })
	}
	o.Log.Info("draining", "delay", o.DrainDelay.String(), "grace", o.Grace.String())
	after := context.WithoutCancel(ctx)
	wait(after, o.DrainDelay)
	return shutdown(after, server, o.Grace)
}

// shutdown ends a server within a grace; what then still runs is cut.
func shutdown(ctx context.Context, server *http.Server, grace time.Duration) error {
	if grace > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, grace)
		defer cancel()
	}
	if err := server.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("requests outlived the grace of %s, raise --shutdown-grace: %w", grace, err), server.Close())
	}
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

func listen(ctx context.Context, have net.Listener, addr string) (net.Listener, error) {
	if have != nil {
		return have, nil
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("can't listen on %q, choose a free address: %w", addr, err)
	}
	return l, nil
}
