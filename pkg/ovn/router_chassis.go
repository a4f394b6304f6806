package ovn

import (
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// firstChassis is the priority of the node that does a router port's work while it can. Kube-OVN counts down from here
// too. Beyond a hundred nodes all have the lowest: the database has no negative numbers.
const firstChassis = 100

func chassisPriority(place int) int { return max(firstChassis-place, 1) }

// chassisName names a row in the way that OVN's own tool does.
func chassisName(port, chassis string) string { return port + "-" + chassis }

// makeChassis plans the rows of nodes for a router port, by their places in the port's order. It returns what stands for
// their UUIDs.
func (c *composer) makeChassis(port string, chassis []string, places []int) []string {
	var refs []string
	for _, i := range places {
		ids := map[string]string{nb.Vendor: nb.VendorKubeOVN}
		name := chassisName(port, chassis[i])
		refs = append(refs, c.make(tableChassis, name, ids, map[string]any{
			colName: name, colChassisName: chassis[i], colPriority: chassisPriority(i), colExternalIDs: ids,
		}))
	}
	return refs
}

// ensureChassis gives a router port that exists its nodes, and no others.
func (c *composer) ensureChassis(have nb.LogicalRouterPort, p nb.RouterPort) {
	if p.Chassis == nil {
		return
	}
	left := map[string]int{}
	for i, name := range p.Chassis {
		left[name] = i
	}
	var drop []string
	for _, uuid := range have.GatewayChassis {
		row, ok := c.view.chassis(uuid)
		place, wanted := left[row.ChassisName]
		if !ok || !wanted {
			drop = append(drop, uuid)
			continue
		}
		delete(left, row.ChassisName)
		if want := chassisPriority(place); row.Priority != want {
			c.emitRows(alter(tableChassis, uuid, ovsdb.Row{colPriority: want}, nil)...)
		}
	}
	var places []int
	for i, name := range p.Chassis {
		if _, lacks := left[name]; lacks {
			places = append(places, i)
		}
	}
	if len(drop)+len(places) > 0 {
		c.referIn(edgeKey{tableRouterPort, have.UUID, colChassis}, c.makeChassis(p.Row.Name, p.Chassis, places), drop)
	}
}

// allPlaces are those of a router port's nodes.
func allPlaces(chassis []string) []int {
	var out []int
	for i := range chassis {
		out = append(out, i)
	}
	return out
}

func (s *session) chassis(uuid string) (nb.GatewayChassis, bool) {
	r, ok := s.tables[tableChassis].Row(uuid).(*chassisRow)
	if !ok {
		return nb.GatewayChassis{}, false
	}
	return nb.GatewayChassis(*r), true
}
