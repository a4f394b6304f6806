package web

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/network"
)

// maxWaiters is how many waiting pods are told, oldest first.
const maxWaiters = 50

// Waiting are the pods that wait for an address.
type Waiting struct {
	Items []Waiter `json:"items"`
	// Total counts those that are not told, too.
	Total int `json:"total"`
}

// Waiter is a pod that waits.
type Waiter struct {
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Created   time.Time `json:"created"`
	// From are the subnets, or their pools, that it would take an address from; Asks are the addresses that it asks for.
	From []string `json:"from"`
	Asks []string `json:"asks"`
	// Why are what must happen next, as `kubectl berth why` tells it.
	Why []string `json:"why"`
}

// waiterOf tells what a pod waits for.
func waiterOf(t report.Told) Waiter {
	s := report.StoryOf(t)
	w := Waiter{Namespace: s.Namespace, Name: s.Name, Created: s.Created, From: []string{}, Asks: []string{}, Why: s.WaitsFor}
	for _, i := range s.Plan.Interfaces {
		w.From = append(w.From, i.Candidates...)
		w.Asks = append(w.Asks, i.Choices...)
	}
	return w
}

// oldest sorts pods as they are served, and leaves away those that nobody is to be told of.
func oldest(pods []*corev1.Pod) []*corev1.Pod {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.UID, b.UID))
	})
	return pods[:min(len(pods), maxWaiters)]
}

// waiting makes the plan of each waiting pod anew and tells what it lacks.
func (p *Page) waiting(ctx context.Context, leader report.Leader) (*Waiting, error) {
	pods, err := p.Waiting(ctx)
	if err != nil {
		return nil, err
	}
	out := &Waiting{Items: []Waiter{}, Total: len(pods)}
	for _, pod := range oldest(pods) {
		t := report.Told{Pod: pod, Ledger: p.mirror.ledger}
		if leader.Alive {
			t.Leader = leader.Holder
		}
		if claim, ok := network.ClaimOf(pod.Annotations); ok {
			t.Leases = t.Ledger.ByClaim(claim)
		}
		v, err := p.View(ctx, report.Asking(pod, t.Leases))
		if err != nil {
			t.PlanErr = err
		} else {
			t.Namespace = v.Namespace
			t.Plan, t.Problems = network.Plan(v.Pod, v.Namespace, v.Catalog, p.Network)
		}
		out.Items = append(out.Items, waiterOf(t))
	}
	return out, nil
}
