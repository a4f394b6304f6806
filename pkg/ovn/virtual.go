package ovn

import (
	"maps"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// spot is an address on a switch.
type spot struct{ sw, ip string }

// virtuals keeps the parents of virtual ports: all ports of the switch whose KeyVips have the address.
type virtuals struct {
	// ports are those that the batch makes, changes or removes (nil), as far as they have further addresses.
	ports map[string]*nb.LogicalSwitchPort
	// touched are the addresses that the change at hand has to do with.
	touched map[spot]bool
	// made are new virtual ports by name. parents are those of rows that are there: by UUID what is written.
	made    map[string]nb.Port
	parents map[string]string
	have    map[string]nb.LogicalSwitchPort
}

func newVirtuals() *virtuals {
	return &virtuals{ports: map[string]*nb.LogicalSwitchPort{}, touched: map[spot]bool{}, made: map[string]nb.Port{},
		parents: map[string]string{}, have: map[string]nb.LogicalSwitchPort{}}
}

// left and joined note that a port's further addresses are no longer, or from now on, as the row has them.
func (v *virtuals) left(row nb.LogicalSwitchPort) {
	if row.ExternalIDs[nb.KeyVips] == "" {
		return
	}
	v.touch(row)
	v.ports[row.Name] = nil
}

func (v *virtuals) joined(p nb.Port) {
	if p.Row.Type == nb.TypeVirtual {
		v.touched[spot{p.Switch, p.Row.Options[nb.OptionVirtualIP]}] = true
	}
	if p.Row.ExternalIDs[nb.KeyVips] == "" {
		return
	}
	row := p.Row
	v.touch(row)
	v.ports[row.Name] = &row
}

func (v *virtuals) touch(row nb.LogicalSwitchPort) {
	for _, ip := range splitList(row.ExternalIDs[nb.KeyVips]) {
		v.touched[spot{row.ExternalIDs[nb.KeySwitch], ip}] = true
	}
}

// parentsOf lists who may take an address, by the mirror and by what the batch has changed.
func (v *virtuals) parentsOf(c *composer, at spot) string {
	var out []string
	add := func(row nb.LogicalSwitchPort) {
		ids := row.ExternalIDs
		if ids[nb.KeySwitch] == at.sw && ids[nb.KeyAttachVips] == "true" && slices.Contains(splitList(ids[nb.KeyVips]), at.ip) {
			out = append(out, row.Name)
		}
	}
	for _, row := range c.view.vipPorts() {
		if _, changed := v.ports[row.Name]; !changed {
			add(row)
		}
	}
	for _, row := range v.ports {
		if row != nil {
			add(*row)
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// sync brings the parents at the touched addresses up to date with the change at hand.
func (v *virtuals) sync(c *composer) {
	if len(v.touched) == 0 {
		return
	}
	for _, row := range c.view.virtualPorts() {
		at := spot{row.ExternalIDs[nb.KeySwitch], row.Options[nb.OptionVirtualIP]}
		if !v.touched[at] || row.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN || c.gone[rowKey{tablePort, row.Name}] {
			continue
		}
		planned, known := v.parents[row.UUID]
		if !known {
			planned = row.Options[nb.OptionVirtualParents]
		}
		want := v.parentsOf(c, at)
		if want != planned || want == "" && row.ExternalIDs[nb.KeyVip] != "" {
			c.count++
		}
		v.parents[row.UUID], v.have[row.UUID] = want, row
	}
	clear(v.touched)
}

// fill gives the new ones their parents.
func (v *virtuals) fill(c *composer) {
	for _, p := range v.made {
		m := c.made[rowKey{tablePort, p.Row.Name}]
		options := maps.Clone(p.Row.Options)
		if parents := v.parentsOf(c, spot{p.Switch, options[nb.OptionVirtualIP]}); parents != "" {
			options[nb.OptionVirtualParents] = parents
		}
		m.row[colOptions] = options
	}
}

// operations write the parents of those that are there. What is there for the sake of its parents ends with the last.
func (v *virtuals) operations() []ovsdb.Operation {
	var ops []ovsdb.Operation
	for _, uuid := range slices.Sorted(maps.Keys(v.parents)) {
		row, want := v.have[uuid], map[string]string{}
		if parents := v.parents[uuid]; parents != "" {
			want[nb.OptionVirtualParents] = parents
		} else if row.ExternalIDs[nb.KeyVip] != "" {
			ops = append(ops, unrefer(tableSwitch, colPorts, uuid))
			continue
		}
		ops = append(ops, alter(tablePort, uuid, nil, mapDifference(colOptions, row.Options, want, nb.OptionVirtualParents))...)
	}
	return ops
}

// ensureVirtual makes a virtual port when there is none of its name. One that is there is left as it is: it may be
// somebody else's, who takes care of it.
func (c *composer) ensureVirtual(p nb.Port) {
	if _, ok := c.view.port(p.Row.Name); ok || c.made[rowKey{tablePort, p.Row.Name}] != nil {
		return
	}
	c.makeVirtual(p)
}

func (c *composer) makeVirtual(p nb.Port) {
	named := c.make(tablePort, p.Row.Name, p.Row.ExternalIDs, map[string]any{
		colName: p.Row.Name, colType: p.Row.Type, colExternalIDs: p.Row.ExternalIDs, colOptions: p.Row.Options,
	})
	c.refer(tableSwitch, c.switchRef(p.Switch), []string{named}, nil)
	c.virtual.made[p.Row.Name] = p
}
