// Package node plays one Kubernetes node: kubelet and the stock network daemon, against a real API server and a real
// switch, with network namespaces for pods and no containers in them.
//
// Invariant: everything that the agent makes on the machine is recorded on disk before it is made, a pod's port appears
// only after its annotations say so, and a pod object is deleted only after nothing of the pod is left on the node.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// Config is one node.
type Config struct {
	// Name and IP of the Node object.
	Name, IP string
	// Cluster prefixes the names of network namespaces.
	Cluster string
	// Dir keeps the node's state, LogDir the logs of pods that really run.
	Dir, LogDir string
	// OVSDB is the switch's database, as ovs-vsctl's --db.
	OVSDB string
	// MTU of pods whose subnet doesn't say another.
	MTU int
	// PodAPIPort is the port by which the programs of pods reach the API server; 0 is the API server's own.
	PodAPIPort int
	// Run maps images to programs that are started for their containers.
	Run map[string]string
	// Slots bounds how many sandboxes are changed at once.
	Slots int
	// InstalledTimeout is how long a port may take to be installed, GatewayTimeout how long the gateway may stay silent,
	// RecordTimeout how long a missing IP record is waited for.
	InstalledTimeout, GatewayTimeout, RecordTimeout time.Duration
}

// DefaultConfig returns the contract's times; the gateway's is shorter than the daemon's 200 s.
func DefaultConfig() Config {
	return Config{
		MTU: 1400, Slots: 8, Run: map[string]string{},
		InstalledTimeout: 30 * time.Second, GatewayTimeout: 30 * time.Second, RecordTimeout: 20 * time.Second,
	}
}

// Agent runs a node.
type Agent struct {
	cfg       Config
	rest      *rest.Config
	client    kubernetes.Interface
	objects   dynamic.Interface
	log       *slog.Logger
	sandboxes *sandboxes
	// joined is how the node's own interface was last set up; the heartbeat's alone.
	joined string
	// provided are the physical networks that the node is plugged into, with their interfaces; the heartbeat's alone.
	provided map[string]string

	mu    sync.Mutex
	pods  map[types.UID]*podActor
	known map[types.UID]*Sandbox
	wg    sync.WaitGroup
}

// New prepares an agent.
func New(cfg Config, rc *rest.Config, log *slog.Logger) (*Agent, error) {
	client, err := kubernetes.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	objects, err := dynamic.NewForConfig(rc)
	if err != nil {
		return nil, fmt.Errorf("client of the API server: %w", err)
	}
	a := &Agent{
		cfg: cfg, rest: rc, client: client, objects: objects, log: log, pods: map[types.UID]*podActor{},
		sandboxes: &sandboxes{dir: filepath.Join(cfg.Dir, "sandboxes"), ovsdb: cfg.OVSDB, slots: make(chan struct{}, cfg.Slots)},
	}
	for _, dir := range []string{a.sandboxes.dir, a.runDir(), cfg.LogDir} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make the node's state directory, choose a writable one: %w", err)
		}
	}
	if a.known, err = a.sandboxes.load(); err != nil {
		return nil, err
	}
	return a, nil
}

func (a *Agent) runDir() string { return filepath.Join(a.cfg.Dir, RunDir) }

// Run registers the node and serves its pods until the context ends; pods go on then, as with a kubelet that stops.
func (a *Agent) Run(ctx context.Context) error {
	if err := a.register(ctx); err != nil {
		return err
	}
	a.wg.Go(func() { a.heartbeat(ctx) })
	factory := informers.NewSharedInformerFactoryWithOptions(a.client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", a.cfg.Name).String()
	}))
	informer := factory.Core().V1().Pods().Informer()
	handler, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) { a.observe(ctx, obj) },
		UpdateFunc: func(old, obj any) {
			if was, is := podOf(old), podOf(obj); was != nil && is != nil && was.UID != is.UID {
				a.vanished(was.UID)
			}
			a.observe(ctx, obj)
		},
		DeleteFunc: func(obj any) {
			if pod := podOf(obj); pod != nil {
				a.vanished(pod.UID)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	factory.StartWithContext(ctx)
	if cache.WaitForCacheSync(ctx.Done(), handler.HasSynced) {
		a.removeLeftovers(ctx)
	}
	<-ctx.Done()
	factory.Shutdown()
	a.wg.Wait()
	return nil
}

func podOf(obj any) *corev1.Pod {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	pod, _ := obj.(*corev1.Pod)
	return pod
}

// observe hands a pod's present state to its actor, and starts one for a new pod.
func (a *Agent) observe(ctx context.Context, obj any) {
	pod := podOf(obj)
	if pod == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.pods[pod.UID]
	if p == nil {
		p = newPodActor(a, pod, a.known[pod.UID])
		delete(a.known, pod.UID)
		a.pods[pod.UID] = p
		a.wg.Go(func() {
			p.run(ctx)
			a.mu.Lock()
			defer a.mu.Unlock()
			delete(a.pods, pod.UID)
		})
	}
	p.update(pod)
}

func (a *Agent) vanished(uid types.UID) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.pods[uid]; p != nil {
		p.vanish()
	}
}

// removeLeftovers tears down sandboxes of pods that are gone since the last agent ran.
func (a *Agent) removeLeftovers(ctx context.Context) {
	a.mu.Lock()
	left := a.known
	a.known = map[types.UID]*Sandbox{}
	a.mu.Unlock()
	for _, s := range left {
		a.log.Info("removing the sandbox of a pod that is gone", "pod", s.Namespace+"/"+s.Name, "uid", s.UID)
		a.stopRecorded(ctx, s.UID)
		if err := a.sandboxes.detach(ctx, s); err != nil && !errors.Is(err, context.Canceled) {
			a.log.Error("can't remove a sandbox", "pod", s.Namespace+"/"+s.Name, "error", err)
		}
	}
}
