// Package web is the page on which people look at addresses: every subnet as a map, who has what, who waits and why.
//
// Invariant: it only looks. It takes of the worker's ledger nothing but the list of its blocks, which never change, counts
// in a copy of its own, works on one request at a time and counts at most twice a second however many look, and each
// answer has a greatest size. Without a credential that the API server knows, and that is allowed to, nobody sees data.
package web
