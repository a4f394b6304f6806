package memnb_test

import (
	"encoding/json"
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/memnb"
)

// wire speaks JSON-RPC without any library.
type wire struct {
	t   *testing.T
	net net.Conn
	in  *json.Decoder
	ids int
}

// answer is what one request brought: notifications first, then the result.
type answer struct {
	Updates []any
	Result  any
	Error   any
}

func newWire(t *testing.T, endpoint string) *wire {
	c := dial(t, endpoint)
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	return &wire{t: t, net: c, in: json.NewDecoder(c)}
}

// call sends a request whose parameters are JSON.
func (w *wire) call(method, params string) answer {
	w.t.Helper()
	w.ids++
	if _, err := fmt.Fprintf(w.net, `{"method":%q,"params":%s,"id":%d}`, method, params, w.ids); err != nil {
		w.t.Fatal(err)
	}
	var a answer
	for {
		var m struct {
			Method string
			Params []any
			Result any
			Error  any
			ID     any
		}
		if err := w.in.Decode(&m); err != nil {
			w.t.Fatal(err)
		}
		if m.Method == "" {
			a.Result, a.Error = normal(m.Result), m.Error
			return a
		}
		if m.Method != "update2" || m.ID != nil {
			w.t.Fatalf("notification %+v", m)
		}
		a.Updates = append(a.Updates, normal(m.Params))
	}
}

// normal sorts sets and maps, and leaves of an error only its code: the explanations differ.
func normal(v any) any {
	switch v := v.(type) {
	case map[string]any:
		if v["error"] != nil {
			return map[string]any{"error": v["error"]}
		}
		out := map[string]any{}
		for k, e := range v {
			out[k] = normal(e)
		}
		if rows, ok := out["rows"].([]any); ok {
			sortAny(rows)
		}
		return out
	case []any:
		out := make([]any, len(v))
		for i, e := range v {
			out[i] = normal(e)
		}
		if len(out) == 2 && (out[0] == "set" || out[0] == "map") {
			sortAny(out[1].([]any))
		}
		return out
	}
	return v
}

func sortAny(list []any) {
	slices.SortFunc(list, func(a, b any) int { return strings.Compare(fmt.Sprint(a), fmt.Sprint(b)) })
}

// id is a UUID that a test chooses.
func id(n int) string { return fmt.Sprintf("00000000-0000-4000-8000-%012d", n) }

func ref(n int) string { return fmt.Sprintf(`["uuid",%q]`, id(n)) }

// conversation lists transactions in the order in which they are sent, to one database.
func conversation() []string {
	insert := func(table string, n int, row string) string {
		return fmt.Sprintf(`{"op":"insert","table":%q,"uuid":%q,"row":%s}`, table, id(n), row)
	}
	in := func(op, table, where, rest string) string {
		return fmt.Sprintf(`{"op":%q,"table":%q,"where":[%s]%s}`, op, table, where, rest)
	}
	uuidIs := func(n int) string { return `["_uuid","==",` + ref(n) + `]` }
	wait := func(table, where, columns, until, rows string) string {
		return in("wait", table, where, fmt.Sprintf(`,"timeout":0,"columns":[%s],"until":%q,"rows":[%s]`, columns, until, rows))
	}
	ports := func(mutations ...string) string { return `,"mutations":[` + strings.Join(mutations, ",") + `]` }
	one := insert("Port_Group", 90, `{"name":"never"}`)
	global := `"external_ids"`
	empty := `{"external_ids":["map",[]]}`
	return []string{
		// The global row, and compare-and-swap on a map that is empty.
		insert("NB_Global", 1, `{}`),
		insert("NB_Global", 2, `{}`),
		`{"op":"select","table":"NB_Global","where":[],"columns":["_uuid","external_ids"]}`,
		wait("NB_Global", uuidIs(1), global, "==", empty),
		wait("NB_Global", uuidIs(1), global, "!=", empty) + "," + one,
		in("mutate", "NB_Global", uuidIs(1), ports(`["external_ids","insert",["map",[["berth-epoch","1"],["other","x"]]]]`)),
		wait("NB_Global", uuidIs(1), global, "==", empty) + "," + one,
		wait("NB_Global", `["external_ids","includes",["map",[["berth-epoch","1"]]]]`, `"_uuid"`, "==", `{"_uuid":`+ref(1)+`}`),
		wait("NB_Global", `["external_ids","includes",["map",[["berth-epoch","2"]]]]`, `"_uuid"`, "==", `{"_uuid":`+ref(1)+`}`) + "," + one,
		in("mutate", "NB_Global", uuidIs(1), ports(`["external_ids","delete","berth-epoch"]`, `["external_ids","insert",["map",[["berth-epoch","2"]]]]`)),
		in("mutate", "NB_Global", uuidIs(1), ports(`["external_ids","delete",["set",["berth-epoch","none"]]]`, `["external_ids","delete",["map",[["other","y"]]]]`)),
		// Several mutations of one empty map.
		in("mutate", "NB_Global", uuidIs(1), ports(`["options","insert",["map",[["a","1"]]]]`, `["options","insert",["map",[["b","2"]]]]`, `["options","insert",["map",[["a","3"]]]]`)),
		// A name that must not be there yet, and then is there twice.
		wait("Logical_Switch", `["name","==","s1"]`, `"name"`, "!=", `{"name":"s1"}`) + "," + insert("Logical_Switch", 10, `{"name":"s1"}`),
		wait("Logical_Switch", `["name","==","s1"]`, `"name"`, "!=", `{"name":"s1"}`) + "," + one,
		insert("Logical_Switch", 11, `{"name":"s1"}`),
		wait("Logical_Switch", `["name","==","s1"]`, `"name"`, "!=", `{"name":"s1"}`) + "," + one,
		in("update", "Logical_Switch", uuidIs(11), `,"row":{"name":"s2","other_config":["map",[["subnet","10.0.0.0/8"]]]}`),
		// A port that nothing refers to doesn't last, one that a switch refers to does.
		insert("Logical_Switch_Port", 20, `{"name":"lost"}`),
		`{"op":"insert","table":"Logical_Switch_Port","uuid":"` + id(21) + `","uuid-name":"row0","row":{"name":"p1","addresses":"a 1","external_ids":["map",[["ls","s1"]]]}},` +
			in("mutate", "Logical_Switch", uuidIs(10), ports(`["ports","insert",["named-uuid","row0"]]`)) + "," +
			insert("Port_Group", 30, `{"name":"g1","ports":["named-uuid","row0"]}`),
		insert("Port_Group", 31, `{"name":"g1"}`),
		insert("Port_Group", 32, `{"name":"g2","ports":["set",[`+ref(21)+`,`+ref(20)+`]]}`),
		insert("Logical_Switch", 12, `{"name":"bad","ports":`+ref(20)+`}`),
		// The port moves: off its switch twice, as the writer does it, and its name is free within the transaction.
		`{"op":"insert","table":"Logical_Switch_Port","uuid":"` + id(22) + `","uuid-name":"row0","row":{"name":"p1","addresses":["set",["a 2","a 3"]]}},` +
			in("mutate", "Logical_Switch", uuidIs(10), ports(`["ports","delete",`+ref(21)+`]`)) + "," +
			in("mutate", "Logical_Switch", uuidIs(11), ports(`["ports","insert",["named-uuid","row0"]]`)) + "," +
			in("mutate", "Port_Group", uuidIs(30), ports(`["ports","insert",["named-uuid","row0"]]`)) + "," +
			in("mutate", "Logical_Switch", `["ports","includes",`+ref(21)+`]`, ports(`["ports","delete",`+ref(21)+`]`)),
		// Sets and their differences.
		in("update", "Logical_Switch_Port", uuidIs(22), `,"row":{"addresses":["set",["a 3","a 4"]],"port_security":"a 3","type":"router"}`),
		in("update", "Logical_Switch_Port", uuidIs(22), `,"row":{"addresses":["set",["a 4","a 3"]]}`),
		in("update", "Logical_Switch_Port", uuidIs(22), `,"row":{"addresses":["set",[]],"type":""}`),
		in("mutate", "Port_Group", uuidIs(30), ports(`["ports","delete",`+ref(22)+`]`, `["ports","insert",`+ref(22)+`]`)),
		in("mutate", "Port_Group", "", ports(`["ports","insert",["set",[`+ref(22)+`]]]`)),
		in("update", "Logical_Switch_Port", `["name","==","nobody"]`, `,"row":{"type":"x"}`),
		// Router ports.
		`{"op":"insert","table":"Logical_Router_Port","uuid":"` + id(40) + `","uuid-name":"row0","row":{"name":"r-s1","mac":"m","networks":"n0"}},` +
			insert("Logical_Router", 41, `{"name":"r","ports":["named-uuid","row0"]}`),
		in("update", "Logical_Router_Port", uuidIs(40), `,"row":{"networks":["set",["n","n"]]}`),
		in("update", "Logical_Router_Port", uuidIs(40), `,"row":{"networks":["set",["n1","n2"]]}`),
		in("delete", "Logical_Router", uuidIs(41), ""),
		// What is refused leaves nothing of what came before it.
		one + "," + insert("Port_Group", 91, `{"name":"x","nothing":"x"}`) + "," + insert("Port_Group", 92, `{"name":"y"}`),
		one + "," + in("mutate", "Logical_Switch", uuidIs(11), ports(`["ports","insert",`+ref(99)+`]`)),
		in("delete", "Logical_Switch_Port", uuidIs(22), ""),
		// A switch goes, and all that hangs on it.
		in("delete", "Logical_Switch", uuidIs(11), ""),
		in("delete", "Logical_Switch", `["name","==","s1"]`, "") + "," + in("delete", "Port_Group", `["name","!=","g2"]`, ""),
		`{"op":"select","table":"Port_Group","where":[],"columns":["name","ports","external_ids"]},` +
			`{"op":"select","table":"Logical_Switch","where":[],"columns":["name"]},` +
			`{"op":"select","table":"Logical_Switch_Port","where":[],"columns":["name"]},` +
			`{"op":"select","table":"Logical_Router_Port","where":[],"columns":["name"]}`,
	}
}

// TestAnswersAreThoseOfTheRealServer holds results, refusals and notifications against ovsdb-server's.
func TestAnswersAreThoseOfTheRealServer(t *testing.T) {
	schema, err := memnb.Schema()
	if err != nil {
		t.Fatal(err)
	}
	requests := map[string]any{}
	for table, s := range schema.Tables {
		columns := []string{}
		for c := range s.Columns {
			columns = append(columns, c)
		}
		requests[table] = []any{map[string]any{"columns": columns}}
	}
	text, err := json.Marshal(requests)
	if err != nil {
		t.Fatal(err)
	}
	server, memory := newWire(t, startReal(t)), newWire(t, startMemory(t))
	both := func(method, params string) {
		t.Helper()
		want, got := server.call(method, params), memory.call(method, params)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s %s (-real +memory):\n%s", method, params, diff)
		}
	}
	both("list_dbs", `[]`)
	both("echo", `["a",1]`)
	both("monitor_cond", fmt.Sprintf(`["OVN_Northbound","m1",%s]`, text))
	for _, ops := range conversation() {
		both("transact", fmt.Sprintf(`["OVN_Northbound",%s]`, ops))
	}
	both("monitor_cond", fmt.Sprintf(`["OVN_Northbound","m2",%s]`, text))
	both("monitor_cancel", `["m1"]`)
	both("monitor_cancel", `["m2"]`)
	both("transact", `["OVN_Northbound",{"op":"insert","table":"Port_Group","uuid":"`+id(95)+`","row":{"name":"unseen"}}]`)
}

// TestNetworksAreNeverEmpty: newer releases have no such limit, so there may be no real server that shows it.
func TestNetworksAreNeverEmpty(t *testing.T) {
	w := newWire(t, startMemory(t))
	port := `{"op":"insert","table":"Logical_Router_Port","uuid-name":"p","row":{"name":"r-s1"%s}},` +
		`{"op":"insert","table":"Logical_Router","row":{"name":"r","ports":["named-uuid","p"]}}`
	for name, tc := range map[string]struct{ row, want string }{
		"empty":     {`,"networks":["set",[]]`, "[map[error:syntax error] <nil>]"},
		"not given": {``, "[map[rows:[map[networks:]]]]"},
	} {
		t.Run(name, func(t *testing.T) {
			got := w.call("transact", fmt.Sprintf(`["OVN_Northbound",`+port+`]`, tc.row))
			if tc.row == "" {
				got = w.call("transact", `["OVN_Northbound",{"op":"select","table":"Logical_Router_Port","where":[],"columns":["networks"]}]`)
			}
			if diff := cmp.Diff(tc.want, fmt.Sprint(got.Result)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestRefusals are answers of which the real server has others, or better ones.
func TestRefusals(t *testing.T) {
	w := newWire(t, startMemory(t))
	for name, tc := range map[string]struct{ method, params string }{
		"method":            {"steal", `["l"]`},
		"database":          {"transact", `["Other",{"op":"select","table":"NB_Global","where":[]}]`},
		"database is none":  {"get_schema", `[5]`},
		"no parameters":     {"monitor_cond", `["OVN_Northbound"]`},
		"condition":         {"monitor_cond", `["OVN_Northbound","m",{"NB_Global":{"where":[["name","==","x"]]}}]`},
		"monitored column":  {"monitor_cond", `["OVN_Northbound","m",{"NB_Global":{"columns":["x"]}}]`},
		"monitored table":   {"monitor_cond", `["OVN_Northbound","m",{"X":{}}]`},
		"partial monitor":   {"monitor_cond", `["OVN_Northbound","m",{"NB_Global":{"select":{"delete":false}}}]`},
		"unknown monitor":   {"monitor_cancel", `["m"]`},
		"operation of what": {"transact", `["OVN_Northbound",5]`},
	} {
		t.Run(name, func(t *testing.T) {
			if got := w.call(tc.method, tc.params); got.Error == nil {
				t.Errorf("answered %v", got.Result)
			}
		})
	}
	wait := `["OVN_Northbound",{"op":"wait","table":"NB_Global","where":[],"columns":["_uuid"],"until":"!=","rows":[]}]`
	want := []any{map[string]any{"error": "not supported"}}
	if diff := cmp.Diff(any(want), w.call("transact", wait).Result); diff != "" {
		t.Errorf("a wait that would wait (-want +got):\n%s", diff)
	}
}
