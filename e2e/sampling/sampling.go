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
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/ovn"
)

const (
	// period is how long it waits between two samples.
	period = 300 * time.Millisecond
	// blind is how far two samples may be apart and still count as looking all the time.
	blind = 3 * time.Second
	// probe finds a northbound database that hangs: what it last told must not be taken for what is.
	probe = 3 * time.Second
)

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
	last   time.Time // when the last one was taken
	failed error
}

// Start begins to sample. northbound is an OVSDB remote, or several, joined by commas, of a cluster.
func Start(ctx context.Context, cfg *rest.Config, northbound string, allowed sampler.Allowed) (*Sampling, error) {
	types := runtime.NewScheme()
	if err := errors.Join(scheme.AddToScheme(types), kubeovnv1.AddToScheme(types)); err != nil {
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
	endpoints, err := ovn.ParseEndpoints(northbound)
	if err != nil {
		return nil, fmt.Errorf("northbound database of the sampler: %w", err)
	}
	nb, err := ovn.Connect(ctx, ovn.Config{Endpoints: endpoints, InactivityProbe: probe})
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

// sample takes one snapshot, and looks at it.
func (s *Sampling) sample(ctx context.Context) error {
	began := time.Now()
	snap, err := s.snapshot(ctx)
	if err != nil {
		return err
	}
	now := time.Now()
	if now.Sub(began) > blind {
		return errSlow
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if gap := now.Sub(s.last); s.taken > 0 && gap > blind {
		s.look.Pause(gap)
	}
	s.taken++
	s.last = now
	for _, v := range s.look.Look(now, snap) {
		s.broken[string(v.Rule)+"/"+v.Subject] = v
	}
	return nil
}

// Findings compares everything as it is now.
func (s *Sampling) Findings(ctx context.Context) ([]lifecycle.Finding, error) {
	snap, err := s.snapshot(ctx)
	if err != nil {
		return nil, err
	}
	var list kubeovnv1.IPList
	if err := s.kube.List(ctx, &list, client.HasLabels{facts.LabelClaim}); err != nil {
		return nil, err
	}
	var records []lifecycle.Record
	for i := range list.Items {
		records = append(records, facts.Record(&list.Items[i]))
	}
	return lifecycle.Compare(lifecycle.State{Pods: snap.Pods, Leases: snap.Leases, Ports: snap.Ports, Records: records, Keeps: snap.Keeps}), nil
}

// snapshot reads what there is. The pods are read before the leases and after them: what is in neither reading is gone.
func (s *Sampling) snapshot(ctx context.Context) (sampler.Snapshot, error) {
	var before, after corev1.PodList
	if err := s.kube.List(ctx, &before); err != nil {
		return sampler.Snapshot{}, err
	}
	ledger, err := ipam.New(ipam.Options{Store: s.store, Replica: "sampler", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		return sampler.Snapshot{}, err
	}
	if err := ledger.Refresh(ctx); err != nil {
		return sampler.Snapshot{}, err
	}
	if err := s.nb.Ready(); err != nil {
		return sampler.Snapshot{}, err // what it last knew says nothing about now
	}
	snap := sampler.Snapshot{Done: map[string]bool{}, Ports: s.nb.Ports(), Keeps: func(h ipam.Held) lifecycle.Answer { return s.keeper.Keeps(ctx, h) }}
	for _, h := range ledger.Leases() {
		if !h.Owner.Reserves() {
			snap.Leases = append(snap.Leases, h)
		}
	}
	if err := s.kube.List(ctx, &after); err != nil {
		return sampler.Snapshot{}, err
	}
	seen := map[string]bool{}
	for _, list := range []*corev1.PodList{&after, &before} { // as it is later counts
		for i := range list.Items {
			if p := &list.Items[i]; !seen[string(p.UID)] {
				seen[string(p.UID)] = true
				pod := facts.Pod(p)
				pod.Over = pod.Over || over(p)
				snap.Pods = append(snap.Pods, pod)
			}
		}
	}
	return snap, nil
}

// over tells that a pod is known to have ended, though it may carry its finalizer: while the worker takes back what it had,
// its addresses may be others' already.
func over(p *corev1.Pod) bool {
	confirmed := p.DeletionTimestamp != nil && p.DeletionGracePeriodSeconds != nil && *p.DeletionGracePeriodSeconds == 0
	return confirmed || lifecycle.Ended(p)
}

// done tells that a pod's addresses may be taken back whatever its object's end waits for.
func done(p *corev1.Pod) bool {
	if lifecycle.Ended(p) {
		return true
	}
	grace := p.DeletionGracePeriodSeconds
	return p.DeletionTimestamp != nil && (grace != nil && *grace == 0 || lifecycle.NeverRan(p))
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

// errSlow is of a snapshot whose parts are of too different times.
var errSlow = errors.New("reading took too long")

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
