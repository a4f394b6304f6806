package ovn

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// codeTimedOut is what a wait operation that doesn't hold answers.
const codeTimedOut = "timed out"

// fence holds only under the epoch, whatever else is in external_ids.
func fence(global string, epoch int64) ovsdb.Operation {
	ids := strMap(map[string]string{nb.KeyEpoch: strconv.FormatInt(epoch, 10)})
	return waitFor(tableGlobal, ovsdb.NewCondition(colExternalIDs, ovsdb.ConditionIncludes, ids),
		ovsdb.WaitConditionEqual, ovsdb.Row{colUUID: ovsdb.UUID{GoUUID: global}})
}

// noneNamed holds only while no row has the name. It says "not exactly this" because an empty list of rows would be
// left out of the message.
func noneNamed(table, name string) ovsdb.Operation {
	return waitFor(table, ovsdb.NewCondition(colName, ovsdb.ConditionEqual, name),
		ovsdb.WaitConditionNotEqual, ovsdb.Row{colName: name})
}

func waitFor(table string, where ovsdb.Condition, until ovsdb.WaitCondition, row ovsdb.Row) ovsdb.Operation {
	now := 0
	return ovsdb.Operation{
		Op: ovsdb.OperationWait, Table: table, Timeout: &now, Where: []ovsdb.Condition{where},
		Columns: slices.Collect(maps.Keys(row)), Until: string(until), Rows: []ovsdb.Row{row},
	}
}

func byUUID(uuid string) []ovsdb.Condition {
	return []ovsdb.Condition{ovsdb.NewCondition(colUUID, ovsdb.ConditionEqual, ovsdb.UUID{GoUUID: uuid})}
}

// unrefer removes a reference from whichever rows really have it.
func unrefer(table, column, uuid string) ovsdb.Operation {
	ref := ovsdb.UUID{GoUUID: uuid}
	return ovsdb.Operation{
		Op: ovsdb.OperationMutate, Table: table,
		Where:     []ovsdb.Condition{ovsdb.NewCondition(column, ovsdb.ConditionIncludes, ref)},
		Mutations: []ovsdb.Mutation{*ovsdb.NewMutation(column, ovsdb.MutateOperationDelete, ref)},
	}
}

func deleteRow(table, uuid string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationDelete, Table: table, Where: byUUID(uuid)}
}

// alter changes columns of one row: whole values in set, single keys of maps in mutations. It returns no operation
// when there is nothing to change.
func alter(table, uuid string, set ovsdb.Row, mutations []ovsdb.Mutation) []ovsdb.Operation {
	var ops []ovsdb.Operation
	if len(set) > 0 {
		ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationUpdate, Table: table, Where: byUUID(uuid), Row: set})
	}
	if len(mutations) > 0 {
		ops = append(ops, ovsdb.Operation{Op: ovsdb.OperationMutate, Table: table, Where: byUUID(uuid), Mutations: mutations})
	}
	return ops
}

// mapDifference mutates a map so that it has all of want, and of the owned keys nothing else. Other keys stay, even
// those that somebody adds at this moment.
func mapDifference(column string, have, want map[string]string, owned ...string) []ovsdb.Mutation {
	var drop []any
	set := map[string]string{}
	for k, v := range want {
		old, ok := have[k]
		if ok && old == v {
			continue
		}
		if ok {
			drop = append(drop, k)
		}
		set[k] = v
	}
	for _, k := range owned {
		if _, ok := have[k]; !ok {
			continue
		}
		if _, ok := want[k]; !ok {
			drop = append(drop, k)
		}
	}
	var mutations []ovsdb.Mutation
	if len(drop) > 0 {
		mutations = append(mutations, *ovsdb.NewMutation(column, ovsdb.MutateOperationDelete, ovsdb.OvsSet{GoSet: drop}))
	}
	if len(set) > 0 {
		mutations = append(mutations, *ovsdb.NewMutation(column, ovsdb.MutateOperationInsert, strMap(set)))
	}
	return mutations
}

// insertRow makes an insert, leaving out what is empty, which is every column's default.
func insertRow(table, named string, row map[string]any) ovsdb.Operation {
	out := ovsdb.Row{}
	for column, value := range row {
		switch v := value.(type) {
		case string:
			if v != "" {
				out[column] = v
			}
		case int:
			if v != 0 {
				out[column] = v
			}
		case bool:
			if v {
				out[column] = v
			}
		case []string:
			if len(v) > 0 {
				out[column] = strSet(v)
			}
		case map[string]string:
			if len(v) > 0 {
				out[column] = strMap(v)
			}
		case ovsdb.OvsSet:
			if len(v.GoSet) > 0 {
				out[column] = v
			}
		}
	}
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: table, UUIDName: named, Row: out}
}

func strMap(m map[string]string) ovsdb.OvsMap {
	out := make(map[any]any, len(m))
	for k, v := range m {
		out[k] = v
	}
	return ovsdb.OvsMap{GoMap: out}
}

func strSet(values []string) ovsdb.OvsSet {
	out := make([]any, 0, len(values))
	for _, v := range values {
		out = append(out, v)
	}
	return ovsdb.OvsSet{GoSet: out}
}

func refSet(uuids []string) ovsdb.OvsSet {
	out := make([]any, 0, len(uuids))
	for _, u := range uuids {
		out = append(out, ovsdb.UUID{GoUUID: u})
	}
	return ovsdb.OvsSet{GoSet: out}
}

// tagSet is an optional number as a set.
func tagSet(tag *int) ovsdb.OvsSet {
	out := []any{}
	for _, t := range pointed(tag) {
		out = append(out, t)
	}
	return ovsdb.OvsSet{GoSet: out}
}

// sameSet compares without regard to order and repetition, as the database does.
func sameSet(a, b []string) bool {
	norm := func(s []string) []string { return slices.Compact(slices.Sorted(slices.Values(s))) }
	return slices.Equal(norm(a), norm(b))
}

// pointed is an optional value as a list.
func pointed[T any](p *T) []T {
	if p == nil {
		return nil
	}
	return []T{*p}
}

// splitList takes a list joined by commas apart. An empty text is an empty list.
func splitList(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(text, ",")
}
