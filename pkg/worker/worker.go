package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/topology"
)

// Options of a Worker. All fields are needed unless said otherwise.
type Options struct {
	// Client reads from the cache and writes.
	Client client.Client
	// Live reads from the API server.
	Live client.Reader
	// Ledger of all leases.
	Ledger *ipam.Ledger
	// LedgerSynced tells that the ledger knows all blocks.
	LedgerSynced func() bool
	// Northbound mirrors the database.
	Northbound *ovn.Client
	// Network is the contract's configuration.
	Network network.Config
	// Routing is that of pods' rows; the zero value will do.
	Routing Routing
	// Recorder of events on pods.
	Recorder events.EventRecorder
	// Metrics to count in.
	Metrics *Metrics
	// Clock and Random are injected.
	Clock  clock.WithTicker
	Random io.Reader
	// Log may be the zero value.
	Log logr.Logger
	// Topology is Ensure or External.
	Topology Topology
	// Networks are made under Ensure where they don't exist; the zero value has none.
	Networks topology.Networks
	// SweepPeriod is the time between sweeps; zero means 30 s.
	SweepPeriod time.Duration
	// PendingAge is how long a lease without a pod is watched; zero means lifecycle.DefaultPendingAge.
	PendingAge time.Duration
	// Concurrency is how many pods are worked on at once; zero means 256.
	Concurrency int
	// PrepareAfter is how long a new pod that has its addresses may be without a node until its leases are bound and its
	// ports made. Most have one by then, and all of that is then one transaction. Zero means at once.
	PrepareAfter time.Duration
}

// Topology says who realises Subnets and Vpcs.
type Topology string

// The modes.
const (
	// Ensure: the worker does.
	Ensure Topology = "ensure"
	// External: somebody else does, such as kube-ovn-controller.
	External Topology = "external"
)

// Worker does the work. Setup hooks it into a manager.
type Worker struct {
	Options
	// leading is closed when writer is set: from then on there is something to write with.
	leading  chan struct{}
	writer   *ovn.Writer
	epoch    int64
	topology *catalog.Catalog
	changes  catalog.Changes
	// broken gets the error that ends the process.
	broken chan error

	loose  chan ipam.Held
	losses chan struct{}
	wake   chan event.GenericEvent

	mu    sync.Mutex
	watch *lifecycle.Watchlist
	ripe  map[ipam.Ref]bool
	noted map[string]bool
	exits map[string]exit
	// unseen is since when pods are known to be gone whose addresses may be in use.
	unseen map[string]time.Time
	// restored are the leases that were restored of each subnet that is closed.
	restored map[string]map[ipam.Ref]bool
	// told is when each thing was last told.
	told map[string]time.Time
	// figured is the version of each object that figures were last written over.
	figured map[types.UID]string
	// unrealised is what was last told of the topology.
	unrealised map[string]bool
	waiting    map[client.ObjectKey]waiter
	started    map[string]time.Time
	recorded   map[string]madeRecord
	index      addressIndex
	bound      boundIndex

	// placing is what is known of pods that are being bound; nil: nobody asks this worker about bindings.
	placing *placing
}

// New makes a worker.
func New(o Options) (*Worker, error) {
	switch {
	case o.Client == nil || o.Live == nil || o.Ledger == nil || o.Northbound == nil || o.LedgerSynced == nil:
		return nil, errors.New("a worker needs a client, live reads, a ledger and a northbound client")
	case o.Recorder == nil || o.Metrics == nil || o.Clock == nil || o.Random == nil:
		return nil, errors.New("a worker needs an event recorder, metrics, a clock and a source of randomness")
	}
	if o.SweepPeriod <= 0 {
		o.SweepPeriod = 30 * time.Second
	}
	if o.PendingAge <= 0 {
		o.PendingAge = lifecycle.DefaultPendingAge
	}
	if o.Concurrency <= 0 {
		o.Concurrency = 256
	}
	w := &Worker{
		Options: o, leading: make(chan struct{}), broken: make(chan error, 1),
		loose: make(chan ipam.Held, 4096), losses: make(chan struct{}, 1), wake: make(chan event.GenericEvent, 4096),
		watch: lifecycle.NewWatchlist(o.PendingAge), ripe: map[ipam.Ref]bool{}, noted: map[string]bool{}, exits: map[string]exit{},
		unseen: map[string]time.Time{}, restored: map[string]map[ipam.Ref]bool{},
		told: map[string]time.Time{}, figured: map[types.UID]string{},
		waiting: map[client.ObjectKey]waiter{}, started: map[string]time.Time{}, recorded: map[string]madeRecord{},
	}
	eips, err := catalog.ServedEIPs(o.Client.RESTMapper())
	if err != nil {
		return nil, err
	}
	w.topology = catalog.New(catalog.Options{Cache: o.Client, Live: o.Live, EIPs: eips, Changes: w.changes.Count})
	return w, nil
}

// ownerOf tells who may come back to the pod's leases.
func (w *Worker) ownerOf(pod *corev1.Pod) ipam.Owner {
	return network.OwnerOf(network.PodOf(pod), w.Network)
}

// lead makes this process the one that writes, and writes until ctx ends or another one has taken over.
func (w *Worker) lead(ctx context.Context) error {
	if err := w.awaitLedger(ctx); err != nil {
		return err
	}
	epoch, err := w.Northbound.RaiseEpoch(ctx)
	if err != nil {
		return err
	}
	w.epoch = epoch
	w.writer = ovn.NewWriter(w.Northbound, ovn.WriterOptions{Epoch: epoch})
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- w.writer.Run(ctx) }()
	close(w.leading)
	w.Metrics.leading.Set(1)
	defer w.Metrics.leading.Set(0)
	w.Log.Info("Leading", "epoch", epoch)
	select {
	case err := <-w.broken:
		return err
	case err := <-ended:
		return err
	}
}

func (w *Worker) awaitLedger(ctx context.Context) error {
	for !w.LedgerSynced() {
		select {
		case <-w.Clock.After(20 * time.Millisecond):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// awaitLead waits until this process writes.
func (w *Worker) awaitLead(ctx context.Context) error {
	select {
	case <-w.leading:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Leading is closed when this process has begun to write.
func (w *Worker) Leading() <-chan struct{} { return w.leading }

// apply writes a change. A fence ends the process: it must be elected anew.
func (w *Worker) apply(ctx context.Context, ch ovn.Change) error {
	if err := w.awaitLead(ctx); err != nil {
		return err
	}
	err := w.writer.Apply(ctx, ch)
	if errors.Is(err, ovn.ErrFenced) {
		select {
		case w.broken <- err:
		default:
		}
	}
	return err
}

// warn tells of a failure or a wait on the pod.
func (w *Worker) warn(pod *corev1.Pod, reason, action, text string) {
	w.Metrics.held.WithLabelValues(reason).Inc()
	w.Recorder.Eventf(pod, nil, corev1.EventTypeWarning, reason, action, "%s", text)
}

// enqueue has a pod looked at again. A full queue drops it: the sweep and the next event bring it back.
func (w *Worker) enqueue(key client.ObjectKey) {
	select {
	case w.wake <- awakening(key):
	default:
	}
}

// enqueueSurely does so for what nothing else brings back.
func (w *Worker) enqueueSurely(ctx context.Context, key client.ObjectKey) error {
	select {
	case w.wake <- awakening(key):
		return nil
	case <-ctx.Done():
		return fmt.Errorf("have pod %s looked at again: %w", key, ctx.Err())
	}
}

func awakening(key client.ObjectKey) event.GenericEvent {
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = key.Namespace, key.Name
	return event.GenericEvent{Object: pod}
}
