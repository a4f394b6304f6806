package admission

import (
	"context"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// The storm guard: creations that are refused after us, by a quota say, leave leases without pods behind until the
// worker takes them back. In each subnet a namespace may pin few of them.
const (
	stormAge     = time.Second // a creation under way is no storm
	stormLeases  = 16
	stormPercent = 5
	stormShare   = 4
	podsMemory   = 250 * time.Millisecond // how long a list of pods serves
	podsTimeout  = time.Second            // a list that takes longer is done without
)

// Pods gives the claims that the pods of a namespace carry, read live.
type Pods func(ctx context.Context, namespace string) (map[ipam.Claim]bool, error)

// guard holds back namespaces whose creations keep failing.
type guard struct {
	ledger Ledger
	pods   Pods
	clock  clock.PassiveClock
	lists  singleflight.Group
	mu     sync.Mutex
	memory map[string]listed
}

type listed struct {
	at     time.Time
	claims map[ipam.Claim]bool
}

func newGuard(o Options) *guard {
	return &guard{ledger: o.Ledger, pods: o.Pods, clock: o.Clock, memory: map[string]listed{}}
}

// stormy names the subnet of which the namespace pins too much for the plan, or is empty. Only when the leases that no
// pod is bound to are many does it ask which of them have pods: that the worker is behind is no fault of the pods'. Nor is it
// that nobody can tell: then it holds nobody back.
func (g *guard) stormy(ctx context.Context, namespace string, plan network.Planned) (string, error) {
	if g.pods == nil {
		return "", nil
	}
	for _, i := range plan.Interfaces {
		subnet := ""
		for _, c := range i.Candidates {
			full, err := g.pinned(ctx, namespace, c.Set)
			if ctx.Err() != nil {
				return "", context.Cause(ctx)
			}
			if err != nil || !full {
				subnet = ""
				break
			}
			subnet = c.Set.Name()
		}
		if subnet != "" {
			return subnet, nil
		}
	}
	return "", nil
}

func (g *guard) pinned(ctx context.Context, namespace string, s *ipam.Subnet) (bool, error) {
	quarter := part(s, 100/stormShare)
	few := max(min(stormLeases, quarter), part(s, stormPercent), 1)
	share := max(quarter, min(stormLeases, part(s, 50)), few)
	if len(g.ledger.Pending(s.Name(), namespace, 0, few)) < few {
		return false, nil
	}
	l, err := g.carried(ctx, namespace)
	if err != nil {
		return false, err
	}
	// What was taken after the list was made may have its pod by now.
	since := g.clock.Since(l.at)
	return l.loose(g.ledger.Pending(s.Name(), namespace, since, few)) >= share ||
		l.loose(g.ledger.Pending(s.Name(), namespace, since+stormAge, few)) >= few, nil
}

// loose counts the claims that no pod carried.
func (l listed) loose(claims []ipam.Claim) int {
	n := 0
	for _, c := range claims {
		if !l.claims[c] {
			n++
		}
	}
	return n
}

// part is what of a subnet's size may be pinned; of a large one what an int holds.
func part(s *ipam.Subnet, percent int64) int {
	size := new(big.Int)
	for _, f := range s.Families() {
		if n := s.Size(f); size.Sign() == 0 || n.Cmp(size) < 0 {
			size = n
		}
	}
	size = new(big.Int).Div(new(big.Int).Mul(size, big.NewInt(percent)), big.NewInt(100))
	if !size.IsInt64() || size.Int64() > 1<<20 {
		return 1 << 20
	}
	return int(size.Int64())
}

// carried lists the pods of a namespace, once for all who ask meanwhile: however long that takes, they don't queue up.
func (g *guard) carried(ctx context.Context, namespace string) (listed, error) {
	if l, ok := g.remembered(namespace); ok {
		return l, nil
	}
	done := g.lists.DoChan(namespace, func() (any, error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), podsTimeout)
		defer cancel()
		now := g.clock.Now()
		claims, err := g.pods(ctx, namespace)
		if err != nil {
			return listed{}, fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
		}
		l := listed{now, claims}
		g.mu.Lock()
		defer g.mu.Unlock()
		g.memory[namespace] = l
		return l, nil
	})
	select {
	case r := <-done:
		l, _ := r.Val.(listed)
		return l, r.Err
	case <-ctx.Done():
		return listed{}, context.Cause(ctx)
	}
}

// remembered gives the list of a short while ago, and forgets those that are older.
func (g *guard) remembered(namespace string) (listed, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.clock.Now()
	maps.DeleteFunc(g.memory, func(_ string, l listed) bool { return now.Sub(l.at) >= podsMemory })
	l, ok := g.memory[namespace]
	return l, ok
}

// stormed asks the caller to come back later.
func stormed(p network.Pod, subnet string) *decision {
	d := allowed(outcomeOverloaded)
	d.reason = "Storm"
	d.status = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusTooManyRequests, Reason: metav1.StatusReasonTooManyRequests,
		Message: fmt.Sprintf("too many creations of pods in namespace %s have failed after addresses of subnet %s were taken for them: "+
			"find out what refuses them (a quota, a policy); the addresses come back within two minutes", p.Namespace, subnet),
		Details: &metav1.StatusDetails{RetryAfterSeconds: 5}}
	return d
}
