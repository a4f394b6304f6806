// Package lifecycle says what a pod's state means for its leases and rows, and what doesn't fit together among pods,
// leases, ports and records.
//
// Invariant: what isn't known is never taken for gone. A release needs proof in its arguments; every doubt is a hold.
// All answers depend on the arguments alone.
package lifecycle
