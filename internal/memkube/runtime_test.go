package memkube_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"

	"github.com/berth-net/berth/internal/memkube"
)

// A manager with leader election, cached reads and a controller runs against it, configured by its kubeconfig, which
// leaves controller-runtime free to send protobuf.
func TestControllerRuntime(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	s, _ := start(t, memkube.Options{TLS: true})
	ctx, cancel := context.WithCancel(within(t))
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), kubeovnv1.AddToScheme(types)); err != nil {
		t.Fatal(err)
	}
	kubeconfig := must[[]byte](t)(s.Kubeconfig())
	cfg, err := clientcmd.RESTConfigFromKubeConfig(kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	skip := true // the test may run several times in one process
	lease, renew, again := 3*time.Second, 2*time.Second, 200*time.Millisecond
	mgr := must[manager.Manager](t)(ctrl.NewManager(cfg, manager.Options{Scheme: types, LeaderElection: true, LeaderElectionID: "berth",
		LeaderElectionNamespace: "default", LeaderElectionReleaseOnCancel: true, LeaseDuration: &lease, RenewDeadline: &renew, RetryPeriod: &again,
		Metrics: metricsserver.Options{BindAddress: "0"}}))
	seen := make(chan string, 10)
	handle := reconcile.Func(func(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
		var p corev1.Pod
		if err := mgr.GetClient().Get(ctx, r.NamespacedName, &p); err != nil {
			return reconcile.Result{}, client.IgnoreNotFound(err)
		}
		if p.Labels["seen"] == "" {
			old := p.DeepCopy()
			p.Labels = map[string]string{"seen": "yes"}
			return reconcile.Result{}, mgr.GetClient().Patch(ctx, &p, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
		}
		seen <- p.Name
		return reconcile.Result{}, nil
	})
	if err := ctrl.NewControllerManagedBy(mgr).For(&corev1.Pod{}).
		WithOptions(controller.Options{SkipNameValidation: &skip}).Complete(handle); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	select {
	case <-mgr.Elected():
	case err := <-ended:
		t.Fatal(err)
	case <-ctx.Done():
		t.Fatal("never elected")
	}
	c := must[client.Client](t)(client.New(cfg, client.Options{Scheme: types}))
	if err := c.Create(ctx, pod("a")); err != nil {
		t.Fatal(err)
	}
	select {
	case <-seen:
	case <-ctx.Done():
		t.Fatal("the controller never saw its own write")
	}
	crud(ctx, t, c)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func crud(ctx context.Context, t *testing.T, c client.Client) {
	t.Helper()
	sn := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	if err := c.Create(ctx, sn); err != nil {
		t.Fatal(err)
	}
	stale := sn.DeepCopy()
	sn.Labels = map[string]string{"a": "b"}
	if err := c.Update(ctx, sn); err != nil {
		t.Fatal(err)
	}
	stale.Annotations = map[string]string{"x": "y"}
	if err := c.Update(ctx, stale); !apierrors.IsConflict(err) {
		t.Errorf("stale update: %v", err)
	}
	if err := c.Delete(ctx, sn, client.Preconditions{UID: &sn.UID, ResourceVersion: &sn.ResourceVersion}); err != nil {
		t.Fatal(err)
	}
	if err := c.Get(ctx, client.ObjectKeyFromObject(sn), sn); !apierrors.IsNotFound(err) {
		t.Errorf("after deletion: %v", err)
	}
}
