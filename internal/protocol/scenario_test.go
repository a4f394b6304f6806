package protocol

import (
	"fmt"
	"strings"
)

// kind is what one CREATE of a scenario is about.
type kind uint8

const (
	plain        kind = iota // a pod of its own, admitted by the webhook
	member                   // the member of a StatefulSet: all of a scenario have one name
	launcher                 // a launcher of the one virtual machine
	copied                   // a stored pod's manifest, created past the webhook
	late                     // a pod that slipped past the webhook
	lateMember               // the same, the member
	lateLauncher             // the same, a launcher
)

func (k kind) String() string {
	return [...]string{"plain", "member", "launcher", "copy", "late", "lateMember", "lateLauncher"}[k]
}

func (k kind) owner() owner {
	switch k {
	case member, lateMember:
		return theSet
	case launcher, lateLauncher:
		return theVM
	}
	return onlyPod
}

// named tells that the API server refuses a second pod of this kind: both have one name.
func (k kind) named() bool { return k.owner() == theSet }

// fault is something that may go wrong, once.
type fault uint8

const (
	newLeader    fault = 1 << iota // the leader changes, and the old one's decisions are still executed
	strip                          // somebody strips a finalizer
	again                          // a CREATE is sent again, or the answer of its CAS is lost
	pause                          // a webhook sleeps until its API server has given up
	ahead                          // webhooks take leases ahead of their CREATEs
	suspendedAPI                   // an API server sleeps for more than 60 s with a CREATE in hand
)

func (f fault) String() string {
	var out []string
	for i, n := range []string{"newLeader", "strip", "again", "pause", "ahead", "suspendedAPI"} {
		if f&(1<<i) != 0 {
			out = append(out, n)
		}
	}
	return strings.Join(out, "+")
}

// scenario is what a search starts from.
type scenario struct {
	pods      []kind
	addresses int
	faults    fault
}

func on(addresses int, faults fault, pods ...kind) scenario {
	return scenario{pods: pods, addresses: addresses, faults: faults}
}

func (c scenario) String() string {
	return fmt.Sprintf("%v on %d addresses, faults %v", c.pods, c.addresses, c.faults)
}

func (c scenario) kind(p podID) kind   { return c.pods[p-1] }
func (c scenario) owner(p podID) owner { return c.kind(p).owner() }
func (c scenario) has(f fault) bool    { return c.faults&f != 0 }

// siblings tells that both pods are launchers of one virtual machine.
func (c scenario) siblings(p, q podID) bool {
	return c.owner(p) == theVM && c.owner(q) == theVM
}

// sticky tells that there is an owner who may come back.
func (c scenario) sticky() bool {
	for _, k := range c.pods {
		if k.owner().sticky() {
			return true
		}
	}
	return false
}

// podIDs gives the ids of the pods.
func (c scenario) podIDs(yield func(podID) bool) {
	for i := range c.pods {
		if !yield(podID(i + 1)) {
			return
		}
	}
}

// addrIDs gives the ids of the addresses.
func (c scenario) addrIDs(yield func(addrID) bool) {
	for i := range c.addresses {
		if !yield(addrID(i + 1)) {
			return
		}
	}
}
