package ovn

import (
	"maps"
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
)

// The rows as they are mirrored. They have the columns that are monitored and no other, and clone themselves, because
// the library would do it through JSON.
type (
	globalRow struct {
		UUID        string            `ovsdb:"_uuid"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
	}
	switchRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
		OtherConfig map[string]string `ovsdb:"other_config"`
	}
	routerRow struct {
		UUID        string            `ovsdb:"_uuid"`
		Name        string            `ovsdb:"name"`
		ExternalIDs map[string]string `ovsdb:"external_ids"`
		Options     map[string]string `ovsdb:"options"`
	}
	portRow       nb.LogicalSwitchPort
	routerPortRow nb.LogicalRouterPort
	groupRow      nb.PortGroup
)

// monitored lists the columns that are mirrored, by table. The ports of switches and routers aren't among them: a
// mirror of them costs the square of the ports.
func monitored() map[string][]string {
	return map[string][]string{
		tableGlobal:     {colExternalIDs},
		tableSwitch:     {colName, colExternalIDs, colOtherConfig},
		tablePort:       {colName, colType, colAddresses, colPortSecurity, colExternalIDs, colOptions},
		tableRouter:     {colName, colExternalIDs, colOptions},
		tableRouterPort: {colName, colMAC, colNetworks, colExternalIDs},
		tableGroup:      {colName, colExternalIDs, colPorts},
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
	})
	if err != nil {
		return m, err
	}
	byName := []model.ClientIndex{{Columns: []model.ColumnKey{{Column: colName}}}}
	m.SetIndexes(map[string][]model.ClientIndex{
		tablePort:   {{Columns: []model.ColumnKey{{Column: colExternalIDs, Key: nb.KeyPod}}}},
		tableSwitch: byName,
		tableRouter: byName,
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

// CloneModel implements model.CloneableModel.
func (r *globalRow) CloneModel() model.Model { c := &globalRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *globalRow) CloneModelInto(m model.Model) {
	c := m.(*globalRow)
	*c = *r
	c.ExternalIDs = maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *switchRow) CloneModel() model.Model { c := &switchRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *switchRow) CloneModelInto(m model.Model) {
	c := m.(*switchRow)
	*c = *r
	c.ExternalIDs, c.OtherConfig = maps.Clone(r.ExternalIDs), maps.Clone(r.OtherConfig)
}

// CloneModel implements model.CloneableModel.
func (r *routerRow) CloneModel() model.Model { c := &routerRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *routerRow) CloneModelInto(m model.Model) {
	c := m.(*routerRow)
	*c = *r
	c.ExternalIDs, c.Options = maps.Clone(r.ExternalIDs), maps.Clone(r.Options)
}

// CloneModel implements model.CloneableModel.
func (r *portRow) CloneModel() model.Model { c := &portRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *portRow) CloneModelInto(m model.Model) {
	c := m.(*portRow)
	*c = *r
	c.Addresses, c.PortSecurity = slices.Clone(r.Addresses), slices.Clone(r.PortSecurity)
	c.ExternalIDs, c.Options = maps.Clone(r.ExternalIDs), maps.Clone(r.Options)
}

// CloneModel implements model.CloneableModel.
func (r *routerPortRow) CloneModel() model.Model {
	c := &routerPortRow{}
	r.CloneModelInto(c)
	return c
}

// CloneModelInto implements model.CloneableModel.
func (r *routerPortRow) CloneModelInto(m model.Model) {
	c := m.(*routerPortRow)
	*c = *r
	c.Networks, c.ExternalIDs = slices.Clone(r.Networks), maps.Clone(r.ExternalIDs)
}

// CloneModel implements model.CloneableModel.
func (r *groupRow) CloneModel() model.Model { c := &groupRow{}; r.CloneModelInto(c); return c }

// CloneModelInto implements model.CloneableModel.
func (r *groupRow) CloneModelInto(m model.Model) {
	c := m.(*groupRow)
	*c = *r
	c.Ports, c.ExternalIDs = slices.Clone(r.Ports), maps.Clone(r.ExternalIDs)
}
