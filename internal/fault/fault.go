// Package fault names the places at which the worker may die and must still end well, and has it die there in tests.
//
// Invariant: without the build tag faultpoint, Hit is an empty function: what is shipped holds no trace of all this.
package fault

// Point is a place in the code, as <function>/<what has just been done there>. It is hit in that function, once.
type Point string

// The points, by the steps of a pod's life.
const (
	// Claimed: a pod that no webhook saw has its claim and finalizer, and no lease yet.
	Claimed Point = "lay/claimed"
	// Leased: it has its leases, and doesn't carry them yet.
	Leased Point = "give/leased"
	// Given: it carries its addresses, and has no port yet.
	Given Point = "give/given"
	// Decided: it is settled which leases are to be bound to the pod.
	Decided Point = "bind/decided"
	// Bound: the pod's leases are bound to it, and nothing is wired.
	Bound Point = "bind/bound"
	// Wired: the northbound rows are committed.
	Wired Point = "connect/wired"
	// Recorded: the IP records are made, and the pod doesn't say yet that its network is ready.
	Recorded Point = "serve/recorded"
	// Marked: the pod says so.
	Marked Point = "serve/marked"
	// Condemned: the pod is gone, and everything is to be taken back.
	Condemned Point = "reclaim/condemned"
	// Unwired: its ports are removed, and its leases are held.
	Unwired Point = "reclaim/unwired"
	// Adopted: leases that were never bound are bound to the pod that ends.
	Adopted Point = "bindLast/adopted"
	// HandedOver: a freed lease is another pod's, which doesn't know yet.
	HandedOver Point = "handOver/given"
	// Freed: its leases are free, and its records are there.
	Freed Point = "reclaim/freed"
	// Forgotten: its records are gone, and its finalizer holds it.
	Forgotten Point = "reclaim/forgotten"
	// Ended: its finalizer is off.
	Ended Point = "reclaim/ended"
)

// Points are all that are declared.
func Points() []Point {
	return []Point{Claimed, Leased, Given, Decided, Bound, Wired, Recorded, Marked, Condemned, Unwired, Adopted, HandedOver, Freed,
		Forgotten, Ended}
}
