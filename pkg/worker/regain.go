package worker

import (
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/topology"
)

// boundIndex finds the claim of the leases that are bound to a pod. It is made anew at most once a second: it serves pods
// that lost what they carried, which is rare.
type boundIndex struct {
	made   time.Time
	claims map[string]ipam.Claim
}

// claimOf gives the claim under which leases are bound to a pod that carries none.
func (w *Worker) claimOf(uid string) (ipam.Claim, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.Clock.Now(); w.bound.claims == nil || now.Sub(w.bound.made) >= time.Second {
		w.bound = boundIndex{made: now, claims: map[string]ipam.Claim{}}
		for _, l := range w.Ledger.Leases() {
			if l.PodUID != "" && l.Address.IsValid() {
				w.bound.claims[l.PodUID] = l.Claim
			}
		}
	}
	claim, ok := w.bound.claims[uid]
	return claim, ok
}

// forgotten tells whether a pod without our marks may once have had them: it runs, or says that its network is ready.
func (s *subject) forgotten() bool { return !s.claimed && (s.running() || s.finalized()) }

// recall finds by the ledger what a pod carried that carries no claim any more.
func (w *Worker) recall(ctx context.Context, s *subject) {
	if !s.forgotten() {
		return
	}
	if served, err := w.served(ctx, s.Namespace); !s.finalized() && (err != nil || !served) {
		return // others' pods are many
	}
	if claim, ok := w.claimOf(s.uid()); ok {
		s.claim, s.leases = claim, w.Ledger.ByClaim(claim)
		s.claimed = len(s.boundHere()) > 0
	}
}

// regain gives a living pod back what is bound to it and what it doesn't carry: claim, addresses and finalizer. It returns
// nil when the pod is to be looked at again.
func (w *Worker) regain(ctx context.Context, s *subject) (*subject, error) {
	bound := s.boundHere()
	lacks := slices.ContainsFunc(bound, func(l ipam.Held) bool { return l.Address.IsValid() && !s.carries(l) })
	if _, claimed := network.ClaimOf(s.Annotations); !lacks && (claimed || len(bound) == 0) {
		return s, nil
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return nil, err
	}
	a, plan := allocationOf(bound, cat)
	if a == nil {
		return s, nil // their subnets are gone
	}
	p := newPatch(s.Pod)
	p.testVersion() // it may have been given others since it was read
	p.annotate(network.Annotations(plan, a, cat, w.Network))
	p.finalize()
	pod, stale, err := p.send(ctx, w.Client)
	if err != nil || stale {
		return nil, err
	}
	w.Log.Info("A pod was given back what it carried", "pod", s.key(), "claim", a.Claim)
	return w.subjectOf(pod), nil
}

// allocationOf tells what the leases of one claim are: nil when none of their subnets is known.
func allocationOf(leases []ipam.Held, cat network.Catalog) (*ipam.Allocation, network.Planned) {
	a := &ipam.Allocation{}
	var plan network.Planned
	macs := map[string]ipam.MAC{}
	for _, l := range leases {
		if l.MAC != (ipam.MAC{}) && macs[l.Provider] == (ipam.MAC{}) {
			macs[l.Provider] = l.MAC
		}
	}
	for _, l := range leases {
		subnet := cat.Subnets[l.Subnet]
		if !l.Address.IsValid() || subnet.Set == nil {
			continue
		}
		a.Claim = l.Claim
		i := slices.IndexFunc(a.Interfaces, func(x ipam.Assignment) bool { return x.Provider == l.Provider && x.Subnet == subnet.Set })
		if i < 0 {
			i = len(a.Interfaces)
			a.Interfaces = append(a.Interfaces, ipam.Assignment{Provider: l.Provider, Subnet: subnet.Set, MAC: macs[l.Provider]})
			plan.Interfaces = append(plan.Interfaces, network.Interface{Provider: l.Provider, IPAMOnly: !topology.IsOVN(subnet.Provider())})
		}
		a.Interfaces[i].Leases = append(a.Interfaces[i].Leases, l)
	}
	if len(a.Interfaces) == 0 {
		return nil, plan
	}
	return a, plan
}

// regains tells whether what the ledger knows of a pod is to be put back on it.
func regains(p *corev1.Pod) bool { return p.DeletionTimestamp == nil && !lifecycle.Ended(p) }
