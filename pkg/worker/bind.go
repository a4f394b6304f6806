package worker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/fault"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// indexClaim is the field index of pods by claim.
const indexClaim = "berth.claim"

func claimIndex(obj client.Object) []string {
	if c, ok := network.ClaimOf(obj.GetAnnotations()); ok {
		return []string{string(c)}
	}
	return nil
}

// missing gives the addresses that the pod carries and that aren't leased under its claim in that subnet.
func (s *subject) missing() []netip.Addr {
	var out []netip.Addr
	for _, c := range s.carried {
		for _, a := range c.Addresses {
			if !slices.ContainsFunc(s.leases, func(l ipam.Held) bool { return l.Address == a && l.Subnet == c.Subnet }) {
				out = append(out, a)
			}
		}
	}
	return out
}

func (s *subject) subnets() []string {
	var out []string
	for _, c := range s.carried {
		if c.Subnet != "" && !slices.Contains(out, c.Subnet) {
			out = append(out, c.Subnet)
		}
	}
	return out
}

// carries tells that the pod carries what the lease is for.
func (s *subject) carries(l ipam.Held) bool {
	if !l.Address.IsValid() {
		return slices.ContainsFunc(s.carried, func(c network.CarriedInterface) bool { return c.MAC == l.MAC })
	}
	return slices.ContainsFunc(s.carried, func(c network.CarriedInterface) bool {
		return c.Subnet == l.Subnet && slices.Contains(c.Addresses, l.Address)
	})
}

// unbound tells that some of the leases that the pod carries are yet to be bound to it.
func (s *subject) unbound() bool {
	return slices.ContainsFunc(s.leases, func(l ipam.Held) bool { return l.PodUID != s.uid() && s.carries(l) })
}

func (s *subject) binding() ipam.Binding {
	return ipam.Binding{PodUID: s.uid(), PodName: s.Name, OwnerUID: s.ownerUID()}
}

// adopted tells that the pod has another controller than when the lease was bound to it: its owner was made anew and
// took it over.
func (s *subject) adopted(l ipam.Held) bool {
	uid := s.ownerUID()
	return uid != "" && l.OwnerUID != "" && l.OwnerUID != uid && l.Owner == s.owner
}

// refresh reads the pod's subnets in the ledger live when the cache lacks something. Only that may say that it is missing.
func (w *Worker) refresh(ctx context.Context, s *subject) error {
	if len(s.missing()) == 0 {
		return nil
	}
	if names := s.subnets(); len(names) > 0 {
		if err := w.Ledger.Refresh(ctx, names...); err != nil {
			return fmt.Errorf("read the ledger: %w", err)
		}
	}
	s.leases = w.Ledger.ByClaim(s.claim)
	return nil
}

// bind binds the pod's leases to it: only those on which ledger and pod agree, and only when nobody else has a better
// right. A *busyError says why not.
func (w *Worker) bind(ctx context.Context, s *subject) error {
	if err := w.refresh(ctx, s); err != nil {
		return err
	}
	if len(s.missing()) > 0 || s.unbound() {
		if err := w.open(ctx, s); err != nil {
			return err
		}
	}
	if len(s.missing()) > 0 {
		if w.robbed(s) {
			return &busyError{"a lease of the pod is lost"}
		}
		if err := w.reground(ctx, s); err != nil {
			return err
		}
	}
	refs, err := w.bindable(ctx, s)
	if err != nil {
		return err
	}
	if len(refs) > 0 {
		if err := w.checkOlder(ctx, s); err != nil {
			return err
		}
		fault.Hit(fault.Decided)
		if _, err := w.Ledger.BindTo(ctx, s.binding(), refs...); err != nil {
			return fmt.Errorf("bind the leases of pod %s: %w", s.key(), err)
		}
		fault.Hit(fault.Bound)
		s.leases = w.Ledger.ByClaim(s.claim)
	}
	return w.freeSurplus(ctx, s) // also what a broken look has left
}

// freeSurplus frees what a former pod of the sticky owner had and this one doesn't carry: it asked for another address,
// or has an interface less. Before this pod was bound, the former one could still have come back to it. What a container may
// still use is left to the sweep.
func (w *Worker) freeSurplus(ctx context.Context, s *subject) error {
	if !s.owner.Sticky() {
		return nil
	}
	var surplus []ipam.Held
	for _, l := range s.leases {
		if l.Owner != s.owner || l.PodUID == "" || l.PodUID == s.uid() || s.carries(l) {
			continue
		}
		gone, err := w.podGone(ctx, s.Namespace, l.PodName, l.PodUID)
		if err != nil {
			return err
		}
		if !gone {
			continue
		}
		if used, err := w.inUse(ctx, l, false); err != nil {
			return err
		} else if !used {
			surplus = append(surplus, l)
		}
	}
	if err := w.free(ctx, surplus); err != nil {
		return fmt.Errorf("free what pod %s left: %w", s.key(), err)
	}
	return nil
}

// bindable gives the leases that are yet to be bound to the pod.
func (w *Worker) bindable(ctx context.Context, s *subject) ([]ipam.Ref, error) {
	var refs []ipam.Ref
	for _, l := range s.leases {
		if !s.carries(l) || l.PodUID == s.uid() && !s.adopted(l) {
			continue
		}
		if l.Owner != s.owner {
			return nil, w.copied(ctx, s, fmt.Sprintf("%s is leased to %s, and this pod's leases would belong to %s", l.Ref(), l.Owner, s.owner))
		}
		if l.PodUID != "" && l.PodUID != s.uid() {
			gone, err := w.podGone(ctx, l.Owner.Namespace, l.PodName, l.PodUID)
			if err != nil {
				return nil, err
			}
			if !gone && l.Owner.Kind == network.KindVM {
				s.sharedWith = l.PodName
				continue
			}
			if !gone {
				return nil, w.copied(ctx, s, fmt.Sprintf("%s is bound to pod %s/%s, which lives", l.Ref(), l.Owner.Namespace, l.PodName))
			}
			if err := w.vacated(ctx, s, l); err != nil {
				return nil, err
			}
		}
		refs = append(refs, l.Ref())
	}
	return refs, nil
}

// copied is for a pod that carries what is another's. Before it runs it gets leases of its own: what it asked for itself
// it must wait for, as everybody.
func (w *Worker) copied(ctx context.Context, s *subject, why string) error {
	if !s.running() {
		if err := w.renew(ctx, s); err != nil {
			return err
		}
		return &busyError{why + ": it gets leases of its own"}
	}
	w.warn(s.Pod, reasonCopy, actionWire, "not wired: "+why+"; recreate the pod without the annotations of "+network.ClaimKey)
	return &busyError{why}
}

// checkOlder holds a pod back whose claim an older living pod carries.
func (w *Worker) checkOlder(ctx context.Context, s *subject) error {
	held, err := w.elderCarries(ctx, s)
	if err != nil {
		return err
	}
	if held && s.owner.Kind == network.KindVM {
		return &busyError{"the leases of the machine are bound to its older launcher first"}
	}
	if held {
		return w.copied(ctx, s, "an older pod carries the same claim")
	}
	return nil
}

// elderCarries tells whether an older living pod carries the claim, one that the leases could belong to.
func (w *Worker) elderCarries(ctx context.Context, s *subject) (bool, error) {
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.MatchingFields{indexClaim: string(s.claim)}); err != nil {
		return false, fmt.Errorf("list the pods of claim %s: %w", s.claim, err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return p.UID != s.UID && older(&p, s.Pod) && !lifecycle.Ended(&p) && w.ownerOf(&p) == s.owner
	}), nil
}

func older(a, b *corev1.Pod) bool {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID)) < 0
}

// podGone reads live whether that very pod is gone, or has ended for good.
func (w *Worker) podGone(ctx context.Context, namespace, name, uid string) (bool, error) {
	if name == "" || uid == "" {
		return false, nil
	}
	var p corev1.Pod
	err := w.Live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &p)
	switch {
	case apierrors.IsNotFound(err):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read pod %s/%s: %w", namespace, name, err)
	}
	return string(p.UID) != uid || p.DeletionTimestamp == nil && lifecycle.Ended(&p), nil
}

// reground is for a pod whose addresses the ledger doesn't have under its claim. One that runs keeps its addresses, if
// they can be had; any other gets fresh leases under a new claim.
func (w *Worker) reground(ctx context.Context, s *subject) error {
	if err := w.checkOlder(ctx, s); err != nil {
		return err
	}
	if !s.running() {
		if err := w.renew(ctx, s); err != nil {
			return err
		}
		return &busyError{"the pod gets fresh leases"}
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return err
	}
	if err := w.adopt(ctx, s, cat); err != nil {
		if _, refused := ipam.AsRefusal(err); !refused {
			return err
		}
		w.warn(s.Pod, reasonRunning, actionWire, err.Error())
		return &busyError{err.Error()}
	}
	s.leases = w.Ledger.ByClaim(s.claim)
	return nil
}
