// Package app is the webhook's program: flags, and the pieces put together.
//
// Invariant: the program says that it is ready only while it could answer a pod: topology and ledger are read, and the
// API server trusts the certificate that it serves.
package app

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/certs"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/admission"
	"github.com/berth-net/berth/pkg/network"
)

// Options of the webhook. DefaultOptions has the defaults.
type Options struct {
	Serve   serve.Flags
	Certs   certs.Flags
	Clients serve.Clients
	Network network.Config
	// Port of admission on all addresses, unless Listener is set.
	Port int
	// Concurrency is how many requests are answered at once; Margin is kept of a call's time for the way back.
	Concurrency int
	Margin      time.Duration
	// Rest is how long a freed address rests while others are free.
	Rest time.Duration
	// Ahead is how old leases may be that were taken before their pods asked for them; zero: none are taken ahead.
	Ahead time.Duration
	// Topology is TopologyEnsure or TopologyExternal, as the worker's.
	Topology string
	// Replica names this process among its peers; Namespace is where it runs.
	Replica, Namespace string

	// Config is nil for what the flags say.
	Config *rest.Config
	// Listener serves admission, OpsListener health and metrics; nil for what the flags say.
	Listener, OpsListener net.Listener
	// Clock is nil for the real one, Random for the system's.
	Clock  clock.WithTicker
	Random io.Reader
	// Log is what Run logs to. NewCommand makes it from the flags.
	Log logr.Logger
}

// Who realises the topology: Berth alone, or Kube-OVN's controller.
const (
	TopologyEnsure   = "ensure"
	TopologyExternal = "external"
)

// maxAhead leaves of the minute, after which a worker frees a lease that no pod carries, what a creation may take in the API
// server (34 s) and more.
const maxAhead = 10 * time.Second

// DefaultOptions returns the defaults; replica and namespace come from POD_NAME and POD_NAMESPACE.
func DefaultOptions() Options {
	o := Options{Serve: serve.DefaultFlags(), Certs: certs.DefaultFlags(), Port: 9443, Concurrency: admission.DefaultConcurrency,
		Margin: admission.DefaultMargin, Rest: time.Minute, Ahead: 5 * time.Second, Topology: TopologyExternal, Replica: os.Getenv("POD_NAME"), Namespace: os.Getenv("POD_NAMESPACE"),
		Network: serve.DefaultNetwork()}
	if o.Replica == "" {
		o.Replica, _ = os.Hostname() // empty is refused later
	}
	if o.Namespace != "" {
		o.Certs.Namespace = o.Namespace
	}
	return o
}

// AddFlags adds the flags, with the present values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Serve.Register(fs)
	o.Certs.Register(fs)
	o.Clients.Register(fs)
	fs.IntVar(&o.Port, "webhook-port", o.Port, "port of admission")
	fs.IntVar(&o.Concurrency, "max-concurrent-requests", o.Concurrency, "pods answered at once; more are told to try again")
	fs.DurationVar(&o.Margin, "timeout-margin", o.Margin, "part of a call's time that is kept for the way back")
	fs.DurationVar(&o.Rest, "address-rest", o.Rest, "time that a freed address rests while others are free")
	fs.DurationVar(&o.Ahead, "lease-ahead", o.Ahead, "age at which a lease that was taken before a pod asked for it is given back; 0: none are taken ahead")
	fs.StringVar(&o.Replica, "replica", o.Replica, "name of this process among its peers")
	serve.RegisterNetwork(fs, &o.Network)
	fs.StringVar(&o.Topology, "topology", o.Topology, "as the worker's. ensure: no controller of Kube-OVN runs in this cluster; external: it does")
}

// Validate tells what is missing.
func (o *Options) Validate() error {
	var errs []error
	if o.Replica == "" {
		errs = append(errs, errors.New("the replica has no name: pass --replica or set POD_NAME"))
	}
	if o.Listener == nil && (o.Port < 1 || o.Port > 65535) {
		errs = append(errs, fmt.Errorf("--webhook-port %d is no port", o.Port))
	}
	if o.Ahead < 0 || o.Ahead > maxAhead {
		errs = append(errs, fmt.Errorf("--lease-ahead %s is not between 0 and %s: a lease that no pod carries is freed after a minute", o.Ahead, maxAhead))
	}
	if o.Network.DefaultSubnet == "" {
		errs = append(errs, errors.New("there is no default subnet: pass --default-ls"))
	}
	if o.Topology != TopologyEnsure && o.Topology != TopologyExternal {
		errs = append(errs, fmt.Errorf("--topology=%s is unknown: use %s or %s", o.Topology, TopologyEnsure, TopologyExternal))
	}
	errs = append(errs, o.Clients.Validate())
	return errors.Join(errs...)
}

func (o *Options) complete() error {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Random == nil {
		o.Random = rand.Reader
	}
	if o.Config == nil {
		cfg, err := o.Serve.RESTConfig("berth-webhook")
		if err != nil {
			return err
		}
		o.Config = cfg
	}
	o.Network.Alone = o.Topology == TopologyEnsure
	return o.Validate()
}

// NewCommand makes the program's command.
func NewCommand() *cobra.Command {
	o := DefaultOptions()
	cmd := &cobra.Command{Use: "webhook", Short: "Give new pods their addresses at admission", Args: cobra.NoArgs,
		SilenceUsage: true, SilenceErrors: true}
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
