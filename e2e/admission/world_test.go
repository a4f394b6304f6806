//go:build e2e

package admission

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	worker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhook "github.com/berth-net/berth/cmd/webhook/app"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/internal/sampler"
	"github.com/berth-net/berth/internal/serve"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

const (
	// pendingAge is the worker's at the tests' pace. What rests on the shipped one says so.
	pendingAge  = 8 * time.Second
	sweepPeriod = time.Second
	patience    = time.Minute
	system      = "berth-system"
	node        = "node-1"
)

// world is all that runs.
type world struct {
	*cluster.Cluster
	objs     client.Client
	nb       *ovn.Client // a second client: it reads what the worker wrote
	server   *memnb.Server
	balancer *balancer
	other    *otherHook
	replicas []replica
	sampling *sampling.Sampling
	// stopWorker ends the worker and gives its error.
	stopWorker func() error
	stop       []func() error
}

// replica is one webhook of ours.
type replica struct{ name, hook, ops string }

// close ends everything, what was started last first.
func (w *world) close(ctx context.Context) error {
	var errs []error
	if w.stopWorker != nil {
		errs = append(errs, w.stopWorker())
	}
	for i := len(w.stop) - 1; i >= 0; i-- {
		errs = append(errs, w.stop[i]())
	}
	if suite.Keep() {
		return errors.Join(errs...)
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	return errors.Join(append(errs, w.Down(ctx))...)
}

// northbound starts the database in memory, and the second client.
func (w *world) northbound(ctx context.Context) error {
	var err error
	if w.server, err = memnb.Start(ctx, memnb.Options{Socket: filepath.Join(w.Dir, "nb.sock")}); err != nil {
		return err
	}
	w.stop = append(w.stop, w.server.Close)
	if w.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{w.server.Endpoint()}}); err != nil {
		return err
	}
	w.stop = append(w.stop, func() error { w.nb.Close(); return nil })
	return nil
}

// sample has a sampler watch the world.
func (w *world) sample(ctx context.Context) error {
	var err error
	if w.sampling, err = sampling.Start(ctx, w.Config(), w.server.Endpoint(), sampler.DefaultAllowed(30*time.Second)); err != nil {
		return err
	}
	w.stop = append(w.stop, w.sampling.Stop)
	return nil
}

// register makes what an operator makes: namespace, VPC, a node, the shipped registration of our webhook, and that of
// another one, which comes after it.
func (w *world) register(ctx context.Context) error {
	var err error
	if w.balancer, err = newBalancer(ctx); err != nil {
		return err
	}
	w.other = newOtherHook()
	w.stop = append(w.stop, w.balancer.close, w.other.close)
	ours, err := w.shipped()
	if err != nil {
		return err
	}
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: system}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node}},
		&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}},
		ours, w.other.registration(),
	} {
		if err := w.objs.Create(ctx, o); err != nil {
			return fmt.Errorf("make %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// shipped is the registration of the manifests, which here calls the balancer, and refuses where nobody answers: so a
// test sees it when a pod passes by.
func (w *world) shipped() (*registration.MutatingWebhookConfiguration, error) {
	text, err := os.ReadFile(filepath.Join(w.Repo, "manifests", "base", "webhook-configuration.yaml"))
	if err != nil {
		return nil, err
	}
	var c registration.MutatingWebhookConfiguration
	if err := yaml.UnmarshalStrict(text, &c); err != nil {
		return nil, err
	}
	url, fail := "https://"+w.balancer.address()+"/mutate", registration.Fail
	for i := range c.Webhooks {
		c.Webhooks[i].ClientConfig = registration.WebhookClientConfig{URL: &url}
		c.Webhooks[i].FailurePolicy = &fail
	}
	return &c, nil
}

// config is the access of a program of its own.
func (w *world) config(qps float32) *rest.Config {
	c := w.Config()
	c.QPS, c.Burst = qps, int(2*qps)
	return c
}

func (w *world) log(name string) (logr.Logger, error) {
	file, err := os.OpenFile(filepath.Join(w.LogDir(), name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return logr.Logger{}, err
	}
	w.stop = append(w.stop, file.Close)
	return serve.NewLogger(file, "info", "json")
}

func listen(ctx context.Context) (net.Listener, error) {
	return (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
}

// webhook runs the webhook's program until the world ends, as a replica behind the balancer.
func (w *world) webhook(ctx context.Context, name string) error {
	hook, err := listen(ctx)
	if err != nil {
		return err
	}
	ops, err := listen(ctx)
	if err != nil {
		return err
	}
	o := webhook.DefaultOptions()
	o.Config, o.Listener, o.OpsListener = w.config(1000), hook, ops
	o.Replica, o.Namespace, o.Serve.DrainDelay = name, system, 0
	o.Certs.Namespace, o.Certs.IPs = system, []net.IP{net.IPv4(127, 0, 0, 1)}
	if o.Log, err = w.log("webhook-" + name); err != nil {
		return err
	}
	w.stop = append(w.stop, run(ctx, func(ctx context.Context) error { return webhook.Run(ctx, o) }))
	r := replica{name: name, hook: "https://" + hook.Addr().String() + "/mutate", ops: "http://" + ops.Addr().String()}
	if err := ready(ctx, r.ops); err != nil {
		return err
	}
	w.replicas = append(w.replicas, r)
	w.balancer.add(hook.Addr().String())
	return nil
}

// work runs the worker's program, in the place of the one that runs.
func (w *world) work(ctx context.Context, age time.Duration) error {
	if w.stopWorker != nil {
		if err := w.stopWorker(); err != nil {
			return err
		}
		w.stopWorker = nil
	}
	ops, err := listen(ctx)
	if err != nil {
		return err
	}
	o := worker.DefaultOptions()
	o.Config, o.OpsListener, o.Namespace, o.Serve.MetricsAddr = w.config(1000), ops, system, "0"
	o.OVN.Addr, o.Topology, o.LeaderElect, o.SweepPeriod, o.PendingAge = w.server.Endpoint(), "ensure", false, sweepPeriod, age
	o.Networks.PodCIDR, o.Networks.NodeCIDR = "", ""
	if o.Log, err = w.log("worker"); err != nil {
		return err
	}
	w.stopWorker = run(ctx, func(ctx context.Context) error { return worker.Run(ctx, o) })
	return ready(ctx, "http://"+ops.Addr().String())
}

// run runs a program, also past the end of the context; the function that it gives ends it.
func run(ctx context.Context, program func(context.Context) error) func() error {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan error, 1)
	go func() { ended <- program(ctx) }()
	return func() error {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			return err
		}
		return nil
	}
}

func until(ctx context.Context, what string, limit time.Duration, ok func(context.Context) (bool, error)) error {
	if err := wait.PollUntilContextTimeout(ctx, 20*time.Millisecond, limit, true, ok); err != nil {
		return fmt.Errorf("waiting until %s: %w", what, err)
	}
	return nil
}

// ready waits until a program answers that it is ready.
func ready(ctx context.Context, ops string) error {
	return until(ctx, ops+" is ready", patience, func(ctx context.Context) (bool, error) {
		code, _, err := get(ctx, ops+"/readyz")
		return err == nil && code == http.StatusOK, nil
	})
}

// admits waits until the API server calls both webhooks.
func (w *world) admits(ctx context.Context) error {
	if err := w.space(ctx, space{name: "first", cidr: "10.200.0.0/24", labels: map[string]string{otherLabel: "yes"}}); err != nil {
		return err
	}
	return until(ctx, "the API server calls the webhooks", patience, func(ctx context.Context) (bool, error) {
		before := w.other.count("first")
		p, err := w.Client().CoreV1().Pods("first").Create(ctx, pod("first", nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err == nil && p.Annotations[network.ClaimKey] == network.ClaimPreview && w.other.count("first") > before, nil
	})
}
