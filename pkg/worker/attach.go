package worker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
)

const actionAttach = "Attach"

// attach brings a pod that has its addresses to the attachments that it names by now. What is new is leased first, all of
// it or nothing; then what goes is unwired and its leases are loosened from the pod; one patch says all that on the pod;
// and only then, when the pod carries them no more, the leases are freed. Whatever is not done is done by the next pass:
// the patch comes last that makes the pod settled.
//
// It returns nil when the pod is to be looked at again, and otherwise the pod as it is then, to be served, and after how
// long more is to be tried.
func (w *Worker) attach(ctx context.Context, s *subject) (*subject, time.Duration, error) {
	if network.Settled(s.Annotations) || !s.attachable() {
		return s, 0, nil
	}
	edit, view, why, err := w.replan(ctx, s)
	if err != nil {
		return nil, 0, err
	}
	if why != "" {
		w.unwait(s.key())
		w.warn(s.Pod, reasonRefused, actionAttach, "the networks that the pod names now can't be had, and it keeps those that it has: "+why)
		return s, retryHeld, nil
	}
	a, waits, err := w.plug(ctx, s, edit)
	if err != nil {
		return nil, 0, err
	}
	if a == nil && !waits {
		return s, retryHeld, nil
	}
	loose, err := w.unplug(ctx, s, edit)
	if err != nil {
		return nil, 0, err
	}
	p := newPatch(s.Pod)
	p.testVersion() // it may have been edited again
	if waits || len(edit.InUse) > 0 {
		edit.Plug.Networks = s.Annotations[network.PluggedKey]
	}
	if a == nil {
		a = &ipam.Allocation{Claim: s.claim}
	}
	p.annotate(network.Annotations(edit.Plug, a, view.Catalog, w.Network))
	p.unannotate(edit.Drop...)
	if edit.Plug.Requested == "" {
		p.unannotate(network.RequestedKey)
	}
	if edit.Plug.Networks == "" {
		p.unannotate(network.PluggedKey)
	}
	p.finalize()
	pod, stale, err := p.send(ctx, w.Client)
	if err != nil || stale {
		return nil, 0, err
	}
	if err := w.free(ctx, loose); err != nil {
		return nil, 0, fmt.Errorf("free what was unplugged from pod %s: %w", s.key(), err)
	}
	again := w.tellAttached(s, edit, waits)
	s = w.subjectOf(pod)
	return s, again, w.locate(ctx, s)
}

// tellAttached tells of what isn't as the pod asks for, and gives the time after which more is to be tried.
func (w *Worker) tellAttached(s *subject, edit network.Edit, waits bool) time.Duration {
	for _, text := range edit.Plug.Dropped {
		w.warn(s.Pod, reasonRefused, actionAttach, text)
	}
	if len(edit.InUse) > 0 {
		w.warn(s.Pod, reasonInUse, actionAttach, fmt.Sprintf("the addresses on %s are kept for the pod until %s says that they are unplugged, or the pod ends",
			strings.Join(edit.InUse, ", "), network.StatusKey))
	}
	switch {
	case waits:
		return retryWaiting
	case len(edit.InUse) > 0:
		return retryHeld
	}
	return 0
}

// attachable tells whether the pod's networks are the pod's to change: it has its addresses, and no other pod of its
// virtual machine has them with it.
func (s *subject) attachable() bool {
	if _, claimed := network.ClaimOf(s.Annotations); !claimed || !s.finalized() || !s.complete() {
		return false
	}
	return !slices.ContainsFunc(s.leases, func(l ipam.Held) bool { return l.PodUID != "" && l.PodUID != s.uid() })
}

// replan works out the edit. why says why it is refused.
func (w *Worker) replan(ctx context.Context, s *subject) (edit network.Edit, view catalog.View, why string, err error) {
	have := network.Having{Leases: s.leases, Running: s.running()}
	view, bad, err := catalog.Plan(ctx, w.topology, network.PodOf(s.Pod), func(v catalog.View) (wrong field.ErrorList, _ error) {
		edit, wrong = network.Replan(v.Pod, have, v.Namespace, v.Catalog, w.Network)
		return wrong, nil
	})
	if len(bad) > 0 {
		why = bad.ToAggregate().Error()
	}
	return edit, view, why, err
}

// plug leases what is new. It gives nil when that can't be had: not now, and then the pod waits for it, or not at all.
func (w *Worker) plug(ctx context.Context, s *subject, edit network.Edit) (a *ipam.Allocation, waits bool, err error) {
	if len(edit.Plug.Interfaces) == 0 {
		w.unwait(s.key())
		return &ipam.Allocation{Claim: s.claim}, false, nil
	}
	request := edit.Plug.Request(s.claim, true)
	request.Shared = true  // with a former leader
	w.wait(s.Pod, request) // before the attempt, so that an address freed during it isn't missed
	a, err = w.Ledger.Take(ctx, request)
	refusal, refused := ipam.AsRefusal(err)
	switch {
	case refused && refusal.Unavailable():
		w.warn(s.Pod, reasonWaiting, actionAttach, refusal.Error())
		return nil, true, nil
	case refused:
		w.unwait(s.key())
		w.warn(s.Pod, reasonRefused, actionAttach, "the pod keeps the networks that it has: "+refusal.Error())
		return nil, false, nil
	}
	w.unwait(s.key())
	if err != nil {
		return nil, false, fmt.Errorf("lease addresses on new networks for pod %s: %w", s.key(), err)
	}
	return a, false, nil
}

// unplug takes rows and records of what goes, and loosens its leases from the pod: nothing puts them back on it then, and
// if this ends here, they are found pending. It returns them, to be freed when the pod doesn't carry them any more.
func (w *Worker) unplug(ctx context.Context, s *subject, edit network.Edit) ([]ipam.Held, error) {
	if len(edit.Unplug) > 0 {
		gone := *s
		gone.carried = slices.DeleteFunc(slices.Clone(s.carried), func(c network.CarriedInterface) bool { return !slices.Contains(edit.Unplug, c.Provider) })
		ports, err := w.portsOf(&gone)
		if err != nil {
			return nil, err
		}
		ports = slices.DeleteFunc(ports, func(name string) bool {
			return !slices.ContainsFunc(edit.Unplug, func(p string) bool { return name == network.PortName(s.identity, s.Namespace, p) })
		})
		if len(ports) > 0 {
			if err := w.apply(ctx, ovn.Change{Key: s.key().String(), RemovePorts: ports}); err != nil {
				return nil, err
			}
		}
		if err := w.dropRecords(ctx, &gone, s.Spec.NodeName != ""); err != nil {
			return nil, err
		}
	}
	return w.loosen(ctx, s, edit.Free)
}

// loosen unbinds those of the leases that are bound to the pod. Those that were never bound may be another's, of whose
// manifest the pod is a copy.
func (w *Worker) loosen(ctx context.Context, s *subject, leases []ipam.Held) ([]ipam.Held, error) {
	var bound []ipam.Ref
	var loose []ipam.Held
	for _, l := range leases {
		if l.PodUID == s.uid() {
			bound = append(bound, l.Ref())
		} else {
			loose = append(loose, l)
		}
	}
	if len(loose) > 0 {
		if held, err := w.elderCarries(ctx, s); err != nil {
			return nil, err
		} else if held {
			loose = nil
		}
	}
	if len(bound) == 0 {
		return loose, nil
	}
	freed, err := w.Ledger.BindTo(ctx, ipam.Binding{}, bound...)
	if err != nil {
		return nil, fmt.Errorf("loosen the leases of what is unplugged from pod %s: %w", s.key(), err)
	}
	return append(loose, freed...), nil
}
