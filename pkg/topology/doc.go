// Package topology turns Vpcs, Subnets and Nodes into the northbound rows that carry them, and fills in a Subnet's defaults.
//
// Invariant: its answers depend on nothing but its arguments, and not on their order; a broken object never keeps the
// others from their rows, and keeps its own switch, so that the pods on it keep their network.
package topology
