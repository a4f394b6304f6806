// Package memnb serves an OVN northbound database from memory, as an OVSDB server (RFC 7047) on a unix socket, so that
// what follows and writes a northbound database runs where OVN's programs can't be installed.
//
// Invariant: transactions happen one after another and as a whole or not at all; after each of them every row of a
// non-root table is referred to by a strong reference, no reference leads nowhere, and the limits of the schema hold;
// a connection learns of each change that it monitors exactly once, in order, and before the answer to its own
// transaction.
//
// Rows, mutations and references are the business of the OVSDB library. Its server is not used: it notifies before it
// commits, so that a monitor that starts in between misses a change for good, it keeps the monitors of connections
// that are gone, and its selects and monitors answer with other columns than those asked for.
//
// What it is not: it has only those tables and columns that package nb models. Nothing is on disk. There are no locks,
// no conditions on monitors, no waits that wait, and the minimum size of a set is held against what is written whole,
// not against mutations. A connection that doesn't read what it is sent holds up all others.
package memnb
