package memnb

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/ovn-kubernetes/libovsdb/cache"
	library "github.com/ovn-kubernetes/libovsdb/database"
	"github.com/ovn-kubernetes/libovsdb/database/inmemory"
	"github.com/ovn-kubernetes/libovsdb/database/transaction"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/updates"
)

// database is one database. Its user sees to it that one transaction runs at a time.
type database struct {
	name   string
	schema json.RawMessage
	limits map[string]limits
	model  model.DatabaseModel
	store  library.Database
}

// limits are what the schema says of a table beyond its columns.
type limits struct {
	MaxRows int
	Indexes [][]string
}

func newDatabase(text json.RawMessage, rows model.ClientDBModel) (*database, error) {
	var schema ovsdb.DatabaseSchema
	var bounds struct{ Tables map[string]limits }
	if err := errors.Join(json.Unmarshal(text, &schema), json.Unmarshal(text, &bounds)); err != nil {
		return nil, fmt.Errorf("read a schema: %w", err)
	}
	// Indexes are checked here, at the end of a transaction. The library would look for rows in its own, which are wrong
	// while two rows have one name, as they may in the middle of a transaction.
	for name, t := range schema.Tables {
		t.Indexes = nil
		schema.Tables[name] = t
		dropOptionalReferences(t)
	}
	m, errs := model.NewDatabaseModel(schema, rows)
	if len(errs) > 0 {
		return nil, fmt.Errorf("schema and model of %s don't fit: %w", schema.Name, errors.Join(errs...))
	}
	d := &database{name: schema.Name, schema: text, limits: bounds.Tables, model: m,
		store: inmemory.NewDatabase(map[string]model.ClientDBModel{schema.Name: rows}, nil)}
	if err := d.store.CreateDatabase(schema.Name, schema); err != nil {
		return nil, fmt.Errorf("make database %s: %w", schema.Name, err)
	}
	return d, nil
}

// dropOptionalReferences makes plain UUIDs of weak references of which there is one at most. The library doesn't come to
// an end when it clears one.
func dropOptionalReferences(t ovsdb.TableSchema) {
	for _, c := range t.Columns {
		if c.Type == ovsdb.TypeSet && c.TypeObj.Max() == 1 && c.TypeObj.Key.Type == ovsdb.TypeUUID {
			c.TypeObj.Key = &ovsdb.BaseType{Type: ovsdb.TypeUUID}
		}
	}
}

// refusal is what an operation, or the commit, answers instead of a result.
type refusal struct {
	Code    string `json:"error"`
	Details string `json:"details,omitempty"`
}

// Error implements error.
func (r *refusal) Error() string { return r.Code + ": " + r.Details }

// refuse turns an error of the library into an answer.
func refuse(err error) *refusal {
	if r := (*refusal)(nil); errors.As(err, &r) {
		return r
	}
	r := ovsdb.ResultFromError(err)
	return &refusal{r.Error, r.Details}
}

// workspace is the library's transaction over a copy of all rows. By itself it copies a row when an operation first
// meets it, and fails when a row no longer meets the condition under which the stored one does.
type workspace struct {
	transaction.Transaction
	changes updates.ModelUpdates
}

// copied is a store whose rows are all in the workspace already.
type copied struct{ library.Database }

// List implements library.Database.
func (copied) List(string, string, ...ovsdb.Condition) (map[string]model.Model, error) {
	return map[string]model.Model{}, nil
}

func (d *database) begin() (*workspace, error) {
	w := &workspace{Transaction: transaction.NewTransaction(d.model, d.name, copied{d.store}, nil)}
	var err error
	if w.Cache, err = cache.NewTableCache(d.model, nil, nil); err != nil {
		return nil, fmt.Errorf("begin a transaction: %w", err)
	}
	for table := range d.model.Schema.Tables {
		rows, err := d.store.List(d.name, table)
		if err != nil {
			return nil, fmt.Errorf("copy %s: %w", table, err)
		}
		for id, row := range rows {
			if err := w.Cache.Table(table).Create(id, row, false); err != nil {
				return nil, fmt.Errorf("copy %s: %w", table, err)
			}
		}
	}
	return w, nil
}

// transact runs one transaction. Its results are as RFC 7047 has them: one for each operation, null for those after a
// failed one, and one more when the commit fails. The update is nil when nothing was committed.
func (d *database) transact(ops []ovsdb.Operation, rand io.Reader) ([]any, library.Update, error) {
	results := make([]any, len(ops))
	good, bad := d.prepare(ops, rand)
	w, err := d.begin()
	if err != nil {
		return nil, nil, err
	}
	for i := range ops[:good] {
		result, err := d.perform(w, &ops[i])
		if err != nil {
			results[i] = refuse(err)
			return results, nil, nil
		}
		results[i] = result
	}
	if bad != nil {
		results[good] = refuse(bad)
		return results, nil, nil
	}
	update, err := d.finish(w)
	if err != nil {
		return append(results, refuse(err)), nil, nil
	}
	if err := d.store.Commit(d.name, uuid.UUID{}, update); err != nil {
		return nil, nil, fmt.Errorf("commit to %s: %w", d.name, err)
	}
	return results, update, nil
}

// prepare gives new rows their UUIDs and returns how many operations can be performed. With an error it is the next one
// that can't.
func (d *database) prepare(ops []ovsdb.Operation, rand io.Reader) (int, error) {
	good, bad := len(ops), error(nil)
	for i := range ops {
		if bad = d.complete(&ops[i], rand); bad != nil {
			good = i
			break
		}
	}
	if _, err := ovsdb.ExpandNamedUUIDs(ops[:good], &d.model.Schema); err != nil {
		return 0, err
	}
	return good, bad
}

// complete checks an operation and fills in what a new row is not given.
func (d *database) complete(op *ovsdb.Operation, rand io.Reader) error {
	if err := d.check(op); err != nil || op.Op != ovsdb.OperationInsert {
		return err
	}
	d.defaults(op)
	if op.UUID != "" {
		return nil
	}
	id, err := uuid.NewRandomFromReader(rand)
	if err != nil {
		return fmt.Errorf("make a UUID: %w", err)
	}
	op.UUID = id.String()
	return nil
}

// perform runs one operation in the workspace.
func (d *database) perform(w *workspace, op *ovsdb.Operation) (any, error) {
	var result ovsdb.OperationResult
	var change *updates.ModelUpdates
	switch op.Op {
	case ovsdb.OperationSelect:
		return d.selection(w, op)
	case ovsdb.OperationWait:
		return map[string]any{}, d.wait(w, op)
	case ovsdb.OperationInsert:
		result, change = w.Insert(op)
	case ovsdb.OperationUpdate:
		result, change = w.Update(op)
	case ovsdb.OperationMutate:
		return d.mutate(w, op)
	case ovsdb.OperationDelete:
		result, change = w.Delete(op)
	}
	if err := w.apply(result, change); err != nil {
		return nil, err
	}
	if op.Op == ovsdb.OperationInsert {
		return map[string]any{"uuid": ovsdb.UUID{GoUUID: op.UUID}}, nil
	}
	return map[string]any{"count": result.Count}, nil
}

// mutate does one mutation of one row at a time. When two of them meet the same column, the library mixes up the value
// with what has changed of it.
func (d *database) mutate(w *workspace, op *ovsdb.Operation) (any, error) {
	rows, err := d.found(w, op)
	if err != nil {
		return nil, err
	}
	for id := range rows {
		for _, m := range op.Mutations {
			result, change := w.Mutate(&ovsdb.Operation{Op: op.Op, Table: op.Table, Mutations: []ovsdb.Mutation{m},
				Where: []ovsdb.Condition{ovsdb.NewCondition(columnUUID, ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: id})}})
			if err := w.apply(result, change); err != nil {
				return nil, err
			}
		}
	}
	return map[string]any{"count": len(rows)}, nil
}

// apply takes over what an operation has changed.
func (w *workspace) apply(result ovsdb.OperationResult, change *updates.ModelUpdates) error {
	if result.Error != "" {
		return &refusal{result.Error, result.Details}
	}
	if err := w.changes.Merge(w.Model, *change); err != nil {
		return err
	}
	return w.Cache.ApplyCacheUpdate(*change)
}

// finish collects rows that nothing refers to, drops weak references to what is gone, and holds the result against
// the limits of the schema.
func (d *database) finish(w *workspace) (library.Update, error) {
	all, more, refs, err := updates.ProcessReferences(d.model, d.store, w.changes)
	if err != nil {
		return nil, err
	}
	if err := w.Cache.ApplyCacheUpdate(more); err != nil {
		return nil, err
	}
	for table, l := range d.limits {
		rows := w.Cache.Table(table).RowsShallow()
		if l.MaxRows > 0 && len(rows) > l.MaxRows {
			return nil, &refusal{"constraint violation",
				fmt.Sprintf("%s would have %d rows, and may have %d", table, len(rows), l.MaxRows)}
		}
		for _, index := range l.Indexes {
			if err := d.unique(table, index, rows); err != nil {
				return nil, err
			}
		}
	}
	return updates.NewDatabaseUpdate(all, refs), nil
}

func (d *database) unique(table string, index []string, rows map[string]model.Model) error {
	seen := map[string]bool{}
	for _, row := range rows {
		info, err := d.model.NewModelInfo(row)
		if err != nil {
			return err
		}
		var values []string
		for _, column := range index {
			v, err := info.FieldByColumn(column)
			if err != nil {
				return err
			}
			values = append(values, fmt.Sprintf("%q", v))
		}
		key := strings.Join(values, ",")
		if seen[key] {
			return &refusal{"constraint violation",
				fmt.Sprintf("%s would have two rows with %s %s", table, strings.Join(index, ","), key)}
		}
		seen[key] = true
	}
	return nil
}

// columns returns the columns asked for, or all that a table has.
func (d *database) columns(table string, asked []string) []string {
	if asked != nil {
		return asked
	}
	all := []string{}
	for column := range d.model.Schema.Table(table).Columns {
		all = append(all, column)
	}
	slices.Sort(all)
	return all
}
