package ovn

import (
	"encoding/json"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// The schemas of OVN's releases, cut down to what is used.
type cutSchema struct {
	Version string
	Tables  map[string]struct {
		IsRoot  bool
		Indexes [][]string
		Columns map[string]json.RawMessage
	}
}

func models() map[string]any {
	return map[string]any{
		tableGlobal: nb.Global{}, tableSwitch: nb.LogicalSwitch{}, tablePort: nb.LogicalSwitchPort{},
		tableRouter: nb.LogicalRouter{}, tableRouterPort: nb.LogicalRouterPort{}, tableGroup: nb.PortGroup{},
		tableDHCP: nb.DHCPOptions{}, tablePolicy: nb.RouterPolicy{}, tableNAT: nb.NAT{}, tableRoute: nb.StaticRoute{},
		tableACL: nb.ACL{}, tableSet: nb.AddressSet{}, tableChassis: nb.GatewayChassis{},
	}
}

// columnsOf returns the columns of a model, and the Go types that hold them.
func columnsOf(m any) map[string]reflect.Type {
	columns := map[string]reflect.Type{}
	for f := range reflect.TypeOf(m).Fields() {
		if c := f.Tag.Get("ovsdb"); c != colUUID {
			columns[c] = f.Type
		}
	}
	return columns
}

func TestModelFitsEveryRelease(t *testing.T) {
	data, err := os.ReadFile("testdata/schemas.json")
	if err != nil {
		t.Fatal(err)
	}
	var releases map[string]cutSchema
	if err := json.Unmarshal(data, &releases); err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{"22.03", "26.03"} {
		if _, ok := releases[first]; !ok {
			t.Errorf("no schema of %s", first)
		}
	}
	for release, schema := range releases {
		t.Run(release, func(t *testing.T) {
			for table, m := range models() {
				got := schema.Tables[table]
				for column, goType := range columnsOf(m) {
					raw, ok := got.Columns[column]
					if !ok {
						t.Errorf("%s.%s is not in the schema", table, column)
						continue
					}
					var c ovsdb.ColumnSchema
					if err := json.Unmarshal([]byte(`{"type":`+string(raw)+`}`), &c); err != nil {
						t.Fatal(err)
					}
					if want := ovsdb.NativeType(&c); want != goType {
						t.Errorf("%s.%s is %v, the model has %v", table, column, want, goType)
					}
				}
				rooted := table != tablePort && table != tableRouterPort && table != tablePolicy && table != tableNAT && table != tableRoute && table != tableACL && table != tableChassis
				if got.IsRoot != rooted {
					t.Errorf("%s: isRoot is %v", table, got.IsRoot)
				}
				byName := strings.Contains(strings.Join(flat(got.Indexes), ","), colName)
				if want := table == tablePort || table == tableRouterPort || table == tableGroup || table == tableSet || table == tableChassis; byName != want {
					t.Errorf("%s: name is unique: %v, want %v", table, byName, want)
				}
			}
		})
	}
}

func flat(indexes [][]string) []string {
	var out []string
	for _, i := range indexes {
		out = append(out, i...)
	}
	return out
}

func TestInstalledSchemaHasAllThatIsUsed(t *testing.T) {
	f, err := os.Open(installedSchema)
	if err != nil {
		t.Fatalf("%v: run `apt-get install ovn-central`", err)
	}
	defer func() { _ = f.Close() }()
	schema, err := ovsdb.SchemaFromFile(f)
	if err != nil {
		t.Fatal(err)
	}
	if missing := missingInSchema(schema); len(missing) > 0 {
		t.Errorf("missing %v", missing)
	}
}

func TestMirrorLeavesThePortsOfSwitchesAlone(t *testing.T) {
	for _, table := range []string{tableSwitch, tableRouter} {
		for _, c := range monitored()[table] {
			if c == colPorts {
				t.Errorf("%s.ports is mirrored", table)
			}
		}
	}
	known := models()
	for table, columns := range monitored() {
		for _, c := range columns {
			if _, ok := columnsOf(known[table])[c]; !ok {
				t.Errorf("%s.%s is mirrored but not modelled", table, c)
			}
		}
	}
}

func TestClonesShareNothing(t *testing.T) {
	row := &portRow{Name: "p", Addresses: []string{"a"}, PortSecurity: []string{"b"},
		ExternalIDs: map[string]string{"k": "v"}, Options: map[string]string{"k": "v"}, DHCPv4: clonePtr(new(string))}
	clone := row.CloneModel().(*portRow)
	if diff := cmp.Diff(row, clone); diff != "" {
		t.Error(diff)
	}
	clone.Addresses[0], clone.PortSecurity[0], clone.ExternalIDs["k"], clone.Options["k"] = "x", "x", "x", "x"
	if row.Addresses[0] != "a" || row.PortSecurity[0] != "b" || row.ExternalIDs["k"] != "v" || row.Options["k"] != "v" {
		t.Errorf("the original has changed: %+v", row)
	}
}
