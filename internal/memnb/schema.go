package memnb

import (
	"encoding/json"
	"fmt"

	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb/serverdb"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	northbound = "OVN_Northbound"
	ownDB      = "_Server"
)

// northboundSchema has the tables and columns that package nb models, with the types, references and limits that they
// have in every OVN from 22.03 on. The version is that of 22.03. From 25.03 on a router port may be without networks;
// the older, stricter limit stands here, as do the older, shorter lists
// of allowed words.
const northboundSchema = `{
  "name": "OVN_Northbound", "version": "6.1.0", "tables": {` + aclSchema + `
    "NB_Global": {"isRoot": true, "maxRows": 1, "columns": {
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Logical_Switch": {"isRoot": true, "columns": {
      "name": {"type": "string"},
      "acls": {"type": {"key": {"type": "uuid", "refTable": "ACL", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "other_config": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "ports": {"type": {"key": {"type": "uuid", "refTable": "Logical_Switch_Port", "refType": "strong"}, "min": 0, "max": "unlimited"}}}},
    "Logical_Switch_Port": {"isRoot": false, "indexes": [["name"]], "columns": {
      "name": {"type": "string"},
      "type": {"type": "string"},
      "addresses": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
      "port_security": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "tag": {"type": {"key": {"type": "integer", "minInteger": 1, "maxInteger": 4095}, "min": 0, "max": 1}},
      "dhcpv4_options": {"type": {"key": {"type": "uuid", "refTable": "DHCP_Options", "refType": "weak"}, "min": 0, "max": 1}},
      "dhcpv6_options": {"type": {"key": {"type": "uuid", "refTable": "DHCP_Options", "refType": "weak"}, "min": 0, "max": 1}}}},
    "DHCP_Options": {"isRoot": true, "columns": {
      "cidr": {"type": "string"},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Logical_Router_Policy": {"isRoot": false, "columns": {
      "priority": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 32767}}},
      "match": {"type": "string"},
      "action": {"type": {"key": {"type": "string", "enum": ["set", ["allow", "drop", "reroute"]]}}},
      "nexthops": {"type": {"key": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "NAT": {"isRoot": false, "columns": {
      "type": {"type": {"key": {"type": "string", "enum": ["set", ["dnat", "snat", "dnat_and_snat"]]}}},
      "external_ip": {"type": "string"},
      "logical_ip": {"type": "string"},
      "external_mac": {"type": {"key": "string", "min": 0, "max": 1}},
      "logical_port": {"type": {"key": "string", "min": 0, "max": 1}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Logical_Router_Static_Route": {"isRoot": false, "columns": {
      "ip_prefix": {"type": "string"},
      "route_table": {"type": "string"},
      "policy": {"type": {"key": {"type": "string", "enum": ["set", ["src-ip", "dst-ip"]]}, "min": 0, "max": 1}},
      "nexthop": {"type": "string"},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Logical_Router": {"isRoot": true, "columns": {
      "name": {"type": "string"},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "ports": {"type": {"key": {"type": "uuid", "refTable": "Logical_Router_Port", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "policies": {"type": {"key": {"type": "uuid", "refTable": "Logical_Router_Policy", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "nat": {"type": {"key": {"type": "uuid", "refTable": "NAT", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "static_routes": {"type": {"key": {"type": "uuid", "refTable": "Logical_Router_Static_Route", "refType": "strong"}, "min": 0, "max": "unlimited"}}}},
    "Logical_Router_Port": {"isRoot": false, "indexes": [["name"]], "columns": {
      "name": {"type": "string"},
      "mac": {"type": "string"},
      "networks": {"type": {"key": "string", "min": 1, "max": "unlimited"}},
      "options": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "peer": {"type": {"key": "string", "min": 0, "max": 1}},
      "gateway_chassis": {"type": {"key": {"type": "uuid", "refTable": "Gateway_Chassis", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Gateway_Chassis": {"isRoot": false, "indexes": [["name"]], "columns": {
      "name": {"type": "string"},
      "chassis_name": {"type": "string"},
      "priority": {"type": {"key": {"type": "integer", "minInteger": 0, "maxInteger": 32767}}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}}}},
    "Port_Group": {"isRoot": true, "indexes": [["name"]], "columns": {
      "name": {"type": "string"},
      "acls": {"type": {"key": {"type": "uuid", "refTable": "ACL", "refType": "strong"}, "min": 0, "max": "unlimited"}},
      "external_ids": {"type": {"key": "string", "value": "string", "min": 0, "max": "unlimited"}},
      "ports": {"type": {"key": {"type": "uuid", "refTable": "Logical_Switch_Port", "refType": "weak"}, "min": 0, "max": "unlimited"}}}}}}`

// Schema returns the schema of the northbound database that is served.
func Schema() (ovsdb.DatabaseSchema, error) {
	var s ovsdb.DatabaseSchema
	if err := json.Unmarshal([]byte(northboundSchema), &s); err != nil {
		return s, fmt.Errorf("read the northbound schema: %w", err)
	}
	return s, nil
}

func newNorthbound() (*database, error) {
	rows, err := model.NewClientDBModel(northbound, map[string]model.Model{
		"NB_Global":                   &nb.Global{},
		"Logical_Switch":              &nb.LogicalSwitch{},
		"Logical_Switch_Port":         &nb.LogicalSwitchPort{},
		"Logical_Router":              &nb.LogicalRouter{},
		"Logical_Router_Port":         &nb.LogicalRouterPort{},
		"Port_Group":                  &nb.PortGroup{},
		"DHCP_Options":                &nb.DHCPOptions{},
		"Logical_Router_Policy":       &nb.RouterPolicy{},
		"NAT":                         &nb.NAT{},
		"Logical_Router_Static_Route": &nb.StaticRoute{},
		"ACL":                         &nb.ACL{},
		"Address_Set":                 &nb.AddressSet{},
		"Gateway_Chassis":             &nb.GatewayChassis{},
	})
	if err != nil {
		return nil, fmt.Errorf("model the northbound database: %w", err)
	}
	return newDatabase(json.RawMessage(northboundSchema), rows)
}

// newOwn returns the database in which a server tells of its databases: clients of a cluster look for the leader
// there.
func newOwn() (*database, error) {
	rows, err := serverdb.FullDatabaseModel()
	if err != nil {
		return nil, fmt.Errorf("model the server's database: %w", err)
	}
	text, err := json.Marshal(serverdb.Schema())
	if err != nil {
		return nil, fmt.Errorf("write the server's schema: %w", err)
	}
	return newDatabase(text, rows)
}

// describe lists a database in the server's own.
func describe(name string) ovsdb.Operation {
	return ovsdb.Operation{Op: ovsdb.OperationInsert, Table: serverdb.DatabaseTable, Row: ovsdb.Row{
		"name": name, "model": serverdb.DatabaseModelStandalone, "connected": true, "leader": true,
	}}
}
