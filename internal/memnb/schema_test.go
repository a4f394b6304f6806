package memnb_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// table is what a schema says of one, with the types as they are written.
type table struct {
	IsRoot  bool
	MaxRows int
	Indexes [][]string
	Columns map[string]any
}

// served reads the schema as a client gets it.
func served(t *testing.T) map[string]table {
	t.Helper()
	text, err := json.Marshal(newWire(t, startMemory(t)).call("get_schema", `["OVN_Northbound"]`).Result)
	if err != nil {
		t.Fatal(err)
	}
	return tables(t, text)
}

func tables(t *testing.T, text []byte) map[string]table {
	t.Helper()
	var schema struct{ Tables map[string]table }
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	if len(schema.Tables) == 0 {
		t.Fatal("no tables")
	}
	return schema.Tables
}

// cut leaves of a schema what another has. Columns stand by their type alone.
func cut(all, like map[string]table) map[string]table {
	out := map[string]table{}
	for name, l := range like {
		full, ok := all[name]
		if !ok {
			continue
		}
		columns := map[string]any{}
		for c := range l.Columns {
			if v, ok := full.Columns[c]; ok {
				columns[c] = v
			}
			// From 25.03 on a router port may be without networks. The older limit is served.
			if v, ok := columns[c].(map[string]any); ok && name == "Logical_Router_Port" && c == "networks" {
				delete(v, "min")
				if inner, ok := v["type"].(map[string]any); ok {
					delete(inner, "min")
				}
			}
			if v, ok := columns[c].(map[string]any); ok {
				dropWords(v)
			}
			if v, ok := columns[c].(map[string]any); ok && v["type"] != nil && v["refTable"] == nil {
				columns[c] = v["type"]
			}
		}
		full.Columns = columns
		if len(full.Indexes) == 0 {
			full.Indexes = nil
		}
		out[name] = full
	}
	return out
}

// dropWords leaves away which words a column allows: later releases have more of them.
func dropWords(column map[string]any) {
	if inner, ok := column["type"].(map[string]any); ok {
		dropWords(inner)
	}
	if key, ok := column["key"].(map[string]any); ok {
		delete(key, "enum")
	}
}

func TestSchemaIsPartOfTheInstalledOne(t *testing.T) {
	text, err := os.ReadFile(installedSchema)
	if errors.Is(err, fs.ErrNotExist) {
		t.Skipf("nothing to compare with: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	got := served(t)
	if diff := cmp.Diff(cut(tables(t, text), got), cut(got, got)); diff != "" {
		t.Errorf("-installed +served:\n%s", diff)
	}
}

// TestSchemaIsPartOfEveryRelease compares with what package ovn keeps of the releases' schemas: all but maxRows.
func TestSchemaIsPartOfEveryRelease(t *testing.T) {
	text, err := os.ReadFile("../../pkg/ovn/testdata/schemas.json")
	if err != nil {
		t.Fatal(err)
	}
	var releases map[string]json.RawMessage
	if err := json.Unmarshal(text, &releases); err != nil {
		t.Fatal(err)
	}
	got := served(t)
	global := got["NB_Global"]
	global.MaxRows = 0
	got["NB_Global"] = global
	for release, schema := range releases {
		t.Run(release, func(t *testing.T) {
			// Both ways: package ovn keeps of them just what it uses.
			want := tables(t, schema)
			if diff := cmp.Diff(cut(want, want), cut(got, got)); diff != "" {
				t.Errorf("-release +served:\n%s", diff)
			}
		})
	}
}
