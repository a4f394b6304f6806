package protocol

import "strings"

// property is what must hold in every state.
type property uint8

const (
	// oneLiveHolder, P1: no two live pods have one address.
	oneLiveHolder property = iota
	// onePort, P2: no two wired ports have one address.
	onePort
	// settles, P3: the system by itself can bring leases, pods and ports to accounts that are empty or in use.
	settles
	// leaseBacked, P4: a live pod's address is its lease.
	leaseBacked
	// wiredBacked, P4w: a live and wired pod's address is its lease.
	wiredBacked
	// siblingsShare, P5: live launchers of one virtual machine have one address.
	siblingsShare
	// promiseKept, P6: a pod keeps the address that it was given.
	promiseKept
	properties
)

func (p property) String() string {
	return [...]string{
		"P1 (no two live pods on one address)",
		"P2 (no two wired ports on one address)",
		"P3 (leases, pods and ports settle)",
		"P4 (a live pod's address is its lease)",
		"P4w (a wired pod's address is its lease)",
		"P5 (launchers of one VM share the address)",
		"P6 (a pod keeps the address it was given)",
	}[p]
}

// set is a set of properties.
type set uint8

func setOf(ps ...property) set {
	var s set
	for _, p := range ps {
		s |= 1 << p
	}
	return s
}

func (s set) String() string {
	var out []string
	for p := range properties {
		if s.has(p) {
			out = append(out, p.String())
		}
	}
	return strings.Join(out, ", ")
}

func (s set) has(p property) bool { return s&(1<<p) != 0 }

// uses tells that a live pod may speak on its address. A copy may not before it is wired.
func (m *model) uses(q *pod, p podID) bool {
	return q.alive() && q.addr != 0 && (m.kind(p) != copied || q.port != 0)
}

// violated gives the properties that s itself violates. P3 is one of the whole space.
func (m *model) violated(s *state) set {
	var bad set
	fail := func(p property, is bool) {
		if is {
			bad |= setOf(p)
		}
	}
	for p := range m.podIDs {
		q := s.pod(p)
		uses := m.uses(q, p)
		unbacked := uses && s.lease(q.addr).claim != q.claim
		fail(leaseBacked, unbacked)
		fail(wiredBacked, unbacked && q.port != 0)
		fail(promiseKept, q.alive() && q.told != 0 && q.addr != q.told)
		for o := podID(1); o < p; o++ {
			r, vm := s.pod(o), m.siblings(o, p)
			both, same := uses && m.uses(r, o), q.addr == r.addr
			fail(oneLiveHolder, both && same && !vm)
			fail(siblingsShare, both && !same && vm)
			fail(onePort, q.port != 0 && q.port == r.port && !vm)
		}
	}
	return bad
}

// settled tells that the accounts are right: nothing is under way, every lease has a pod or is the one of its living
// owner, no ended pod or port is left, and every living pod is wired, unless it has no lease and no address is free.
func (m *model) settled(s *state) bool {
	if s.hands != [hands]task{} {
		return false
	}
	full := true
	for a := range m.addrIDs {
		l := s.lease(a)
		full = full && l.claim != 0
		keeps := l.owner.sticky() && s.wanted && !s.another(a, l.owner)
		if l.claim != 0 && !keeps && !m.inUse(s, a) {
			return false
		}
	}
	for p := range m.podIDs {
		q := s.pod(p)
		switch {
		case q.inFlight(), q.phase == stocked, q.phase == missed, q.phase == paused, q.phase == suspended:
			return false
		case q.port != 0 && (!q.alive() || q.port != q.addr), q.exists() && q.life != running:
			return false
		case q.exists() && q.alive() && q.port == 0 && (!full || s.holds(p)):
			return false
		}
	}
	return true
}

// inUse tells that a living pod has the lease.
func (m *model) inUse(s *state, a addrID) bool {
	for p := range m.podIDs {
		if q := s.pod(p); q.exists() && q.alive() && q.addr == a && s.holds(p) {
			return true
		}
	}
	return false
}
