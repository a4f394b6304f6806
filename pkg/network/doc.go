// Package network is the contract by which pods, namespaces and subnets say which addresses a pod wants, and by which
// annotations say which it has. It is pure: values in, values out.
//
// Invariant: what a pod asks for is never guessed. A value that can't be read or can't be served is an error that names
// the annotation and the value; what this project wrote itself is never taken for a request; and everything that is
// written to a pod comes from one builder, Annotations.
package network
