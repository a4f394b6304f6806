// Package protocol checks the ledger's protocol: its tests search all interleavings of a model of it, breadth first, and
// look in every state for a violation. The package has no code of its own. The invariant: with the rules below no state
// violates a property, and with any one of them taken away some state does.
//
// # Words of the model
//
// A state has leases (one for each address: claim, generation, owner, bound pod), pods (each is a CREATE and what
// becomes of it, with its port in OVN), two hands of workers, OVN's epoch, and whether the sticky owner wants its pod. A
// hand holds one decision with everything that it was made on. It is executed at any later time, or never. This stands
// for goroutines that sleep, for long queues, and for a deposed leader that has not noticed. A scenario says which pods may
// be created, how many addresses there are, and which faults may happen. Everything else may happen in any order: users
// create, copy, delete and scale, webhooks crash between any two steps, API servers store a pod late or never.
//
// # Rules
//
// Each is a constant of type rule, and TestMutations shows for each what breaks without it.
//
// Taking. A take is a CAS on the address (takeIsCAS), and one whose answer was lost is not assumed to have succeeded
// (outcomeIsRead). Every attempt draws a random claim of its own (claimIsRandom, claimPerAttempt). An undo frees only
// what the attempt took itself (undoOwnTakes). A sticky owner's first lease is confirmed by a live read before the
// answer (confirmingRead); whoever finds another lease of the owner gives its own up and begins anew. The reuse of a
// lease that was never bound is confirmed in the same way (reuseIsConfirmed): it may be what a crash left, while the
// owner's launcher that lives has another.
//
// A webhook may take leases ahead of CREATEs that are to come. They are young when a CREATE gets them (stockIsYoung), so
// that the 60 s are not over before it ends.
//
// Freeing. A take, a bind and a reuse raise the generation; a free names address, claim and generation of its decision,
// and is void when they have changed (freeNamesClaim, freeNamesGeneration).
//
// Binding. Before a pod is wired, and before its end frees anything, its lease is bound to its UID (bindBeforeWire):
// where claim, address and owner agree (bindComparesOwners), where no living pod has it and no older pod carries the
// claim (bindToOldest). Launchers of one virtual machine share. Only the end of the bound pod frees (onlyBoundFrees). A
// pod that can't be bound gets a claim and leases of its own (copyGetsFresh).
//
// Sweeping. The end of a pod never frees a sticky owner's lease (stickyBySweep). A lease is freed as pending after 60 s
// of watching (watchedFirst), also when its owner is gone (ownerGoneWaits), and then only if a read of the pods
// (podsAreRead), from the API server and not from a cache (readIsLive), shows none that carries it. A pod carries the
// addresses that it has under its claim (carriedByAddress); while it has a claim and no addresses yet, it carries
// everything under the claim (bareClaimCarries). A living owner keeps one lease: the one that is carried, else the
// lowest (surplusIsPending). The port on an address goes before its lease.
//
// Late allocation. The claim is written on the pod before anything is taken under it (claimBeforeLease). Finding the
// claim's own lease again is a take, too, and raises the generation (foundIsTaken). The patch finds the pod with that
// claim and without an address (patchOnce).
//
// Ends. A pod's leases and rows are due when no container of it can run (releaseAfterStop). A finished pod is told by its
// phase and not by its finalizer (finishedByPhase), and is given nothing (finishedIsNotServed).
//
// Wiring. Only a pod whose lease is bound to it is wired, and no address twice (finalGate). OVN refuses what a deposed
// leader sends (epochFence).
//
// # Properties
//
//	P1   no two live pods have one address, launchers of one virtual machine excepted
//	P2   no two ports have one address, with the same exception
//	P3   from every state the system by itself, without users and faults, can come to rest with its accounts right:
//	     every lease has a living pod or is the one lease of a living owner, every ended pod is gone or empty, and
//	     every living pod is wired unless all addresses are taken; without pods and owner this is the empty ledger
//	P4   the address of a live pod is its lease (P4w: the same of a wired pod)
//	P5   live launchers of one virtual machine have one address
//	P6   a pod keeps the address that its CREATE, or late allocation, gave it
//
// A pod is live from when it is stored until its containers have stopped. A copy counts once it is wired: until then it
// only says that it has its original's address.
//
// There is one known exception, and TestProtocolSuspendedAPIServer holds its extent. The 60 s are longer than any CREATE
// in an API server takes. One that is suspended for longer, with a CREATE in hand, stores a pod whose lease is gone.
// Then P1, P4, P5 and P6 can fail; P2, P3 and P4w hold, for the final gate doesn't wire that pod on its old address.
//
// # Reading a trace
//
// A violation is printed as numbered actions from the start. No shorter sequence leads to it. The word before the colon
// tells who acts: webhook, api server, client, kubelet, user, worker, hand or fault. "hand: decides to …" is a decision,
// "hand: frees …" and the like its execution, which may be far below; "void" says that it came too late. A pod is named
// by its kind and its place in the scenario (copy2), an address a1 and up, a claim c1 and up: one name means one thing
// in the whole trace. The last line's state is the one that violates the property; for P3 it is the first one from
// which nothing good can be reached.
//
// Run one entry with: go test -run 'TestMutations/no_epoch_fence' -v ./internal/protocol. With BERTH_LONG=1 TestProtocol
// also searches more pods and all faults at once; that takes minutes and a gigabyte.
//
// # What is left out
//
// Every address is a block of its own, and a free deletes the block, so that generations begin anew: the worst case of
// both. Group commit, hopping and resting choose among addresses, and the model tries them all. Pods have one interface
// and one family; a failure on another interface is an undo. MACs, Vips, the wait for an address and its hand-over, the
// loss of the ledger, IP records, gates and nodes are not modelled. A live read and the decision that rests on it are one
// step, for what is decided is executed late anyway; so are the patch that writes an owner's claim on a late pod and the
// raise of its lease. Caches lag in two ways: a webhook may not see its owner's lease, and a worker may not see a pod. A
// worker sees a copy after its original. There is no clock: 60 s have passed when every CREATE that took or reused the
// lease has ended. Claims that nobody remembers are drawn again, and generations are renumbered without gaps: rules only
// compare them.
package protocol
