package network

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/berth-net/berth/pkg/ipam"
)

// lists draws which attachments a pod names: each interface at most once, and never an attachment by itself that is also
// named with others, for what it is called depends on what came first then.
func lists() *rapid.Generator[[]Selection] {
	return rapid.Custom(func(t *rapid.T) []Selection {
		all := []Selection{nad("n2"), nad("mv"), nad("foreign"), nad("prefix"), nad("n1", onInterface("a")), nad("n1", onInterface("b"))}
		list := rapid.SliceOfDistinct(rapid.SampledFrom(all), Selection.key).Draw(t, "list")
		if a, b := slices.ContainsFunc(list, all[4].same), slices.ContainsFunc(list, all[5].same); a != b {
			list = slices.DeleteFunc(list, func(s Selection) bool { return s.Name == "n1" })
		}
		return list
	})
}

func (s Selection) key() string { return s.String() + "@" + s.Interface }

// does makes what an edit comes to, up to a step: the leases, then the annotations.
func (r running) does(t *rapid.T, e Edit, all bool) running {
	a := answerTo(e.Plug)
	r.leases = slices.Clone(r.leases)
	for _, as := range a.Interfaces {
		r.leases = slices.DeleteFunc(r.leases, func(l ipam.Held) bool { return l.Provider == as.Provider })
		for _, l := range as.Leases {
			r.leases = append(r.leases, ipam.Held{Lease: ipam.Lease{Address: l.Address, Claim: claimA, Owner: e.Plug.Owner, Provider: as.Provider}})
		}
	}
	if !all {
		return r
	}
	r.pod.Annotations = maps.Clone(r.pod.Annotations)
	for _, key := range e.Drop {
		delete(r.pod.Annotations, key)
	}
	maps.Copy(r.pod.Annotations, Annotations(e.Plug, a, r.cat, r.cfg))
	if e.Plug.Networks == "" {
		delete(r.pod.Annotations, PluggedKey)
	}
	r.pod.Plugged = r.pod.Networks
	for _, l := range e.Free {
		r.leases = slices.DeleteFunc(r.leases, func(x ipam.Held) bool { return x.Provider == l.Provider })
	}
	if !Settled(r.pod.Annotations) {
		t.Fatalf("it isn't settled: %v", r.pod.Annotations)
	}
	return r
}

// holds lists the networks that there are leases of.
func (r running) holds() []string {
	var out []string
	for _, l := range r.leases {
		out = append(out, l.Provider+" "+l.Address.String())
	}
	slices.Sort(out)
	return out
}

// Any edits, each of them made or broken off at any step, end in what a pod has that named the last list from the start.
func TestEditsEndAsANewPod(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := having(t, lists().Draw(rt, "before")...).with(StatusKey, statusWithout)
		edit := func(after []Selection, all bool) {
			r = r.names(after...)
			if Settled(r.pod.Annotations) {
				return
			}
			e, errs := Replan(r.pod, Having{Leases: r.leases, Running: true}, r.ns, r.cat, r.cfg)
			if len(errs) > 0 {
				rt.Fatal(errs)
			}
			r = r.does(rt, e, all)
		}
		for i, n := 0, rapid.IntRange(1, 4).Draw(rt, "edits"); i < n; i++ {
			edit(lists().Draw(rt, "after"), rapid.Bool().Draw(rt, "made"))
		}
		last := lists().Draw(rt, "last")
		// What is broken off when the edit is taken back leaves leases, which are found pending.
		edit(append(slices.Clone(last), nad("foreign", onInterface("x"))), true)
		edit(last, true)
		want := having(t, last...).with(StatusKey, statusWithout).names(last...)
		if d := cmp.Diff(want.pod.Annotations, r.pod.Annotations); d != "" {
			rt.Errorf("annotations (-want +got):\n%s", d)
		}
		if d := cmp.Diff(want.holds(), r.holds()); d != "" {
			rt.Errorf("leases (-want +got):\n%s", strings.TrimSpace(d))
		}
	})
}
