// Package sampling watches a local cluster while tests run on it: pods, ledger and northbound database, as often as they
// can be read.
//
// Invariant: it only reads, and by clients of its own, so that nothing of what is under test can hide from it.
package sampling

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/sampler"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/ovn"
)

// period is how long it waits between two samples.
const period = 300 * time.Millisecond

// Sampling is a sampler at work.
type Sampling struct {
	kube   client.Client
	keeper *facts.Keeper
	store  *blockstore.Store
	nb     *ovn.Client
	look   *sampler.Sampler

	cancel context.CancelFunc
	done   chan struct{}

	mu     sync.Mutex
	broken map[string]sampler.Violation
	taken  int
	failed error
}

// Start begins to sample. northbound is an OVSDB remote.
func Start(ctx context.Context, cfg *rest.Config, northbound string, allowed sampler.Allowed) (*Sampling, error) {
	types := runtime.NewScheme()
	if err := scheme.AddToScheme(types); err != nil {
		return nil, err
	}
	kube, err := client.New(cfg, client.Options{Scheme: types})
	if err != nil {
		return nil, fmt.Errorf("client of the sampler: %w", err)
	}
	store, err := blockstore.New(cfg)
	if err != nil {
		return nil, fmt.Errorf("store of the sampler: %w", err)
	}
	nb, err := ovn.Connect(ctx, ovn.Config{Endpoints: []string{northbound}})
	if err != nil {
		return nil, fmt.Errorf("northbound database of the sampler: %w", err)
	}
	s := &Sampling{kube: kube, keeper: facts.NewKeeper(kube, kube.RESTMapper()), store: store, nb: nb, look: sampler.New(allowed),
		done: make(chan struct{}), broken: map[string]sampler.Violation{}}
	ctx, s.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go s.run(ctx)
	return s, nil
}

func (s *Sampling) run(ctx context.Context) {
	defer close(s.done)
	for ctx.Err() == nil {
		if err := s.sample(ctx); err != nil && ctx.Err() == nil {
			s.mu.Lock()
			s.failed = err // tests may stop the API server: only a sampler that never sampled is a fault
			s.mu.Unlock()
		}
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
}

// sample takes one snapshot. The pods are read before the leases and after them: what is in neither reading is gone.
func (s *Sampling) sample(ctx context.Context) error {
	var before, after corev1.PodList
	if err := s.kube.List(ctx, &before); err != nil {
		return err
	}
	ledger, err := ipam.New(ipam.Options{Store: s.store, Replica: "sampler", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		return err
	}
	if err := ledger.Refresh(ctx); err != nil {
		return err
	}
	snap := sampler.Snapshot{Ports: s.nb.Ports(), Keeps: func(h ipam.Held) lifecycle.Answer { return s.keeper.Keeps(ctx, h) }}
	for _, h := range ledger.Leases() {
		if !h.Owner.Reserves() {
			snap.Leases = append(snap.Leases, h)
		}
	}
	if err := s.kube.List(ctx, &after); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, list := range []*corev1.PodList{&after, &before} { // as it is later counts
		for i := range list.Items {
			if p := &list.Items[i]; !seen[string(p.UID)] {
				seen[string(p.UID)] = true
				snap.Pods = append(snap.Pods, facts.Pod(p))
			}
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken++
	for _, v := range s.look.Look(time.Now(), snap) {
		s.broken[string(v.Rule)+"/"+v.Subject] = v
	}
	return nil
}

// Broken gives what was broken since it was asked last, and how many samples were taken until now.
func (s *Sampling) Broken() ([]sampler.Violation, int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []sampler.Violation
	for k, v := range s.broken {
		out = append(out, v)
		delete(s.broken, k)
	}
	return out, s.taken
}

// ErrBlind is of a sampler that saw nothing.
var ErrBlind = errors.New("no sample was taken")

// Stop ends it.
func (s *Sampling) Stop() error {
	s.cancel()
	<-s.done
	s.nb.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.taken == 0 {
		return errors.Join(ErrBlind, s.failed)
	}
	return nil
}
