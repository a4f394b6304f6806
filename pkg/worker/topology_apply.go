package worker

import (
	"context"
	"errors"
	"slices"

	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// obstacles bounds how many rows of others may be in the way of one topology.
const obstacles = 100

// bulk is how many rows of a new topology are written at once: about half a second of the database's time.
const bulk = 2000

// applyTopology writes the rows. A row of somebody else that is in the way takes one of ours out, and what hangs on it; of a
// switch of which there are two all is left as it is. It is told, and the others are written.
func (w *Worker) applyTopology(ctx context.Context, ch ovn.Change) error {
	if err := w.applyBulk(ctx, ch); err != nil {
		return err
	}
	for range obstacles {
		err := w.apply(ctx, ch)
		var foreign *ovn.ForeignRowError
		var clash *ovn.ClashError
		var twice *ovn.AmbiguousRowError
		switch {
		case errors.As(err, &foreign) && (spare(&ch, foreign.Name) || leaveOut(&ch.Ensure, foreign.Name)):
		case errors.As(err, &clash) && leaveOut(&ch.Ensure, clash.Name):
		case errors.As(err, &twice) && leaveAsItIs(&ch.Ensure, twice.Name):
		default:
			return err
		}
		w.tellOnce("topology "+err.Error(), "A row of somebody else is in the topology's way", "reason", err.Error())
	}
	return errors.New("too many rows of others are in the topology's way: see the log for their names")
}

// applyBulk writes the bulk of a topology that is new in parts, so that pods needn't wait for all of it. What is in the way
// of a part is left to the topology as a whole.
func (w *Worker) applyBulk(ctx context.Context, ch ovn.Change) error {
	for _, rows := range w.Northbound.Bulk(ch.Ensure, bulk) {
		err := w.apply(ctx, ovn.Change{Key: ch.Key, Ensure: rows})
		var foreign *ovn.ForeignRowError
		var clash *ovn.ClashError
		var twice *ovn.AmbiguousRowError
		if err != nil && !errors.As(err, &foreign) && !errors.As(err, &clash) && !errors.As(err, &twice) {
			return err
		}
	}
	return nil
}

// spare takes a switch or router out of those that are to go: somebody else has one of its name. It returns false when there
// is no such row.
func spare(ch *ovn.Change, name string) bool {
	n := len(ch.RemoveSwitches) + len(ch.RemoveRouters)
	is := func(s string) bool { return s == name }
	ch.RemoveSwitches = slices.DeleteFunc(slices.Clone(ch.RemoveSwitches), is)
	ch.RemoveRouters = slices.DeleteFunc(slices.Clone(ch.RemoveRouters), is)
	return len(ch.RemoveSwitches)+len(ch.RemoveRouters) < n
}

// leaveAsItIs takes a switch out of the rows, and leaves what hangs on it. It returns false when there is no such row.
func leaveAsItIs(rows *nb.Rows, name string) bool {
	if !slices.ContainsFunc(rows.Switches, func(s nb.LogicalSwitch) bool { return s.Name == name }) {
		return false
	}
	rows.Held = append(slices.Clone(rows.Held), name)
	return leaveOut(rows, name)
}

// leaveOut takes a row, by the name that errors have, and what hangs on it out of the rows. It returns false when there
// is no such row.
func leaveOut(rows *nb.Rows, name string) bool {
	n := size(rows)
	without := func(names ...string) bool { return slices.Contains(names, name) }
	rows.Switches = slices.DeleteFunc(slices.Clone(rows.Switches), func(s nb.LogicalSwitch) bool { return without(s.Name) })
	rows.Complete = slices.DeleteFunc(slices.Clone(rows.Complete), func(s string) bool { return without(s) })
	rows.DHCP = slices.DeleteFunc(slices.Clone(rows.DHCP), func(d nb.DHCPOptions) bool { return without(d.ExternalIDs[nb.KeySwitch]) })
	rows.Ports = slices.DeleteFunc(slices.Clone(rows.Ports), func(p nb.Port) bool { return without(p.Switch, p.Row.Name) })
	rows.Groups = slices.DeleteFunc(slices.Clone(rows.Groups), func(g nb.Group) bool { return without(g.Name) })
	rows.ACLs = slices.DeleteFunc(slices.Clone(rows.ACLs), func(a nb.ACLs) bool { return without(a.Switch) })
	rows.Routers = slices.DeleteFunc(slices.Clone(rows.Routers), func(r nb.LogicalRouter) bool { return without(r.Name) })
	rows.RouterPorts = slices.DeleteFunc(slices.Clone(rows.RouterPorts), func(p nb.RouterPort) bool { return without(p.Router, p.Row.Name) })
	rows.Policies = slices.DeleteFunc(slices.Clone(rows.Policies), func(p nb.Policy) bool {
		return without(p.Router, p.Router+" "+ovn.PolicyName(p.Row))
	})
	rows.Routes = slices.DeleteFunc(slices.Clone(rows.Routes), func(r nb.Route) bool { return without(r.Router) })
	return size(rows) < n
}

func size(r *nb.Rows) int {
	return len(r.Switches) + len(r.Ports) + len(r.Groups) + len(r.Routers) + len(r.RouterPorts) + len(r.Policies) + len(r.Routes) + len(r.DHCP)
}
