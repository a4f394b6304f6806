//go:build e2e

package ledger

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"net/netip"
	"slices"
)

// state is what the diaries say of a claim's leases.
type state int

const (
	unheard  state = iota
	asks           // a call asked for them and was never answered
	doubtful       // a call failed, or a kill interrupted it
	holds          // they are held
	gives          // they were to be given back, and nobody knows whether they were
	gone           // they are not there
)

// told is what the diaries say of one claim.
type told struct {
	state  state
	owner  string
	leases []string
	// subnets that were asked.
	subnets []string
	// asked is when the call began, from when it was answered, to when giving back began, until when that was answered.
	asked, from, to, until int64
	killed                 bool // the life that asked ended by a kill
}

// story is what all diaries say together.
type story struct {
	claims map[string]*told
	// owners have the claims that they were answered.
	owners map[string]map[string]bool
	faults []string
	full   []event
	counts map[string]int
}

func (s *story) of(claim string) *told {
	w := s.claims[claim]
	if w == nil {
		w = &told{to: math.MaxInt64, until: math.MaxInt64}
		s.claims[claim] = w
	}
	return w
}

func (s *story) fault(format string, args ...any) {
	s.faults = append(s.faults, fmt.Sprintf(format, args...))
}

// tell reads chapters; those of one process in their order.
func tell(chapters []chapter) *story {
	s := &story{claims: map[string]*told{}, owners: map[string]map[string]bool{}, counts: map[string]int{}}
	for _, c := range chapters {
		for _, e := range c.Events {
			s.counts[e.Kind]++
			s.hear(c, e)
		}
	}
	return s
}

func (s *story) hear(c chapter, e event) {
	w := s.of(e.Claim)
	switch e.Kind {
	case takes:
		w.asked, w.subnets, w.killed = e.At, e.Leases, c.Killed
		w.move(asks)
	case taken:
		call := s.of(e.Asked)
		if e.Asked != e.Claim {
			call.until = e.At
			call.move(gone)
		}
		if w.asked == 0 || call.asked < w.asked {
			w.asked = call.asked
		}
		if w.from == 0 || e.At < w.from {
			w.from = e.At
		}
		w.owner, w.leases = e.Owner, e.Leases
		w.move(holds)
		if e.Owner != "" {
			if s.owners[e.Owner] == nil {
				s.owners[e.Owner] = map[string]bool{}
			}
			s.owners[e.Owner][e.Claim] = true
		}
	case refused:
		s.counts[refused+" "+e.Text]++
		w.until = e.At
		w.move(gone)
		if e.Full != "" {
			s.full = append(s.full, e)
		}
	case failed:
		if w.state == asks {
			w.move(doubtful)
		}
		s.fault("process %d life %d, claim %s: a call failed: %s", c.Process, c.Life, e.Claim, e.Text)
	case frees:
		w.to = min(w.to, e.At)
		w.move(gives)
	case freed:
		w.until = e.At
		w.move(gone)
	case found:
		w.leases = e.Leases
		w.move(doubtful)
	case lost:
		s.fault("process %d life %d, claim %s: %v lost (%s)", c.Process, c.Life, e.Claim, e.Leases, e.Text)
	}
}

// move changes the state. A sticky owner's leases are shared by all who asked for that owner, and freed by nobody: that
// one process gave up its own call says nothing of another's.
func (w *told) move(to state) {
	if w.owner == "" || w.state != holds {
		w.state = to
	}
}

// stored is what the blocks hold: the claim of every lease.
type stored map[string]string

// check compares the diaries with each other and with what is stored, and returns all that is wrong.
func check(chapters []chapter, have stored, specs ...subnetSpec) *story {
	s := tell(chapters)
	s.overlaps()
	s.losses(have)
	s.leftovers(chapters, have)
	s.refusals(specs)
	for owner, claims := range s.owners {
		if len(claims) > 1 {
			s.fault("owner %s was given leases under %d claims: %v", owner, len(claims), slices.Sorted(maps.Keys(claims)))
		}
	}
	return s
}

// overlaps finds leases that two claims held at once: the later was answered before anybody asked to free the earlier.
func (s *story) overlaps() {
	type hold struct {
		claim    string
		from, to int64
	}
	at := map[string][]hold{}
	for claim, w := range s.claims {
		if w.from == 0 {
			continue
		}
		for _, l := range w.leases {
			at[l] = append(at[l], hold{claim, w.from, w.to})
		}
	}
	for lease, hs := range at {
		slices.SortFunc(hs, func(a, b hold) int { return cmp.Compare(a.from, b.from) })
		last := hs[0]
		for _, h := range hs[1:] {
			if h.from < last.to {
				s.fault("%s was held under %s and under %s at once", lease, last.claim, h.claim)
			}
			if h.to > last.to {
				last = h
			}
		}
	}
}

// losses finds leases that are held and not stored, and the other way round.
func (s *story) losses(have stored) {
	for claim, w := range s.claims {
		if w.state != holds {
			continue
		}
		for _, l := range w.leases {
			if have[l] != claim {
				s.fault("%s is held under %s and stored under %q", l, claim, have[l])
			}
		}
	}
}

// leftovers finds stored leases that nobody holds. Only a call that a kill interrupted may leave one.
func (s *story) leftovers(chapters []chapter, have stored) {
	excused := map[string]bool{}
	for _, c := range chapters {
		maps.Copy(excused, s.drawnInFlight(c))
	}
	for lease, claim := range have {
		w := s.claims[claim]
		switch {
		case w == nil || w.state == unheard:
			if !excused[claim] {
				s.fault("%s is stored under %s, which no diary explains", lease, claim)
			}
		case w.state == gone:
			s.fault("%s is stored under %s, whose leases were given back or refused", lease, claim)
		case w.state == asks && !w.killed:
			s.fault("%s is stored under %s, whose call was never answered though nobody was killed", lease, claim)
		}
	}
}

// drawnInFlight are the claims that a killed life's unanswered calls may have drawn for themselves.
func (s *story) drawnInFlight(c chapter) map[string]bool {
	out := map[string]bool{}
	if !c.Killed {
		return out
	}
	since := int64(math.MaxInt64)
	for _, e := range c.Events {
		if e.Kind == takes && s.of(e.Claim).state != holds && s.of(e.Claim).state != gone {
			since = min(since, e.At)
		}
	}
	for _, e := range c.Events {
		if e.Kind == drew && e.At >= since {
			out[e.Claim] = true
		}
	}
	return out
}

// refusals finds calls that were told that a subnet is exhausted while an address was free all along. An address may have
// been in use from when it was asked for until its release was answered, and every call under way may have had one.
func (s *story) refusals(specs []subnetSpec) {
	for _, spec := range specs {
		for _, family := range []string{"IPv4", "IPv6"} {
			s.exhaustions(spec, family)
		}
	}
}

func (s *story) exhaustions(spec subnetSpec, family string) {
	unasked := map[string]bool{}
	for _, a := range spec.unasked(family) {
		unasked[spec.Name+"/"+a.String()] = true
	}
	near := map[string]*told{}
	for claim, w := range s.claims {
		touches := func(l string) bool { return l == spec.Name || unasked[l] }
		if w.asked != 0 && (slices.ContainsFunc(w.leases, touches) || len(w.leases) == 0 && slices.ContainsFunc(w.subnets, touches)) {
			near[claim] = w
		}
	}
	for _, e := range s.full {
		if e.Full != spec.Name+"/"+family {
			continue
		}
		begun := s.of(e.Claim).asked
		used, unknown := map[string]bool{}, 0
		for claim, w := range near {
			switch {
			case w.asked > e.At || w.until < begun || claim == e.Claim:
			case len(w.leases) == 0:
				unknown++
			default:
				for _, l := range w.leases {
					used[l] = used[l] || unasked[l]
				}
			}
		}
		maps.DeleteFunc(used, func(_ string, counts bool) bool { return !counts })
		if len(used)+unknown < len(unasked) {
			s.fault("claim %s was told that %s is exhausted when at most %d of %d addresses were in use", e.Claim, e.Full, len(used)+unknown, len(unasked))
		}
	}
}

// unasked lists the addresses of a family that are handed out unasked.
func (s subnetSpec) unasked(family string) []netip.Addr {
	var out []netip.Addr
	for _, p := range s.Prefixes {
		if (family == "IPv4") != p.Addr().Is4() {
			continue
		}
		for a := p.Addr(); p.Contains(a); a = a.Next() {
			if s.usable(a) && !s.excluded(a) {
				out = append(out, a)
			}
		}
	}
	return out
}
