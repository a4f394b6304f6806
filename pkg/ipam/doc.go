// Package ipam decides who has an address.
//
// The ledger is the set of all blocks. A block holds the leases of 64 consecutive addresses of one subnet and is
// changed by compare-and-swap alone, so several processes may take addresses at once with no lock, clock or leader.
//
// Invariants:
//   - A lease is durable before the answer. A caller that gets an error holds nothing, or what it took is given back
//     by the next write.
//     A Stock takes before it is asked, and gives what it took while no worker may have freed it yet.
//   - All or nothing: every interface, both families and the MAC of one pod, or none of them.
//   - A cache may say yes, for the compare-and-swap corrects it. Only a live read says no.
//   - A release names address, claim and generation as they were when it was decided, so one that was decided before
//     somebody came back is void.
//
// The package knows no Kubernetes client: a Store keeps the blocks.
package ipam
