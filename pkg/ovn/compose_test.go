package ovn

import (
	"errors"
	"fmt"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// summary counts the operations of a transaction.
func summary(ops []ovsdb.Operation) map[string]int {
	out := map[string]int{}
	for _, op := range ops {
		out[op.Op+" "+op.Table]++
	}
	return out
}

func TestComposeSharesWhatChangesHaveInCommon(t *testing.T) {
	s := newFakeStore(t)
	group, subnetGroup := NodeGroup("n1"), SubnetNodeGroup("s1", "n1")
	p := compose(s, 1, []Change{
		podChange("a", "s1", group, subnetGroup), podChange("b", "s1", group), podChange("c", "s1", subnetGroup),
	})
	want := map[string]int{
		"wait NB_Global": 1, "insert Logical_Switch_Port": 3, "insert Port_Group": 2, "mutate Logical_Switch": 1,
	}
	if diff := cmp.Diff(want, summary(p.ops)); diff != "" {
		t.Errorf("operations (-want +got):\n%s", diff)
	}
	if p.ops[0].Op != ovsdb.OperationWait || p.ops[0].Table != tableGlobal {
		t.Errorf("first operation is %s %s, want the fence", p.ops[0].Op, p.ops[0].Table)
	}
	for _, op := range p.ops {
		if op.Table == tableGroup && len(op.Row[colPorts].(ovsdb.OvsSet).GoSet) != 2 {
			t.Errorf("members of %v: %v", op.Row[colName], op.Row[colPorts])
		}
	}
}

// A port that goes is taken out of its groups by the transaction that removes it: a server that came up from its log was
// seen to leave it there. Groups of others are not written.
func TestRemovedPortLeavesItsGroups(t *testing.T) {
	s := newFakeStore(t)
	for i, ids := range []map[string]string{
		{nb.Vendor: nb.VendorKubeOVN, nb.KeyNode: "n1"},
		{nb.Vendor: nb.VendorKubeOVN, nb.KeyType: nb.TypeSecurityGroup, nb.KeySecurityGroup: "sg"},
		{nb.Vendor: nb.VendorKubeOVN},
		{nb.KeyNode: "n1"},
	} {
		name := fmt.Sprint("group-", i)
		s.groups[name] = nb.PortGroup{UUID: fakeUUID(20 + i), Name: name, ExternalIDs: ids, Ports: []string{fakeUUID(7), fakeUUID(8)}}
	}
	row := podChange("a", "s1").Ensure.Ports[0].Row
	row.UUID = fakeUUID(7)
	s.ports[row.Name] = row

	left := map[string]any{}
	for _, op := range compose(s, 1, []Change{{RemovePorts: []string{row.Name}}}).ops {
		if op.Table == tableGroup {
			left[op.Where[0].Value.(ovsdb.UUID).GoUUID] = op.Mutations
		}
	}
	gone := []ovsdb.Mutation{{Column: colPorts, Mutator: ovsdb.MutateOperationDelete, Value: refSet([]string{fakeUUID(7)})}}
	if diff := cmp.Diff(map[string]any{fakeUUID(20): gone, fakeUUID(21): gone}, left); diff != "" {
		t.Errorf("groups that the port leaves (-want +got):\n%s", diff)
	}
}

func TestComposeDefersWhatCollides(t *testing.T) {
	sw := Change{Ensure: nb.Rows{Switches: []nb.LogicalSwitch{vendorSwitch("new")}}}
	cases := map[string]struct {
		changes []Change
		want    []bool
	}{
		"one port twice":               {[]Change{podChange("a", "s1"), podChange("a", "s1")}, []bool{false, true}},
		"made, then removed":           {[]Change{podChange("a", "s1"), {RemovePorts: []string{"a.default"}}}, []bool{false, true}},
		"those behind keep their turn": {[]Change{podChange("a", "s1"), {RemovePorts: []string{"a.default", "b.default"}}, podChange("b", "s1")}, []bool{false, true, true}},
		"switch removed under a port":  {[]Change{podChange("a", "s1"), {RemoveSwitches: []string{"s1"}}}, []bool{false, true}},
		"port on a removed switch":     {[]Change{{RemoveSwitches: []string{"s1"}}, podChange("a", "s1")}, []bool{false, true}},
		"switch made, port on it":      {[]Change{sw, podChange("a", "new")}, []bool{false, false}},
		"group removed and wanted":     {[]Change{{RemoveGroups: []string{"node.n1"}}, podChange("a", "s1", NodeGroup("n1"))}, []bool{false, true}},
		"nothing in common":            {[]Change{podChange("a", "s1"), podChange("b", "s1")}, []bool{false, false}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var got []bool
			for _, f := range compose(newFakeStore(t), 1, tc.changes).fates {
				if f.err != nil {
					t.Error(f.err)
				}
				got = append(got, f.deferred)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("deferred (-want +got):\n%s", diff)
			}
		})
	}
}

func TestComposeRefuses(t *testing.T) {
	var (
		invalid *InvalidRowError
		clash   *ClashError
		missing *MissingRowError
	)
	link := func(router string) nb.RouterPort {
		return nb.RouterPort{Router: router, Row: nb.LogicalRouterPort{Name: "x"}}
	}
	cases := map[string]struct {
		change Change
		want   any
	}{
		"one port twice":          {Change{Ensure: nb.Rows{Ports: append(podChange("a", "s1").Ensure.Ports, podChange("a", "s1").Ensure.Ports...)}}, &invalid},
		"made and removed":        {Change{Ensure: podChange("a", "s1").Ensure, RemovePorts: []string{"a.default"}}, &invalid},
		"parent removed":          {Change{Ensure: podChange("a", "s1").Ensure, RemoveSwitches: []string{"s1"}}, &invalid},
		"no name":                 {Change{RemovePorts: []string{""}}, &invalid},
		"router that isn't there": {Change{Ensure: nb.Rows{RouterPorts: []nb.RouterPort{link("r")}}}, &missing},
		"one name for two nodes":  {podChange("a", "s1", NodeGroup("a.b")), &clash},
		"null byte in a map":      {Change{Ensure: nb.Rows{Switches: []nb.LogicalSwitch{{Name: "x", OtherConfig: map[string]string{"a": "\x00"}}}}}, &invalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := newFakeStore(t)
			s.groups["node.a.b"] = nb.PortGroup{UUID: fakeUUID(9), Name: "node.a.b", ExternalIDs: NodeGroup("a-b").ExternalIDs}
			p := compose(s, 1, []Change{tc.change, podChange("innocent", "s1")})
			if !errors.As(p.fates[0].err, tc.want) {
				t.Errorf("%v, want %T", p.fates[0].err, tc.want)
			}
			if !p.fates[1].part || len(p.ops) == 0 {
				t.Errorf("the other change isn't part of the transaction: %+v", p.fates[1])
			}
		})
	}
}

func TestMapDifference(t *testing.T) {
	have := map[string]string{"same": "1", "other": "1", "ours": "1", "theirs": "1"}
	want := map[string]string{"same": "1", "other": "2", "new": "3"}
	got := mapDifference(colExternalIDs, have, want, "same", "ours", "absent")
	if len(got) != 2 {
		t.Fatalf("mutations %v", got)
	}
	dropped := map[any]bool{}
	for _, k := range got[0].Value.(ovsdb.OvsSet).GoSet {
		dropped[k] = true
	}
	if diff := cmp.Diff(map[any]bool{"other": true, "ours": true}, dropped); diff != "" {
		t.Errorf("dropped (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[any]any{"other": "2", "new": "3"}, got[1].Value.(ovsdb.OvsMap).GoMap); diff != "" {
		t.Errorf("set (-want +got):\n%s", diff)
	}
	if got := mapDifference(colExternalIDs, have, have, "same"); got != nil {
		t.Errorf("mutations %v without a difference", got)
	}
}
