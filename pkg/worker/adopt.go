package worker

import (
	"context"
	"fmt"

	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/adopt"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// takeOver is for a pod that runs without a claim of ours: somebody else gave it its addresses, or admission was not
// there. It keeps them: they are leased if the ledger can, else the pod is left alone and that is told.
func (w *Worker) takeOver(ctx context.Context, s *subject) (reconcile.Result, error) {
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	why, err := w.cannotAdopt(ctx, s, cat)
	if err != nil {
		return reconcile.Result{}, err
	}
	if why != "" {
		w.warn(s.Pod, reasonRunning, actionAllocate, "the pod runs on an address that is in no lease: "+why+": it is left alone; recreate it to give it one")
		return reconcile.Result{}, nil
	}
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return reconcile.Result{}, err
	}
	if kept := w.Ledger.ByOwner(s.owner); len(kept) > 0 {
		claim = kept[0].Claim
	}
	p := newPatch(s.Pod)
	p.testVersion()
	p.annotate(map[string]string{network.ClaimKey: string(claim)})
	p.finalize()
	pod, stale, err := p.send(ctx, w.Client)
	if err != nil || stale {
		return reconcile.Result{}, err
	}
	w.Log.Info("A running pod is taken over with the addresses that it has", "pod", s.key(), "claim", claim)
	return w.serve(ctx, w.subjectOf(pod))
}

// foreign is the pod with the addresses that somebody else gave it.
func (s *subject) foreign() adopt.Pod {
	return adopt.Pod{Pod: s.Pod, Owner: s.owner, Identity: s.identity, Networks: s.carried}
}

// cannotAdopt tells why the addresses of a running pod can't be leased; empty: they can.
func (w *Worker) cannotAdopt(ctx context.Context, s *subject, cat network.Catalog) (string, error) {
	p := s.foreign()
	if why := p.Unfit(cat, w.reserves); len(why) > 0 {
		return why[0], nil
	}
	if err := w.Ledger.Refresh(ctx, p.Subnets()...); err != nil {
		return "", fmt.Errorf("read the ledger: %w", err)
	}
	return p.Rival(cat, w.Ledger.Lookup), nil
}

// adopt leases the very addresses that a running pod uses, under its own claim.
func (w *Worker) adopt(ctx context.Context, s *subject, cat network.Catalog) error {
	if _, err := w.Ledger.Take(ctx, s.foreign().Request(s.claim, cat)); err != nil {
		return fmt.Errorf("the addresses that the pod runs on can't be leased: %w", err)
	}
	return nil
}
