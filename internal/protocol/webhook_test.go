package protocol

// webhook is what a replica of the webhook, or what stands in for it, does for one CREATE.
func (x *step) webhook(p podID) {
	switch x.from.pod(p).phase {
	case idle:
		if x.inTurn(p) {
			x.admit(p)
			x.stock(p)
		}
	case stocked:
		x.do(x.about(webhookServes, p), func(s *state) { s.pod(p).phase = taken })
		x.do(x.about(webhookReturns, p), func(s *state) { x.undo(s, p); *s.pod(p) = pod{} })
		x.do(x.about(webhookForgets, p), func(s *state) { s.pod(p).phase = over })
	case saved:
		x.do(x.about(userCreatesCopy, p), func(s *state) { s.pod(p).phase, s.pod(p).finalizer = stored, true })
	case missed:
		x.take(p, confirming)
	case confirming:
		x.confirm(p)
		x.sleep(p)
	case taken:
		x.do(x.about(webhookAnswers, p), func(s *state) { s.pod(p).phase = answered })
		x.do(x.about(webhookUndoes, p), func(s *state) { x.undo(s, p); s.pod(p).phase = over })
		x.sleep(p)
	case paused:
		x.do(x.about(webhookResumes, p), func(s *state) { x.undo(s, p); s.pod(p).phase = over })
	}
}

// sleep suspends a webhook that has taken something, until its API server has given up.
func (x *step) sleep(p podID) {
	if x.has(pause) && x.from.spent.paused == 0 && x.from.pod(p).gen != 0 {
		x.do(x.about(apiLeaves, p), func(s *state) { s.pod(p).phase = paused; s.spent.paused++ })
	}
}

// stock takes a lease ahead of a CREATE that is to come. Its place in the order of like CREATEs is its own then.
func (x *step) stock(p podID) {
	if !x.has(ahead) || x.kind(p) != plain {
		return
	}
	claim := x.draw(&x.from)
	for a := range x.addrIDs {
		if x.from.lease(a).claim != 0 {
			continue
		}
		x.do(action{webhookStocks, p, a, claim}, func(s *state) {
			l := s.lease(a)
			*l = lease{claim: claim, gen: l.gen + 1, owner: x.owner(p)}
			*s.pod(p) = pod{phase: stocked, claim: claim, addr: a, gen: l.gen}
		})
	}
}

// inTurn holds like CREATEs in order: which of two equal ones comes first makes no difference.
func (x *step) inTurn(p podID) bool {
	return p == 1 || x.kind(p-1) != x.kind(p) || x.from.pod(p-1).phase != idle
}

// admit begins a CREATE.
func (x *step) admit(p podID) {
	switch x.kind(p) {
	case plain:
		x.take(p, taken)
	case member, launcher:
		x.reuse(p)
		x.do(action{verb: webhookMisses, pod: p}, func(s *state) { s.pod(p).phase = missed })
	case copied:
		x.save(p)
	case late, lateMember, lateLauncher:
		if !x.nameTaken(p) {
			x.do(action{verb: userCreatesPast, pod: p}, func(s *state) { s.pod(p).phase = stored })
		}
	}
}

// save has a user keep the manifest of a stored pod, to create a copy of it later.
func (x *step) save(p podID) {
	for o := podID(1); o < p; o++ {
		q := x.from.pod(o)
		if !q.exists() || q.claim == 0 || q.addr == 0 {
			continue
		}
		x.do(action{userSaves, p, q.addr, q.claim}, func(s *state) {
			*s.pod(p) = pod{phase: saved, claim: q.claim, addr: q.addr}
		})
	}
}

// claimFor gives the claim that this attempt takes leases under.
func (x *step) claimFor(p podID) claimID {
	switch o := x.owner(p); {
	case !x.holds(claimIsRandom) && o.sticky():
		return derived + claimID(o)
	case !x.holds(claimPerAttempt) && x.from.pod(p).claim != 0:
		return x.from.pod(p).claim
	}
	return x.draw(&x.from)
}

// take is the CAS on the block of an address that the cache shows as free. The cache lags, the CAS does not: it fails
// where the address has a holder.
func (x *step) take(p podID, then phase) {
	if !x.holds(confirmingRead) {
		then = taken
	}
	claim := x.claimFor(p)
	for a := range x.addrIDs {
		free := x.from.lease(a).claim == 0
		if free || !x.holds(takeIsCAS) {
			x.do(action{webhookTakes, p, a, claim}, func(s *state) {
				l := s.lease(a)
				*l = lease{claim: claim, gen: l.gen + 1, owner: x.owner(p)}
				*s.pod(p) = pod{phase: then, claim: claim, addr: a, gen: l.gen}
			})
		}
		if !x.holds(outcomeIsRead) {
			x.do(action{webhookAssumes, p, a, claim}, func(s *state) {
				*s.pod(p) = pod{phase: taken, claim: claim, addr: a}
			})
		}
	}
}

// reuse gives a sticky owner a lease that it has, as far as the cache knows. It only raises the generation, and is never
// undone. One that no pod was ever bound to may be what a crash left, so it is confirmed like a first one.
func (x *step) reuse(p podID) {
	for a := range x.addrIDs {
		l := x.from.lease(a)
		if l.claim == 0 || l.owner != x.owner(p) {
			continue
		}
		x.do(action{webhookReuses, p, a, l.claim}, func(s *state) {
			s.lease(a).gen++
			*s.pod(p) = pod{phase: taken, claim: l.claim, addr: a}
			if l.bound == 0 && x.holds(reuseIsConfirmed) {
				s.pod(p).phase = confirming
			}
			if !x.holds(undoOwnTakes) {
				s.pod(p).gen = s.lease(a).gen
			}
		})
	}
}

// ownersLease is the owner's lease that is bound to a pod, or else its lowest.
func (x *step) ownersLease(o owner) addrID {
	var best addrID
	for a := range x.addrIDs {
		l := x.from.lease(a)
		if l.claim != 0 && l.owner == o && (best == 0 || x.from.lease(best).bound == 0 && l.bound != 0) {
			best = a
		}
	}
	return best
}

// confirm is the live read before the answer, and what follows from it.
func (x *step) confirm(p podID) {
	q := x.from.pod(p)
	if !x.from.another(q.addr, x.owner(p)) {
		x.do(x.about(webhookConfirms, p), func(s *state) { s.pod(p).phase = taken })
		return
	}
	x.do(x.about(webhookGivesUp, p), func(s *state) { x.undo(s, p); x.retry(s, p) })
}

// undo frees what the CREATE took, if nobody has touched it since.
func (x *step) undo(s *state, p podID) {
	if q := s.pod(p); q.gen != 0 {
		x.free(s, q.addr, q.claim, q.gen)
	}
}

// retry makes the CREATE begin anew.
func (x *step) retry(s *state, p podID) {
	claim := s.pod(p).claim
	*s.pod(p) = pod{}
	if !x.holds(claimPerAttempt) {
		s.pod(p).claim = claim
	}
}

// apiServer is what the API server does with a CREATE that its webhook works on, or has answered.
func (x *step) apiServer(p podID) {
	q := x.from.pod(p)
	if !q.inFlight() && q.phase != missed && q.phase != suspended {
		return
	}
	x.do(x.about(apiEnds, p), func(s *state) { s.pod(p).phase = over })
	if x.has(again) && q.inFlight() && x.from.spent.again == 0 {
		x.do(x.about(clientRetries, p), func(s *state) { x.retry(s, p); s.spent.again++ })
	}
	if x.has(suspendedAPI) && q.phase == answered && x.from.spent.suspended == 0 {
		x.do(x.about(apiSuspended, p), func(s *state) { s.pod(p).phase = suspended; s.spent.suspended++ })
	}
	if q.phase != answered && q.phase != suspended {
		return
	}
	if x.nameTaken(p) {
		x.do(x.about(apiRefuses, p), func(s *state) { s.pod(p).phase = over })
		return
	}
	x.do(x.about(apiStores, p), func(s *state) {
		q := s.pod(p)
		q.phase, q.finalizer, q.told = stored, true, q.addr
	})
}

// nameTaken tells that a pod of the same name is in etcd.
func (x *step) nameTaken(p podID) bool {
	for o := range x.podIDs {
		if o != p && x.kind(p).named() && x.kind(o).named() && x.from.exists(o) {
			return true
		}
	}
	return false
}
