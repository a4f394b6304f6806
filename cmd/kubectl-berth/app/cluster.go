package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/serve"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/network"
)

// Names of what is installed.
const (
	webhookName = "berth-webhook"
	workerName  = "berth-worker"
	leaseName   = "berth-worker"
	secretName  = "berth-webhook-tls"
	// podHook is the webhook for pods: the same configuration has those for bindings, too.
	podHook = "pod.berth.dev"
)

// page is how many objects are read at once.
const page = 500

// cluster is a connection to the API server.
type cluster struct {
	*env
	client client.Client
	store  ipam.Store
}

// connect makes the connection. Nothing is read yet.
func (e *env) connect() (*cluster, error) {
	cfg, err := e.flags.ToRESTConfig()
	if err != nil {
		return nil, fmt.Errorf("the API server is not known, give --kubeconfig or --context: %w", err)
	}
	cfg = rest.CopyConfig(cfg)
	cfg.UserAgent, cfg.QPS, cfg.Burst = "kubectl-berth", 200, 400
	cfg.ContentType, cfg.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), catalog.AddToScheme(types)); err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("the API server can't be talked to, check --server and the credentials: %w", err)
	}
	store, err := blockstore.New(cfg)
	if err != nil {
		return nil, err
	}
	return &cluster{env: e, client: c, store: readOnly{store}}, nil
}

// readOnly is a store that refuses all writes.
type readOnly struct{ ipam.Store }

// Write refuses.
func (readOnly) Write(_ context.Context, b *ipam.Block) (*ipam.Block, error) {
	return nil, fmt.Errorf("address block %s is only looked at: %w", b.Name, ipam.ErrRefused)
}

// Delete refuses.
func (readOnly) Delete(_ context.Context, b *ipam.Block) error {
	return fmt.Errorf("address block %s is only looked at: %w", b.Name, ipam.ErrRefused)
}

// settings are what the installation's Deployments say.
type settings struct {
	network         network.Config
	topology        string
	secret, hook    string
	rest            time.Duration
	webhook, worker *appsv1.Deployment // nil: not installed
}

// settings reads the Deployments. What they don't say is as the programs have it by default.
func (c *cluster) settings(ctx context.Context) (settings, error) {
	s := settings{}
	var err error
	if s.webhook, err = c.deployment(ctx, c.namespace, webhookName); err != nil {
		return s, err
	}
	if s.worker, err = c.deployment(ctx, c.namespace, workerName); err != nil {
		return s, err
	}
	arg := func(d *appsv1.Deployment, name, otherwise string) string { return cmp.Or(argument(d, name), otherwise) }
	s.network = serve.DefaultNetwork()
	flags := pflag.NewFlagSet("network", pflag.ContinueOnError)
	serve.RegisterNetwork(flags, &s.network)
	var errs []error
	flags.VisitAll(func(f *pflag.Flag) {
		if value := argument(s.worker, f.Name); value != "" {
			errs = append(errs, f.Value.Set(value))
		}
	})
	if err := errors.Join(errs...); err != nil {
		return s, fmt.Errorf("arguments of Deployment %s/%s: %w", c.namespace, workerName, err)
	}
	s.topology = arg(s.worker, "topology", "external")
	s.secret, s.hook = arg(s.webhook, "cert-secret", secretName), arg(s.webhook, "webhook-configuration", webhookName)
	if s.rest, err = time.ParseDuration(arg(s.webhook, "address-rest", "1m")); err != nil {
		s.rest = time.Minute
	}
	return s, nil
}

// deployment reads one; nil when there is none.
func (c *cluster) deployment(ctx context.Context, namespace, name string) (*appsv1.Deployment, error) {
	var d appsv1.Deployment
	err := c.client.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &d)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read Deployment %s/%s: %w: check --kubeconfig and --context, and that you may read it", namespace, name, err)
	}
	return &d, nil
}

// argument is the value of a flag in the arguments of the Deployment's containers: the last one, as for the programs.
func argument(d *appsv1.Deployment, name string) (found string) {
	if d == nil {
		return ""
	}
	for _, container := range d.Spec.Template.Spec.Containers {
		args := append(append([]string{}, container.Command...), container.Args...)
		for i, a := range args {
			if value, ok := strings.CutPrefix(a, "--"+name+"="); ok {
				found = value
			}
			if a == "--"+name && i+1 < len(args) {
				found = args[i+1]
			}
		}
	}
	return found
}

// ledger reads all blocks, live, and what is in them.
func (c *cluster) ledger(ctx context.Context, s settings) (*ipam.Ledger, []*ipam.Block, error) {
	l, err := ipam.New(ipam.Options{Store: c.store, Replica: "kubectl-berth", Clock: c.clock, Random: rand.Reader, Rest: s.rest})
	if err != nil {
		return nil, nil, err
	}
	blocks, err := c.store.List(ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: check that the CRD addressblocks.berth.dev is installed and that you may list it", err)
	}
	for _, b := range blocks {
		l.Observe(b)
	}
	return l, blocks, nil
}

// topology reads all that is no single pod's.
func (c *cluster) topology(ctx context.Context) (network.Catalog, error) {
	reader, err := c.catalog()
	if err != nil {
		return network.Catalog{}, err
	}
	cat, err := reader.Topology(ctx)
	if err != nil {
		return cat, fmt.Errorf("%w: check that the CRDs of kubeovn.io are installed and that you may list them", err)
	}
	return cat, nil
}

func (c *cluster) catalog() (*catalog.Catalog, error) {
	eips, err := catalog.ServedEIPs(c.client.RESTMapper())
	if err != nil {
		return nil, err
	}
	return catalog.New(catalog.Options{Cache: c.client, Live: c.client, EIPs: eips}), nil
}

// eachPod calls do with all pods, a page at a time.
func (c *cluster) eachPod(ctx context.Context, p *progress, do func(*corev1.Pod)) error {
	for token := ""; ; {
		var list corev1.PodList
		if err := c.client.List(ctx, &list, client.Limit(page), client.Continue(token)); err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range list.Items {
			do(&list.Items[i])
		}
		p.add(len(list.Items))
		if token = list.Continue; token == "" {
			return nil
		}
	}
}

// progress tells how far something long has come, once a second.
type progress struct {
	env  *env
	what string

	mu    sync.Mutex
	done  int
	since time.Time
}

func (e *env) progress(what string) *progress {
	return &progress{env: e, what: what, since: e.clock.Now()}
}

func (p *progress) add(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
	if now := p.env.clock.Now(); now.Sub(p.since) >= time.Second {
		p.since = now
		say(p.env.ErrOut, "%d %s", p.done, p.what)
	}
}

// say writes a line for people. When it can't be written, nobody is left to hear of it.
func say(w io.Writer, format string, args ...any) {
	_, _ = fmt.Fprintf(w, format+"\n", args...)
}

// suggest gives what may stand somewhere on the command line.
type suggest func(ctx context.Context, toComplete string) ([]string, error)

// complete completes the values of a flag.
func (e *env) complete(cmd *cobra.Command, flag string, s suggest) {
	err := cmd.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
		return offer(cmd, s, text)
	})
	if err != nil { // there is no such flag
		cobra.CompErrorln(err.Error())
	}
}

// completeArgs completes the first argument.
func completeArgs(s suggest) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return offer(cmd, s, text)
	}
}

func offer(cmd *cobra.Command, s suggest, text string) ([]string, cobra.ShellCompDirective) {
	names, err := s(cmd.Context(), text)
	if err != nil {
		cobra.CompDebugln(err.Error(), false)
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, n := range names {
		if strings.HasPrefix(n, text) {
			out = append(out, n)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
