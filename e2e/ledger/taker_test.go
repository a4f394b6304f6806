//go:build e2e

package ledger

import (
	"context"
	cryptorand "crypto/rand"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

// restTime is short, so that addresses rest, come back and empty blocks are pruned within a test.
const restTime = 2 * time.Second

// job is what one life of one process does.
type job struct {
	Dir           string
	Process, Life int
	Seed          uint64
	Takers        int
	Kubeconfig    string
	Small, Big    subnetSpec
}

// holding is a set of leases that a taker holds.
type holding struct {
	claim  ipam.Claim
	leases []string
	// doubtful tells that a call which a kill interrupted may yet take them away.
	doubtful bool
}

func (h holding) small() bool {
	return slices.ContainsFunc(h.leases, func(l string) bool { return strings.HasPrefix(l, "small/") })
}

// play takes and frees until ctx ends. What earlier lives of this process held is taken over first.
func play(ctx context.Context, j job, s ipam.Store, feed *blockstore.Store, say func(event) error) error {
	random := notedRandom{cryptorand.Reader, say}
	l, err := ipam.New(ipam.Options{Store: s, Replica: fmt.Sprintf("replica-%d", j.Process), Clock: clock.RealClock{}, Random: random, Rest: restTime})
	if err != nil {
		return err
	}
	small, err := j.Small.build()
	if err != nil {
		return err
	}
	big, err := j.Big.build()
	if err != nil {
		return err
	}
	lives, err := readLives(j.Dir, j.Process, j.Life)
	if err != nil {
		return err
	}
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	group, watching := errgroup.WithContext(watching)
	group.Go(func() error { return feed.Watch(watching, l) })
	group.Go(func() error {
		defer stop()
		if err := synced(watching, feed); err != nil {
			return err
		}
		shared := taker{ledger: l, small: small, big: big, say: say, claims: random}
		old, err := shared.inherit(watching, lives)
		if err != nil {
			return err
		}
		return shared.all(ctx, j, old)
	})
	return group.Wait()
}

// taker takes and frees, one call after the other.
type taker struct {
	ledger     *ipam.Ledger
	small, big *ipam.Subnet
	say        func(event) error
	claims     notedRandom
	random     *rand.Rand
	held       []holding
	stale      []ipam.Ref // of leases that were freed, or have changed since
}

// all runs the takers of a process and prunes beside them.
func (t taker) all(ctx context.Context, j job, old []holding) error {
	group, ctx := errgroup.WithContext(ctx)
	for n := range j.Takers {
		one := t
		one.random = rand.New(rand.NewPCG(j.Seed, uint64(j.Process)<<32|uint64(j.Life)<<16|uint64(n)))
		for i := n; i < len(old); i += j.Takers {
			one.held = append(one.held, old[i])
		}
		group.Go(func() error {
			for ctx.Err() == nil {
				if err := one.step(context.WithoutCancel(ctx)); err != nil {
					return err
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if _, err := t.ledger.Prune(context.WithoutCancel(ctx)); err != nil {
					return err
				}
			case <-ctx.Done():
				return nil
			}
		}
	})
	return group.Wait()
}

// step takes or frees.
func (t *taker) step(ctx context.Context) error {
	smalls := 0
	for _, h := range t.held {
		if h.small() {
			smalls++
		}
	}
	if len(t.stale) > 0 && t.random.IntN(6) == 0 {
		return t.freeStale(ctx)
	}
	if n := len(t.held); n > 0 && (n >= 12 || smalls >= 2 || t.random.IntN(100) < 45) {
		i := t.random.IntN(n)
		h := t.held[i]
		t.held = slices.Delete(t.held, i, i+1)
		return t.free(ctx, h)
	}
	return t.take(ctx)
}

func (t *taker) take(ctx context.Context) error {
	claim, err := ipam.NewClaim(t.claims)
	if err != nil {
		return err
	}
	r := t.request(claim)
	owner := ""
	if r.Owner.Sticky() {
		owner = r.Owner.String()
	}
	var subnets []string
	for _, i := range r.Interfaces {
		subnets = append(subnets, i.Candidates[0].Subnet.Name())
	}
	if err := t.say(event{Kind: takes, Claim: string(claim), Leases: subnets, Owner: owner}); err != nil {
		return err
	}
	a, err := t.ledger.Take(ctx, r)
	if err != nil {
		return t.say(answerOf(claim, err))
	}
	leases := namesOf(t.ledger.ByClaim(a.Claim))
	for _, as := range a.Interfaces {
		for _, held := range as.Leases {
			if name := nameOf(held); !slices.Contains(leases, name) {
				return t.say(event{Kind: lost, Claim: string(a.Claim), Asked: string(claim), Leases: []string{name}, Text: "just taken"})
			}
		}
	}
	if err := t.say(event{Kind: taken, Claim: string(a.Claim), Asked: string(claim), Leases: leases, Owner: owner}); err != nil {
		return err
	}
	if owner != "" {
		return nil // nobody frees these
	}
	h := holding{claim: a.Claim, leases: leases}
	t.held = append(t.held, h)
	if t.random.IntN(3) > 0 {
		return nil
	}
	return t.bind(ctx, h)
}

// bind raises the generation of what was taken.
func (t *taker) bind(ctx context.Context, h holding) error {
	refs := refsOf(t.ledger.ByClaim(h.claim))
	_, err := t.ledger.Bind(ctx, "uid-"+string(h.claim[:8]), "pod-"+string(h.claim[:8]), refs...)
	var stale *ipam.StaleError
	switch {
	case err == nil:
		t.stale = append(t.stale, refs...)
		return nil
	case errors.As(err, &stale):
		return t.say(event{Kind: lost, Claim: string(h.claim), Leases: h.leases, Text: err.Error()})
	}
	return t.say(event{Kind: failed, Claim: string(h.claim), Text: "bind: " + err.Error()})
}

// freeStale gives back what is not, or no longer, as it was seen: it must do nothing to whoever has it now.
func (t *taker) freeStale(ctx context.Context) error {
	refs := t.stale
	t.stale = nil
	if err := t.ledger.Free(ctx, refs...); err != nil {
		return t.say(event{Kind: failed, Text: "free of what has changed: " + err.Error()})
	}
	return nil
}

// answerOf is what is written down of a Take that gave nothing.
func answerOf(claim ipam.Claim, err error) event {
	e := event{Kind: failed, Claim: string(claim), Text: err.Error()}
	if r, ok := ipam.AsRefusal(err); ok {
		e.Kind, e.Text = refused, r.Reason()
	}
	var full *ipam.ExhaustedError
	if errors.As(err, &full) {
		e.Full = full.Subnet + "/" + full.Family.String()
	}
	return e
}

// free gives a holding back, whatever its generation has become.
func (t *taker) free(ctx context.Context, h holding) error {
	for first := true; ; first = false {
		held := t.ledger.ByClaim(h.claim)
		if first {
			names := namesOf(held)
			for _, want := range h.leases {
				if !h.doubtful && !slices.Contains(names, want) {
					if err := t.say(event{Kind: lost, Claim: string(h.claim), Leases: []string{want}, Text: "about to be freed"}); err != nil {
						return err
					}
				}
			}
			if err := t.say(event{Kind: frees, Claim: string(h.claim), Leases: h.leases}); err != nil {
				return err
			}
		}
		if len(held) == 0 {
			return t.say(event{Kind: freed, Claim: string(h.claim)})
		}
		if err := t.ledger.Free(ctx, refsOf(held)...); err != nil {
			return t.say(event{Kind: failed, Claim: string(h.claim), Text: "free: " + err.Error()})
		}
		t.stale = append(t.stale, refsOf(held)...)
	}
}

// inherit takes over what earlier lives of this process held, and what was left by the calls that a kill interrupted.
func (t *taker) inherit(ctx context.Context, lives []chapter) ([]holding, error) {
	if len(lives) == 0 {
		return nil, nil
	}
	if err := t.ledger.Refresh(ctx); err != nil {
		return nil, err
	}
	s := tell(lives)
	var out []holding
	for claim, w := range s.claims {
		if w.owner != "" || w.state == gone {
			continue
		}
		now := namesOf(t.ledger.ByClaim(ipam.Claim(claim)))
		e := event{Claim: claim, Leases: now}
		switch w.state {
		case holds:
			if !slices.Equal(now, w.leases) {
				e.Kind = lost
				e.Text = fmt.Sprintf("after a restart; held were %v", w.leases)
			}
		case asks, doubtful:
			if len(now) > 0 {
				e.Kind = found
			}
		case gives:
			if len(now) == 0 {
				e.Kind = freed
			}
		}
		if e.Kind != "" {
			if err := t.say(e); err != nil {
				return nil, err
			}
		}
		if len(now) > 0 {
			out = append(out, holding{claim: ipam.Claim(claim), leases: now, doubtful: w.state != holds})
		}
	}
	return out, nil
}

// nameOf names a lease in a diary.
func nameOf(h ipam.Held) string { return h.Subnet + "/" + h.Ref().String() }

func namesOf(hs []ipam.Held) []string {
	names := make([]string, len(hs))
	for i, h := range hs {
		names[i] = nameOf(h)
	}
	slices.Sort(names)
	return names
}

func refsOf(hs []ipam.Held) []ipam.Ref {
	refs := make([]ipam.Ref, len(hs))
	for i, h := range hs {
		refs[i] = h.Ref()
	}
	return refs
}

// request draws what to ask for.
func (t *taker) request(claim ipam.Claim) ipam.Request {
	r := ipam.Request{Claim: claim, Owner: ipam.PodOwner("app")}
	v4, v6 := []ipam.Family{ipam.IPv4}, []ipam.Family{ipam.IPv6}
	var i ipam.InterfaceRequest
	switch n := t.random.IntN(100); {
	case n < 22: // any of few
		i = from(t.small)
		if n < 8 {
			i.Families = v4
		}
	case n < 40: // one of few, the excluded ones too
		i = from(t.small)
		for range 1 + t.random.IntN(2) { // or another
			choice := []netip.Addr{netip.AddrFrom4([4]byte{10, 90, 0, byte(2 + t.random.IntN(13))})}
			if n < 30 {
				choice = append(choice, inSixteen("fd00:90::", t.random.IntN(14)+2))
			}
			i.Choices = append(i.Choices, choice)
		}
	case n < 58: // any of many
		i = from(t.big)
	case n < 66:
		i = from(t.big)
		i.Families = v4
	case n < 74: // its MAC is leased too
		i = from(t.big)
		i.Families = v6
	case n < 84: // one of many, so few that takers meet
		i = from(t.big)
		i.Choices = [][]netip.Addr{{netip.AddrFrom4([4]byte{10, 91, 7, byte(t.random.IntN(24))}), inSixteen("fd00:91::", 0x700+t.random.IntN(24))}}
	case n < 90:
		i = from(t.big)
		i.MAC = ipam.MAC{2, 0, 0, 0, 0, byte(t.random.IntN(8))}
	case n < 95: // two interfaces, all or nothing
		i = from(t.small)
		second := from(t.big)
		second.Provider = "net.app.ovn"
		r.Interfaces = append(r.Interfaces, second)
	default:
		i = from(t.big)
		r.Owner = ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "app", Name: fmt.Sprintf("web-%d", t.random.IntN(16))}
	}
	r.Interfaces = append(r.Interfaces, i)
	return r
}

func inSixteen(base string, n int) netip.Addr {
	b := netip.MustParseAddr(base).As16()
	b[14], b[15] = byte(n>>8), byte(n)
	return netip.AddrFrom16(b)
}
