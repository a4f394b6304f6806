// Package cluster runs a real Kubernetes control plane, a real OVN and nodes made of network namespaces on one machine.
//
// Invariant: everything that a cluster makes on the machine is either recorded in its directory before it is made or
// carries the cluster's name, so that Down finds all of it, also after a crash.
package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// DefaultDir is where a cluster lives unless told otherwise.
	DefaultDir = "/tmp/berth-cluster"
	// DefaultName prefixes the network namespaces and links of the cluster in DefaultDir.
	DefaultName = "berth"
	// maxDir keeps the paths of sockets below the kernel's limit of 107 bytes.
	maxDir = 64

	// WebhookImage is the image whose containers run this work tree's webhook.
	WebhookImage = "berth.dev/webhook"
	// WorkerImage is the image whose containers run this work tree's worker.
	WorkerImage = "berth.dev/finalizer-worker"
)

// Options choose a cluster. The zero value is two nodes with Berth in the default directory.
type Options struct {
	// Dir keeps the cluster's state and logs; Name prefixes its network namespaces and links (at most 9 letters, digits
	// and dashes). An empty name is made from the directory.
	Dir, Name string
	// Repo is the root of the work tree; empty looks for it upwards from the working directory.
	Repo string
	// Nodes is how many nodes there are.
	Nodes int
	// Family is which addresses there are; empty is Dual.
	Family Family
	// NorthboundServers is how many servers the northbound database has: 1, or 3 or 5 of which one leads.
	NorthboundServers int
	// ToolsDir holds etcd, kube-apiserver and so on; empty asks hack/tools.sh, which builds them when they are missing.
	ToolsDir string
	// Bin is the directory of the programs that run; empty takes <Repo>/bin.
	Bin string
	// WebhookBin, WorkerBin and NodeBin are the programs; empty takes Bin's webhook, finalizer-worker and node-agent.
	WebhookBin, WorkerBin, NodeBin string
	// WithoutBerth leaves out Berth's own deployments and webhook configuration; its kinds and networks are there.
	WithoutBerth bool
	// BindHook has the API server ask the worker about bindings.
	BindHook bool
	// WorkerArgs are added to the worker's arguments.
	WorkerArgs []string
	// Underlay adds a physical network, with an interface PhysicalNIC on every node, for ProviderNetworks.
	Underlay bool
	// ControlPlaneOnly starts etcd and the API server with the kinds, and nothing else: no node, no OVN, no controller
	// manager, no scheduler, no networks. Nodes is ignored, and WithoutBerth is implied.
	ControlPlaneOnly bool
	// ControllerManager adds the controller manager to a control plane alone, without the controllers that judge nodes.
	ControllerManager bool
	// Run maps further images to programs that nodes run for their containers.
	Run map[string]string
	// APIServerArgs are added to the API server's flags.
	APIServerArgs []string
	// NodeArgs are added to the node agents' flags.
	NodeArgs []string
	// Progress hears what is being done; nil is silent.
	Progress io.Writer `json:"-"`
}

// AlreadyRunningError says that the directory holds a running cluster.
type AlreadyRunningError struct{ Dir string }

// Error says what to do.
func (e *AlreadyRunningError) Error() string {
	return "the cluster in " + e.Dir + " is already running; use it, or take it down first"
}

// NotFoundError says that the directory holds no cluster.
type NotFoundError struct{ Dir string }

// Error says what to do.
func (e *NotFoundError) Error() string { return "no cluster in " + e.Dir + "; start one with up" }

// Cluster is a running cluster.
type Cluster struct {
	state
	config *rest.Config
	client kubernetes.Interface
}

// Start brings up a cluster and returns when everything in it is ready. When that fails, everything is stopped again;
// the logs stay.
func Start(ctx context.Context, o Options) (*Cluster, error) {
	if err := o.complete(ctx); err != nil {
		return nil, err
	}
	if old, err := Load(o.Dir); err == nil {
		if old.anyAlive() {
			return nil, &AlreadyRunningError{o.Dir}
		}
		if err := old.Down(ctx); err != nil {
			return nil, err
		}
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "logs"), 0o755); err != nil {
		return nil, fmt.Errorf("make the cluster's directory, choose another: %w", err)
	}
	c := &Cluster{state: state{Options: o}}
	if err := c.save(); err != nil {
		return nil, err
	}
	if err := c.up(ctx); err != nil {
		return nil, fmt.Errorf("the cluster did not come up, its logs stay in %s: %w", c.LogDir(), joinStop(err, c.stop(context.WithoutCancel(ctx))))
	}
	return c, nil
}

// Load finds the cluster that lives in a directory, running or not.
func Load(dir string) (*Cluster, error) {
	c := &Cluster{}
	if err := c.load(dir); err != nil {
		return nil, err
	}
	if _, err := os.Stat(c.Kubeconfig()); err == nil {
		if err := c.connect(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Down stops everything and removes the directory. A cluster that is down already is fine.
func (c *Cluster) Down(ctx context.Context) error {
	if err := c.stop(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(c.Dir); err != nil {
		return fmt.Errorf("remove the cluster's directory: %w", err)
	}
	return nil
}

// Config is an administrator's access to the API server.
func (c *Cluster) Config() *rest.Config { return rest.CopyConfig(c.config) }

// Client is a typed client of the API server, as an administrator.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.Dir, "admin.kubeconfig") }

// Kubectl is the path of the kubectl that was built with the control plane.
func (c *Cluster) Kubectl() string { return filepath.Join(c.ToolsDir, "kubectl") }

// LogDir holds a log per process and per pod that really runs.
func (c *Cluster) LogDir() string { return filepath.Join(c.Dir, "logs") }

// SBSocket is the southbound database's socket, as ovn-sbctl's --db.
func (c *Cluster) SBSocket() string { return "unix:" + filepath.Join(c.ovnDir(), "sb.sock") }

// NodeNames lists the nodes.
func (c *Cluster) NodeNames() []string {
	names := make([]string, c.Nodes)
	for n := range names {
		names[n] = fmt.Sprintf("node-%d", n+1)
	}
	return names
}

func (c *Cluster) connect() error {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	config.QPS, config.Burst = 500, 1000
	c.config = config
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return fmt.Errorf("client of the API server: %w", err)
	}
	return nil
}

// up starts what there is, side by side where nothing depends on the other.
func (c *Cluster) up(ctx context.Context) error {
	c.say("machine network")
	if err := c.makeNetwork(ctx); err != nil {
		return err
	}
	if err := c.makeCredentials(); err != nil {
		return err
	}
	if err := c.connect(); err != nil {
		return err
	}
	if c.ControlPlaneOnly {
		return c.upControlPlane(ctx)
	}
	c.say("control plane, OVN and %d nodes on %s", c.Nodes, c.Subnet)
	group, both := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startControlPlane(both) })
	group.Go(func() error { return c.startOVN(both) })
	if err := group.Wait(); err != nil {
		return err
	}
	c.say("manifests")
	if err := c.apply(ctx); err != nil {
		return err
	}
	c.say("waiting for nodes and pods")
	return c.waitReady(ctx)
}

// upControlPlane starts what a cluster of a control plane alone has.
func (c *Cluster) upControlPlane(ctx context.Context) error {
	c.say("etcd and API server on %s", c.Subnet)
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	c.say("kinds")
	if err := c.applyKinds(ctx); err != nil || !c.ControllerManager {
		return err
	}
	// With no agent behind them, nodes would be found lost and their pods deleted.
	err := c.startControllerManager("--controllers=*,-node-lifecycle-controller,-taint-eviction-controller,-pod-garbage-collector-controller")
	if err != nil {
		return err
	}
	return c.awaitControllerManager(ctx)
}

// say tells about progress.
func (c *Cluster) say(format string, args ...any) {
	if c.Progress != nil {
		_, _ = fmt.Fprintf(c.Progress, "%s "+format+"\n", append([]any{time.Now().Format("15:04:05.0")}, args...)...)
	}
}

// complete fills in what was left open, and refuses what can't work.
func (o *Options) complete(ctx context.Context) error {
	if o.Dir == "" {
		o.Dir = DefaultDir
	}
	dir, err := filepath.Abs(o.Dir)
	if err != nil {
		return fmt.Errorf("directory %s: %w", o.Dir, err)
	}
	o.Dir = dir
	if len(dir) > maxDir {
		return fmt.Errorf("directory %s is too long for the sockets in it; choose one of at most %d characters", dir, maxDir)
	}
	if o.Name == "" {
		o.Name = nameOf(dir)
	}
	if !regexp.MustCompile(`^[a-z][a-z0-9-]{0,8}$`).MatchString(o.Name) {
		return fmt.Errorf("name %q doesn't fit into names of links; take at most 9 lower-case letters, digits and dashes", o.Name)
	}
	if err := errors.Join(o.countNodes(), o.countNorthbound(), o.chooseFamily()); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return fmt.Errorf("network namespaces need root; run this as root")
	}
	if o.Repo, err = findRepo(o.Repo); err != nil {
		return err
	}
	return o.findPrograms(ctx)
}

// countNodes settles how many nodes there are.
func (o *Options) countNodes() error {
	switch {
	case o.ControlPlaneOnly:
		o.Nodes, o.WithoutBerth = 0, true
		return nil
	case o.Nodes == 0:
		o.Nodes = 2
	}
	if o.Nodes < 1 || o.Nodes > 200 {
		return fmt.Errorf("%d nodes don't fit; take 1 to 200", o.Nodes)
	}
	return nil
}

// nameOf makes a short name out of a directory.
func nameOf(dir string) string {
	if dir == DefaultDir {
		return DefaultName
	}
	sum := sha256.Sum256([]byte(dir))
	return "b" + hex.EncodeToString(sum[:])[:6]
}

// findRepo looks for the module's root.
func findRepo(repo string) (string, error) {
	from, err := filepath.Abs(repo)
	if err != nil {
		return "", fmt.Errorf("work tree %s: %w", repo, err)
	}
	for dir := from; ; dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && strings.HasPrefix(string(text), "module github.com/berth-net/berth\n") {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("no work tree of Berth at or above %s; run this inside one or name it", from)
		}
	}
}

// findPrograms makes sure that every program is there.
func (o *Options) findPrograms(ctx context.Context) error {
	if err := o.tools(ctx); err != nil {
		return err
	}
	o.Bin = firstNonEmpty(o.Bin, filepath.Join(o.Repo, "bin"))
	bin := func(path *string, name string) { *path = firstNonEmpty(*path, filepath.Join(o.Bin, name)) }
	bin(&o.WebhookBin, "webhook")
	bin(&o.WorkerBin, "finalizer-worker")
	bin(&o.NodeBin, "node-agent")
	var needed []*string
	if !o.ControlPlaneOnly {
		needed = append(needed, &o.NodeBin)
	}
	if !o.WithoutBerth {
		needed = append(needed, &o.WebhookBin, &o.WorkerBin)
	}
	for _, p := range needed {
		abs, err := filepath.Abs(*p)
		if err != nil {
			return fmt.Errorf("program %s: %w", *p, err)
		}
		if _, err := os.Stat(abs); err != nil {
			return fmt.Errorf("%s is missing, build it with make: %w", abs, err)
		}
		*p = abs
	}
	return nil
}

func firstNonEmpty(a, b string) string {
	if a != "" {
		return a
	}
	return b
}
