package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/berth-net/berth/pkg/network"
)

// freedPods is how many times one address is freed while one pod waits.
const freedPods = 20

// Round is as many pods as a subnet has addresses, created at once.
type Round struct {
	// Refused and Waited are what became of those that got no address at once. Seconds until the last was wired.
	Refused int     `json:"refused"`
	Waited  int     `json:"waited"`
	Seconds float64 `json:"seconds"`
}

// Tight is what happened in a subnet that the pods fill to the last address.
type Tight struct {
	Addresses int `json:"addresses"`
	// First is in the empty subnet. AtOnce are pods that may wait, created while the first were being deleted; Again are pods
	// that may not, created when all others were gone.
	First  Round `json:"first"`
	AtOnce Round `json:"atOnce"`
	Again  Round `json:"again"`
	// OneMore is what a pod too many was told.
	OneMore string `json:"oneMore"`
	// Freed is from the deletion of a pod in the full subnet to the release of the pod that waited.
	Freed      Summary  `json:"freed"`
	Duplicates []string `json:"duplicates,omitempty"`
	LeasesLeft int      `json:"leasesLeft"`
}

// tight fills a subnet, empties it and fills it again.
func (w *World) tight(ctx context.Context, s Sizes) (t Tight, err error) {
	t.Addresses = s.Addresses
	crew, err := newCrew(ctx, w.client, tightName, w.nodes)
	if err != nil {
		return t, err
	}
	defer crew.Close()
	waits := map[string]string{network.WhenUnavailableKey: network.Wait}
	n := s.Addresses
	for _, step := range []func() error{
		func() (err error) { t.First, err = crew.fill(ctx, "first", n, nil); return err },
		func() (err error) { t.OneMore, err = crew.oneMore(ctx); return err },
		func() error { return crew.remove(ctx, burstClients, namesOf(pods("first", n, nil))) },
		func() (err error) { t.AtOnce, err = crew.fill(ctx, "second", n, waits); return err },
		func() (err error) {
			t.Freed, err = crew.freed(ctx, waits, namesOf(pods("second", n, nil)))
			return err
		},
		func() error { return crew.emptied(ctx) },
		func() (err error) { t.Again, err = crew.fill(ctx, "third", n, nil); return err },
		func() error { return crew.emptied(ctx) },
		func() (err error) { t.LeasesLeft, err = w.leases(ctx, tightName); return err },
	} {
		if err := step(); err != nil {
			return t, err
		}
		t.Duplicates = append(t.Duplicates, Duplicates(crew.Lives())...)
	}
	return t, nil
}

// fill creates pods, and returns when all that were not refused are wired.
func (c *Crew) fill(ctx context.Context, prefix string, n int, annotations map[string]string) (r Round, err error) {
	there, begun := c.Counts().Routed, time.Now()
	created, err := c.create(ctx, burstClients, pods(prefix, n, annotations))
	if err != nil {
		return r, err
	}
	r.Refused = created.Refused
	for _, p := range created.Pods {
		if p != nil && len(p.Spec.SchedulingGates) > 0 {
			r.Waited++
		}
	}
	err = c.Await(ctx, "the pods "+prefix+" are routed", func(k Counts) bool { return k.Routed == there+n-created.Refused })
	r.Seconds = last(c.Lives(), func(l Life) time.Time { return l.Routed }).Sub(begun).Seconds()
	return r, err
}

// oneMore creates a pod too many, and gives what it was told.
func (c *Crew) oneMore(ctx context.Context) (string, error) {
	created, err := c.create(ctx, 1, pods("too-many", 1, nil))
	if err != nil {
		return "", err
	}
	if created.Refused == 0 {
		return "", fmt.Errorf("a pod was not refused though the subnet is full")
	}
	return created.Reason, nil
}

// freed deletes pods of a full subnet one by one, each while one other pod waits.
func (c *Crew) freed(ctx context.Context, waits map[string]string, full []string) (Summary, error) {
	var took []time.Duration
	for i := range min(freedPods, len(full)) {
		there := c.Counts().Routed
		created, err := c.create(ctx, 1, pods(fmt.Sprintf("waiting-%d", i), 1, waits))
		if err != nil {
			return Summary{}, err
		}
		if created.Refused > 0 || len(created.Pods[0].Spec.SchedulingGates) == 0 {
			return Summary{}, fmt.Errorf("a pod does not wait though the subnet is full: %s", created.Reason)
		}
		begun := time.Now()
		if err := c.remove(ctx, 1, full[i:i+1]); err != nil {
			return Summary{}, err
		}
		if err := c.Await(ctx, "the waiting pod is routed", func(k Counts) bool { return k.Routed == there+1 }); err != nil {
			return Summary{}, err
		}
		took = append(took, c.Life(created.Pods[0].UID).Ungated.Sub(begun))
	}
	return Summarize(took), nil
}

// emptied deletes all pods that are there, and returns when they are gone.
func (c *Crew) emptied(ctx context.Context) error {
	var names []string
	for _, l := range c.Lives() {
		if l.Gone.IsZero() {
			names = append(names, l.Name)
		}
	}
	_, err := c.clear(ctx, names)
	return err
}
