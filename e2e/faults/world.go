package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/internal/sampler"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

const (
	system  = "berth-system"
	webhook = "berth-webhook"
	worker  = "berth-worker"
	// disk is the size of the disk that OVN's databases are on.
	disk = "size=64m"
)

// The namespaces of the churn. The first three come with the cluster.
const (
	nsRoomy  = "demo"
	nsWeb    = "web"
	nsLate   = "late"
	nsSmall  = "small"
	nsPooled = "pooled"
)

func namespaces() []string { return []string{nsRoomy, nsWeb, nsLate, nsSmall, nsPooled} }

// The networks of the churn beside those that come with the cluster: a small one of both families, and one of IPv4 with
// a pool.
const (
	smallSubnet = "small"
	// smallRoom is how many pods fit into it.
	smallRoom    = 13
	pooledSubnet = "pooled"
	poolName     = "few"
	poolFirst    = "10.19.0.10"
	poolLast     = "10.19.0.17"
)

// Options choose a world.
type Options struct {
	// Dir is the cluster's directory, short for the sockets in it.
	Dir string
	// Seed of what the proxy draws.
	Seed uint64
	// Sweep and PendingAge are the worker's; zero: as shipped.
	Sweep, PendingAge time.Duration
	// Bin is the directory of the work tree's programs; empty: its bin.
	Bin string
	// Out hears what is done.
	Out io.Writer
}

// World is a cluster whose Berth reaches the API server through a proxy only, with two webhooks and two workers.
type World struct {
	*cluster.Cluster
	Options
	objs     client.Client
	proxy    *Proxy
	sampling *sampling.Sampling
}

// Start brings a world up.
func Start(ctx context.Context, o Options) (*World, error) {
	w := &World{Options: o}
	if err := w.start(ctx); err != nil {
		return nil, errors.Join(err, w.Close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

func (w *World) start(ctx context.Context) error {
	ovn := filepath.Join(w.Dir, "ovn")
	if err := os.MkdirAll(ovn, 0o755); err != nil {
		return fmt.Errorf("make the directory of OVN's databases: %w", err)
	}
	if err := unix.Mount("tmpfs", ovn, "tmpfs", 0, disk); err != nil {
		return fmt.Errorf("mount a small disk on %s, are you root: %w", ovn, err)
	}
	var err error
	if w.proxy, err = NewProxy(ctx, w.Dir, w.Seed); err != nil {
		return err
	}
	o := cluster.Options{Dir: w.Dir, Nodes: 2, Bin: w.Bin, Progress: w.Out, NodeArgs: []string{"--pod-api-port=" + w.proxy.Port()}}
	if w.Cluster, err = cluster.Start(ctx, o); err != nil {
		return err
	}
	types := runtime.NewScheme()
	err = errors.Join(scheme.AddToScheme(types), berthv1alpha1.AddToScheme(types), kubeovnv1.AddToScheme(types))
	if err != nil {
		return err
	}
	config := w.Config()
	config.Timeout, config.WarningHandler = 30*time.Second, rest.NoWarnings{}
	if w.objs, err = client.New(config, client.Options{Scheme: types}); err != nil {
		return fmt.Errorf("client of the faults: %w", err)
	}
	if err := errors.Join(w.makeNetworks(ctx), w.twoWorkers(ctx)); err != nil {
		return err
	}
	w.sampling, err = sampling.Start(ctx, w.Config(), w.NBSocket(), w.allowed())
	return err
}

// allowed is for how long an invariant may be seen broken while faults come. What must never be is never allowed; what
// the worker puts right may take until it can: as long as the faults that hinder it, in a row.
func (w *World) allowed() sampler.Allowed {
	const hindered = 90 * time.Second
	a := sampler.DefaultAllowed(30 * time.Second)
	a.Orphans += hindered
	a.Missing += hindered
	a.Quiet += hindered
	return a
}

// Close takes the world down.
func (w *World) Close(ctx context.Context) error {
	var errs []error
	if w.sampling != nil {
		errs = append(errs, w.sampling.Stop())
	}
	// Programs keep what they have open; the directory can only be removed without the disk on it.
	if err := unix.Unmount(filepath.Join(w.Dir, "ovn"), unix.MNT_DETACH); err != nil && !errors.Is(err, unix.EINVAL) {
		errs = append(errs, fmt.Errorf("unmount the disk of OVN's databases: %w", err))
	}
	if w.Cluster != nil {
		errs = append(errs, w.Down(ctx))
	}
	if w.proxy != nil {
		errs = append(errs, w.proxy.Close())
	}
	return errors.Join(errs...)
}

// makeNetworks adds the churn's networks and namespaces.
func (w *World) makeNetworks(ctx context.Context) error {
	meta := func(name string) metav1.ObjectMeta { return metav1.ObjectMeta{Name: name} }
	labels := map[string]string{network.LabelInject: network.InjectEnabled}
	for _, o := range []client.Object{
		&kubeovnv1.Subnet{ObjectMeta: meta(smallSubnet), Spec: kubeovnv1.SubnetSpec{Vpc: "ovn-cluster", Protocol: "Dual",
			CIDRBlock: "10.18.0.0/28,fd00:10:18::/124", Gateway: "10.18.0.1,fd00:10:18::1", GatewayType: "distributed", Namespaces: []string{nsSmall}}},
		&kubeovnv1.Subnet{ObjectMeta: meta(pooledSubnet), Spec: kubeovnv1.SubnetSpec{Vpc: "ovn-cluster", Protocol: "IPv4",
			CIDRBlock: "10.19.0.0/24", Gateway: "10.19.0.1", GatewayType: "distributed", Namespaces: []string{nsPooled}}},
		&kubeovnv1.IPPool{ObjectMeta: meta(poolName), Spec: kubeovnv1.IPPoolSpec{Subnet: pooledSubnet, IPs: []string{poolFirst + ".." + poolLast}}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nsSmall, Labels: labels}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: nsPooled, Labels: labels}},
	} {
		if err := w.objs.Create(ctx, o); err != nil {
			return fmt.Errorf("make %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// twoWorkers adds a second worker, and sets the pace of both.
func (w *World) twoWorkers(ctx context.Context) error {
	var d appsv1.Deployment
	if err := w.objs.Get(ctx, client.ObjectKey{Namespace: system, Name: worker}, &d); err != nil {
		return err
	}
	*d.Spec.Replicas = 2
	c := &d.Spec.Template.Spec.Containers[0]
	if w.Sweep > 0 {
		c.Args = append(c.Args, "--sweep-period="+w.Sweep.String())
	}
	if w.PendingAge > 0 {
		c.Args = append(c.Args, "--pending-age="+w.PendingAge.String())
	}
	if err := w.objs.Update(ctx, &d); err != nil {
		return fmt.Errorf("scale the worker: %w", err)
	}
	return w.whole(ctx)
}

// whole waits until Berth's own pods are all there, and no others.
func (w *World) whole(ctx context.Context) error {
	return await.Until(ctx, "Berth's pods are ready", lookEvery, 2*time.Minute, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.objs.List(ctx, &pods, client.InNamespace(system)); err != nil {
			return err
		}
		count := map[string]int{}
		for i := range pods.Items {
			p := &pods.Items[i]
			if !ready(p) {
				return fmt.Errorf("%s is not ready", p.Name)
			}
			count[p.Labels["app.kubernetes.io/name"]]++
		}
		for _, name := range []string{webhook, worker} {
			var d appsv1.Deployment
			if err := w.objs.Get(ctx, client.ObjectKey{Namespace: system, Name: name}, &d); err != nil {
				return err
			}
			if d.Status.ObservedGeneration < d.Generation || d.Status.UpdatedReplicas != *d.Spec.Replicas || count[name] != 2 {
				return fmt.Errorf("%d pods of %s are ready", count[name], name)
			}
		}
		return nil
	})
}

// lookEvery is the time between two looks at what is waited for.
const lookEvery = 500 * time.Millisecond

func (w *World) say(format string, args ...any) {
	if w.Out != nil {
		_, _ = fmt.Fprintf(w.Out, time.Now().Format("15:04:05.000 ")+format+"\n", args...)
	}
}

func ready(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// panics gives what Berth's programs have said when they fell over.
func (w *World) panics() ([]string, error) {
	files, err := filepath.Glob(filepath.Join(w.LogDir(), "berth-w*"))
	if err != nil {
		return nil, err
	}
	var out []string
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if strings.HasPrefix(line, "panic:") || strings.HasPrefix(line, "fatal error:") || strings.Contains(line, "Observed a panic") {
				out = append(out, filepath.Base(f)+": "+strings.TrimSpace(line))
			}
		}
	}
	return out, nil
}
