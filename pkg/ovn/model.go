package ovn

import (
	"slices"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/model"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// Names of the database, and of the tables and columns that are used.
const (
	database = "OVN_Northbound"

	tableGlobal     = "NB_Global"
	tableSwitch     = "Logical_Switch"
	tablePort       = "Logical_Switch_Port"
	tableRouter     = "Logical_Router"
	tableRouterPort = "Logical_Router_Port"
	tableGroup      = "Port_Group"
	tableDHCP       = "DHCP_Options"
	tablePolicy     = "Logical_Router_Policy"
	tableNAT        = "NAT"
	tableRoute      = "Logical_Router_Static_Route"
	tableACL        = "ACL"
	tableSet        = "Address_Set"
	tableChassis    = "Gateway_Chassis"

	colUUID         = "_uuid"
	colName         = "name"
	colType         = "type"
	colPorts        = "ports"
	colAddresses    = "addresses"
	colPortSecurity = "port_security"
	colExternalIDs  = "external_ids"
	colOptions      = "options"
	colOtherConfig  = "other_config"
	colMAC          = "mac"
	colNetworks     = "networks"
	colDHCPv4       = "dhcpv4_options"
	colDHCPv6       = "dhcpv6_options"
	colPolicies     = "policies"
	colNAT          = "nat"
	colRoutes       = "static_routes"
	colCIDR         = "cidr"
	colPriority     = "priority"
	colMatch        = "match"
	colAction       = "action"
	colNexthops     = "nexthops"
	colExternalIP   = "external_ip"
	colLogicalIP    = "logical_ip"
	colExternalMAC  = "external_mac"
	colLogicalPort  = "logical_port"
	colPrefix       = "ip_prefix"
	colRouteTable   = "route_table"
	colPolicy       = "policy"
	colTag          = "tag"
	colPeer         = "peer"
	colNexthop      = "nexthop"
	colACLs         = "acls"
	colDirection    = "direction"
	colLog          = "log"
	colSeverity     = "severity"
	colChassis      = "gateway_chassis"
	colChassisName  = "chassis_name"
)

// The rows as they are mirrored. They have the columns that are monitored and no other, and clone themselves, because
// the library would do it through JSON.
type (
	globalRow struct {
		UUID        string            `ovsdb:"_uuid"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
		Options     map[string]string `ovsdb:"options"`
	}
	switchRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
		OtherConfig map[string]string `ovsdb:"other_config"`
		ACLs        []string          `ovsdb:"acls"`
	}
	routerRow struct {
		UUID         string            `ovsdb:"_uuid"`
		Name         string            `ovsdb:"name"`
		ExternalIDs  map[string]string `ovsdb:"external_ids"`
		Options      map[string]string `ovsdb:"options"`
		Policies     []string          `ovsdb:"policies"`
		NAT          []string          `ovsdb:"nat"`
		StaticRoutes []string          `ovsdb:"static_routes"`
	}
	portRow       nb.LogicalSwitchPort
	routerPortRow nb.LogicalRouterPort
	groupRow      nb.PortGroup
	dhcpRow       nb.DHCPOptions
	policyRow     nb.RouterPolicy
	natRow        nb.NAT
	staticRow     nb.StaticRoute
	aclRow        nb.ACL
	setRow        nb.AddressSet
	chassisRow    nb.GatewayChassis
)

// monitored lists the columns that are mirrored, by table. The ports of switches and routers aren't among them: a
// mirror of them costs the square of the ports.
func monitored() map[string][]string {
	return map[string][]string{
		tableGlobal:     {colExternalIDs, colOptions},
		tableSwitch:     {colName, colExternalIDs, colOtherConfig, colACLs},
		tablePort:       {colName, colType, colAddresses, colPortSecurity, colExternalIDs, colOptions, colTag, colDHCPv4, colDHCPv6},
		tableRouter:     {colName, colExternalIDs, colOptions, colPolicies, colNAT, colRoutes},
		tableRouterPort: {colName, colMAC, colNetworks, colOptions, colPeer, colExternalIDs, colChassis},
		tableChassis:    {colName, colChassisName, colPriority, colExternalIDs},
		tableGroup:      {colName, colExternalIDs, colPorts, colACLs},
		tableACL:        {colName, colPriority, colDirection, colMatch, colAction, colLog, colSeverity, colOptions, colExternalIDs},
		tableSet:        {colName, colAddresses, colExternalIDs},
		tableDHCP:       {colCIDR, colOptions, colExternalIDs},
		tablePolicy:     {colPriority, colMatch, colAction, colNexthops, colExternalIDs},
		tableNAT:        {colType, colExternalIP, colLogicalIP, colExternalMAC, colLogicalPort, colOptions, colExternalIDs},
		tableRoute:      {colPrefix, colRouteTable, colPolicy, colNexthop, colExternalIDs},
	}
}

// mutated lists the columns that are written without being mirrored.
func mutated() map[string][]string {
	return map[string][]string{tableSwitch: {colPorts}, tableRouter: {colPorts}}
}

func clientModel() (model.ClientDBModel, error) {
	m, err := model.NewClientDBModel(database, map[string]model.Model{
		tableGlobal:     &globalRow{},
		tableSwitch:     &switchRow{},
		tablePort:       &portRow{},
		tableRouter:     &routerRow{},
		tableRouterPort: &routerPortRow{},
		tableGroup:      &groupRow{},
		tableDHCP:       &dhcpRow{},
		tablePolicy:     &policyRow{},
		tableNAT:        &natRow{},
		tableRoute:      &staticRow{},
		tableACL:        &aclRow{},
		tableSet:        &setRow{},
		tableChassis:    &chassisRow{},
	})
	if err != nil {
		return m, err
	}
	by := func(column, key string) model.ClientIndex {
		c := model.ColumnKey{Column: column}
		if key != "" {
			c.Key = key
		}
		return model.ClientIndex{Columns: []model.ColumnKey{c}}
	}
	m.SetIndexes(map[string][]model.ClientIndex{
		tablePort:   {by(colExternalIDs, nb.KeyPod), by(colExternalIDs, nb.KeyAttachVips), by(colExternalIDs, nb.KeyPurpose), by(colType, "")},
		tableSwitch: {by(colName, "")},
		tableRouter: {by(colName, "")},
		tableDHCP:   {by(colExternalIDs, nb.KeyPort), by(colExternalIDs, nb.KeySwitch)},
		tablePolicy: {by(colExternalIDs, nb.KeyPort), by(colMatch, "")},
		tableNAT:    {by(colExternalIDs, nb.KeyPort), by(colExternalIP, "")},
		tableRoute:  {by(colPrefix, "")},
	})
	return m, nil
}

// missingInSchema tells which tables and columns a server's schema lacks.
func missingInSchema(schema ovsdb.DatabaseSchema) []string {
	var missing []string
	for _, columns := range []map[string][]string{monitored(), mutated()} {
		for table, names := range columns {
			t := schema.Table(table)
			if t == nil {
				missing = append(missing, table)
				continue
			}
			for _, c := range names {
				if t.Column(c) == nil {
					missing = append(missing, table+"."+c)
				}
			}
		}
	}
	slices.Sort(missing)
	return slices.Compact(missing)
}
