// Package demo runs the real programs in one process against an API in memory and a northbound database, which is a
// real one where OVN's programs are, and prints what it reads back from both.
//
// Invariant: what is printed is what the stored objects and a second northbound client say, never what was asked for.
package demo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"time"

	"golang.org/x/sync/errgroup"
	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	worker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhook "github.com/berth-net/berth/cmd/webhook/app"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
)

const namespace = "demo"

// world is all that runs during a demo.
type world struct {
	dir   string
	api   *memkube.Server
	kube  kubernetes.Interface
	objs  client.Client
	nb    *ovn.Client // a second client: it reads what the worker wrote
	group *errgroup.Group
	stop  []func()
}

func (w *world) close() error {
	var err error
	for i := len(w.stop) - 1; i >= 0; i-- {
		w.stop[i]()
	}
	if w.group != nil {
		if err = w.group.Wait(); errors.Is(err, context.Canceled) {
			err = nil
		}
	}
	return errors.Join(err, os.RemoveAll(w.dir))
}

func start(ctx context.Context, n northbound) (*world, error) {
	dir, err := os.MkdirTemp("", "berth-demo")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	if err := w.run(ctx, n); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) run(ctx context.Context, n northbound) error {
	address, err := n.start(ctx, w)
	if err != nil {
		return err
	}
	var listeners [3]net.Listener
	for i := range listeners {
		if listeners[i], err = (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0"); err != nil {
			return err
		}
	}
	w.api, err = memkube.Start(memkube.Options{Namespaces: []string{"berth-system"},
		ServiceURL: map[string]string{"berth-system/berth-webhook": "https://" + listeners[0].Addr().String()}})
	if err != nil {
		return err
	}
	w.stop = append(w.stop, w.api.Close)
	if w.kube, err = kubernetes.NewForConfig(w.api.Config()); err != nil {
		return err
	}
	if err := w.objects(ctx); err != nil {
		return err
	}
	if err := w.connect(ctx, address); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	w.stop = append(w.stop, cancel)
	w.group, ctx = errgroup.WithContext(ctx)
	// One after another: both set the logger of the library that they share.
	w.webhook(ctx, listeners[0], listeners[1])
	if err := ready(ctx, listeners[1]); err != nil {
		return err
	}
	w.worker(ctx, address, listeners[2])
	if err := ready(ctx, listeners[2]); err != nil {
		return err
	}
	// Pods whose switch isn't there yet are served too, but not without complaint.
	return until(ctx, "the subnets have their switches", patience, func() (bool, error) {
		_, first := w.nb.Switch("ovn-default")
		_, second := w.nb.Switch("dual")
		return first && second, nil
	})
}

// connect makes the second client. A server that has ended right after its start is not waited for without end.
func (w *world) connect(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if w.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{address}}); err != nil {
		return err
	}
	w.stop = append(w.stop, w.nb.Close)
	return nil
}

// webhook starts the run function of the webhook's binary.
func (w *world) webhook(ctx context.Context, hooks, ops net.Listener) {
	hook := webhook.DefaultOptions()
	hook.Config, hook.Listener, hook.OpsListener = w.api.Config(), hooks, ops
	hook.Replica, hook.Namespace, hook.Serve.DrainDelay = "demo", "berth-system", 0
	w.group.Go(func() error { return webhook.Run(ctx, hook) })
}

// worker starts the run function of the worker's binary.
func (w *world) worker(ctx context.Context, address string, ops net.Listener) {
	work := worker.DefaultOptions()
	work.Config, work.OpsListener, work.Namespace = w.api.Config(), ops, "berth-system"
	work.Serve.MetricsAddr, work.Serve.LogLevel, work.OVN.Addr, work.Topology = "0", "error", address, "ensure"
	work.Networks.PodCIDR, work.Networks.NodeCIDR = "", "" // the objects have all that is shown
	work.LeaderElect, work.SweepPeriod, work.PendingAge = false, time.Second, 3*time.Second
	w.group.Go(func() error { return worker.Run(ctx, work) })
}

// objects makes what an operator has: namespace, subnets, nodes, and the webhook's registration.
func (w *world) objects(ctx context.Context) error {
	scheme, err := newScheme(kubeovnv1.AddToScheme, v1alpha1.AddToScheme, corev1.AddToScheme, registration.AddToScheme)
	if err != nil {
		return err
	}
	if w.objs, err = client.New(w.api.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	path := "/mutate"
	none, fail := registration.SideEffectClassNoneOnDryRun, registration.Fail
	for _, o := range []client.Object{
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, Labels: map[string]string{"berth.dev/inject": "enabled"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-1"}}, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-2"}},
		&kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ovn-default"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16"}},
		&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "dual"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/24,fd00:10:17::/120"}},
		&registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"},
			Webhooks: []registration.MutatingWebhook{{Name: "pod.berth.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
				NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"berth.dev/inject": "enabled"}},
				ClientConfig:      registration.WebhookClientConfig{Service: &registration.ServiceReference{Namespace: "berth-system", Name: "berth-webhook", Path: &path}},
				Rules: []registration.RuleWithOperations{{Operations: []registration.OperationType{registration.Create},
					Rule: registration.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}},
	} {
		if err := w.objs.Create(ctx, o); err != nil {
			return fmt.Errorf("making %T %s: %w", o, o.GetName(), err)
		}
	}
	return nil
}

// ready waits until a program answers that it is ready.
func ready(ctx context.Context, ops net.Listener) error {
	url := "http://" + ops.Addr().String() + "/readyz"
	return until(ctx, url+" answers", patience, func() (bool, error) {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return false, err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return false, nil // not listening yet
		}
		return resp.StatusCode == http.StatusOK, resp.Body.Close()
	})
}
