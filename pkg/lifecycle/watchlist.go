package lifecycle

import (
	"net/netip"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
)

// DefaultPendingAge is how long a lease without a pod is watched before it may be freed. An API server's create has
// ended long before.
const DefaultPendingAge = time.Minute

// Watchlist remembers since when leases that no pod carries have been unchanged, on the watcher's own clock. It is not
// safe for concurrent use.
type Watchlist struct {
	age  time.Duration
	seen map[place]sight
}

// place is where a lease stands.
type place struct {
	block string
	addr  netip.Addr
	mac   ipam.MAC
}

// sight is what stood there, and since when.
type sight struct {
	claim      ipam.Claim
	generation int64
	since      time.Time
}

// NewWatchlist returns an empty list. An age of zero means DefaultPendingAge.
func NewWatchlist(age time.Duration) *Watchlist {
	if age <= 0 {
		age = DefaultPendingAge
	}
	return &Watchlist{age: age, seen: map[place]sight{}}
}

// Observe tells which leases no pod carries now, and returns those of which that has been so for the list's age without
// any change or pause. A lease that isn't told is forgotten.
func (w *Watchlist) Observe(now time.Time, pending []ipam.Held) []ipam.Held {
	next := make(map[place]sight, len(pending))
	var eligible []ipam.Held
	for _, h := range pending {
		at := placeOf(h)
		s, known := w.seen[at]
		if !known || s.claim != h.Claim || s.generation != h.Generation || now.Before(s.since) {
			s = sight{claim: h.Claim, generation: h.Generation, since: now}
		}
		next[at] = s
		if now.Sub(s.since) >= w.age {
			eligible = append(eligible, h)
		}
	}
	w.seen = next
	return eligible
}

// Len is how many leases are being watched.
func (w *Watchlist) Len() int { return len(w.seen) }

func placeOf(h ipam.Held) place {
	p := place{block: h.Block, addr: h.Address}
	if !h.Address.IsValid() {
		p.mac = h.MAC
	}
	return p
}
