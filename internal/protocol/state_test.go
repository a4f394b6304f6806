package protocol

import "slices"

// The sizes of a state. A scenario uses as much of it as it needs.
const (
	maxPods      = 4
	maxAddresses = 3
	hands        = 2
)

// Ids count from one. Zero is none.
type (
	podID   uint8
	addrID  uint8
	claimID uint8
)

// derived is where claims begin that are computed from an owner. Only a mutation makes such claims.
const derived claimID = 200

// owner is who may come back to a lease.
type owner uint8

const (
	onlyPod owner = iota // the pod itself: nobody comes back
	theSet               // the StatefulSet's one member
	theVM                // the virtual machine
)

func (o owner) sticky() bool { return o != onlyPod }

// lease is what the ledger says of one address. Without a claim the address is free.
type lease struct {
	claim claimID
	gen   uint8 // generation
	owner owner
	bound podID
}

// phase is how far a CREATE has come.
type phase uint8

const (
	idle       phase = iota
	saved            // a manifest in a user's hands, to be created as a copy
	missed           // the webhook's cache shows no lease of the owner
	confirming       // a sticky owner's first lease is taken and not yet confirmed
	taken            // leases are durable, the answer is not given
	paused           // the API server has given up, the webhook is suspended with its lease
	answered         // the API server has the answer
	suspended        // the same, and the API server is suspended for more than 60 s
	stored           // the pod is in etcd, or was
	over             // nothing is left of it
	stocked          // a webhook has taken leases, and their CREATE is to come
)

// life is what the kubelet says of a stored pod.
type life uint8

const (
	running  life = iota
	stopping      // deletion mark, containers may run
	stopped       // deletion mark, no container runs
	gone          // not in etcd any more
)

// pod is a CREATE and the pod that it may become.
type pod struct {
	phase     phase
	claim     claimID
	addr      addrID
	gen       uint8  // generation of its own take, for an undo
	told      addrID // address that the CREATE, or the late allocation, gave
	life      life
	finished  bool // phase Succeeded
	finalizer bool
	seen      bool   // in the worker's cache
	port      addrID // address of its port in OVN, which can outlive it
}

// taskKind is what a worker's hand has decided.
type taskKind uint8

const (
	nothing taskKind = iota
	toFree
	toBind
	toWire
	toPatch
)

// task is a decision with everything that it was made on. It is executed any time later.
type task struct {
	kind  taskKind
	epoch uint8
	pod   podID
	addr  addrID
	claim claimID
	gen   uint8
	old   claimID // claim on the pod when a patch was decided
	found bool    // the lease was there under the claim already
}

// budget counts how often a fault, or a user's whim, has happened.
type budget struct {
	scaled, stripped, again, paused, suspended uint8
}

// state is one state of the world. It is a comparable value without padding.
type state struct {
	leases [maxAddresses]lease
	pods   [maxPods]pod
	hands  [hands]task
	wanted bool  // the sticky owner exists and wants its member
	epoch  uint8 // in OVN
	spent  budget
}

func (s *state) lease(a addrID) *lease { return &s.leases[a-1] }
func (s *state) pod(p podID) *pod      { return &s.pods[p-1] }

// exists tells that the pod is in etcd.
func (s *state) exists(p podID) bool {
	return p != 0 && s.pod(p).exists()
}

func (p *pod) exists() bool { return p.phase == stored && p.life != gone }

// alive tells that containers of the pod run, or may run.
func (p *pod) alive() bool { return p.phase == stored && p.life <= stopping && !p.finished }

// inFlight tells that an API server may still store the pod of this CREATE, and that it does so within 34 s.
func (p *pod) inFlight() bool {
	return p.phase == confirming || p.phase == taken || p.phase == answered
}

// mayUndo tells that a webhook may still free what it took.
func (p *pod) mayUndo() bool {
	return p.gen != 0 && (p.phase == stocked || p.phase == confirming || p.phase == taken || p.phase == paused)
}

// holds tells that the ledger has the pod's address under the pod's claim.
func (s *state) holds(p podID) bool {
	q := s.pod(p)
	return q.claim != 0 && q.addr != 0 && s.lease(q.addr).claim == q.claim
}

// elder tells that an older pod carries the same claim. A copy always comes after its original.
func (s *state) elder(p podID) bool {
	for o := podID(1); o < p; o++ {
		if s.exists(o) && s.pod(o).claim == s.pod(p).claim {
			return true
		}
	}
	return false
}

// another tells that the owner has a lease on another address than a.
func (s *state) another(a addrID, o owner) bool {
	for i := range s.leases {
		if l := &s.leases[i]; addrID(i+1) != a && o.sticky() && l.claim != 0 && l.owner == o {
			return true
		}
	}
	return false
}

// fresh gives a claim that nothing in the state knows. To the rules, a claim that everybody has forgotten is as good
// as one that never was: so the claims of an endless protocol are few.
func (s *state) fresh() claimID {
	var used [derived]bool
	s.eachClaim(func(c *claimID) {
		if *c < derived {
			used[*c] = true
		}
	})
	used[0] = true
	return claimID(slices.Index(used[:], false))
}

func (s *state) eachClaim(visit func(*claimID)) {
	for i := range s.leases {
		visit(&s.leases[i].claim)
	}
	for i := range s.pods {
		visit(&s.pods[i].claim)
	}
	for i := range s.hands {
		visit(&s.hands[i].claim)
		visit(&s.hands[i].old)
	}
}

// forget drops what no rule can read any more.
func (s *state) forget() {
	for i := range s.pods {
		p := &s.pods[i]
		if p.phase == stored && p.life == gone {
			*p = pod{phase: stored, life: gone, port: p.port}
			if p.port == 0 {
				p.phase = over
			}
		}
		if p.phase == over {
			*p = pod{phase: over}
		}
		if !p.mayUndo() {
			p.gen = 0
		}
	}
	for i := range s.leases {
		s.renumber(addrID(i + 1))
	}
}

// renumber counts an address's generations from one, without gaps. Only which of them are equal, and which came later,
// means anything.
func (s *state) renumber(a addrID) {
	gens := []*uint8{&s.lease(a).gen}
	for i := range s.hands {
		if s.hands[i].addr == a {
			gens = append(gens, &s.hands[i].gen)
		}
	}
	for i := range s.pods {
		if s.pods[i].addr == a {
			gens = append(gens, &s.pods[i].gen)
		}
	}
	var used [16]bool
	for _, g := range gens {
		used[*g] = true
	}
	var rank [16]uint8
	for g, n := 1, uint8(0); g < len(used); g++ {
		if used[g] {
			n++
			rank[g] = n
		}
	}
	for _, g := range gens {
		*g = rank[*g]
	}
}

// canonicalise gives the state its one form: hands in order, claims numbered as they are met. States that differ only in
// names behave alike.
func (s *state) canonicalise() {
	s.forget()
	if s.hands[1].before(&s.hands[0]) {
		s.hands[0], s.hands[1] = s.hands[1], s.hands[0]
	}
	var names [derived]claimID
	next := claimID(1)
	s.eachClaim(func(c *claimID) {
		if *c == 0 || *c >= derived {
			return
		}
		if names[*c] == 0 {
			names[*c] = next
			next++
		}
		*c = names[*c]
	})
}

// before is an order of tasks that no claim's name has a part in.
func (t *task) before(u *task) bool {
	switch {
	case t.kind != u.kind:
		return t.kind > u.kind
	case t.pod != u.pod:
		return t.pod < u.pod
	case t.addr != u.addr:
		return t.addr < u.addr
	case t.epoch != u.epoch:
		return t.epoch < u.epoch
	}
	return t.gen < u.gen
}
