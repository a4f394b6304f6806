// Package bench measures Berth on a local cluster beside the same cluster without it.
//
// Invariant: two figures are compared only when they come from one run, by the same client, nodes and concurrency; and
// everything that is worked out of measurements is a pure function of them.
package bench
