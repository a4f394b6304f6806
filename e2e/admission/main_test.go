//go:build e2e

// Package admission tests the two programs against a real kube-apiserver: what comes of a lease when the creation of its
// pod goes on in every way that an API server knows.
//
// Invariant: every test ends with the accounts: the leases in the ledger and the ports in the northbound are those of the
// pods that exist, read from the API server and by a second northbound client.
package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	registration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

func TestMain(m *testing.M) {
	rest.SetDefaultWarningHandler(rest.NoWarnings{}) // there are hundreds
	code := m.Run()
	if shared.w != nil {
		if err := shared.w.close(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = max(code, 1)
		}
	}
	os.Exit(code)
}

// shared is the one world of this test binary: its tests run one after the other.
var shared struct {
	sync.Once
	w   *world
	err error
}

// start gives the world, with the worker at the tests' pace.
func start(t *testing.T) *world {
	t.Helper()
	shared.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
		defer cancel()
		shared.w, shared.err = newWorld(ctx)
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		suite.Broken(t, shared.w.sampling)
		if t.Failed() {
			shared.w.dump(t)
		}
	})
	return shared.w
}

// dump prints the ends of our programs' logs. BERTH_E2E_KEEP keeps them whole, and the control plane running.
func (w *world) dump(t *testing.T) {
	for _, name := range []string{"webhook-a", "webhook-b", "worker"} {
		b, err := os.ReadFile(filepath.Join(w.LogDir(), name+".log"))
		t.Logf("--- %s %v\n%s", name, err, b[max(0, len(b)-4000):])
	}
}

// newWorld brings up the control plane, the northbound, the second webhook, two replicas of ours and the worker.
func newWorld(ctx context.Context) (*world, error) {
	dir, err := os.MkdirTemp("", "ba") // short, for sockets
	if err != nil {
		return nil, err
	}
	w := &world{}
	w.Cluster, err = cluster.Start(ctx, cluster.Options{Dir: dir, ControlPlaneOnly: true, ControllerManager: true, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	if err := w.up(ctx); err != nil {
		return nil, errors.Join(err, w.close(context.WithoutCancel(ctx)))
	}
	return w, nil
}

func (w *world) up(ctx context.Context) error {
	if err := w.Apply(ctx, "testdata"); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	err := errors.Join(corev1.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme),
		registration.AddToScheme(scheme), netv1.AddToScheme(scheme))
	if err != nil {
		return err
	}
	if w.objs, err = client.New(w.Config(), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	if err := w.northbound(ctx); err != nil {
		return err
	}
	if err := w.register(ctx); err != nil {
		return err
	}
	if err := w.sample(ctx); err != nil {
		return err
	}
	for _, name := range []string{"a", "b"} {
		if err := w.webhook(ctx, name); err != nil {
			return err
		}
	}
	if err := w.work(ctx, pendingAge); err != nil {
		return err
	}
	return w.admits(ctx)
}
