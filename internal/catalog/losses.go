package catalog

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// lossPeriod is how often somebody who closed a subnet looks whether the worker has opened it again.
const lossPeriod = time.Second

// Losses makes durable what a ledger notices of lost leases, and opens the ledger's subnets again when the worker has
// taken the marks off.
type Losses struct {
	// Client reads live and marks Subnets.
	Client client.Client
	Ledger *ipam.Ledger
	Random io.Reader
	Clock  clock.WithTicker
	// Failed hears of what could not be done, and is tried again; it may be nil.
	Failed func(error)

	wake   chan struct{}
	marked map[string]ipam.Loss
}

// NewLosses makes one. Its Ledger and the rest may be set until Run.
func NewLosses() *Losses {
	return &Losses{wake: make(chan struct{}, 1), marked: map[string]ipam.Loss{}}
}

// Lost hears of a loss from the ledger.
func (l *Losses) Lost(string, string) {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Run marks and opens subnets until ctx ends.
func (l *Losses) Run(ctx context.Context) error {
	tick := l.Clock.NewTicker(lossPeriod)
	defer tick.Stop()
	for {
		if err := l.look(ctx); err != nil && ctx.Err() == nil && l.Failed != nil {
			l.Failed(err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case <-l.wake:
		}
	}
}

func (l *Losses) look(ctx context.Context) error {
	here := l.Ledger.ClosedHere()
	if len(here) == 0 {
		clear(l.marked)
		return nil
	}
	var subnets kubeovnv1.SubnetList
	if err := l.Client.List(ctx, &subnets); err != nil {
		return fmt.Errorf("list subnets: %w", err)
	}
	var errs []error
	for place, loss := range here {
		objs := slices.DeleteFunc(slices.Clone(subnets.Items), func(s kubeovnv1.Subnet) bool {
			return s.Name != place && network.DomainOf(&s) != place
		})
		if l.marked[place] != loss {
			errs = append(errs, l.mark(ctx, place, loss, objs))
			continue
		}
		if !slices.ContainsFunc(objs, func(s kubeovnv1.Subnet) bool { return s.Annotations[network.ClosedKey] != "" }) {
			l.Ledger.Reopen(place, loss)
			delete(l.marked, place)
		}
	}
	return errors.Join(errs...)
}

func (l *Losses) mark(ctx context.Context, place string, loss ipam.Loss, objs []kubeovnv1.Subnet) error {
	for i := range objs {
		if _, err := MarkClosed(ctx, l.Client, l.Random, &objs[i], loss.Reason); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	l.marked[place] = loss
	return nil
}
