// Package demo runs the real programs in one process against an API in memory and a real northbound database, and
// prints what it reads back from both.
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
	"os/exec"
	"path/filepath"
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

// northbound starts ovsdb-server with the installed schema and returns its address.
func (w *world) northbound(ctx context.Context) (string, error) {
	const schema = "/usr/share/ovn/ovn-nb.ovsschema"
	if _, err := os.Stat(schema); err != nil {
		return "", fmt.Errorf("the demo needs OVN's northbound database: apt-get install ovn-central (%w)", err)
	}
	db, sock := filepath.Join(w.dir, "nb.db"), filepath.Join(w.dir, "nb.sock")
	if out, err := exec.CommandContext(ctx, "ovsdb-tool", "create", db, schema).CombinedOutput(); err != nil {
		return "", fmt.Errorf("ovsdb-tool: %w: %s", err, out)
	}
	cmd := exec.Command("ovsdb-server", "--remote=punix:"+sock, "--unixctl="+filepath.Join(w.dir, "ctl"), db)
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("ovsdb-server: %w", err)
	}
	w.stop = append(w.stop, func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return "unix:" + sock, nil
}

func start(ctx context.Context) (*world, error) {
	dir, err := os.MkdirTemp("", "berth-demo")
	if err != nil {
		return nil, err
	}
	w := &world{dir: dir}
	if err := w.run(ctx); err != nil {
		return nil, errors.Join(err, w.close())
	}
	return w, nil
}

func (w *world) run(ctx context.Context) error {
	address, err := w.northbound(ctx)
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
	if w.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{address}}); err != nil {
		return err
	}
	w.stop = append(w.stop, w.nb.Close)
	ctx, cancel := context.WithCancel(ctx)
	w.stop = append(w.stop, cancel)
	w.group, ctx = errgroup.WithContext(ctx)
	w.programs(ctx, address, listeners)
	for _, l := range listeners[1:] {
		if err := ready(ctx, "http://"+l.Addr().String()+"/readyz"); err != nil {
			return err
		}
	}
	return nil
}

// programs starts the run functions of both binaries.
func (w *world) programs(ctx context.Context, address string, ls [3]net.Listener) {
	hook := webhook.DefaultOptions()
	hook.Config, hook.Listener, hook.OpsListener = w.api.Config(), ls[0], ls[1]
	hook.Replica, hook.Namespace, hook.Serve.DrainDelay = "demo", "berth-system", 0
	w.group.Go(func() error { return webhook.Run(ctx, hook) })
	work := worker.DefaultOptions()
	work.Config, work.OpsListener, work.Namespace = w.api.Config(), ls[2], "berth-system"
	work.Serve.MetricsAddr, work.Serve.LogLevel, work.OVN.Addr, work.Topology = "0", "error", address, "ensure"
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
func ready(ctx context.Context, url string) error {
	return until(ctx, url+" answers", func() (bool, error) {
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
