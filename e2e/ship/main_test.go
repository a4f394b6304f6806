//go:build e2e

// Package ship runs what an operator does with an installation: update it and its nodes, watch it, change its
// certificates, take it to another release and back, take over from Kube-OVN and hand back, and remove it.
//
// Invariant: the tests act by the shipped manifests, by kubectl and by kubectl-berth, and every one of them leaves the
// installation as it found it.
package ship

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/sampler"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

const (
	system  = "berth-system"
	webhook = "berth-webhook"
	worker  = "berth-worker"
	// limit is how long something may take to come true.
	limit = 4 * time.Minute
	// The images whose containers run the programs of an earlier release.
	webhookBefore, workerBefore = "e2e.berth.dev/webhook-before", "e2e.berth.dev/worker-before"
)

// harness is the cluster that all tests share, one after the other.
type harness struct {
	*cluster.Cluster
	api      client.Client
	sampling *sampling.Sampling
	// before is the directory of an earlier release's programs, once they are built.
	before string
}

var shared struct {
	sync.Once
	h   *harness
	err error
}

func start(t *testing.T) *harness {
	t.Helper()
	shared.Do(func() { shared.h, shared.err = startCluster() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	t.Cleanup(func() {
		suite.Broken(t, shared.h.sampling)
		suite.Logs(t, shared.h.LogDir(), "berth-w*")
	})
	return shared.h
}

func startCluster() (*harness, error) {
	dir, err := os.MkdirTemp("", "bs") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	h := &harness{before: filepath.Join(dir, "before")}
	h.Cluster, err = cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, Progress: os.Stderr, Bin: suite.Bin(),
		Run: map[string]string{webhookBefore: filepath.Join(h.before, "webhook"), workerBefore: filepath.Join(h.before, "finalizer-worker")}})
	if err != nil {
		return nil, err
	}
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), kubeovnv1.AddToScheme(scheme)); err != nil {
		return nil, err
	}
	log.SetLogger(logr.Discard())
	if h.api, err = client.New(h.Config(), client.Options{Scheme: scheme}); err != nil {
		return nil, err
	}
	h.sampling, err = sampling.Start(ctx, h.Config(), h.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	return h, err
}

func TestMain(m *testing.M) {
	suite.Main(m, func(ctx context.Context) error {
		h := shared.h
		if h == nil {
			return nil
		}
		return errors.Join(h.sampling.Stop(), h.Down(ctx))
	})
}

// until waits until something comes true, or ends the test.
func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	suite.Until(ctx, t, what, 200*time.Millisecond, limit, ok)
}

// run runs a program until the test ends, unless it is stopped before.
func (h *harness) run(ctx context.Context, t *testing.T, name string, command ...string) *cluster.Process {
	t.Helper()
	p, err := h.RunProcess(name, nil, command...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
		suite.Logs(t, filepath.Dir(p.Log()), filepath.Base(p.Log()))
	})
	return p
}

// kubectl gives what kubectl says.
func (h *harness) kubectl(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := proc.Run(ctx, "", h.Kubectl(), append([]string{"--kubeconfig=" + h.Kubeconfig()}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// berth gives what kubectl-berth says.
func (h *harness) berth(ctx context.Context, t *testing.T, args ...string) string {
	t.Helper()
	out, err := proc.Run(ctx, "", filepath.Join(h.Bin, "kubectl-berth"), append([]string{"--kubeconfig=" + h.Kubeconfig()}, args...)...)
	if err != nil {
		text := err.Error()
		t.Fatal(text[:min(len(text), 1000)], " ... ", text[max(0, len(text)-1000):])
	}
	return out
}

// rolledOut waits until a Deployment runs what it says, and nothing else of it is left, also not what drains.
func (h *harness) rolledOut(ctx context.Context, t *testing.T, name string) {
	t.Helper()
	h.kubectl(ctx, t, "-n", system, "rollout", "status", "deployment", name, "--timeout="+limit.String())
	d := h.deployment(ctx, t, name)
	until(ctx, t, "only the replicas of "+name+" are left", func(ctx context.Context) error {
		pods, err := h.podsOf(ctx, name)
		if err == nil && int32(len(pods)) != *d.Spec.Replicas {
			err = fmt.Errorf("%d pods for %d replicas", len(pods), *d.Spec.Replicas)
		}
		return err
	})
}

// podsOf lists the pods of one of our Deployments.
func (h *harness) podsOf(ctx context.Context, name string) ([]corev1.Pod, error) {
	var all corev1.PodList
	err := h.api.List(ctx, &all, client.InNamespace(system), client.MatchingLabels{"app.kubernetes.io/name": name})
	return all.Items, err
}

// uids are those of the pods of one of our Deployments.
func (h *harness) uids(ctx context.Context, t *testing.T, name string) map[string]bool {
	t.Helper()
	pods, err := h.podsOf(ctx, name)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, p := range pods {
		out[string(p.UID)] = true
	}
	return out
}

// scale sets the number of replicas and waits for them.
func (h *harness) scale(ctx context.Context, t *testing.T, name string, replicas int) {
	t.Helper()
	h.kubectl(ctx, t, "-n", system, "scale", "deployment", name, fmt.Sprintf("--replicas=%d", replicas))
	h.rolledOut(ctx, t, name)
}
