// Package admission answers the API server's question about a new pod: it plans the pod's networks, takes the leases
// from the ledger and hands back a patch.
//
// Invariant: a pod is only let through with addresses whose leases were stored before the answer; it is only refused for
// what its author can mend, with all reasons at once; every other failure is a failed call, so that the failurePolicy of
// the configuration decides. Annotations and finalizers of others are never touched.
package admission
