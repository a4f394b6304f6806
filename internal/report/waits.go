package report

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Asking is the pod as its plan is to be made: what it carries beside a claim without leases is no wish of its own.
func Asking(p *corev1.Pod, leases []ipam.Held) network.Pod {
	pod := network.PodOf(p)
	if len(leases) == 0 && pod.Annotations[network.ClaimKey] != "" {
		pod.Annotations = maps.Clone(pod.Annotations)
		maps.DeleteFunc(pod.Annotations, func(k, _ string) bool { return network.Output(k) })
	}
	return pod
}

// waitsFor tells what must happen next for the pod to be on its network, or to be gone.
func waitsFor(t Told, s *Story) []string {
	pod := network.PodOf(t.Pod)
	if s.Claim == "" && !s.Finalizer {
		if why, skip := network.Skip(pod); skip {
			return []string{"nothing of Berth: " + why}
		}
		if s.Inject != network.InjectEnabled && s.Inject != network.InjectLate {
			return []string{fmt.Sprintf("nothing of Berth: its namespace is not served; label it %s=%s", network.LabelInject, network.InjectEnabled)}
		}
	}
	if t.Pod.DeletionTimestamp != nil || lifecycle.Ended(t.Pod) {
		return waitsForEnd(t, s)
	}
	if t.Pod.Status.Phase == corev1.PodRunning && routed(s) {
		return []string{}
	}
	return waitsForStart(t, s)
}

// routed tells that all networks of the pod are marked so.
func routed(s *Story) bool {
	return len(s.Carried) > 0 && !slices.ContainsFunc(s.Carried, func(c Carried) bool { return !c.Routed })
}

func waitsForEnd(t Told, s *Story) []string {
	if !s.Finalizer {
		return []string{}
	}
	switch t.Verdict.Action {
	case lifecycle.Release, lifecycle.Unwire:
		return []string{worker(t, "to take back its ports and addresses and its finalizer: "+t.Verdict.Reason)}
	}
	return []string{"the end of its containers: " + t.Verdict.Reason}
}

func waitsForStart(t Told, s *Story) []string {
	out := []string{}
	for _, g := range s.Gates {
		if g != network.AddressGate {
			out = append(out, "whoever set its scheduling gate "+g+" to lift it; it is given an address when that was the last one")
		}
	}
	if len(s.Plan.Problems) > 0 {
		return append(out, "a correction of what it asks for: recreate it without the problems of its plan")
	}
	if slices.Contains(s.Gates, network.AddressGate) {
		out = append(out, waitsForAddress(t)...)
	}
	switch {
	case len(out) > 0:
		return out
	case s.Claim == "":
		return []string{worker(t, "to give it an address: it was created while no webhook answered, or its namespace is served late")}
	case len(t.Leases) == 0:
		return []string{worker(t, "to sort out its claim, under which the ledger has no lease: it may be a copy of another pod's manifest")}
	}
	if slices.ContainsFunc(t.Leases, func(h ipam.Held) bool { return h.PodUID != s.UID }) {
		out = append(out, worker(t, "to bind its leases to it"))
	}
	if s.Node == "" {
		return append(out, "the scheduler to find a node for it")
	}
	if !routed(s) {
		return append(out, worker(t, "to connect its ports"))
	}
	return append(out, "the node "+s.Node+" to start its containers")
}

// worker tells that the worker is to do something, and whether one is there to do it.
func worker(t Told, what string) string {
	if t.Leader == "" {
		return "the worker " + what + "; NO WORKER LEADS now: look at its Deployment"
	}
	return "the worker " + what
}

// waitsForAddress tells for each interface that lacks an address why it can't have one.
func waitsForAddress(t Told) []string {
	out := []string{}
	for _, i := range t.Plan.Interfaces {
		if slices.ContainsFunc(t.Leases, func(h ipam.Held) bool { return h.Provider == i.Provider && h.Address.IsValid() }) {
			continue
		}
		var why []string
		for _, c := range i.Candidates {
			why = append(why, lack(t.Ledger, i, c)...)
		}
		if len(why) == 0 {
			why = []string{"it can be had now: " + worker(t, "to hand it over")}
		}
		out = append(out, fmt.Sprintf("an address on network %s: %s", i.Provider, strings.Join(why, "; ")))
	}
	if len(out) == 0 {
		out = append(out, worker(t, "to lift its gate "+network.AddressGate))
	}
	return out
}

// lack tells why a candidate has nothing for the interface; nothing when it has.
func lack(l *ipam.Ledger, i network.Interface, c network.Candidate) []string {
	var why []string
	asked := map[ipam.Family]bool{}
	for _, choice := range i.Choices {
		for _, a := range choice {
			if !holds(c, a) {
				continue
			}
			h, leased := l.Lookup(c.Object.Name, a)
			if !leased || h.Owner == i.Reservation {
				return nil
			}
			asked[ipam.FamilyOf(a)] = true
			why = append(why, fmt.Sprintf("%s is leased to %s", a, people(h)))
		}
	}
	for _, f := range c.Set.Families() {
		if asked[f] || len(i.Families) > 0 && !slices.Contains(i.Families, f) {
			continue
		}
		if fig := l.PoolFigures(ipam.Source{Subnet: c.Set, Pool: c.Pool}, f); fig.Free.Sign() == 0 {
			why = append(why, fmt.Sprintf("%s has no free %s address of %s", candidate(c), f, fig.Size))
		}
	}
	return why
}

// holds tells that an address is of the candidate's subnet.
func holds(c network.Candidate, a netip.Addr) bool {
	p, ok := c.Set.Prefix(ipam.FamilyOf(a))
	return ok && p.Contains(a)
}
