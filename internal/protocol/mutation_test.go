package protocol

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mutation takes rules away and names what then breaks, and where.
type mutation struct {
	without rule
	breaks  property
	in      scenario
}

// mutations has every rule at least once.
func mutations() map[string]mutation {
	return map[string]mutation{
		"a take that is no CAS":                             {takeIsCAS, oneLiveHolder, on(1, 0, plain, plain)},
		"a lost answer is assumed to be yes":                {outcomeIsRead, leaseBacked, on(1, 0, plain, plain)},
		"no generation":                                     {freeNamesGeneration, leaseBacked, on(2, 0, member, member)},
		"free by address and generation, not claim":         {freeNamesClaim, leaseBacked, on(1, newLeader, plain, plain)},
		"free by address only":                              {freeNamesClaim | freeNamesGeneration, oneLiveHolder, on(1, 0, member, member, plain)},
		"claim derived from the owner":                      {claimIsRandom, leaseBacked, on(2, newLeader, member, member)},
		"claim drawn once per retried CREATE":               {claimPerAttempt, promiseKept, on(1, newLeader|again, plain)},
		"an undo frees what was found":                      {undoOwnTakes, leaseBacked, on(2, 0, member, member)},
		"no confirming read for a first sticky lease":       {confirmingRead, siblingsShare, on(2, 0, launcher, launcher)},
		"no confirming read for a lease never bound":        {reuseIsConfirmed, siblingsShare, on(2, again, launcher, launcher)},
		"no bind: a copy uses its original's lease":         {bindBeforeWire, oneLiveHolder, on(2, 0, plain, copied)},
		"no bind: one frees what the other is wired on":     {bindBeforeWire, wiredBacked, on(2, 0, plain, copied)},
		"bind without comparing owners":                     {bindComparesOwners, oneLiveHolder, on(1, 0, member, member, copied)},
		"bind to the first who comes":                       {bindToOldest, oneLiveHolder, on(2, 0, plain, copied)},
		"any pod with the claim frees":                      {onlyBoundFrees, wiredBacked, on(2, 0, plain, copied)},
		"a copy is only told of, and gets nothing":          {copyGetsFresh, settles, on(2, 0, plain, copied)},
		"sticky lease freed with its pod":                   {stickyBySweep, leaseBacked, on(2, 0, member, member)},
		"lease of a gone owner freed at once":               {ownerGoneWaits, leaseBacked, on(2, 0, member, member)},
		"quorum read without the 60 s":                      {watchedFirst, oneLiveHolder, on(1, 0, plain, plain)},
		"timer without a read of pods":                      {podsAreRead, wiredBacked, on(1, 0, plain, plain)},
		"pods read from a cache that lags":                  {readIsLive, oneLiveHolder, on(1, 0, plain, plain)},
		"carried judged by claim, two late leases":          {carriedByAddress, settles, on(2, newLeader, late)},
		"carried judged by claim, after a lost answer":      {carriedByAddress | claimPerAttempt, settles, on(2, again, plain)},
		"a claim without addresses yet protects nothing":    {bareClaimCarries, oneLiveHolder, on(1, 0, late, plain)},
		"surplus lease of an owner kept":                    {surplusIsPending, settles, on(2, 0, member, member)},
		"late allocation takes before the claim is written": {claimBeforeLease, oneLiveHolder, on(1, 0, late, plain)},
		"late allocation leaves found leases as they are":   {foundIsTaken, leaseBacked, on(2, newLeader, member, lateMember)},
		"late allocation overwrites addresses":              {patchOnce, wiredBacked, on(2, newLeader, late)},
		"finished pods told by a missing finalizer":         {finishedByPhase, settles, on(1, strip, plain, plain)},
		"finished pods are served":                          {finishedIsNotServed, settles, on(1, 0, plain, plain)},
		"released at the deletion mark":                     {releaseAfterStop, oneLiveHolder, on(1, 0, plain, plain)},
		"no final gate":                                     {finalGate, onePort, on(2, 0, plain, copied)},
		"leases taken ahead are given at any age":           {stockIsYoung, oneLiveHolder, on(1, ahead, plain, plain)},
		"no epoch fence":                                    {epochFence, onePort, on(1, newLeader, plain, plain)},
	}
}

// TestMutations takes the rules away one by one. The search must find the violation that the rule prevents, and with the
// rule in force there must be none in the same scenario.
func TestMutations(t *testing.T) {
	for name, m := range mutations() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			until := setOf(m.breaks)
			x := explore(newModel(m.in, m.without), limit(), until)
			if !x.broken.has(m.breaks) {
				t.Fatalf("%v holds without the rule in all of %d states of %v", m.breaks, len(x.states), m.in)
			}
			if _, err := x.trace(m.breaks); err != nil {
				t.Error(err)
			}
			t.Log(x.report(m.breaks))
			sound := explore(newModel(m.in, 0), limit(), until)
			if sound.capped || sound.broken != 0 {
				t.Errorf("with the rule: capped %v, violated %v", sound.capped, sound.reports())
			}
		})
	}
}

// TestEveryRuleIsNeeded holds that no rule is without its mutation.
func TestEveryRuleIsNeeded(t *testing.T) {
	var tried rule
	for _, m := range mutations() {
		tried |= m.without
	}
	if every := lastRule<<1 - 1; tried != every {
		t.Errorf("rules without a mutation: %b", every&^tried)
	}
}

// TestTrace holds the form in which people read a violation.
func TestTrace(t *testing.T) {
	x := explore(newModel(on(1, again, plain), watchedFirst), limit(), setOf(leaseBacked))
	got, err := x.trace(leaseBacked)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"webhook: CREATE of plain1 takes a1 under c1",
		"webhook: CREATE of plain1 is answered with a1 under c1",
		"hand: decides to free a1 (c1), which is pending",
		"api server: stores plain1 with a1 under c1",
		"hand: frees a1 (c1)",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("trace (-want +got):\n%s", d)
	}
}
