// Package app puts the worker together: flags, connections, manager and health.
//
// Invariant: whatever ends the process, other than the end of its context, is an error; so it is restarted and elected
// anew, and never goes on with half of its parts.
package app

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/certs"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/topology"
	"github.com/berth-net/berth/pkg/worker"
)

// Options of the program. AddFlags sets the first part; the rest is for those who run it inside another program.
type Options struct {
	Serve   serve.Flags
	Network network.Config
	// OVN says where the northbound database is.
	OVN OVN
	// Routing is what the installation has beside subnets.
	Routing worker.Routing
	// Topology is ensure or external.
	Topology string
	// Networks are made under ensure where they don't exist.
	Networks topology.Networks
	// LeaderElect makes sure that only one worker works. Off, this one works at once.
	LeaderElect bool
	// Namespace of the leader's lease; empty means the pod's own, else kube-system.
	Namespace string
	// SweepPeriod is the time between sweeps, PendingAge how long a lease without a pod is watched.
	SweepPeriod, PendingAge time.Duration
	// Concurrency is how many pods are worked on at once.
	Concurrency int
	// PrepareAfter is how long a new pod may be without a node until its ports are made.
	PrepareAfter time.Duration
	// Page is where people look at addresses.
	Page serve.Page
	// BindHook is where the API server asks about bindings, Certs its certificate, Clients who may call it.
	BindHook BindHook
	Certs    certs.Flags
	Clients  serve.Clients

	// Config of the API client; nil takes that of the flags.
	Config *rest.Config
	// OpsListener serves health and metrics instead of the addresses of the flags.
	OpsListener net.Listener
	// PageListener serves the page instead of the address of the flags; Page must be on.
	PageListener net.Listener
	// Clock, Random and Log; nil and the zero value mean the real ones, and what the flags ask for.
	Clock  clock.WithTicker
	Random io.Reader
	Log    logr.Logger
}

// OVN says how to reach the northbound database.
type OVN struct {
	// Addr is a comma-separated list of remotes.
	Addr string
	// CACert, Cert and Key are files, for ssl remotes.
	CACert, Cert, Key string
	// TimeoutSeconds bounds one call.
	TimeoutSeconds int
}

// DefaultOptions returns the defaults.
func DefaultOptions() Options {
	o := Options{
		Serve:   serve.DefaultFlags(),
		Network: serve.DefaultNetwork(),
		OVN: OVN{Addr: "unix:/run/ovn/ovnnb_db.sock", CACert: "/var/run/tls/cacert", Cert: "/var/run/tls/cert", Key: "/var/run/tls/key",
			TimeoutSeconds: 60},
		Routing: worker.Routing{EnableLB: true, EnableEIPSNAT: true, ExternalNamespace: "kube-system", ExternalSubnet: "external",
			ServiceCIDRs: "10.96.0.0/12"},
		Networks: topology.Networks{PodCIDR: "10.16.0.0/16", NodeCIDR: "100.64.0.0/16"},
		Topology: string(worker.External), LeaderElect: true, Namespace: os.Getenv("POD_NAMESPACE"),
		SweepPeriod: 30 * time.Second, PendingAge: lifecycle.DefaultPendingAge, Concurrency: 256, PrepareAfter: 10 * time.Second,
		Page:     serve.Page{Addr: "0"},
		BindHook: BindHook{Port: 9444, Address: os.Getenv("POD_IP"), Limit: worker.DefaultBindLimit}, Certs: certs.DefaultFlags(),
	}
	o.Certs.Service, o.Certs.Webhook = leaderService, ""
	o.Certs.Namespace = cmp.Or(o.Namespace, o.Certs.Namespace)
	return o
}

// AddFlags adds the flags, with the present values as defaults.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	o.Serve.Register(fs)
	serve.RegisterNetwork(fs, &o.Network)
	fs.BoolVar(&o.Routing.EnableLB, "enable-lb", o.Routing.EnableLB, "load balancers are on")
	fs.BoolVar(&o.Routing.EnableEIPSNAT, "enable-eip-snat", o.Routing.EnableEIPSNAT, "realise pods' EIP and SNAT annotations")
	fs.StringVar(&o.Routing.ExternalNamespace, "external-gateway-config-ns", o.Routing.ExternalNamespace, "namespace of the ConfigMap ovn-external-gw-config")
	fs.StringVar(&o.Routing.ExternalSubnet, "external-gateway-switch", o.Routing.ExternalSubnet, "subnet whose gateway is the external one when the ConfigMap has none")
	fs.StringVar(&o.Routing.ServiceCIDRs, "service-cluster-ip-range", o.Routing.ServiceCIDRs, "addresses of Services, one network or one of each family, joined by a comma")
	fs.StringVar(&o.OVN.Addr, "ovn-nb-addr", o.OVN.Addr, "northbound database: tcp:HOST:PORT, ssl:HOST:PORT or unix:/PATH, several joined by commas")
	fs.StringVar(&o.OVN.CACert, "ovn-ca-cert", o.OVN.CACert, "CA certificate of ssl remotes")
	fs.StringVar(&o.OVN.Cert, "ovn-cert", o.OVN.Cert, "own certificate for ssl remotes")
	fs.StringVar(&o.OVN.Key, "ovn-key", o.OVN.Key, "key of that certificate")
	fs.IntVar(&o.OVN.TimeoutSeconds, "ovn-timeout", o.OVN.TimeoutSeconds, "seconds that one call to the northbound database may take")
	fs.StringVar(&o.Topology, "topology", o.Topology, "ensure: realise Subnets and Vpcs; external: somebody else does")
	fs.StringVar(&o.Networks.PodCIDR, "default-cidr", o.Networks.PodCIDR, "under --topology=ensure: network of the subnet --default-ls, or one of each family joined by a comma, where that subnet doesn't exist; empty: make none")
	fs.StringVar(&o.Networks.PodGateway, "default-gateway", o.Networks.PodGateway, "gateway in --default-cidr, empty: its first address")
	fs.StringVar(&o.Networks.PodExclude, "default-exclude-ips", o.Networks.PodExclude, "addresses and ranges (10.16.0.2..10.16.0.9) in --default-cidr that no pod gets")
	fs.StringVar(&o.Networks.NodeCIDR, "node-switch-cidr", o.Networks.NodeCIDR, "under --topology=ensure: network of the subnet --node-switch, or one of each family joined by a comma, where that subnet doesn't exist; empty: make none")
	fs.StringVar(&o.Networks.NodeGateway, "node-switch-gateway", o.Networks.NodeGateway, "gateway in --node-switch-cidr, empty: its first address")
	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "work only while holding the leader's lease")
	fs.StringVar(&o.Namespace, "leader-elect-namespace", o.Namespace, "namespace of the leader's lease")
	fs.DurationVar(&o.SweepPeriod, "sweep-period", o.SweepPeriod, "time between sweeps")
	fs.DurationVar(&o.PendingAge, "pending-age", o.PendingAge, "how long a lease without a pod is watched before it is freed")
	o.Page.Register(fs)
	o.registerBindHook(fs)
	fs.IntVar(&o.Concurrency, "concurrency", o.Concurrency, "pods that are worked on at once")
	fs.DurationVar(&o.PrepareAfter, "prepare-after", o.PrepareAfter, "time that a new pod may be without a node until its ports are made; most have one by then, and one transaction does it all")
}

// complete fills in what is missing and checks the rest.
func (o *Options) complete(stderr io.Writer) error {
	if t := worker.Topology(o.Topology); t != worker.Ensure && t != worker.External {
		return fmt.Errorf("--topology=%s is unknown: use %s or %s", o.Topology, worker.Ensure, worker.External)
	}
	for part := range strings.SplitSeq(o.Routing.ServiceCIDRs, ",") {
		if _, err := netip.ParsePrefix(strings.TrimSpace(part)); err != nil && part != "" {
			return fmt.Errorf("--service-cluster-ip-range: %q is no network: write it like 10.96.0.0/12", part)
		}
	}
	if err := o.completeNetworks(); err != nil {
		return err
	}
	if err := errors.Join(o.Page.Validate(), o.BindHook.validate(), o.Clients.Validate()); err != nil {
		return err
	}
	if o.SweepPeriod < 0 || o.PendingAge < 0 {
		return errors.New("--sweep-period and --pending-age must not be negative")
	}
	if o.Namespace == "" {
		o.Namespace = "kube-system"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	var err error
	if o.Log.GetSink() == nil {
		if o.Log, err = serve.NewLogger(stderr, o.Serve.LogLevel, o.Serve.LogFormat); err != nil {
			return err
		}
	}
	if o.Config == nil {
		if o.Config, err = o.Serve.RESTConfig("berth-finalizer-worker"); err != nil {
			return err
		}
	}
	if o.Config.QPS == 0 {
		o.Config = rest.CopyConfig(o.Config)
		o.Config.QPS, o.Config.Burst = o.Serve.QPS, o.Serve.Burst
	}
	return nil
}

// completeNetworks leaves away what nobody needs, and refuses what can't be made.
func (o *Options) completeNetworks() error {
	if worker.Topology(o.Topology) != worker.Ensure || o.Network.NonPrimary {
		o.Networks = topology.Networks{} // somebody else has the nodes' and the pods' networks
		return nil
	}
	_, _, err := o.Networks.Objects(topology.Config{ClusterRouter: o.Network.ClusterRouter, DefaultSubnet: o.Network.DefaultSubnet, NodeSwitch: o.Network.NodeSwitch})
	if err != nil {
		return fmt.Errorf("--default-cidr, --node-switch-cidr and what belongs to them: %w", err)
	}
	return nil
}

func (o OVN) config() (ovn.Config, error) {
	endpoints, err := ovn.ParseEndpoints(o.Addr)
	if err != nil {
		return ovn.Config{}, fmt.Errorf("--ovn-nb-addr: %w", err)
	}
	return ovn.Config{Endpoints: endpoints, CACert: o.CACert, Cert: o.Cert, Key: o.Key,
		Timeout: time.Duration(o.TimeoutSeconds) * time.Second}, nil
}
