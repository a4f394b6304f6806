// Package faults breaks a local cluster in many ways at once, by a schedule drawn from a seed, while workloads come and
// go on it; and then checks that nothing was lost.
//
// Invariant: what the schedule does is a function of its seed and its plan alone, so that every run can be played again;
// and what is judged was read by clients of its own that no fault of the schedule's is put in front of.
package faults

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// Kind is a way in which something fails.
type Kind string

// The kinds.
const (
	// WebhookKilled is SIGKILL to one webhook, or to all.
	WebhookKilled Kind = "webhook-killed"
	// WebhookStopped is SIGSTOP to one webhook, or to all, and SIGCONT later.
	WebhookStopped Kind = "webhook-stopped"
	// WorkerKilled is SIGKILL to one worker, or to all.
	WorkerKilled Kind = "worker-killed"
	// WorkerStopped is SIGSTOP to one worker, or to all, and SIGCONT later.
	WorkerStopped Kind = "worker-stopped"
	// WorkerTwice is a further worker that doesn't ask who leads.
	WorkerTwice Kind = "worker-twice"
	// APIServerKilled is SIGKILL to kube-apiserver, which starts again later.
	APIServerKilled Kind = "apiserver-killed"
	// APIServerStopped is SIGSTOP to kube-apiserver, and SIGCONT later.
	APIServerStopped Kind = "apiserver-stopped"
	// EtcdKilled is SIGKILL to etcd, which starts again later.
	EtcdKilled Kind = "etcd-killed"
	// EtcdStopped is SIGSTOP to etcd, and SIGCONT later.
	EtcdStopped Kind = "etcd-stopped"
	// NorthboundKilled is SIGKILL to the northbound ovsdb-server, which starts again later.
	NorthboundKilled Kind = "northbound-killed"
	// NorthboundStopped is SIGSTOP to the northbound ovsdb-server, and SIGCONT later.
	NorthboundStopped Kind = "northbound-stopped"
	// NorthboundReadOnly makes the northbound database a backup, which refuses every write.
	NorthboundReadOnly Kind = "northbound-read-only"
	// NorthboundFull fills the disk that OVN's databases are on.
	NorthboundFull Kind = "northbound-full"
	// NorthdKilled is SIGKILL to ovn-northd, which starts again later.
	NorthdKilled Kind = "northd-killed"
	// NorthdStopped is SIGSTOP to ovn-northd, and SIGCONT later.
	NorthdStopped Kind = "northd-stopped"
	// WatchStalled holds back what watches tell.
	WatchStalled Kind = "watch-stalled"
	// WatchCut ends watches, and refuses new ones.
	WatchCut Kind = "watch-cut"
	// WatchExpired tells new watches that what they know is too old, and ends those that are open.
	WatchExpired Kind = "watch-expired"
	// AnswerLost breaks connections after a write was stored and before its answer.
	AnswerLost Kind = "answer-lost"
	// APISlow holds requests for 5 s.
	APISlow Kind = "api-slow"
	// APIRefuses answers requests with 503.
	APIRefuses Kind = "api-503"
	// BlocksDeleted deletes blocks of the ledger, all or every second one.
	BlocksDeleted Kind = "blocks-deleted"
	// ClockWrong starts a program again with a clock that is an hour ahead or behind, and later with the right one. Only
	// programs in this process can be given a clock: a cluster's have the machine's.
	ClockWrong Kind = "clock-wrong"
)

// trait is how a kind is drawn.
type trait struct {
	kind Kind
	// on is what it happens to: that has one fault at a time.
	on string
	// least and most is how long it lasts; both zero: it is over at once.
	least, most time.Duration
	// targets is how many it can choose from.
	targets int
}

func traits() []trait {
	const ms, s = time.Millisecond, time.Second
	return []trait{
		{WebhookKilled, "webhook", 0, 0, 3}, {WebhookStopped, "webhook", 500 * ms, 15 * s, 3},
		{WorkerKilled, "worker", 0, 0, 3}, {WorkerStopped, "worker", 500 * ms, 25 * s, 3}, {WorkerTwice, "worker", 5 * s, 15 * s, 1},
		{APIServerKilled, "apiserver", 500 * ms, 6 * s, 1}, {APIServerStopped, "apiserver", 500 * ms, 12 * s, 1},
		{EtcdKilled, "etcd", 500 * ms, 6 * s, 1}, {EtcdStopped, "etcd", 500 * ms, 10 * s, 1},
		{NorthboundKilled, "northbound", 500 * ms, 8 * s, 1}, {NorthboundStopped, "northbound", 500 * ms, 20 * s, 1},
		{NorthboundReadOnly, "northbound", 1 * s, 12 * s, 1}, {NorthboundFull, "northbound", 1 * s, 12 * s, 1},
		{NorthdKilled, "northd", 500 * ms, 6 * s, 1}, {NorthdStopped, "northd", 500 * ms, 12 * s, 1},
		{WatchStalled, "watches", 1 * s, 15 * s, 1}, {WatchCut, "watches", 1 * s, 8 * s, 1}, {WatchExpired, "watches", 1 * s, 8 * s, 1},
		{AnswerLost, "answers", 2 * s, 12 * s, 1}, {APISlow, "requests", 5 * s, 15 * s, 1}, {APIRefuses, "requests", 1 * s, 10 * s, 1},
		{BlocksDeleted, "ledger", 0, 0, 2},
		{ClockWrong, "clocks", 2 * s, 8 * s, 8},
	}
}

// Kinds lists all kinds that can be done to a cluster.
func Kinds() []Kind {
	var out []Kind
	for _, t := range traits() {
		if t.kind != ClockWrong {
			out = append(out, t.kind)
		}
	}
	return out
}

// ParseKinds reads a list of kinds, joined by commas, out of those that can be done; empty are all of these.
func ParseKinds(text string, known []Kind) ([]Kind, error) {
	if strings.TrimSpace(text) == "" {
		return known, nil
	}
	var out []Kind
	for word := range strings.SplitSeq(text, ",") {
		k := Kind(strings.TrimSpace(word))
		if !slices.Contains(known, k) {
			return nil, fmt.Errorf("no fault is called %q here: take some of %v, joined by commas", k, known)
		}
		out = append(out, k)
	}
	return out, nil
}

// Plan is what a schedule is drawn for.
type Plan struct {
	// Length is when the last fault has ended.
	Length time.Duration
	// Every is how long it is from one fault to the next, on average.
	Every time.Duration
	// AtOnce is how many last at one moment, at most.
	AtOnce int
	// Kinds to draw from.
	Kinds []Kind
}

// Step is one fault.
type Step struct {
	// At is when it begins, counted from the start, and For how long it lasts.
	At  time.Duration `json:"at"`
	For time.Duration `json:"for"`
	// Kind of fault, and which of several things it happens to.
	Kind   Kind `json:"kind"`
	Target int  `json:"target"`
}

// String is a line for people.
func (s Step) String() string {
	return fmt.Sprintf("%7.1f s %-20s target %d for %.1f s", s.At.Seconds(), s.Kind, s.Target, s.For.Seconds())
}

// end is when the step is over.
func (s Step) end() time.Duration { return s.At + s.For }

// Schedule draws a schedule: the same for the same seed and plan. Every kind comes before any comes again, as far as
// what they happen to is free.
func Schedule(seed uint64, p Plan) []Step {
	d := dealer{random: rand.New(rand.NewPCG(seed, 1)), busy: map[string]time.Duration{}}
	for _, t := range traits() {
		if slices.Contains(p.Kinds, t.kind) {
			d.all = append(d.all, t)
		}
	}
	var steps []Step
	if len(d.all) == 0 || p.Every <= 0 {
		return nil
	}
	for at := d.between(0, p.Every); at < p.Length; at += d.between(p.Every/2, p.Every*3/2) {
		lasting := slices.DeleteFunc(slices.Clone(steps), func(s Step) bool { return s.end() <= at })
		if len(lasting) >= p.AtOnce {
			continue
		}
		t, ok := d.draw(at)
		if !ok {
			continue
		}
		s := Step{At: at, Kind: t.kind, Target: d.random.IntN(t.targets)}
		if t.most > 0 {
			s.For = min(d.between(t.least, t.most), p.Length-at)
		}
		d.busy[t.on] = s.end()
		steps = append(steps, s)
	}
	return steps
}

// dealer deals kinds like cards.
type dealer struct {
	random    *rand.Rand
	all, deck []trait
	// busy tells until when a thing has a fault.
	busy map[string]time.Duration
}

// between draws a time in whole milliseconds.
func (d *dealer) between(least, most time.Duration) time.Duration {
	return least + time.Duration(d.random.Int64N((most-least).Milliseconds()+1))*time.Millisecond
}

// draw takes the first kind off the deck whose thing is free.
func (d *dealer) draw(at time.Duration) (trait, bool) {
	for range 2 {
		for n, t := range d.deck {
			if d.busy[t.on] <= at {
				d.deck = slices.Delete(d.deck, n, n+1)
				return t, true
			}
		}
		fresh := slices.Clone(d.all)
		d.random.Shuffle(len(fresh), func(i, j int) { fresh[i], fresh[j] = fresh[j], fresh[i] })
		d.deck = append(d.deck, fresh...)
	}
	return trait{}, false
}
