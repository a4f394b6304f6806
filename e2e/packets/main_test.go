//go:build e2e

// Package packets tells by packets whether what is written in Kubernetes objects holds: between pods on two nodes, and
// between pods and a physical network.
//
// Invariant: the tests change nothing but objects of the API server, and what is inside of pods or of the machines
// outside. A test that expects silence also sees the same kind of packet arrive.
package packets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/sampler"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// limit is how long something may take to come true.
const limit = 30 * time.Second

// harness is the cluster that all tests of a family share, one after the other.
type harness struct {
	*cluster.Cluster
	api      client.Client
	sampling *sampling.Sampling
}

// shared is the one cluster that runs.
var shared struct {
	h   *harness
	err error
}

// start gives a cluster of both families.
func start(t *testing.T) *harness {
	t.Helper()
	return startOf(t, cluster.Dual)
}

// startOf gives a cluster of a family. One of another family is taken down for it.
func startOf(t *testing.T, family cluster.Family) *harness {
	t.Helper()
	if shared.h != nil && shared.h.Family != family {
		if err := stopCluster(); err != nil {
			t.Fatal(err)
		}
	}
	if shared.h == nil && shared.err == nil {
		shared.h, shared.err = startCluster(family)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	h := shared.h
	t.Cleanup(func() {
		suite.Broken(t, h.sampling)
		suite.Logs(t, h.LogDir(), "berth-worker*", "ovn-northd*", "*-ovn-controller*", "*-vswitchd*")
	})
	return h
}

// stopCluster takes down the cluster that runs, if any does.
func stopCluster() error {
	if shared.h == nil || suite.Keep() {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if shared.h.sampling != nil {
		err = shared.h.sampling.Stop()
	}
	err = errors.Join(err, shared.h.Down(ctx))
	shared.h = nil
	return err
}

func startCluster(family cluster.Family) (*harness, error) {
	dir, err := os.MkdirTemp("", "bp") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, Family: family, Underlay: true, Progress: os.Stderr, Bin: suite.Bin()})
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(scheme))
	utilruntime.Must(kubeovnv1.AddToScheme(scheme))
	log.SetLogger(logr.Discard())
	api, err := client.New(c.Config(), client.Options{Scheme: scheme})
	if err != nil {
		return nil, err
	}
	h := &harness{Cluster: c, api: api}
	if err := h.joined(ctx); err != nil {
		return h, err
	}
	h.sampling, err = sampling.Start(ctx, c.Config(), c.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	return h, err
}

// joined returns when the nodes are on the pods' network.
func (h *harness) joined(ctx context.Context) error {
	return wait.PollUntilContextTimeout(ctx, 200*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		var nodes corev1.NodeList
		if err := h.api.List(ctx, &nodes); err != nil {
			return false, err
		}
		for _, n := range nodes.Items {
			if n.Annotations["ovn.kubernetes.io/allocated"] != "true" {
				return false, nil
			}
		}
		return true, nil
	})
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stopCluster(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// until waits until something comes true, or ends the test and prints what OVN has, while it still has it.
func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	err := await.Until(ctx, what, 150*time.Millisecond, limit, ok)
	if err == nil {
		return
	}
	if shared.h != nil {
		t.Log(shared.h.Diagnose(ctx))
	}
	t.Fatal(err)
}

// make creates an object that goes with the test; the end of the test waits until it is gone.
func (h *harness) make(t *testing.T, obj client.Object) {
	t.Helper()
	if err := h.api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { h.unmake(t, obj) })
}

// unmake deletes an object and waits until it is gone.
func (h *harness) unmake(t *testing.T, obj client.Object) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	if suite.Keep() && t.Failed() {
		return
	}
	if err := client.IgnoreNotFound(h.api.Delete(ctx, obj)); err != nil {
		t.Error(err)
		return
	}
	if _, is := obj.(*corev1.Namespace); is {
		return // it takes long, and nobody takes its name
	}
	err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		err := h.api.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		return apierrors.IsNotFound(err), client.IgnoreNotFound(err)
	})
	if err != nil {
		t.Errorf("%T %s doesn't go: %v, finalizers %v", obj, obj.GetName(), err, obj.GetFinalizers())
	}
}

// change edits an object as it is now.
func change[T client.Object](ctx context.Context, t *testing.T, h *harness, obj T, edit func(T)) {
	t.Helper()
	until(ctx, t, "the change is stored", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		return h.api.Update(ctx, obj)
	})
}

// namespace makes a namespace that Berth serves.
func (h *harness) namespace(t *testing.T, name string) string {
	t.Helper()
	h.make(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"berth.dev/inject": "enabled"}}})
	return name
}
