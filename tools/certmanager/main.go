// Command certmanager runs, in one process, those controllers of cert-manager that the shipped cert-manager overlays
// need: issuers that sign for themselves and by an authority, certificates, and the injector of CA bundles. They are
// cert-manager's own, from the version of its module that the product is built with.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/controller"
	"github.com/cert-manager/cert-manager/pkg/controller/cainjector"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/approver"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/ca"
	"github.com/cert-manager/cert-manager/pkg/controller/certificaterequests/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/issuing"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/keymanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/readiness"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/requestmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/revisionmanager"
	"github.com/cert-manager/cert-manager/pkg/controller/certificates/trigger"
	"github.com/cert-manager/cert-manager/pkg/controller/issuers"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/ca"
	_ "github.com/cert-manager/cert-manager/pkg/issuer/selfsigned"
	"github.com/cert-manager/cert-manager/pkg/util"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// resourceNamespace is where cert-manager looks for what cluster-wide issuers need; there are none.
const resourceNamespace = "cert-manager"

func main() {
	flags := flag.NewFlagSet("certmanager", flag.ExitOnError) // the common one has flags of modules used
	kubeconfig := flags.String("kubeconfig", "", "how to reach the API server")
	_ = flags.Parse(os.Args[1:]) // it exits on an error
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ctrl.SetLogger(klog.Background())
	if err := run(ctx, *kubeconfig); err != nil && !errors.Is(err, context.Canceled) {
		fmt.Fprintln(os.Stderr, "certmanager:", err)
		os.Exit(1)
	}
}

// run runs all controllers until the context ends or one of them fails.
func run(ctx context.Context, kubeconfig string) error {
	group, ctx := errgroup.WithContext(ctx)
	if err := certificates(ctx, group, kubeconfig); err != nil {
		return err
	}
	if err := injector(ctx, group, kubeconfig); err != nil {
		return err
	}
	return group.Wait()
}

// wanted are the controllers from a Certificate to its Secret.
func wanted() []string {
	return []string{
		issuers.ControllerName, approver.ControllerName, ca.CRControllerName, selfsigned.CRControllerName,
		issuing.ControllerName, keymanager.ControllerName, readiness.ControllerName, requestmanager.ControllerName,
		revisionmanager.ControllerName, trigger.ControllerName,
	}
}

// certificates starts the controllers of issuers and certificates.
func certificates(ctx context.Context, group *errgroup.Group, kubeconfig string) error {
	factory, err := controller.NewContextFactory(ctx, controller.ContextOptions{
		Kubeconfig:       kubeconfig,
		KubernetesAPIQPS: 50, KubernetesAPIBurst: 100,
		IssuerOptions: controller.IssuerOptions{ClusterResourceNamespace: resourceNamespace},
		CertificateOptions: controller.CertificateOptions{
			CertificateRequestMinimumBackoffDuration: time.Hour,
			CertificateRequestMaximumBackoffDuration: 32 * time.Hour,
		},
	})
	if err != nil {
		return fmt.Errorf("reach the API server: %w", err)
	}
	shared, err := factory.Build()
	if err != nil {
		return fmt.Errorf("build the informers: %w", err)
	}
	known := controller.Known()
	for _, name := range wanted() {
		build, ok := known[name]
		if !ok {
			return fmt.Errorf("cert-manager has no controller %q any more", name)
		}
		c, err := build(factory)
		if err != nil {
			return fmt.Errorf("build %s: %w", name, err)
		}
		group.Go(func() error { return c.Run(2, ctx) }) // it waits for its informers
	}
	shared.SharedInformerFactory.Start(ctx.Done())
	shared.KubeSharedInformerFactory.Start(ctx.Done())
	return nil
}

// injector starts the injector of CA bundles into webhook configurations.
func injector(ctx context.Context, group *errgroup.Group, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return fmt.Errorf("read the kubeconfig: %w", err)
	}
	config = util.RestConfigWithUserAgent(config, "cainjector") // it applies under that name
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, cmapi.AddToScheme, apiextensions.AddToScheme, apiregistration.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("register the kinds: %w", err)
		}
	}
	mgr, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:  scheme,
		Metrics: metricsserver.Options{BindAddress: "0"},
		Client:  client.Options{Cache: &client.CacheOptions{DisableFor: []client.Object{&corev1.Secret{}}}},
	})
	if err != nil {
		return fmt.Errorf("build the injector: %w", err)
	}
	err = cainjector.RegisterAllInjectors(ctx, mgr, cainjector.SetupOptions{
		EnableCertificatesDataSource: true,
		EnabledReconcilersFor: map[string]bool{
			cainjector.MutatingWebhookConfigurationName:   true,
			cainjector.ValidatingWebhookConfigurationName: true,
		},
	})
	if err != nil {
		return fmt.Errorf("build the injector: %w", err)
	}
	group.Go(func() error { return mgr.Start(ctx) })
	return nil
}
