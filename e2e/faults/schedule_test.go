package faults

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func plan(change ...func(*Plan)) Plan {
	p := Plan{Length: 2 * time.Minute, Every: 2 * time.Second, AtOnce: 4, Kinds: Kinds()}
	for _, c := range change {
		c(&p)
	}
	return p
}

func TestScheduleIsAFunctionOfItsSeed(t *testing.T) {
	one := Schedule(7, plan())
	if d := cmp.Diff(one, Schedule(7, plan())); d != "" {
		t.Errorf("one seed, two schedules (-first +second):\n%s", d)
	}
	if cmp.Equal(one, Schedule(8, plan())) {
		t.Error("two seeds, one schedule")
	}
	// What is replayed must be what was printed, also by a later version: a change here changes every seed's meaning.
	var got []string
	for _, s := range Schedule(1, plan(func(p *Plan) { p.Length = 8 * time.Second })) {
		got = append(got, strings.TrimSpace(s.String()))
	}
	if d := cmp.Diff(golden(), got); d != "" {
		t.Errorf("the schedule of seed 1 (-want +got):\n%s", d)
	}
}

func TestScheduleKeepsItsPlan(t *testing.T) {
	on := map[Kind]trait{}
	for _, x := range traits() {
		on[x.kind] = x
	}
	for seed := range uint64(50) {
		p := plan()
		steps := Schedule(seed, p)
		if len(steps) < 30 {
			t.Fatalf("seed %d has %d faults only", seed, len(steps))
		}
		seen := map[Kind]int{}
		for n, s := range steps {
			x := on[s.Kind]
			seen[s.Kind]++
			if n > 0 && s.At < steps[n-1].At || s.end() > p.Length || s.For > x.most || s.Target < 0 || s.Target >= x.targets {
				t.Errorf("seed %d: step %d is %v", seed, n, s)
			}
			lasting := 0
			for _, o := range steps[:n] {
				if o.end() > s.At {
					lasting++
					if on[o.Kind].on == x.on {
						t.Errorf("seed %d: %v falls into %v, of the same thing", seed, s, o)
					}
				}
			}
			if lasting >= p.AtOnce {
				t.Errorf("seed %d: %d faults last when %v begins", seed, lasting, s)
			}
		}
		for _, k := range Kinds() {
			if seen[k] == 0 && len(steps) > 2*len(Kinds()) {
				t.Errorf("seed %d has %d faults and no %s", seed, len(steps), k)
			}
		}
	}
}

func TestChosenKinds(t *testing.T) {
	kinds, err := ParseKinds("etcd-killed, answer-lost", Kinds())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range Schedule(3, plan(func(p *Plan) { p.Kinds = kinds })) {
		if !slices.Contains([]Kind{EtcdKilled, AnswerLost}, s.Kind) {
			t.Errorf("%v was not asked for", s)
		}
	}
	if all, err := ParseKinds(" ", Kinds()); err != nil || !cmp.Equal(all, Kinds()) {
		t.Errorf("nothing chosen gives %v, %v", all, err)
	}
	if _, err := ParseKinds("etcd-killed,etcd-burnt", Kinds()); err == nil || !strings.Contains(err.Error(), "etcd-burnt") {
		t.Errorf("an unknown kind gives %v", err)
	}
	if _, err := ParseKinds(string(ClockWrong), Kinds()); err == nil {
		t.Error("a cluster's clocks can't be set, yet are taken")
	}
	if got := Schedule(3, plan(func(p *Plan) { p.Kinds = nil })); got != nil {
		t.Errorf("no kind gives %v", got)
	}
}

func golden() []string {
	return []string{
		"2.0 s northbound-killed    target 0 for 1.6 s",
		"3.7 s northbound-stopped   target 0 for 4.3 s",
		"5.0 s api-slow             target 0 for 3.0 s",
		"7.7 s blocks-deleted       target 0 for 0.0 s",
	}
}
