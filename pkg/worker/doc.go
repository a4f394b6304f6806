// Package worker carries pods through their life: it binds leases, writes northbound rows and records, marks pods as
// routed, and takes everything back when a pod is really gone. It is the adapter between lifecycle, which decides, and
// the API server, the ledger and the northbound database.
//
// Invariant: a lease is freed only when no row carries its address any more, and a finalizer goes last; every step can
// be repeated. A pod that has all it needs causes no write.
package worker
