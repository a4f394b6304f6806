package protocol

// give takes a lease under the claim for a pod that carries no address of it, and decides to write it on the pod.
func (x *step) give(p podID, claim claimID) {
	o := x.owner(p)
	if a := x.ownersLease(o); o.sticky() && a != 0 && x.from.lease(a).claim != claim {
		x.lay(p)
		return
	}
	for a := range x.addrIDs {
		l := x.from.lease(a)
		// A cache that lags may not show what the claim has, so that a second lease is taken.
		if l.claim != claim && (l.claim != 0 || o.sticky() && x.ownersLease(o) != 0) {
			continue
		}
		t := task{kind: toPatch, pod: p, addr: a, claim: claim, old: x.from.pod(p).claim, found: l.claim == claim}
		x.decide(handToPatch, t, func(s *state) {
			if s.lease(a).claim == 0 {
				*s.lease(a) = lease{claim: claim, owner: o}
			}
			if !t.found || x.holds(foundIsTaken) {
				s.lease(a).gen++
			}
		})
	}
}

// execute does what a hand has decided, however long ago.
func (x *step) execute(hand int, t task) {
	do := func(v verb, change func(*state)) {
		x.do(action{v, t.pod, t.addr, t.claim}, func(s *state) {
			s.hands[hand] = task{}
			if change != nil {
				change(s)
			}
		})
	}
	switch named := x.named(&x.from, t.addr, t.claim, t.gen); {
	case t.kind == toPatch:
		x.patch(t, do)
	case t.kind == toWire && x.admits(t):
		do(handWires, func(s *state) { x.wire(s, t) })
	case t.kind == toFree && named:
		do(handFrees, func(s *state) { *s.lease(t.addr) = lease{} })
	case t.kind == toBind && named:
		do(handBinds, func(s *state) { s.lease(t.addr).bound = t.pod; s.lease(t.addr).gen++ })
	default:
		do(handVoid, nil)
	}
}

// admits tells that OVN executes the transaction: it is the leader's, and the leader finds no competitor as it sends it.
func (x *step) admits(t task) bool {
	if !x.holds(epochFence) {
		return true
	}
	return t.epoch == x.from.epoch && (!x.holds(finalGate) || x.alone(&x.from, t.pod, t.addr))
}

// wire writes the pod's port. Ports on the address that the ledger doesn't know go in the same transaction.
func (x *step) wire(s *state, t task) {
	for o := range x.podIDs {
		if x.holds(epochFence) && x.holds(finalGate) && o != t.pod && s.pod(o).port == t.addr && !x.siblings(o, t.pod) {
			s.pod(o).port = 0
		}
	}
	s.pod(t.pod).port = t.addr
}

// patch writes what late allocation has taken on the pod, if the pod is as it was when that was decided.
func (x *step) patch(t task, do func(verb, func(*state))) {
	q := x.from.pod(t.pod)
	switch {
	case x.holds(confirmingRead) && x.from.another(t.addr, x.owner(t.pod)):
		do(handGivesUp, func(s *state) {
			if !t.found {
				x.free(s, t.addr, t.claim, t.gen)
			}
		})
	case !q.exists() || q.life != running || q.finished && x.holds(finishedIsNotServed), q.claim != t.old,
		q.addr != 0 && x.holds(patchOnce) && x.holds(claimBeforeLease):
		do(handVoid, nil)
	default:
		do(handPatches, func(s *state) {
			q := s.pod(t.pod)
			if q.told == 0 {
				q.told = t.addr
			}
			q.claim, q.addr, q.finalizer = t.claim, t.addr, true
		})
	}
}

// named tells that the lease is still the one that a decision named.
func (x *step) named(s *state, a addrID, claim claimID, gen uint8) bool {
	l := s.lease(a)
	return l.claim != 0 && (l.claim == claim || !x.holds(freeNamesClaim)) && (l.gen == gen || !x.holds(freeNamesGeneration))
}

func (x *step) free(s *state, a addrID, claim claimID, gen uint8) {
	if x.named(s, a, claim, gen) {
		*s.lease(a) = lease{}
	}
}
