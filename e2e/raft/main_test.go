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
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/sampling"
	"github.com/berth-net/berth/e2e/suite"
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
		suite.Broken(t, shared.h.sampling)
		suite.Logs(t, shared.h.LogDir(), "berth-worker*", "ovn-nb*")
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
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, Nodes: 2, NorthboundServers: 3, Progress: os.Stderr, Bin: suite.Bin()})
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
	if h == nil || suite.Keep() {
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

// until waits until something comes true, or ends the test.
func until(ctx context.Context, t *testing.T, what string, ok func(context.Context) error) {
	t.Helper()
	suite.Until(ctx, t, what, 50*time.Millisecond, limit, ok)
}
