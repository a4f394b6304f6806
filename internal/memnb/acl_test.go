package memnb_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// ACLs come, change and go with their parents, and the address sets of a SecurityGroup with its members.
func TestACLsAndAddressSets(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		c := connect(t, endpoint)
		w := writer(t, c)
		apply(t, w, switches("s1"))
		port := podChange("web-0", "s1")
		port.Ensure.Ports[0].SecurityGroups = []string{"web"}
		port.Ensure.Ports[0].Row.ExternalIDs[nb.KeySecurityGroups] = "web"
		port.Ensure.Ports[0].Row.ExternalIDs[nb.PrefixAssociated+"web"] = "true"
		apply(t, w, port)
		acl := func(parent, match, action string, log bool) nb.ACL {
			r := nb.ACL{Direction: nb.ToLport, Priority: 9, Match: match, Action: action, Log: log, ExternalIDs: map[string]string{
				nb.Vendor: nb.VendorKubeOVN, nb.KeyParent: parent, nb.KeyACL: "rule"}}
			if log {
				name, severity := "web", nb.SeverityWarning
				r.Name, r.Severity = &name, &severity
			}
			return r
		}
		name := nb.SecurityGroupName("web")
		group := nb.Group{Name: name, ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeyType: nb.TypeSecurityGroup, nb.KeySecurityGroup: "web"}}
		for _, step := range [][]nb.ACL{
			{acl(name, "ip4", "drop", true), acl(name, "ip6", "drop", false)},
			{acl(name, "ip4", "allow-related", false)},
			nil,
			{acl(name, "ip4", "reject", true)},
		} {
			ch := ovn.Change{Ensure: nb.Rows{Groups: []nb.Group{group}, ACLs: []nb.ACLs{{Group: name, Rows: step}, {Switch: "s1", Rows: onSwitch(step)}}}}
			if got := cost(t, w, ch); got != 1 {
				t.Errorf("%d ACLs took %d transactions, want 1", len(step), got)
			}
			if got := cost(t, w, ch); got != 0 {
				t.Errorf("%d ACLs again took %d transactions, want 0", len(step), got)
			}
			for _, parent := range []nb.ACLs{{Group: name}, {Switch: "s1"}} {
				var got []string
				for _, r := range c.ACLs(parent) {
					got = append(got, fmt.Sprint(r.Match, r.Action, r.Log, r.Name != nil, r.Severity != nil))
				}
				var want []string
				for _, r := range step {
					want = append(want, fmt.Sprint(r.Match, r.Action, r.Log, r.Name != nil, r.Severity != nil))
				}
				slices.Sort(got)
				slices.Sort(want)
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("ACLs of %s (-want +got):\n%s", parent.Parent(), diff)
				}
			}
			if got := c.GroupsOf(portName("web-0")); !slices.Contains(got, name) {
				t.Errorf("groups %v", got)
			}
		}
		apply(t, w, ovn.Change{RemoveGroups: []string{name}, RemovePorts: []string{portName("web-0")}})
		if left := c.ACLs(nb.ACLs{Group: name}); len(left) > 0 {
			t.Errorf("%v are left", left)
		}
	})
}

func onSwitch(rows []nb.ACL) []nb.ACL {
	var out []nb.ACL
	for _, r := range rows {
		r.ExternalIDs = map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyParent: "s1", nb.KeyACL: "subnet"}
		out = append(out, r)
	}
	return out
}
