package ovn

import (
	"errors"
	"fmt"
)

// ErrFenced means that a newer writer has raised the epoch. Nothing was written; this process must not write again
// before it has raised the epoch itself.
var ErrFenced = errors.New("another writer has raised the northbound epoch: stop writing, or raise the epoch again after winning the leader election")

// ErrNotReady means that there is no connection, or that its first snapshot isn't complete.
var ErrNotReady = errors.New("northbound database is not ready")

// ErrStopped means that the Writer's Run has ended, so nothing more is written.
var ErrStopped = errors.New("northbound writer has stopped")

// MissingRowError names a row that a change builds on and that doesn't exist.
type MissingRowError struct {
	// Table of the northbound schema.
	Table string
	// Name of the row.
	Name string
}

// Error implements error.
func (e *MissingRowError) Error() string {
	return fmt.Sprintf("%s %q does not exist in the northbound database: create it first, or ask for it in the same change", e.Table, e.Name)
}

// ForeignRowError names a row that a change would alter and that another vendor owns.
type ForeignRowError struct {
	Table, Name string
	// Vendor is what the row's external_ids say.
	Vendor string
}

// Error implements error.
func (e *ForeignRowError) Error() string {
	return fmt.Sprintf("%s %q belongs to vendor %q and is left alone: rename one of the two", e.Table, e.Name, e.Vendor)
}

// ClashError tells that two different objects map to one row name. Kube-OVN's formulas for names aren't injective:
// node a-b and node a.b have the same port group.
type ClashError struct {
	Table, Name string
	// Key of external_ids in which the two differ.
	Key string
	// Have is the value in the database, Want the one asked for.
	Have, Want string
}

// Error implements error.
func (e *ClashError) Error() string {
	return fmt.Sprintf("%s %q is already that of %s %q, so %q can't have it too: rename one of the two", e.Table, e.Name, e.Key, e.Have, e.Want)
}

// AmbiguousRowError tells that a name which must be unique isn't.
type AmbiguousRowError struct {
	Table, Name string
	// Count of rows with that name.
	Count int
}

// Error implements error.
func (e *AmbiguousRowError) Error() string {
	return fmt.Sprintf("%d rows of %s are named %q: remove all but one", e.Count, e.Table, e.Name)
}

// InvalidRowError names a row that can't be written whatever the database holds.
type InvalidRowError struct {
	Table, Name string
	// Reason says what is wrong with it.
	Reason string
}

// Error implements error.
func (e *InvalidRowError) Error() string {
	return fmt.Sprintf("%s %q can't be written: %s", e.Table, e.Name, e.Reason)
}

// TransactionError is what the database said to a transaction.
type TransactionError struct {
	// Code is the error of RFC 7047, such as "constraint violation".
	Code string
	// Details is the server's explanation.
	Details string
	// Operation tells which operation it was, empty when the commit as a whole failed.
	Operation string

	// index of the operation, or negative.
	index int
}

// Error implements error.
func (e *TransactionError) Error() string {
	where := "commit"
	if e.Operation != "" {
		where = e.Operation
	}
	if e.Details == "" {
		return fmt.Sprintf("northbound database refused %s: %s", where, e.Code)
	}
	return fmt.Sprintf("northbound database refused %s: %s: %s", where, e.Code, e.Details)
}

// SchemaError lists what the server's schema lacks.
type SchemaError struct {
	// Missing has "Table" and "Table.column" entries.
	Missing []string
}

// Error implements error.
func (e *SchemaError) Error() string {
	return fmt.Sprintf("northbound schema lacks %v: OVN 22.03 or later is needed", e.Missing)
}
