//go:build e2e

// Package raft moves the leader of a northbound database of three servers while pods come and go.
//
// Invariant: the tests do to the servers only what operation does to them too: they hand leadership over, hang, die and
// come back, one at a time, so that a majority is always there.
package raft

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
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/internal/sampler"
)

const (
	namespace = "demo"
	// limit is how long something may take to come true.
	limit = 2 * time.Minute
)

// harness is the cluster of this package's tests.
type harness struct {
	*cluster.Cluster
	dynamic  dynamic.Interface
	servers  []cluster.NorthboundServer
	sampling *sampling.Sampling
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
		broken, samples := shared.h.sampling.Broken()
		t.Logf("%d samples", samples)
		for _, v := range broken {
			t.Errorf("after %d samples: %v", samples, v)
		}
		if t.Failed() {
			shared.h.dump(t)
		}
	})
	return shared.h
}

func startCluster() (*harness, error) {
	dir, err := os.MkdirTemp("", "br") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	// The programs of the work tree, unless the environment names a directory of others.
	program := func(name string) string {
		if bin := os.Getenv("BERTH_E2E_BIN"); bin != "" {
			return filepath.Join(bin, name)
		}
		return ""
	}
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, NorthboundServers: 3, Progress: os.Stderr,
		WebhookBin: program("webhook"), WorkerBin: program("finalizer-worker"), NodeBin: program("node-agent")})
	if err != nil {
		return nil, err
	}
	h := &harness{Cluster: c}
	if h.servers, err = c.Northbound(); err != nil {
		return h, err
	}
	if h.dynamic, err = dynamic.NewForConfig(c.Config()); err != nil {
		return h, err
	}
	log.SetLogger(logr.Discard())
	h.sampling, err = sampling.Start(ctx, c.Config(), c.NBSocket(), sampler.DefaultAllowed(30*time.Second))
	return h, err
}

func TestMain(m *testing.M) {
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

func stop() error {
	h := shared.h
	if h == nil || os.Getenv("BERTH_E2E_KEEP") != "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if h.sampling != nil {
		err = h.sampling.Stop()
	}
	return errors.Join(err, h.Down(ctx))
}

// dump prints the ends of the logs of the worker and of the northbound database.
func (h *harness) dump(t *testing.T) {
	for _, pattern := range []string{"berth-worker*", "ovn-nb*"} {
		files, err := filepath.Glob(filepath.Join(h.LogDir(), pattern))
		if err != nil {
			t.Error(err)
		}
		for _, f := range files {
			b, _ := os.ReadFile(f)
			t.Logf("--- %s\n%s", filepath.Base(f), b[max(0, len(b)-4000):])
		}
	}
}

// until polls until something comes true, and says what was seen last when it doesn't.
func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	var last error
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, limit, true, func(ctx context.Context) (bool, error) {
		last = ok(ctx)
		return last == nil, nil
	})
	if err != nil {
		t.Fatalf("waiting until %s: %v", what, last)
	}
}
