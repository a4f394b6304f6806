package protocol

// sweep decides to free a lease that is pending.
func (x *step) sweep(a addrID) {
	l := x.from.lease(a)
	if l.claim == 0 || x.holds(podsAreRead) && x.carried(&x.from, a) || x.kept(a) || x.watching(a) {
		return
	}
	for p := range x.podIDs {
		if x.from.pod(p).port == a {
			return // its port goes first
		}
	}
	for _, t := range x.from.hands {
		if t.kind == toFree && t.addr == a && t.epoch == x.leader {
			return
		}
	}
	x.decide(handToSweep, task{kind: toFree, addr: a, claim: l.claim}, nil)
}

// carried tells that a pod carries the lease, in the view that the sweep has.
func (x *step) carried(s *state, a addrID) bool {
	for p := range x.podIDs {
		q := s.pod(p)
		if !q.exists() || q.finished && !q.finalizer || q.claim != s.lease(a).claim {
			continue
		}
		inView := q.seen || x.holds(readIsLive)
		onPod := q.addr == a || q.addr == 0 && x.holds(bareClaimCarries) || !x.holds(carriedByAddress)
		if inView && onPod {
			return true
		}
	}
	return false
}

// kept tells that a living owner keeps the lease: the one that is carried, else the lowest.
func (x *step) kept(a addrID) bool {
	l := x.from.lease(a)
	if !l.owner.sticky() || !x.from.wanted {
		return false
	}
	if !x.holds(surplusIsPending) {
		return true
	}
	for b := range x.addrIDs {
		o := x.from.lease(b)
		if b != a && o.claim != 0 && o.owner == l.owner && (b < a || x.carried(&x.from, b)) {
			return false
		}
	}
	return true
}

// watching tells that the 60 s are not over: some CREATE that took or reused the lease has not ended.
func (x *step) watching(a addrID) bool {
	l := x.from.lease(a)
	if !x.holds(watchedFirst) || !x.holds(ownerGoneWaits) && l.owner.sticky() && !x.from.wanted {
		return false
	}
	for p := range x.podIDs {
		q := x.from.pod(p)
		if young := q.phase == stocked && x.holds(stockIsYoung); (q.inFlight() || young) && q.claim == l.claim && (q.addr == a || !x.holds(carriedByAddress)) {
			return true
		}
	}
	return false
}
