package memnb

import (
	"maps"
	"reflect"
	"slices"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

const columnUUID = "_uuid"

// found returns the rows of the workspace that meet the conditions.
func (d *database) found(w *workspace, op *ovsdb.Operation) (map[string]model.Model, error) {
	return w.Cache.Table(op.Table).RowsByCondition(op.Where)
}

// selection answers with the columns asked for, defaults included. The library leaves those out.
func (d *database) selection(w *workspace, op *ovsdb.Operation) (any, error) {
	rows, err := d.found(w, op)
	if err != nil {
		return nil, err
	}
	columns := op.Columns
	if columns == nil {
		columns = append(d.columns(op.Table, nil), columnUUID)
	}
	out := []ovsdb.Row{}
	for _, id := range slices.Sorted(maps.Keys(rows)) {
		row, err := d.row(op.Table, rows[id], columns, false)
		if err != nil {
			return nil, err
		}
		out = append(out, row)
	}
	return map[string]any{"rows": out}, nil
}

// row turns columns of a row into what is sent. A sparse row has no defaults.
func (d *database) row(table string, m model.Model, columns []string, sparse bool) (ovsdb.Row, error) {
	values, err := d.values(m, columns)
	if err != nil {
		return nil, err
	}
	out := ovsdb.Row{}
	for column, v := range values {
		schema := d.model.Schema.Table(table).Column(column)
		if sparse && isDefault(schema, v) {
			continue
		}
		if out[column], err = ovsdb.NativeToOvs(schema, v); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// values returns columns of a row as Go values.
func (d *database) values(m model.Model, columns []string) (map[string]any, error) {
	info, err := d.model.NewModelInfo(m)
	if err != nil {
		return nil, err
	}
	out := map[string]any{}
	for _, column := range columns {
		if out[column], err = info.FieldByColumn(column); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// wait compares sets of rows, whole values, empty ones too. The library takes an empty value for one that isn't given,
// which would let two writers both raise an epoch that has not been set.
func (d *database) wait(w *workspace, op *ovsdb.Operation) error {
	if op.Until != string(ovsdb.WaitConditionEqual) && op.Until != string(ovsdb.WaitConditionNotEqual) {
		return &refusal{"syntax error", "until must be == or !="}
	}
	columns := d.columns(op.Table, op.Columns)
	want, err := d.wanted(op, columns)
	if err != nil {
		return err
	}
	rows, err := d.found(w, op)
	if err != nil {
		return err
	}
	var have []map[string]any
	for _, m := range rows {
		values, err := d.values(m, columns)
		if err != nil {
			return err
		}
		have = append(have, values)
	}
	equal := covers(want, have) && covers(have, want)
	switch {
	case equal == (op.Until == string(ovsdb.WaitConditionEqual)):
		return nil
	case op.Timeout == nil || *op.Timeout > 0:
		return &refusal{"not supported", "the rows don't meet the condition, and waiting for others to change them isn't supported"}
	}
	return &refusal{"timed out", `"where" clause test failed`}
}

func (d *database) wanted(op *ovsdb.Operation, columns []string) ([]map[string]any, error) {
	var want []map[string]any
	for _, row := range op.Rows {
		values := map[string]any{}
		for _, column := range columns {
			schema := d.model.Schema.Table(op.Table).Column(column)
			v, given := row[column]
			if !given {
				values[column] = reflect.Zero(ovsdb.NativeType(schema)).Interface()
				continue
			}
			native, err := ovsdb.OvsToNative(schema, v)
			if err != nil {
				return nil, &refusal{"syntax error", err.Error()}
			}
			values[column] = native
		}
		want = append(want, values)
	}
	return want, nil
}

// covers tells whether each row of b is among those of a.
func covers(a, b []map[string]any) bool {
	for _, row := range b {
		if !slices.ContainsFunc(a, func(other map[string]any) bool { return maps.EqualFunc(row, other, same) }) {
			return false
		}
	}
	return true
}

// same compares values as the database does: sets have no order, and what is empty is empty.
func same(a, b any) bool {
	_, changed := difference(a, b)
	return !changed
}

// difference returns what a monitor is told of a column that changed: of a set the members that are in one value only,
// of a map the pairs that are new or changed and the old ones that are gone, of everything else the new value.
func difference(before, after any) (any, bool) {
	switch after := after.(type) {
	case []string:
		was, _ := before.([]string)
		diff := append(without(after, was), without(was, after)...)
		return diff, len(diff) > 0
	case map[string]string:
		was, _ := before.(map[string]string)
		diff := map[string]string{}
		for k, v := range was {
			if _, ok := after[k]; !ok {
				diff[k] = v
			}
		}
		for k, v := range after {
			if old, ok := was[k]; !ok || old != v {
				diff[k] = v
			}
		}
		return diff, len(diff) > 0
	}
	return after, !reflect.DeepEqual(before, after)
}

func without(set, other []string) []string {
	in := make(map[string]bool, len(other))
	for _, s := range other {
		in[s] = true
	}
	return slices.DeleteFunc(slices.Clone(set), func(s string) bool { return in[s] })
}
