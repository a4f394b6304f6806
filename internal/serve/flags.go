// Package serve holds what the webhook and the worker share around their work: flags, client configuration, logging,
// the health and metrics server, the TLS listener and the graceful drain.
//
// Invariant: a server never stops accepting before it has said for the drain delay that it is not ready, and never
// answers a request that it accepted with a cut connection while the grace lasts.
package serve

import (
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// Flags are the settings that both servers have.
type Flags struct {
	// MetricsAddr is where /metrics listens; "0" turns it off.
	MetricsAddr string
	// HealthAddr is where /healthz and /readyz listen; "0" turns it off. Equal to MetricsAddr, one server serves both.
	HealthAddr string
	// Kubeconfig is the path of a kubeconfig file; empty means the environment's or the cluster's.
	Kubeconfig string
	// LogLevel is debug, info, warn, error or a number (-4 is debug; lower numbers say more).
	LogLevel string
	// LogFormat is json or text.
	LogFormat string
	// QPS and Burst limit this program's own requests to the API server.
	QPS   float32
	Burst int
	// DrainDelay is how long a stopping server reports "not ready" before it stops accepting.
	DrainDelay time.Duration
	// Grace is how long requests in flight may take after that.
	Grace time.Duration
}

// DefaultFlags returns the defaults.
func DefaultFlags() Flags {
	return Flags{
		MetricsAddr: ":8080", HealthAddr: ":8081", LogLevel: "info", LogFormat: "json", QPS: 1000, Burst: 2000,
		DrainDelay: 5 * time.Second, Grace: 15 * time.Second,
	}
}

// Register adds the flags to a flag set, with the present values as defaults.
func (f *Flags) Register(fs *pflag.FlagSet) {
	fs.StringVar(&f.MetricsAddr, "metrics-bind-address", f.MetricsAddr, "address of /metrics, \"0\" for none")
	fs.StringVar(&f.HealthAddr, "health-probe-bind-address", f.HealthAddr, "address of /healthz and /readyz, \"0\" for none")
	fs.StringVar(&f.Kubeconfig, "kubeconfig", f.Kubeconfig,
		"kubeconfig file; empty takes the KUBECONFIG variable, then the service account of the pod")
	fs.StringVar(&f.LogLevel, "log-level", f.LogLevel, "debug, info, warn, error or a number; lower says more")
	fs.StringVar(&f.LogFormat, "log-format", f.LogFormat, "json or text")
	fs.Float32Var(&f.QPS, "kube-api-qps", f.QPS, "own requests to the API server per second; below 0 for no limit")
	fs.IntVar(&f.Burst, "kube-api-burst", f.Burst, "own requests to the API server in one burst")
	fs.DurationVar(&f.DrainDelay, "drain-delay", f.DrainDelay, "time to report not ready before closing the listener")
	fs.DurationVar(&f.Grace, "shutdown-grace", f.Grace, "time that requests in flight have after the drain delay")
}

// RESTConfig returns the client configuration that the flags ask for: RESTConfig plus the limits and the program's name.
func (f *Flags) RESTConfig(userAgent string) (*rest.Config, error) {
	cfg, err := RESTConfig(f.Kubeconfig)
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst = f.QPS, f.Burst
	if userAgent != "" {
		cfg.UserAgent = userAgent
	}
	return cfg, nil
}

// RESTConfig finds the API server: the given kubeconfig file, else the files of the KUBECONFIG variable, else the
// service account of the pod.
func RESTConfig(kubeconfig string) (*rest.Config, error) {
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: kubeconfig}
	if kubeconfig == "" {
		env := os.Getenv(clientcmd.RecommendedConfigPathEnvVar)
		if env == "" {
			cfg, err := rest.InClusterConfig()
			if err != nil {
				return nil, fmt.Errorf("no API server known: outside a pod pass --kubeconfig or set %s, inside mount the service account: %w",
					clientcmd.RecommendedConfigPathEnvVar, err)
			}
			return cfg, nil
		}
		rules = &clientcmd.ClientConfigLoadingRules{Precedence: splitList(env)}
	}
	cfg, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig can't be used, check its path, its current-context and its users: %w", err)
	}
	return cfg, nil
}
