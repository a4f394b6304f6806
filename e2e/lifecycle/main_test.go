//go:build e2e

// Package lifecycle runs what ends pods, and what must not: hooks, rolling restarts, lost nodes, deleted namespaces,
// finished Jobs, namespaces that come and go, a worker that is killed at every step of its work, and a ledger that is lost.
//
// Invariant: a sampler looks all the time, and every test ends with empty accounts: no lease, no port, no IP record and
// no finalizer is left. The worker sweeps more often than by default, so that this shows soon.
package lifecycle

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/bench"
	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/internal/sampler"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	// limit is how long something may take to come true.
	limit = 90 * time.Second
	// sweep is the worker's period here.
	sweep = 3 * time.Second
)

// harness is the cluster that all tests share, one after the other.
type harness struct {
	*cluster.Cluster
	api      client.Client
	nb       *ovn.Client
	ledger   *ipam.Ledger
	sampling *sampling.Sampling
	worker   *mortal
}

var shared struct {
	sync.Once
	h   *harness
	err error
}

// start gives the cluster. The test that asked for it ends with empty accounts, after its own cleanups.
func start(t *testing.T) *harness {
	t.Helper()
	shared.Do(func() { shared.h, shared.err = startCluster() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	h := shared.h
	began := time.Now()
	t.Cleanup(func() {
		h.empty(t)
		suite.Broken(t, h.sampling)
		suite.Logs(t, h.LogDir(), "berth-w*")
		t.Logf("%s took %s", t.Name(), time.Since(began).Round(time.Millisecond))
	})
	return h
}

func startCluster() (*harness, error) {
	dir, err := os.MkdirTemp("", "bl") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	root, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		return nil, err
	}
	worker, err := newMortal(root, filepath.Join(cmp.Or(suite.Bin(), filepath.Join(root, "bin")), "finalizer-worker"))
	if err != nil {
		return nil, err
	}
	h := &harness{worker: worker}
	h.Cluster, err = cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, Progress: os.Stderr, Bin: suite.Bin(), WorkerBin: worker.path("worker")})
	if err != nil {
		return nil, err
	}
	return h, h.connect(ctx)
}

// connect makes the harness's own ways to everything.
func (h *harness) connect(ctx context.Context) error {
	log.SetLogger(logr.Discard())
	types := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(types), kubeovnv1.AddToScheme(types), berthv1alpha1.AddToScheme(types)); err != nil {
		return err
	}
	var err error
	if h.api, err = client.New(h.Config(), client.Options{Scheme: types}); err != nil {
		return err
	}
	if h.nb, err = ovn.Connect(ctx, ovn.Config{Endpoints: []string{h.NBSocket()}}); err != nil {
		return err
	}
	store, err := blockstore.New(h.Config())
	if err != nil {
		return err
	}
	if h.ledger, err = ipam.New(ipam.Options{Store: store, Replica: "test", Clock: clock.RealClock{}, Random: rand.Reader}); err != nil {
		return err
	}
	h.sampling, err = sampling.Start(ctx, h.Config(), h.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	return err
}

func TestMain(m *testing.M) {
	code := m.Run()
	if h := shared.h; h != nil && !suite.Keep() {
		if err := h.stop(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

// stop ends everything that was started.
func (h *harness) stop() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if h.sampling != nil {
		err = h.sampling.Stop()
	}
	if h.nb != nil {
		h.nb.Close()
	}
	return errors.Join(err, h.Down(ctx), os.RemoveAll(h.worker.dir))
}

// until waits until something comes true, or ends the test.
func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	within(ctx, t, limit, what, ok)
}

// within is until with a limit of its own.
func within(ctx context.Context, t *testing.T, limit time.Duration, what string, ok func(context.Context) error) {
	t.Helper()
	suite.Until(ctx, t, what, 100*time.Millisecond, limit, ok)
}

// leases reads all leases of pods.
func (h *harness) leases(ctx context.Context) ([]ipam.Held, error) {
	if err := h.ledger.Refresh(ctx); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(h.ledger.Leases(), func(l ipam.Held) bool { return l.Owner.Reserves() }), nil
}

// accounts tells what of pods is left in the ledger, in the northbound database and in the API server.
func (h *harness) accounts(ctx context.Context) error {
	leases, err := h.leases(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, l := range leases {
		errs = append(errs, fmt.Errorf("lease %s of %s, pod %s %s", l.Ref(), l.Owner, l.PodName, l.PodUID))
	}
	for _, p := range h.nb.Ports() {
		if p.Type == "" && p.ExternalIDs[nb.KeyPod] != "" {
			errs = append(errs, fmt.Errorf("port %s", p.Name))
		}
	}
	var records kubeovnv1.IPList
	if err := h.api.List(ctx, &records, client.HasLabels{network.ClaimKey}); err != nil {
		return err
	}
	for _, r := range records.Items {
		errs = append(errs, fmt.Errorf("IP record %s", r.Name))
	}
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods); err != nil {
		return err
	}
	for _, p := range pods.Items {
		if slices.Contains(p.Finalizers, network.Finalizer) {
			errs = append(errs, fmt.Errorf("pod %s/%s with the finalizer", p.Namespace, p.Name))
		}
	}
	return errors.Join(errs[:min(len(errs), 10)]...)
}

// empty waits for empty accounts.
func (h *harness) empty(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	began := time.Now()
	until(ctx, t, "the accounts are empty", h.accounts)
	t.Logf("accounts empty after another %s", time.Since(began).Round(time.Millisecond))
}

// metrics reads those of the workers.
func (h *harness) metrics(ctx context.Context) (bench.Samples, error) {
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods, client.InNamespace("berth-system"), client.MatchingLabels{"app.kubernetes.io/name": "berth-worker"}); err != nil {
		return nil, err
	}
	var out bench.Samples
	for _, p := range pods.Items {
		text, err := h.Client().CoreV1().Pods(p.Namespace).ProxyGet("http", p.Name, "8082", "metrics", nil).DoRaw(ctx)
		if err != nil {
			return nil, err
		}
		samples, err := bench.ParseMetrics(text)
		if err != nil {
			return nil, err
		}
		out = append(out, samples...)
	}
	if len(out) == 0 {
		return nil, errors.New("no worker tells anything")
	}
	return out, nil
}

// swept waits for so many further sweeps.
func (h *harness) swept(t *testing.T, n float64) {
	t.Helper()
	sweeps := func(ctx context.Context) (float64, error) {
		m, err := h.metrics(ctx)
		return m.Sum("berth_sweeps_total", map[string]string{"result": "done"}), err
	}
	before, err := sweeps(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "the worker has swept", func(ctx context.Context) error {
		now, err := sweeps(ctx)
		if err == nil && now < before+n {
			err = fmt.Errorf("%v of %v times", now-before, n)
		}
		return err
	})
}

// build builds a program of the work tree.
func build(ctx context.Context, root, out, pkg, tags string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", tags, "-o", out, pkg)
	cmd.Dir, cmd.Env = root, append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s: %w: %s", pkg, err, text)
	}
	return nil
}
