package protocol

// kubelet is what happens to a stored pod without anybody's wish.
func (x *step) kubelet(p podID) {
	q := x.from.pod(p)
	switch {
	case q.life == running && !q.finished && q.port != 0 && x.owner(p) == onlyPod:
		x.do(x.about(podSucceeds, p), func(s *state) { s.pod(p).finished = true })
	case q.life == stopping:
		x.do(x.about(podStops, p), func(s *state) { s.pod(p).life = stopped })
	case q.life == stopped && !q.finalizer:
		x.do(x.about(podGoes, p), func(s *state) { s.pod(p).life = gone })
	}
}

// user is what people do to a stored pod.
func (x *step) user(p podID) {
	q := x.from.pod(p)
	if q.life == running {
		x.do(x.about(userDeletes, p), func(s *state) {
			s.pod(p).life = stopping
			if q.finished {
				s.pod(p).life = stopped
			}
		})
	}
	if x.has(strip) && x.from.spent.stripped == 0 && q.finalizer {
		x.do(x.about(userStrips, p), func(s *state) { s.pod(p).finalizer = false; s.spent.stripped++ })
	}
}

// watch brings a pod into the worker's cache. A watch keeps the order: no copy is seen before its original.
func (x *step) watch(p podID) {
	if x.from.pod(p).seen {
		return
	}
	for o := podID(1); o < p; o++ {
		q := x.from.pod(o)
		if q.exists() && !q.seen && q.claim != 0 && q.claim == x.from.pod(p).claim {
			return
		}
	}
	x.do(x.about(workerSees, p), func(s *state) { s.pod(p).seen = true })
}

// owners scales the sticky owner down, and up again.
func (x *step) owners() {
	if x.sticky() && x.from.spent.scaled < 2 {
		x.do(action{verb: userScales}, func(s *state) { s.wanted = !s.wanted; s.spent.scaled++ })
	}
}

// leaders replaces the leader while something that it has decided is not yet done. It may live on, or take that with it.
func (x *step) leaders() {
	if x.has(newLeader) && x.from.epoch == 0 && x.from.hands != [hands]task{} {
		x.do(action{verb: leaderChanges}, func(s *state) { s.epoch++ })
		x.do(action{verb: leaderDies}, func(s *state) { s.epoch++; s.hands = [hands]task{} })
	}
}
