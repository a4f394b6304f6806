package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// reclaim takes everything back from a pod that is gone: rows, then leases, then records, and the finalizer last. Leases of
// sticky owners stay: only the sweep frees those. It needs no namespace, subnet or node.
func (w *Worker) reclaim(ctx context.Context, s *subject) error {
	began := w.Clock.Now()
	fault.Hit(fault.Condemned)
	heirs, err := w.siblings(ctx, s)
	if err != nil {
		return err
	}
	ports, err := w.portsOf(s)
	if err != nil {
		w.warn(s.Pod, reasonUnwired, actionReclaim, "it ends when its ports are removed: "+err.Error())
		return err
	}
	if len(ports) > 0 && len(heirs) == 0 {
		if err := w.applyFor(ctx, s, actionReclaim, ovn.Change{Key: s.key().String(), RemovePorts: ports}); err != nil {
			return err
		}
		fault.Hit(fault.Unwired)
	}
	if err := w.freeLeases(ctx, s); err != nil {
		return err
	}
	fault.Hit(fault.Freed)
	if len(heirs) == 0 {
		if err := w.dropRecords(ctx, s, s.finalized() && (s.Spec.NodeName != "" || w.placing.placed(s.UID))); err != nil {
			return err
		}
		if err := w.markVip(ctx, s, ""); err != nil {
			return err
		}
	}
	fault.Hit(fault.Forgotten)
	p := newPatch(s.Pod)
	p.unfinalize()
	changed := p.n > 0
	_, stale, err := p.send(ctx, w.Client)
	if err != nil {
		return err
	}
	if changed && !stale {
		w.Metrics.reclaim.Observe(w.Clock.Since(began).Seconds())
	}
	fault.Hit(fault.Ended)
	for i := range heirs { // port and record are theirs now
		w.enqueue(client.ObjectKeyFromObject(&heirs[i]))
	}
	w.mu.Lock()
	delete(w.started, s.uid())
	w.mu.Unlock()
	w.placing.forget(s.UID)
	return nil
}

// portsOf gives the names of this very pod's ports. Those of a successor under its name carry another UID.
func (w *Worker) portsOf(s *subject) ([]string, error) {
	if err := w.Northbound.Ready(); err != nil {
		if len(s.Spec.SchedulingGates) > 0 {
			return nil, nil // it was never bound and has none, whatever the database is up to
		}
		return nil, fmt.Errorf("ports of pod %s: %w", s.key(), err)
	}
	rows := w.Northbound.PodPorts(s.Namespace, s.identity)
	for _, c := range s.carried {
		if p, ok := w.Northbound.Port(network.PortName(s.identity, s.Namespace, c.Provider)); ok {
			rows = append(rows, p)
		}
	}
	var names []string
	for _, p := range rows {
		uid, claim := p.ExternalIDs[nb.KeyPodUID], p.ExternalIDs[nb.KeyClaim]
		ours := uid == s.uid() || uid == "" && s.claimed && claim == string(s.claim)
		if ours && !slices.Contains(names, p.Name) {
			names = append(names, p.Name)
		}
	}
	return names, nil
}

// freeLeases frees what is bound to this pod. A lease that it carries and that was never bound is bound first, by the rules
// of binding, so that the end of a copy frees nothing.
func (w *Worker) freeLeases(ctx context.Context, s *subject) error {
	if !s.claimed {
		return nil
	}
	if s.finalized() {
		if err := w.refresh(ctx, s); err != nil {
			return err
		}
	}
	if err := w.bindLast(ctx, s); err != nil {
		return err
	}
	leases := slices.DeleteFunc(s.boundHere(), func(l ipam.Held) bool { return l.Owner.Sticky() })
	if err := w.free(ctx, leases); err != nil {
		return fmt.Errorf("free the leases of pod %s: %w", s.key(), err)
	}
	return nil
}

func (w *Worker) bindLast(ctx context.Context, s *subject) error {
	owner := s.owner
	var refs []ipam.Ref
	for _, l := range s.leases {
		if l.PodUID == "" && l.Owner == owner && !owner.Sticky() && (s.carries(l) || !s.complete()) {
			refs = append(refs, l.Ref())
		}
	}
	if len(refs) == 0 {
		return nil
	}
	if held, err := w.elderCarries(ctx, s); err != nil || held {
		return err
	}
	if _, err := w.Ledger.BindTo(ctx, s.binding(), refs...); ignoreStale(err) != nil {
		return fmt.Errorf("bind the leases of pod %s: %w", s.key(), err)
	}
	fault.Hit(fault.Adopted)
	s.leases = w.Ledger.ByClaim(s.claim)
	return nil
}

// ignoreStale drops the errors that say that a lease has changed meanwhile: what was decided about it is void.
func ignoreStale(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var rest []error
		for _, e := range joined.Unwrap() {
			rest = append(rest, ignoreStale(e))
		}
		return errors.Join(rest...)
	}
	if stale := (*ipam.StaleError)(nil); errors.As(err, &stale) {
		return nil
	}
	return err
}
