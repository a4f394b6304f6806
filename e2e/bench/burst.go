package bench

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// burstClients is how many clients create and delete the pods of a burst.
const burstClients = 64

// Creates are creations by so many clients.
type Creates struct {
	Clients   int     `json:"clients"`
	Latency   Summary `json:"latency"`
	PerSecond float64 `json:"perSecond"`
}

// Burst is a run of creations and of one burst of pods: created and bound at once, then deleted at once. Times are seconds
// from the first request.
type Burst struct {
	Berth   bool      `json:"berth"`
	Creates []Creates `json:"creates"`
	Pods    int       `json:"pods"`
	// Bound is when the last pod had its node, Wired when the last one was routed, Gone when the last one was gone.
	Bound float64 `json:"bound"`
	Wired float64 `json:"wired,omitempty"`
	Gone  float64 `json:"gone"`
	// Create are the burst's own CREATEs, Connect from a pod's node to its mark routed.
	Create  Summary `json:"create"`
	Connect Summary `json:"connect"`
	// Writes, Transactions and Usage are of the burst, from the first creation to the last pod's end.
	Writes       []Write `json:"writes"`
	Transactions float64 `json:"transactions,omitempty"`
	Operations   float64 `json:"operations,omitempty"`
	LedgerWrites float64 `json:"ledgerWrites,omitempty"`
	Usage        []Usage `json:"usage"`
}

// burst measures creations, then a burst.
func (w *World) burst(ctx context.Context, name string, s Sizes, berth bool) (b Burst, err error) {
	b = Burst{Berth: berth, Pods: s.Pods}
	if b.Creates, err = w.creations(ctx, name, s); err != nil {
		return b, err
	}
	crew, err := newCrew(ctx, w.client, roomyName, w.nodes)
	if err != nil {
		return b, err
	}
	defer crew.Close()
	before, err := w.reading(ctx, berth)
	if err != nil {
		return b, err
	}
	list := pods(name, s.Pods, nil)
	begun := time.Now()
	created, err := crew.create(ctx, burstClients, list)
	if err != nil {
		return b, err
	}
	if created.Refused > 0 {
		return b, fmt.Errorf("%d pods of the burst were refused: %s", created.Refused, created.Reason)
	}
	b.Create = Summarize(created.Took)
	if err := crew.Await(ctx, "all pods have their nodes", func(c Counts) bool { return c.Bound == s.Pods }); err != nil {
		return b, err
	}
	b.Bound = last(crew.Lives(), func(l Life) time.Time { return l.Bound }).Sub(begun).Seconds()
	if berth {
		if err := crew.Await(ctx, "all pods are routed", func(c Counts) bool { return c.Routed == s.Pods }); err != nil {
			return b, err
		}
		b.Wired = last(crew.Lives(), func(l Life) time.Time { return l.Routed }).Sub(begun).Seconds()
		b.Connect = Summarize(connects(crew.Lives()))
		if twice := Duplicates(crew.Lives()); len(twice) > 0 {
			return b, fmt.Errorf("two pods have one address: %v", twice)
		}
	}
	if err := crew.run(ctx, hands, namesOf(list)); err != nil {
		return b, err
	}
	if b.Gone, err = crew.clear(ctx, namesOf(list)); err != nil {
		return b, err
	}
	return b, w.charge(ctx, &b, before)
}

// clear deletes pods at once, and gives the seconds until none of the crew's is left.
func (c *Crew) clear(ctx context.Context, names []string) (float64, error) {
	begun := time.Now()
	if err := c.remove(ctx, burstClients, names); err != nil {
		return 0, err
	}
	if err := c.Await(ctx, "all pods are gone", func(n Counts) bool { return n.Gone == int(c.made.Load()) }); err != nil {
		return 0, err
	}
	return last(c.Lives(), func(l Life) time.Time { return l.Gone }).Sub(begun).Seconds(), nil
}

// creations measures CREATE alone. The pods are never bound.
func (w *World) creations(ctx context.Context, name string, s Sizes) (out []Creates, err error) {
	for _, clients := range s.Clients {
		crew, err := newCrew(ctx, w.client, roomyName, nil)
		if err != nil {
			return nil, err
		}
		list := pods(fmt.Sprintf("%s-by-%d", name, clients), s.Creates, nil)
		created, err := crew.create(ctx, clients, list)
		if err == nil && created.Refused > 0 {
			err = fmt.Errorf("%d pods were refused: %s", created.Refused, created.Reason)
		}
		if err == nil {
			_, err = crew.clear(ctx, namesOf(list))
		}
		crew.Close()
		if err != nil {
			return nil, err
		}
		out = append(out, Creates{Clients: clients, Latency: Summarize(created.Took), PerSecond: float64(len(list)) / created.All.Seconds()})
	}
	return out, nil
}

// reading is what is counted all the time, as it stands.
type reading struct {
	usage    []Usage
	counters counters
}

// reading reads everything, and has the audit log begin here.
func (w *World) reading(ctx context.Context, berth bool) (r reading, err error) {
	if berth {
		if r.counters, err = w.counters(ctx); err != nil {
			return r, err
		}
	}
	if _, err = w.audit.next(); err != nil {
		return r, err
	}
	r.usage, err = w.usage()
	return r, err
}

// charge notes what was taken since a reading.
func (w *World) charge(ctx context.Context, b *Burst, before reading) (err error) {
	after := reading{}
	if after.usage, err = w.usage(); err != nil {
		return err
	}
	if b.Writes, err = w.audit.next(); err != nil {
		return err
	}
	b.Usage = used(before.usage, after.usage)
	if !b.Berth {
		return nil
	}
	if after.counters, err = w.counters(ctx); err != nil {
		return err
	}
	grown := after.counters.since(before.counters)
	b.Transactions, b.Operations, b.LedgerWrites = grown.transactions, grown.operations, grown.ledgerWrites
	return nil
}

// Singles are pods one after the other, when nothing else is going on.
type Singles struct {
	// Create is CREATE, Connect from the node to the mark routed, Ready from the request to the mark routed.
	Create  Summary `json:"create"`
	Connect Summary `json:"connect"`
	Ready   Summary `json:"ready"`
}

// singles makes pods one after the other, and waits for each one's network before the next.
func (w *World) singles(ctx context.Context, name string, n int) (s Singles, err error) {
	if err := w.awaitQuiet(ctx); err != nil {
		return s, err
	}
	crew, err := newCrew(ctx, w.client, roomyName, w.nodes)
	if err != nil {
		return s, err
	}
	defer crew.Close()
	if s, err = crew.singles(ctx, name, n); err != nil {
		return s, err
	}
	return s, crew.emptied(ctx)
}

// quiet is the processor time that all of the cluster takes in a second when nothing is asked of it, at most.
const quiet = 0.5

// awaitQuiet waits until what a burst has left behind is done, for a minute at most: collectors of garbage go on for a while.
func (w *World) awaitQuiet(ctx context.Context) error {
	w.say("waiting for quiet")
	for range 60 {
		before, err := w.usage()
		if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
		after, err := w.usage()
		if err != nil {
			return err
		}
		if seconds(used(before, after)) < quiet {
			return nil
		}
	}
	w.say("there is no quiet: what is measured now is of a busy cluster")
	return nil
}

func seconds(all []Usage) (sum float64) {
	for _, u := range all {
		sum += u.CPU
	}
	return sum
}

func (c *Crew) singles(ctx context.Context, name string, n int) (s Singles, err error) {
	there := c.Counts().Routed
	var creates, ready, connect []time.Duration
	for i, p := range pods(name, n, nil) {
		begun := time.Now()
		created, err := c.create(ctx, 1, []*corev1.Pod{p})
		if err != nil {
			return s, err
		}
		if created.Refused > 0 {
			return s, fmt.Errorf("pod %s was refused: %s", p.Name, created.Reason)
		}
		if err := c.Await(ctx, p.Name+" is routed", func(k Counts) bool { return k.Routed == there+i+1 }); err != nil {
			return s, err
		}
		life := c.Life(created.Pods[0].UID)
		creates = append(creates, created.Took[0])
		ready = append(ready, life.Routed.Sub(begun))
		connect = append(connect, life.Routed.Sub(life.Bound))
	}
	return Singles{Create: Summarize(creates), Connect: Summarize(connect), Ready: Summarize(ready)}, nil
}
