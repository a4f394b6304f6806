package ipam

import "time"

// pending remembers since when this process has seen leases that no pod is bound to, by subnet and namespace. Its times
// are this process's own: no clocks are compared.
type pending map[pendingKey]map[leaseKey]sighting

type pendingKey struct{ subnet, namespace string }

type sighting struct {
	claim Claim
	since time.Time
}

func (l *Ledger) sight(e *entry, x *Lease) {
	if x.PodUID != "" || x.Owner.Reserves() {
		return
	}
	k := pendingKey{e.template.Subnet, x.Owner.Namespace}
	if l.pending[k] == nil {
		l.pending[k] = map[leaseKey]sighting{}
	}
	if old, ok := l.pending[k][leaseKey{e, keyOf(x)}]; ok && old.claim == x.Claim {
		return
	}
	l.pending[k][leaseKey{e, keyOf(x)}] = sighting{x.Claim, l.Clock.Now()}
}

// unsight forgets a lease that is gone, or is now as y says.
func (l *Ledger) unsight(e *entry, x, y *Lease) {
	if y != nil && y.PodUID == "" && y.Claim == x.Claim && y.Owner == x.Owner {
		return
	}
	k := pendingKey{e.template.Subnet, x.Owner.Namespace}
	if delete(l.pending[k], leaseKey{e, keyOf(x)}); len(l.pending[k]) == 0 {
		delete(l.pending, k)
	}
}

// Pending gives the claims of a namespace's leases in a subnet that no pod is bound to and that this process has known
// for longer than age, one for each lease; nothing when there are fewer such leases of any age than enough.
func (l *Ledger) Pending(subnet, namespace string, age time.Duration, enough int) []Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	seen := l.pending[pendingKey{subnet, namespace}]
	if len(seen) < enough {
		return nil
	}
	var out []Claim
	now := l.Clock.Now()
	for _, s := range seen {
		if now.Sub(s.since) > age {
			out = append(out, s.claim)
		}
	}
	return out
}

// Young tells whether a lease has been known to this process for less than age, while no pod was bound to it.
func (l *Ledger) Young(h Held, age time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.known[h.Block]
	if e == nil {
		return false
	}
	s, ok := l.pending[pendingKey{e.template.Subnet, h.Owner.Namespace}][leaseKey{e, keyOf(&h.Lease)}]
	return ok && s.claim == h.Claim && l.Clock.Since(s.since) < age
}
