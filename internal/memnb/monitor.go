package memnb

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	library "github.com/ovn-kubernetes/libovsdb/database"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// monitor is what one connection follows.
type monitor struct {
	id json.RawMessage
	db *database
	// columns by table.
	columns map[string][]string
}

// monitorRequest is what is asked of one table.
type monitorRequest struct {
	Columns []string          `json:"columns"`
	Where   []json.RawMessage `json:"where"`
	Select  map[string]bool   `json:"select"`
}

// tableUpdates2 is by table and row.
type tableUpdates2 map[string]map[string]rowUpdate2

// rowUpdate2 has one entry, whose key says what happened.
type rowUpdate2 map[string]ovsdb.Row

func newMonitor(d *database, id, requests json.RawMessage) (*monitor, error) {
	m := &monitor{id: id, db: d, columns: map[string][]string{}}
	var tables map[string]json.RawMessage
	if err := json.Unmarshal(requests, &tables); err != nil {
		return nil, fmt.Errorf("monitor requests: %w", err)
	}
	for table, text := range tables {
		schema := d.model.Schema.Table(table)
		if schema == nil {
			return nil, fmt.Errorf("no table named %s", table)
		}
		// One request may stand without its list.
		if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("[")) {
			text = append(append([]byte("["), text...), ']')
		}
		var list []monitorRequest
		if err := json.Unmarshal(text, &list); err != nil {
			return nil, fmt.Errorf("monitor request of %s: %w", table, err)
		}
		if len(list) != 1 {
			return nil, fmt.Errorf("%d monitor requests of %s, and only one is supported", len(list), table)
		}
		if err := list[0].supported(); err != nil {
			return nil, fmt.Errorf("monitor request of %s: %w", table, err)
		}
		m.columns[table] = d.columns(table, list[0].Columns)
		for _, column := range m.columns[table] {
			if schema.Column(column) == nil {
				return nil, fmt.Errorf("no column %s in table %s", column, table)
			}
		}
	}
	return m, nil
}

func (r monitorRequest) supported() error {
	for _, c := range r.Where {
		if string(c) != "true" {
			return errors.New("conditions aren't supported")
		}
	}
	for kind, wanted := range r.Select {
		if !wanted {
			return fmt.Errorf("monitoring without %s isn't supported", kind)
		}
	}
	return nil
}

// initial returns all rows.
func (m *monitor) initial() (tableUpdates2, error) {
	out := tableUpdates2{}
	for table, columns := range m.columns {
		rows, err := m.db.store.List(m.db.name, table)
		if err != nil {
			return nil, err
		}
		for id, r := range rows {
			row, err := m.db.row(table, r, columns, true)
			if err != nil {
				return nil, err
			}
			out.add(table, id, "initial", row)
		}
	}
	return out, nil
}

// updates returns what an update changes of what is followed.
func (m *monitor) updates(u library.Update) (tableUpdates2, error) {
	out := tableUpdates2{}
	for table, columns := range m.columns {
		err := u.ForEachModelUpdate(table, func(id string, before, after model.Model) error {
			kind, row, err := "delete", ovsdb.Row(nil), error(nil)
			switch {
			case before == nil:
				kind = "insert"
				row, err = m.db.row(table, after, columns, true)
			case after != nil:
				kind = "modify"
				row, err = m.db.modified(table, before, after, columns)
			}
			if err != nil || kind == "modify" && len(row) == 0 {
				return err
			}
			out.add(table, id, kind, row)
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}

func (t tableUpdates2) add(table, id, kind string, row ovsdb.Row) {
	if t[table] == nil {
		t[table] = map[string]rowUpdate2{}
	}
	t[table][id] = rowUpdate2{kind: row}
}

// modified returns the differences in some columns of a row.
func (d *database) modified(table string, before, after model.Model, columns []string) (ovsdb.Row, error) {
	old, err := d.values(before, columns)
	if err != nil {
		return nil, err
	}
	young, err := d.values(after, columns)
	if err != nil {
		return nil, err
	}
	out := ovsdb.Row{}
	for column, v := range young {
		diff, changed := difference(old[column], v)
		if !changed {
			continue
		}
		if out[column], err = ovsdb.NativeToOvs(d.model.Schema.Table(table).Column(column), diff); err != nil {
			return nil, err
		}
	}
	return out, nil
}
