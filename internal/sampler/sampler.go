// Package sampler checks on snapshots of a living cluster what must hold in it at every moment, or after a while.
//
// Invariant: a violation is reported only when it was seen in every sample over the time that it is allowed to last: what
// a snapshot shows that was taken while things moved is none.
package sampler

import (
	"cmp"
	"fmt"
	"math/big"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Rule is one of the invariants.
type Rule string

// The rules.
const (
	// OneAddressOnePort: no two wired ports on one switch have one address.
	OneAddressOnePort Rule = "one address, one port"
	// OneLeaseOnePod: no two living pods hold one lease, launchers of one virtual machine excepted.
	OneLeaseOnePod Rule = "one lease, one pod"
	// PortHasOwner: every wired port belongs to a pod or to a sticky owner.
	PortHasOwner Rule = "a port has an owner"
	// LeaseHasOwner: every lease belongs to a pod or to a sticky owner, or it is young.
	LeaseHasOwner Rule = "a lease has an owner"
	// PodHasLease: every address that a pod carries under a claim is leased to it.
	PodHasLease Rule = "an address has a lease"
	// SumsAddUp: what is free, leased and excluded makes up the subnet.
	SumsAddUp Rule = "the sums add up"
	// NothingPends: after quiet time no lease is pending.
	NothingPends Rule = "nothing is pending"
	// HolderIsFinalized: after quiet time a pod with a lease has the finalizer.
	HolderIsFinalized Rule = "a holder has the finalizer"
)

// Snapshot is a cluster as it was at about one moment.
type Snapshot struct {
	Pods    []lifecycle.Pod
	Leases  []ipam.Held
	Ports   []nb.LogicalSwitchPort
	Records []lifecycle.Record
	// Keeps tells whether a sticky owner wants a lease; nil knows of none.
	Keeps func(ipam.Held) lifecycle.Answer
	// Done are the UIDs of pods that have ended for good and only wait for their finalizer to be taken off: they still
	// carry what others may have by now.
	Done map[string]bool
	// Sums are the figures of subnets, by name and family.
	Sums map[string]ipam.Figures
}

// Violation is something that must not be.
type Violation struct {
	Rule    Rule
	Subject string
	Detail  string
	// Since is when it was first seen, without a break until now.
	Since time.Time
}

// String tells all of it.
func (v Violation) String() string {
	return fmt.Sprintf("%s: %s: %s, since %s", v.Rule, v.Subject, v.Detail, v.Since.Format(time.RFC3339Nano))
}

// Allowed is how long each rule may be seen broken. The zero value of a field is no time at all.
type Allowed struct {
	// Duplicates is for two ports or two pods with one address: the time in which one snapshot is taken.
	Duplicates time.Duration
	// Orphans is for ports and leases without owner: the age at which pending leases are freed, and two sweeps.
	Orphans time.Duration
	// Missing is for addresses without lease and sums that don't add up: the time of a rebuild.
	Missing time.Duration
	// Quiet is how long nothing may have moved before nothing may be pending.
	Quiet time.Duration
}

// DefaultAllowed follows from the defaults of the worker.
func DefaultAllowed(sweep time.Duration) Allowed {
	return Allowed{Duplicates: 2 * time.Second, Orphans: lifecycle.DefaultPendingAge + 3*sweep, Missing: 2 * sweep, Quiet: lifecycle.DefaultPendingAge + 3*sweep}
}

// Sampler looks at snapshots, one after the other. It is not safe for concurrent use.
type Sampler struct {
	allowed Allowed
	seen    map[key]Violation
	last    time.Time // when anything was last seen to move
	state   string
}

// key tells one violation from another.
type key struct {
	rule    Rule
	subject string
}

// New makes a sampler.
func New(a Allowed) *Sampler { return &Sampler{allowed: a, seen: map[key]Violation{}} }

// Look takes a snapshot of that moment in, and gives what has been broken for longer than it may, in a fixed order.
func (s *Sampler) Look(now time.Time, snap Snapshot) []Violation {
	broken := check(snap)
	if state := fingerprint(snap); state != s.state || s.last.IsZero() {
		s.state, s.last = state, now
	}
	next := map[key]Violation{}
	var out []Violation
	for _, v := range broken {
		k := key{v.Rule, v.Subject}
		if old, ok := s.seen[k]; ok {
			v.Since = old.Since
		} else {
			v.Since = now
		}
		next[k] = v
		if s.overdue(now, v) {
			out = append(out, v)
		}
	}
	s.seen = next
	slices.SortFunc(out, func(a, b Violation) int {
		return cmp.Or(cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Subject, b.Subject))
	})
	return out
}

// Pause tells that for so long nothing could be seen: what was seen broken before has not lasted longer for it.
func (s *Sampler) Pause(blind time.Duration) {
	for k, v := range s.seen {
		v.Since = v.Since.Add(blind)
		s.seen[k] = v
	}
	s.last = s.last.Add(blind)
}

func (s *Sampler) overdue(now time.Time, v Violation) bool {
	lasted := now.Sub(v.Since)
	switch v.Rule {
	case OneAddressOnePort, OneLeaseOnePod:
		return lasted > s.allowed.Duplicates
	case PortHasOwner, LeaseHasOwner:
		return lasted > s.allowed.Orphans
	case NothingPends, HolderIsFinalized:
		return lasted > s.allowed.Quiet && now.Sub(s.last) > s.allowed.Quiet
	}
	return lasted > s.allowed.Missing
}

// fingerprint changes when pods or leases do.
func fingerprint(snap Snapshot) string {
	var newest int64
	for _, l := range snap.Leases {
		newest = max(newest, l.Generation)
	}
	return fmt.Sprint(len(snap.Pods), len(snap.Leases), len(snap.Ports), newest)
}

// ruleOf tells which rule a finding breaks.
func ruleOf(k lifecycle.Kind) (Rule, bool) {
	switch k {
	case lifecycle.PortDuplicate:
		return OneAddressOnePort, true
	case lifecycle.LeaseShared:
		return OneLeaseOnePod, true
	case lifecycle.PortOrphaned, lifecycle.PortUnleased:
		return PortHasOwner, true
	case lifecycle.LeasePending, lifecycle.LeaseOrphaned:
		return LeaseHasOwner, true
	case lifecycle.LeaseMissing:
		return PodHasLease, true
	case lifecycle.FinalizerMissing:
		return HolderIsFinalized, true
	}
	return "", false
}

// check tells what is broken in one snapshot.
func check(snap Snapshot) []Violation {
	var out []Violation
	for _, f := range lifecycle.Compare(lifecycle.State{Pods: snap.Pods, Leases: snap.Leases, Ports: snap.Ports, Records: snap.Records, Keeps: snap.Keeps}) {
		if rule, ok := ruleOf(f.Kind); ok {
			out = append(out, Violation{Rule: rule, Subject: subjectOf(f), Detail: f.Detail})
		}
	}
	out = append(out, twiceLeased(snap)...)
	for _, l := range snap.Leases {
		if l.PodUID == "" && !l.Owner.Sticky() {
			out = append(out, Violation{Rule: NothingPends, Subject: l.Subnet + " " + l.Ref().String(), Detail: "no pod is bound to it"})
		}
	}
	for name, f := range snap.Sums {
		sum := new(big.Int).Add(f.Free, f.Excluded)
		if sum.Add(sum, big.NewInt(int64(f.Leased))).Cmp(f.Size) != 0 || f.Free.Sign() < 0 {
			out = append(out, Violation{Rule: SumsAddUp, Subject: name,
				Detail: fmt.Sprintf("%s free + %d leased + %s excluded of %s", f.Free, f.Leased, f.Excluded, f.Size)})
		}
	}
	return out
}

// subjectOf names a finding so that another pod's, or another lease's, of the same address is another.
func subjectOf(f lifecycle.Finding) string {
	switch {
	case f.Lease.Claim != "":
		return fmt.Sprintf("%s %s %s %d", f.Lease.Subnet, f.Subject, f.Lease.Claim, f.Lease.Generation)
	case f.PodUID != "":
		return f.Subject + " of " + f.Namespace + "/" + f.Pod + " " + f.PodUID
	}
	return f.Subject
}

// twiceLeased finds living pods that carry one address of one subnet under different claims: two leases can't be, so one
// of them runs on nothing.
func twiceLeased(snap Snapshot) []Violation {
	claims := map[netip.Addr]map[ipam.Claim]string{}
	for _, p := range snap.Pods {
		if p.Over || p.Claim == "" || snap.Done[p.UID] {
			continue
		}
		for _, a := range p.Addresses {
			if claims[a] == nil {
				claims[a] = map[ipam.Claim]string{}
			}
			claims[a][p.Claim] = p.Namespace + "/" + p.Name
		}
	}
	leased := map[netip.Addr]int{}
	for _, l := range snap.Leases {
		if l.Address.IsValid() && l.Owner.Kind != network.KindVM {
			leased[l.Address]++
		}
	}
	var out []Violation
	for a, by := range claims {
		if len(by) < 2 || leased[a] >= len(by) { // subnets of several VPCs may have the same addresses
			continue
		}
		var pods []string
		for _, pod := range by {
			pods = append(pods, pod)
		}
		slices.Sort(pods)
		out = append(out, Violation{Rule: OneLeaseOnePod, Subject: a.String(), Detail: fmt.Sprintf("pods %v carry it", pods)})
	}
	return out
}
