package protocol

// worker is what the leader does, what a deposed leader does that has not noticed, and what both have in their hands.
func (x *step) worker() {
	for i, t := range x.from.hands {
		if t.kind != nothing {
			x.execute(i, t)
		}
	}
	for x.leader = 0; x.leader <= x.from.epoch; x.leader++ {
		for p := range x.podIDs {
			switch q := x.from.pod(p); {
			case !q.exists() && q.port != 0:
				x.unwire(workerCleans, p)
			case q.exists() && q.seen && !x.busy(p):
				x.reconcile(p)
			}
		}
		for a := range x.addrIDs {
			x.sweep(a)
		}
	}
}

// unwire removes a port. OVN refuses it to a deposed leader.
func (x *step) unwire(v verb, p podID) {
	if x.leader == x.from.epoch {
		x.do(action{verb: v, pod: p}, func(s *state) { s.pod(p).port = 0 })
	}
}

// busy tells that the leader works on the pod: one key has one goroutine in one process.
func (x *step) busy(p podID) bool {
	for _, t := range x.from.hands {
		if t.kind != nothing && t.pod == p && t.epoch == x.leader {
			return true
		}
	}
	return false
}

// decide puts a task into a hand that is empty, on the lease as it is now.
func (x *step) decide(v verb, t task, also func(*state)) {
	for i := range x.from.hands {
		if x.from.hands[i].kind != nothing {
			continue
		}
		x.do(action{v, t.pod, t.addr, t.claim}, func(s *state) {
			if also != nil {
				also(s)
			}
			if t.epoch = x.leader; t.kind != toWire {
				t.gen = s.lease(t.addr).gen
			}
			s.hands[i] = t
		})
		return
	}
}

// reconcile looks at one stored pod.
func (x *step) reconcile(p podID) {
	q := x.from.pod(p)
	switch {
	case x.ended(p):
		x.reclaim(p)
	case q.life != running || q.port != 0 || q.finished && x.holds(finishedIsNotServed):
	case !q.finalizer && x.from.holds(p):
		x.do(x.about(workerFinalizes, p), func(s *state) { s.pod(p).finalizer = true })
	default:
		x.serve(p)
	}
}

// ended tells that the pod's leases and rows are due.
func (x *step) ended(p podID) bool {
	q := x.from.pod(p)
	if q.finished && q.life == running && x.holds(finishedIsNotServed) {
		return q.finalizer || x.holds(finishedByPhase) && (q.port != 0 || x.from.holds(p))
	}
	return q.life == stopped || q.life == stopping && !x.holds(releaseAfterStop)
}

// reclaim goes on with what the pod leaves: its port first, then its lease, its finalizer last.
func (x *step) reclaim(p podID) {
	q := x.from.pod(p)
	switch {
	case q.port != 0:
		x.unwire(workerUnwires, p)
	case x.frees(p):
		x.decide(handToFree, task{kind: toFree, pod: p, addr: q.addr, claim: q.claim}, nil)
	case !x.owner(p).sticky() && x.gate(p) == unbound:
		x.decide(handToBind, task{kind: toBind, pod: p, addr: q.addr, claim: q.claim}, nil)
	case q.finalizer && q.life != stopping:
		x.do(x.about(workerUnfinalizes, p), func(s *state) { s.pod(p).finalizer = false })
	}
}

// frees tells that this pod's end frees its lease.
func (x *step) frees(p podID) bool {
	if !x.from.holds(p) {
		return false
	}
	if x.owner(p).sticky() && (x.from.wanted || x.holds(stickyBySweep)) {
		return false
	}
	return x.from.lease(x.from.pod(p).addr).bound == p || !x.holds(onlyBoundFrees) || !x.holds(bindBeforeWire)
}

// verdict is what the ledger says about wiring a pod.
type verdict uint8

const (
	pass    verdict = iota
	unbound         // the lease is to be bound first
	wait            // an older pod carries the claim
	bare            // the claim is on the pod, addresses are not
	lost            // the pod is never wired under this claim
)

// gate is the final gate.
func (x *step) gate(p podID) verdict {
	q := x.from.pod(p)
	switch {
	case q.claim == 0:
		return lost
	case q.addr == 0:
		return bare
	case !x.holds(finalGate):
		return pass
	case !x.from.holds(p):
		return lost
	}
	switch l := x.from.lease(q.addr); {
	case l.bound == p || !x.holds(bindBeforeWire):
		return pass
	case l.owner != x.owner(p) && x.holds(bindComparesOwners):
		return lost
	case x.owner(p) == theVM && x.from.exists(l.bound):
		return pass
	case x.from.exists(l.bound):
		return lost
	case x.owner(p) != theVM && x.from.elder(p) && x.holds(bindToOldest):
		return wait
	}
	return unbound
}

// serve goes on with what the pod lacks.
func (x *step) serve(p podID) {
	q := x.from.pod(p)
	switch x.gate(p) {
	case pass:
		if x.holds(epochFence) || x.alone(&x.from, p, q.addr) { // without a fence it is checked now or never
			x.decide(handToWire, task{kind: toWire, pod: p, addr: q.addr, claim: q.claim}, nil)
		}
	case unbound:
		x.decide(handToBind, task{kind: toBind, pod: p, addr: q.addr, claim: q.claim}, nil)
	case bare:
		x.give(p, q.claim)
	case lost:
		switch {
		case q.claim != 0 && !x.holds(copyGetsFresh):
		case x.holds(claimBeforeLease):
			x.lay(p)
		default:
			x.give(p, x.draw(&x.from))
		}
	}
}

// alone tells that no port of another pod that holds this lease has the address. A port that the ledger doesn't know
// is no competitor.
func (x *step) alone(s *state, p podID, a addrID) bool {
	for o := range x.podIDs {
		if o != p && s.pod(o).port == a && !x.siblings(o, p) && x.competes(s, o, a) {
			return false
		}
	}
	return true
}

func (x *step) competes(s *state, o podID, a addrID) bool {
	return s.exists(o) && s.holds(o) && s.pod(o).addr == a
}

// lay writes a claim on a pod that has none, or has lost what it had: its owner's claim if there is one. Taking up the
// owner's lease is a reuse, so it raises the generation.
func (x *step) lay(p podID) {
	var a addrID
	claim := x.draw(&x.from)
	if o := x.owner(p); o.sticky() {
		if a = x.ownersLease(o); a != 0 {
			claim = x.from.lease(a).claim
		}
	}
	x.do(action{verb: workerClaims, pod: p, claim: claim}, func(s *state) {
		q := s.pod(p)
		q.claim, q.addr, q.finalizer = claim, 0, true
		if a != 0 {
			s.lease(a).gen++
		}
	})
}
