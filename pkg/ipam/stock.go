package ipam

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	// stockFrom requests in a second that are alike make a stock for such: it ends stockIdle after the last one. It has
	// stockLeast sets of leases, one for the next request and one while that one's successor is made, and one more for each
	// stockRate that are asked for in a second, up to stockMost. What is missing is taken when half is gone, so that few
	// writes serve many.
	stockFrom, stockLeast, stockRate, stockMost = 3, 2, 4, 16

	stockIdle = time.Second
	// Of a source's addresses, one in stockLeft and no fewer than stockMin must be free, or the stock gives back what it has
	// of it; it takes more only while there is half as much again to spare. It has no more than one in stockShare.
	stockLeft, stockMin, stockShare = 4, 64, 64
	// stockLook is how often a stock that isn't empty looks whether what it has is still right.
	stockLook = 100 * time.Millisecond
	// stockLinger lets the leases that are taken ahead at once share a write.
	stockLinger = 2 * time.Millisecond
	// stockPause follows a take that failed.
	stockPause = time.Second
)

// Stock is a ledger that takes leases before they are asked for, when requests like the last ones are to be expected, so
// that the next creation does not wait for a write.
//
// A lease of the stock is durable, as any is; no pod is bound to it; and one request gets it. It is young when it is given
// away, by the clock that stamps the requests: a process that was suspended does not know from its own for how long, and a
// lease that no pod carries is freed after a while.
type Stock struct {
	*Ledger
	age  time.Duration
	wake chan struct{}

	mu    sync.Mutex
	lots  map[likeness]*lot
	asked []likeness    // since the last look
	has   map[place]int // sets of leases of it that are ready or being made
	// dropped are leases that nobody will get.
	dropped []*prepared
	stats   StockStats
}

// StockStats counts requests that a stock could serve, those that it served, and sets of leases that it gave back.
type StockStats struct{ Requests, Served, Returned int64 }

// likeness is what requests have in common that get the same kind of leases.
type likeness struct {
	owner      Owner
	interfaces string
}

// place is a source, whatever its subnet looks like now.
type place struct{ subnet, pool string }

func placeOf(s Source) place { return place{s.Subnet.name, s.Pool} }

// lot is the stock for requests that are alike.
type lot struct {
	like   Request
	moment time.Time // of the last request, by the clock that stamps them
	asked  time.Time // when it came
	rate   rate
	ready  []*prepared
	making int
	pause  time.Time // until then nothing is taken
}

// rate counts what comes in a second: in the one that goes on, or the one before it.
type rate struct {
	began     time.Time
	now, last int
}

// add counts one more.
func (r *rate) add(now time.Time) {
	if passed := now.Sub(r.began); passed >= 2*time.Second {
		*r = rate{began: now}
	} else if passed >= time.Second {
		*r = rate{began: r.began.Add(time.Second), last: r.now}
	}
	r.now++
}

// target is how much the lot is to have.
func (l *lot) target() int {
	asked := max(l.rate.now, l.rate.last)
	if asked < stockFrom {
		return 0
	}
	return min(stockLeast+asked/stockRate, stockMost)
}

// prepared is what one request gets.
type prepared struct {
	allocation *Allocation
	took       []taken
	moment     time.Time // that of a request that came before the leases were taken
	made       time.Time // by our own clock
}

// NewStock makes a stock of leases of l, which may be as old as age when they are given to a pod. With what an API
// server's creation may take, age must stay well below the time after which a worker frees leases that no pod carries. The
// stock is empty while Run doesn't run.
func NewStock(l *Ledger, age time.Duration) *Stock {
	return &Stock{Ledger: l, age: age, lots: map[likeness]*lot{}, has: map[place]int{}, wake: make(chan struct{}, 1)}
}

// Take gives leases of the stock where it has such as are asked for; otherwise it does what the ledger does, to which
// what the stock has is as good as free.
func (s *Stock) Take(ctx context.Context, r Request) (*Allocation, error) {
	if k, ok := likenessOf(r); ok {
		if p := s.fetch(k, r); p != nil {
			return p.allocation, nil
		}
	}
	a, err := s.Ledger.Take(ctx, r)
	if refusal, ok := AsRefusal(err); ok && refusal.Unavailable() && s.clearOut(ctx, subnets(r.Interfaces...)) {
		return s.Ledger.Take(ctx, r)
	}
	return a, err
}

// StockStats gives what was counted since the stock was made.
func (s *Stock) StockStats() StockStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

// Run takes leases ahead, and gives back what nobody asked for, until ctx ends; then it gives back all that is left.
func (s *Stock) Run(ctx context.Context) error {
	var wg sync.WaitGroup
	var look <-chan time.Time // goes on while requests come: they are not about what nobody asks for
	for ctx.Err() == nil {
		if look == nil && s.stocked() {
			look = s.Clock.After(stockLook)
		}
		select {
		case <-ctx.Done():
		case <-s.wake:
			s.tidy(ctx, &wg, s.askedNow())
		case <-look:
			look = nil
			s.tidy(ctx, &wg, s.all())
		}
	}
	wg.Wait()
	s.mu.Lock()
	for _, l := range s.lots {
		s.dropAll(l)
	}
	dropped := s.takeDropped()
	s.mu.Unlock()
	return s.giveAllBack(context.WithoutCancel(ctx), dropped)
}

// likenessOf tells what the request has in common with others; false: a stock can't serve it.
func likenessOf(r Request) (likeness, bool) {
	if r.Moment.IsZero() || r.Existing || r.Shared || r.Owner.Sticky() || len(r.Interfaces) == 0 {
		return likeness{}, false
	}
	var b strings.Builder
	for _, i := range r.Interfaces {
		if len(i.Candidates) != 1 || len(i.Choices) > 0 || i.MAC != (MAC{}) || i.Reservation != (Owner{}) {
			return likeness{}, false
		}
		c := i.Candidates[0]
		fmt.Fprintf(&b, "%s|%s|%s|%v|%v\n", i.Provider, c.Subnet.name, c.Pool, i.Families, i.NoMAC)
	}
	return likeness{owner: r.Owner, interfaces: b.String()}, true
}

// same tells that both requests take from the same subnets, as they are now.
func same(a, b Request) bool {
	return slices.EqualFunc(a.Interfaces, b.Interfaces, func(x, y InterfaceRequest) bool {
		return slices.EqualFunc(x.Candidates, y.Candidates, func(c, d Source) bool { return c.Pool == d.Pool && c.Subnet.same(d.Subnet) })
	})
}

// fetch takes leases out of the stock, and notes that they were asked for. nil: there are none.
func (s *Stock) fetch(k likeness, r Request) *prepared {
	now := s.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.look()
	s.stats.Requests++
	s.asked = append(s.asked, k)
	l := s.lots[k]
	if l == nil {
		l = &lot{}
		s.lots[k] = l
	}
	if !same(l.like, r) {
		s.dropAll(l)
	}
	l.like, l.asked, l.moment = r, now, r.Moment
	l.rate.add(now)
	for len(l.ready) > 0 {
		p := l.ready[0]
		l.ready = l.ready[1:]
		s.count(l.like, -1)
		if p.young(now, r.Moment, s.age) && s.right(p) {
			s.stats.Served++
			return p
		}
		s.dropped = append(s.dropped, p)
	}
	return nil
}

// young tells that the leases may be given to a request of that moment. Its clock counts; ours must not contradict.
func (p *prepared) young(now, moment time.Time, age time.Duration) bool {
	passed := moment.Sub(p.moment)
	return passed >= 0 && passed <= age && now.Sub(p.made) <= age
}

// right tells that the leases are as they were taken, as the cache knows them, and nothing was lost beside them.
func (s *Stock) right(p *prepared) bool {
	return s.holds(p.took) && (&taking{ledger: s.Ledger}).stillOpen(p.allocation) == nil
}

// look has Run look at what was asked for.
func (s *Stock) look() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// count notes that there are so many more sets of such leases.
func (s *Stock) count(like Request, more int) {
	for _, i := range like.Interfaces {
		p := placeOf(i.Candidates[0])
		if s.has[p] += more; s.has[p] == 0 {
			delete(s.has, p)
		}
	}
}

// stocked tells that there is something to look at.
func (s *Stock) stocked() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.lots) > 0
}

func (s *Stock) askedNow() []likeness {
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := s.asked
	s.asked = nil
	return asked
}

func (s *Stock) all() []likeness {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]likeness, 0, len(s.lots))
	for k := range s.lots {
		all = append(all, k)
	}
	return all
}

// tidy takes what lots lack and gives back what is too much. wg counts what goes on.
func (s *Stock) tidy(ctx context.Context, wg *sync.WaitGroup, which []likeness) {
	now := s.Clock.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range which {
		l := s.lots[k]
		if l == nil {
			continue
		}
		forgotten := now.Sub(l.asked) > stockIdle
		keep, more := s.spare(l.like)
		s.drop(l, func(p *prepared) bool { return forgotten || !keep || now.Sub(p.made) > s.age })
		if forgotten && l.making == 0 {
			delete(s.lots, k)
		}
		target := l.target()
		wanted := more && !forgotten && !now.Before(l.pause) && len(l.ready)+l.making <= target/2
		for wanted && more && len(l.ready)+l.making < target {
			l.making++
			s.count(l.like, 1)
			like, moment := l.like, l.moment
			wg.Go(func() { s.make(ctx, l, like, moment) })
			_, more = s.spare(l.like)
		}
	}
	if dropped := s.takeDropped(); len(dropped) > 0 {
		wg.Go(func() {
			// What can't be given back is pending: the sweep frees it.
			_ = s.giveAllBack(context.WithoutCancel(ctx), dropped)
		})
	}
}

// make takes leases for the lot. What is under way when the stock ends is awaited, and given back like the rest.
func (s *Stock) make(ctx context.Context, l *lot, like Request, moment time.Time) {
	made := s.Clock.Now()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.Timeout)
	defer cancel()
	p, err := s.prepare(ctx, like)
	s.mu.Lock()
	defer s.mu.Unlock()
	l.making--
	if err != nil { // whoever asks in earnest is told
		s.count(like, -1)
		l.pause = s.Clock.Now().Add(stockPause)
		return
	}
	if !same(l.like, like) {
		s.count(like, -1)
		s.dropped = append(s.dropped, p)
		return
	}
	p.moment, p.made = moment, made
	l.ready = append(l.ready, p)
}

func (s *Stock) prepare(ctx context.Context, like Request) (*prepared, error) {
	var err error
	if like.Claim, err = NewClaim(s.Random); err != nil {
		return nil, err
	}
	like.patient = stockLinger
	a, took, err := s.take(ctx, like)
	if err != nil {
		return nil, err
	}
	return &prepared{allocation: a, took: took}, nil
}

// drop takes out of the lot what is of no use. s.mu is held.
func (s *Stock) drop(l *lot, useless func(*prepared) bool) {
	l.ready = slices.DeleteFunc(l.ready, func(p *prepared) bool {
		if !useless(p) {
			return false
		}
		s.dropped = append(s.dropped, p)
		s.count(l.like, -1)
		return true
	})
}

func (s *Stock) dropAll(l *lot) { s.drop(l, func(*prepared) bool { return true }) }

// takeDropped gives what is to be given back. s.mu is held.
func (s *Stock) takeDropped() []*prepared {
	dropped := s.dropped
	s.dropped = nil
	s.stats.Returned += int64(len(dropped))
	return dropped
}

// giveAllBack gives back what is as it was taken.
func (s *Stock) giveAllBack(ctx context.Context, dropped []*prepared) error {
	var took []taken
	for _, p := range dropped {
		took = append(took, p.took...)
	}
	if len(took) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, s.Timeout)
	defer cancel()
	if err := s.giveBack(ctx, took...); err != nil {
		return fmt.Errorf("giving back leases that nobody asked for: %w", err)
	}
	return nil
}

// clearOut gives back what the stock has of the subnets, for somebody was refused there. It tells whether there was
// anything.
func (s *Stock) clearOut(ctx context.Context, names []string) bool {
	s.mu.Lock()
	for _, l := range s.lots {
		if slices.ContainsFunc(subnets(l.like.Interfaces...), func(n string) bool { return slices.Contains(names, n) }) {
			s.dropAll(l)
		}
	}
	dropped := s.takeDropped()
	s.mu.Unlock()
	return len(dropped) > 0 && s.giveAllBack(ctx, dropped) == nil
}

// spare tells whether what the stock has of such leases may be kept, and whether it may have more. s.mu is held.
func (s *Stock) spare(like Request) (keep, more bool) {
	s.Ledger.mu.Lock()
	defer s.Ledger.mu.Unlock()
	keep, more = true, true
	for _, i := range like.Interfaces {
		c := i.Candidates[0]
		for _, f := range i.families(c.Subnet) {
			free, size := s.room(c, f)
			least := max(size/stockLeft, stockMin)
			keep = keep && free >= least
			more = more && free >= least+least/2 && s.has[placeOf(c)] < size/stockShare
		}
	}
	return keep, keep && more
}

// families are those that the interface gets in the subnet.
func (i InterfaceRequest) families(s *Subnet) []Family {
	if len(i.Families) > 0 {
		return i.Families
	}
	return s.Families()
}

// holds tells that the leases are as they were taken, as the cache knows them.
func (l *Ledger) holds(took []taken) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, t := range took {
		e := l.known[t.Block]
		if e == nil || e.block == nil {
			return false
		}
		if _, err := e.block.at(t.Ref()); err != nil {
			return false
		}
	}
	return len(took) > 0
}
