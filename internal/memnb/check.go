package memnb

import (
	"fmt"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// check refuses an operation that this server doesn't know, that names what the schema doesn't have, or that writes a
// set which isn't one. The library would ignore it, or panic.
func (d *database) check(op *ovsdb.Operation) error {
	known := []string{ovsdb.OperationInsert, ovsdb.OperationSelect, ovsdb.OperationUpdate, ovsdb.OperationMutate,
		ovsdb.OperationDelete, ovsdb.OperationWait}
	if !slices.Contains(known, op.Op) {
		return &refusal{"not supported", fmt.Sprintf("operation %q", op.Op)}
	}
	table := d.model.Schema.Table(op.Table)
	if table == nil {
		return &refusal{"syntax error", fmt.Sprintf("no table named %s", op.Table)}
	}
	named := slices.Clone(op.Columns)
	for _, c := range op.Where {
		named = append(named, c.Column)
	}
	for _, m := range op.Mutations {
		named = append(named, m.Column)
	}
	rows := append([]ovsdb.Row{op.Row}, op.Rows...)
	for _, row := range rows {
		for column := range row {
			named = append(named, column)
		}
	}
	for _, column := range named {
		if table.Column(column) == nil {
			return &refusal{"unknown column", fmt.Sprintf("no column %s in table %s", column, op.Table)}
		}
	}
	for _, row := range rows {
		for column, value := range row {
			if err := checkSet(table.Column(column), value); err != nil {
				return err
			}
		}
	}
	return nil
}

func checkSet(column *ovsdb.ColumnSchema, value any) error {
	set, ok := value.(ovsdb.OvsSet)
	if !ok || column.Type != ovsdb.TypeSet {
		return nil
	}
	seen := map[any]bool{}
	for _, v := range set.GoSet {
		if seen[v] {
			return &refusal{"ovsdb error", "set contains duplicate"}
		}
		seen[v] = true
	}
	if least := column.TypeObj.Min(); len(seen) < least {
		return &refusal{"syntax error", fmt.Sprintf("set must have %d or more members but %d are present", least, len(seen))}
	}
	return nil
}

// fullByDefault tells a set that can't be empty. Its default is one default atom.
func fullByDefault(column *ovsdb.ColumnSchema) bool {
	return column.Type == ovsdb.TypeSet && column.TypeObj.Min() > 0 && column.TypeObj.Key.Type == ovsdb.TypeString
}

// defaults fills in the defaults that the library gets wrong.
func (d *database) defaults(op *ovsdb.Operation) {
	if op.Row == nil {
		op.Row = ovsdb.Row{}
	}
	for name, column := range d.model.Schema.Table(op.Table).Columns {
		if _, given := op.Row[name]; !given && fullByDefault(column) {
			op.Row[name] = ovsdb.OvsSet{GoSet: []any{""}}
		}
	}
}

// isDefault tells whether a value need not be sent.
func isDefault(column *ovsdb.ColumnSchema, v any) bool {
	return ovsdb.IsDefaultValue(column, v) || fullByDefault(column) && same(v, []string{""})
}
