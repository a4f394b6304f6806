// Package certs gives the webhook its serving certificate, and the API server the authority to trust it by.
//
// Invariant: at any moment every certificate that a replica serves verifies against the bundle published then, and
// against the bundle that was published a propagation delay before, while a cache may still hold that one. Exceptions
// are those that nobody can prevent: the first authority of an installation, and one lost with no replica alive.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/clock"
)

// Errors of this package, wrapped with what happened.
var (
	// ErrNoCertificate means that there is nothing valid to serve yet, or any more.
	ErrNoCertificate = errors.New("no valid serving certificate")
	// ErrForeignSecret means that somebody else manages the Secret.
	ErrForeignSecret = errors.New("the Secret is managed by cert-manager: mount it and pass --cert-source=files and --cert-dir, or choose another --cert-secret")
	// ErrOptions means that a constructor was called without something that it needs.
	ErrOptions = errors.New("incomplete certificate options")
)

// Source is where a server's certificate comes from.
type Source interface {
	// Run keeps the certificate fresh until the context ends.
	Run(ctx context.Context) error
	// GetCertificate is for tls.Config.
	GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// Healthy is nil while a valid certificate can be served.
	Healthy() error
	// CABundle is the PEM bundle to trust now; nil while unknown.
	CABundle() []byte
}

// Sources to choose from.
const (
	// SelfManaged signs by an authority of our own, in a Secret.
	SelfManaged = "self-managed"
	// MountedFiles serves what cert-manager or an operator put into a directory.
	MountedFiles = "files"
)

// Flags choose the source and the configuration that its bundle is written into.
type Flags struct {
	// Source is SelfManaged or MountedFiles.
	Source string
	// Dir holds tls.crt, tls.key and perhaps ca.crt, for MountedFiles.
	Dir string
	// Secret and Namespace name the Secret of the authority.
	Secret, Namespace string
	// Service is the Service that the API server calls.
	Service string
	// DNSNames and IPs are added to the Service's names.
	DNSNames []string
	IPs      []net.IP
	// Webhook names the webhook configurations to write the bundle into; empty for none.
	Webhook string
	// CADuration and LeafDuration are how long authority and certificates are valid, Propagation how long a new
	// authority is published before it signs.
	CADuration, LeafDuration, Propagation time.Duration
}

// DefaultFlags returns the defaults.
func DefaultFlags() Flags {
	return Flags{Source: SelfManaged, Secret: "berth-webhook-tls", Namespace: "berth-system", Service: "berth-webhook", Webhook: "berth-webhook",
		CADuration: 365 * 24 * time.Hour, LeafDuration: 24 * time.Hour, Propagation: time.Hour}
}

// Register adds the --cert-* flags, --service-name and --webhook-configuration, with the present values as defaults.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.Source, "cert-source", f.Source, "self-managed: sign for ourselves; files: serve what is in --cert-dir")
	fs.StringVar(&f.Dir, "cert-dir", f.Dir, "directory of tls.crt, tls.key and ca.crt, reloaded when they change")
	fs.StringVar(&f.Secret, "cert-secret", f.Secret, "Secret that all replicas keep their certificate authority in")
	fs.StringVar(&f.Namespace, "cert-namespace", f.Namespace, "namespace of that Secret and of the Service")
	fs.StringVar(&f.Service, "service-name", f.Service, "Service whose names the certificate carries")
	fs.StringSliceVar(&f.DNSNames, "cert-dns-names", f.DNSNames, "more DNS names for the certificate")
	fs.IPSliceVar(&f.IPs, "cert-ips", f.IPs, "IP addresses for the certificate")
	fs.StringVar(&f.Webhook, "webhook-configuration", f.Webhook,
		"mutating and validating webhook configurations of this name to keep the CA bundle in; empty when somebody else does")
	fs.DurationVar(&f.CADuration, "cert-ca-duration", f.CADuration, "validity of an authority; it is replaced after two thirds")
	fs.DurationVar(&f.LeafDuration, "cert-leaf-duration", f.LeafDuration, "validity of a certificate; it is replaced after two thirds")
	fs.DurationVar(&f.Propagation, "cert-propagation", f.Propagation, "time that a new authority is published before it signs")
}

// Deps is what Build needs beside the flags.
type Deps struct {
	// Client reads and writes the Secret and the webhook configuration.
	Client kubernetes.Interface
	// Clock is nil for the real one.
	Clock clock.WithTicker
	// Log discards as the zero value.
	Log logr.Logger
	// Metrics, when set, gets berth_certificate_expiry_timestamp_seconds.
	Metrics prometheus.Registerer
}

// Build returns the source that the flags ask for, and the injector of its bundle: nil with mounted files without a
// ca.crt, and when no webhook configuration is named. Both have to be run.
func (f *Flags) Build(d Deps) (Source, *Injector, error) {
	var source Source
	injector, err := f.injector(d, func() []byte { return source.CABundle() })
	if err != nil {
		return nil, nil, err
	}
	switch f.Source {
	case MountedFiles:
		files, err := NewFiles(FilesOptions{Dir: f.Dir, Clock: d.Clock, Log: d.Log, OnChange: injector.Notify})
		if err != nil {
			return nil, nil, err
		}
		if files.CABundle() == nil {
			injector = nil
		}
		source = files
	case SelfManaged:
		options := AuthorityOptions{Client: d.Client, Namespace: f.Namespace, Secret: f.Secret,
			DNSNames: append(ServiceNames(f.Service, f.Namespace), f.DNSNames...), IPs: f.IPs, CADuration: f.CADuration,
			LeafDuration: f.LeafDuration, Propagation: f.Propagation, OnChange: injector.Notify, Clock: d.Clock, Log: d.Log}
		if injector != nil {
			options.Trusted, options.Published = injector.Trusts, injector.Published
		}
		if source, err = NewAuthority(options); err != nil {
			return nil, nil, err
		}
	default:
		return nil, nil, fmt.Errorf("%w: --cert-source %q is unknown, use %s or %s", ErrOptions, f.Source, SelfManaged, MountedFiles)
	}
	if d.Metrics != nil {
		if err := RegisterExpiry(d.Metrics, source); err != nil {
			return nil, nil, err
		}
	}
	return source, injector, nil
}

func (f *Flags) injector(d Deps, bundle func() []byte) (*Injector, error) {
	if f.Webhook == "" {
		return nil, nil
	}
	return NewInjector(InjectorOptions{Client: d.Client, Name: f.Webhook, Bundle: bundle, Log: d.Log})
}

// ServiceNames returns the DNS names of a Service, the one that the API server verifies first.
func ServiceNames(service, namespace string) []string {
	base := service + "." + namespace
	return []string{base + ".svc", base + ".svc.cluster.local", base, service}
}

// RegisterExpiry registers berth_certificate_expiry_timestamp_seconds: when the certificate that the source serves now
// expires, 0 while there is none.
func RegisterExpiry(reg prometheus.Registerer, s Source) error {
	gauge := prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "berth_certificate_expiry_timestamp_seconds",
		Help: "Unix time at which the certificate served now expires, 0 without one."}, func() float64 {
		c, err := s.GetCertificate(nil)
		if err != nil || c.Leaf == nil {
			return 0
		}
		return float64(c.Leaf.NotAfter.Unix())
	})
	if err := reg.Register(gauge); err != nil {
		return fmt.Errorf("expiry metric is registered twice, register one source for each registry: %w", err)
	}
	return nil
}

// checkValid says whether a leaf can be served at a time.
func checkValid(leaf *x509.Certificate, now time.Time) error {
	switch {
	case leaf == nil:
		return fmt.Errorf("%w: none was made or loaded yet, see the log for the reason", ErrNoCertificate)
	case now.After(leaf.NotAfter):
		return fmt.Errorf("%w: the last one expired at %s, see the log for why it was not renewed", ErrNoCertificate, leaf.NotAfter.Format(time.RFC3339))
	case len(leaf.DNSNames)+len(leaf.IPAddresses) == 0:
		// So is an authority, which a Secret holds until cert-manager's first certificate is in it.
		return fmt.Errorf("%w: that of %q has no DNS name and no IP address which a client could verify, mount one that has", ErrNoCertificate, leaf.Subject)
	}
	return nil
}
