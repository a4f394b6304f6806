package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
)

// ErrOpenPage is of a page that would send tokens over the network in the clear.
var ErrOpenPage = errors.New("tokens would pass in the clear: give a certificate by --web-cert-dir, or listen on the loopback only and use kubectl port-forward")

// Page says where the page for people is served.
type Page struct {
	// Addr is listened on; "0" or empty: there is no page. Without certificates it must be of the loopback.
	Addr string
	// CertDir holds tls.crt and tls.key; empty: no TLS.
	CertDir string
}

// Register adds the flags, with the present values as defaults.
func (p *Page) Register(fs *pflag.FlagSet) {
	fs.StringVar(&p.Addr, "web-bind-address", p.Addr, "address of the page that shows who has which address, \"0\" for none; without --web-cert-dir one of the loopback, like 127.0.0.1:8084, for kubectl port-forward")
	fs.StringVar(&p.CertDir, "web-cert-dir", p.CertDir, "directory of tls.crt and tls.key for that page, reloaded when they change; empty: plain HTTP")
}

// On tells that there is a page.
func (p Page) On() bool { return p.Addr != "" && p.Addr != "0" }

// Validate refuses a page whose viewers' tokens others could read.
func (p Page) Validate() error {
	if !p.On() || p.CertDir != "" {
		return nil
	}
	host, _, err := net.SplitHostPort(p.Addr)
	if err != nil {
		return fmt.Errorf("--web-bind-address=%s: write it like 127.0.0.1:8084: %w", p.Addr, err)
	}
	if a, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !a.IsLoopback()) {
		return fmt.Errorf("--web-bind-address=%s: %w", p.Addr, ErrOpenPage)
	}
	return nil
}

// PageOptions configures RunPage.
type PageOptions struct {
	Page
	// Listener is served instead of Page.Addr, and closed.
	Listener net.Listener
	Handler  http.Handler
	// GetCertificate gives the certificate at each handshake; nil: plain HTTP.
	GetCertificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Log may be the zero value.
	Log logr.Logger
}

// RunPage serves the page until the context ends. Requests in flight are cut then: whoever looks asks again.
func RunPage(ctx context.Context, o PageOptions) error {
	listener, err := listen(ctx, o.Listener, o.Addr)
	if err != nil {
		return fmt.Errorf("--web-bind-address: %w", err)
	}
	o.Log.Info("serving the page", "address", listener.Addr().String(), "tls", o.GetCertificate != nil)
	if o.GetCertificate != nil {
		listener = tls.NewListener(listener, TLSConfig(o.GetCertificate))
	}
	server := &http.Server{
		Handler: o.Handler, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 10 * time.Second, WriteTimeout: 30 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(logr.ToSlogHandler(o.Log.V(1)), slog.LevelInfo),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	select {
	case <-ctx.Done():
		return nil
	case err := <-ended:
		return fmt.Errorf("listener %s of the page ended by itself, restart the program: %w", listener.Addr(), err)
	}
}
