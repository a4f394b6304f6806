package protocol

// rule is a rule of the protocol that a mutation can take away. All hold by default.
type rule uint32

const (
	// takeIsCAS: a take succeeds only where the block is as it was read.
	takeIsCAS rule = 1 << iota
	// outcomeIsRead: a CAS whose answer was lost is resolved by reading, never assumed.
	outcomeIsRead
	// freeNamesClaim: a free names the claim that it was decided on.
	freeNamesClaim
	// freeNamesGeneration: a free or a bind names the generation that it was decided on.
	freeNamesGeneration
	// claimIsRandom: a claim is never derived from the owner.
	claimIsRandom
	// claimPerAttempt: each attempt of a CREATE draws its own claim.
	claimPerAttempt
	// undoOwnTakes: an undo frees only what the same attempt took, never what it found.
	undoOwnTakes
	// confirmingRead: after the first lease of a sticky owner, a live read looks for another one.
	confirmingRead
	// reuseIsConfirmed: so does the reuse of a lease that was never bound to a pod.
	reuseIsConfirmed
	// bindBeforeWire: leases are bound to a pod's UID before it is wired, and before its end frees them.
	bindBeforeWire
	// bindComparesOwners: a lease is bound only to a pod of its owner.
	bindComparesOwners
	// bindToOldest: a lease is not bound while an older pod carries the claim.
	bindToOldest
	// onlyBoundFrees: only the end of the pod to which a lease is bound frees it.
	onlyBoundFrees
	// copyGetsFresh: a pod that can't be bound gets a claim and leases of its own.
	copyGetsFresh
	// stickyBySweep: the end of a pod never frees the lease of a sticky owner.
	stickyBySweep
	// ownerGoneWaits: also the lease of a deleted owner is watched for 60 s.
	ownerGoneWaits
	// watchedFirst: a pending lease is freed only after 60 s of watching.
	watchedFirst
	// podsAreRead: a pending lease is freed only after a read of the pods.
	podsAreRead
	// readIsLive: that read is a quorum read, not the worker's cache.
	readIsLive
	// carriedByAddress: a pod that has addresses carries only those, not all of its claim.
	carriedByAddress
	// bareClaimCarries: a pod with a claim and no addresses yet carries all leases of the claim.
	bareClaimCarries
	// surplusIsPending: of an owner's leases only one is kept for it.
	surplusIsPending
	// claimBeforeLease: late allocation writes the claim on the pod before it takes leases.
	claimBeforeLease
	// foundIsTaken: late allocation raises the generation also of a lease that the claim has already.
	foundIsTaken
	// patchOnce: the patch of a late allocation finds no address on the pod.
	patchOnce
	// finishedByPhase: a finished pod is told by its phase, whatever its finalizers.
	finishedByPhase
	// finishedIsNotServed: a finished pod is given nothing.
	finishedIsNotServed
	// releaseAfterStop: nothing is released while containers may run.
	releaseAfterStop
	// finalGate: only what the ledger confirms is wired, and no address twice.
	finalGate
	// epochFence: OVN refuses the transactions of a deposed leader.
	epochFence
	// stockIsYoung: a lease that was taken ahead is given away, or given back, before the 60 s are over.
	stockIsYoung
)

const lastRule = stockIsYoung
