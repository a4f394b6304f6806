package ovn

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
)

// switchOf tells which switch really refers to a port.
func (s *server) switchOf(port string) string {
	s.t.Helper()
	var on []string
	for _, sw := range strings.Fields(s.nbctl("--bare", "--columns=name", "list", "Logical_Switch")) {
		if strings.Contains(s.nbctl("lsp-list", sw), "("+port+")") {
			on = append(on, sw)
		}
	}
	return strings.Join(on, ",")
}

func TestPortMovesBetweenSwitches(t *testing.T) {
	s, c, w := setup(t)
	apply(t, w, podChange("web-0", "s1", NodeGroup("n1")))
	ch := podChange("web-0", "s2", NodeGroup("n1"), SubnetNodeGroup("s2", "n1"))
	if got := cost(t, w, ch); got != 1 {
		t.Errorf("the move took %d transactions, want 1", got)
	}
	if got := s.switchOf("web-0.default"); got != "s2" {
		t.Errorf("port is on %q, want s2", got)
	}
	if diff := cmp.Diff([]string{"node.n1", "s2.n1"}, c.GroupsOf("web-0.default")); diff != "" {
		t.Error(diff)
	}
	row, _ := c.Port("web-0.default")
	if got := row.ExternalIDs[nb.KeySwitch]; got != "s2" {
		t.Errorf("external_ids:ls is %q", got)
	}
}

func TestB87GroupsFollowTheNode(t *testing.T) {
	s, c, w := setup(t)
	apply(t, w, podChange("web-0", "s1", NodeGroup("n1"), SubnetNodeGroup("s1", "n1")))
	apply(t, w, podChange("web-1", "s1", NodeGroup("n1"), SubnetNodeGroup("s1", "n1")))
	foreign := []string{"ovn.sg.web", "policy.default", "other"}
	for name, ids := range map[string][]string{
		"ovn.sg.web":     {"external_ids:vendor=kube-ovn", "external_ids:sg=web", "external_ids:type=security_group"},
		"policy.default": {"external_ids:vendor=kube-ovn", "external_ids:np=default/policy"},
		"other":          {"external_ids:node=n1"},
	} {
		s.nbctl("pg-add", name, "web-0.default")
		s.nbctl(append([]string{"set", "Port_Group", name}, ids...)...)
	}
	// The writer has seen the foreign groups once it has seen a later write of somebody else.
	waitUntil(t, c, func() bool { return len(c.GroupsOf("web-0.default")) == 5 && len(c.Groups()) == 5 })

	cases := []struct {
		name   string
		change Change
		want   []string
	}{
		{"not bound: groups stay", podChange("web-0", "s1"), append([]string{"node.n1", "s1.n1"}, foreign...)},
		{"another node", podChange("web-0", "s1", NodeGroup("n2"), SubnetNodeGroup("s1", "n2")), append([]string{"node.n2", "s1.n2"}, foreign...)},
		{"one group less", podChange("web-0", "s1", NodeGroup("n2")), append([]string{"node.n2"}, foreign...)},
		{"no group at all", noGroups(podChange("web-0", "s1")), foreign},
	}
	for _, tc := range cases {
		t.Run(tc.name, func(t *testing.T) {
			apply(t, w, tc.change)
			got := map[string]bool{}
			for _, g := range c.GroupsOf("web-0.default") {
				got[g] = true
			}
			want := map[string]bool{}
			for _, g := range tc.want {
				want[g] = true
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("groups (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"node.n1", "s1.n1"}, c.GroupsOf("web-1.default")); diff != "" {
				t.Errorf("groups of the other pod:\n%s", diff)
			}
		})
	}
}

func noGroups(ch Change) Change {
	ch.Ensure.Ports[0].Groups = []string{}
	return ch
}

func waitUntil(t *testing.T, c *Client, ok func() bool) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		changed := c.changed()
		if ok() {
			return
		}
		select {
		case <-changed:
		case <-timeout:
			t.Fatal("the mirror doesn't show what was written")
		}
	}
}

func TestB88MissingPortDoesNotHoldUpTheOthers(t *testing.T) {
	_, c, w := setup(t)
	var wg sync.WaitGroup
	for i := range 100 {
		wg.Go(func() {
			sw := "s1"
			if i == 50 {
				sw = "s9"
			}
			err := w.Apply(t.Context(), podChange(fmt.Sprintf("p%d", i), sw, NodeGroup("new")))
			if missing := (*MissingRowError)(nil); errors.As(err, &missing) != (i == 50) {
				t.Errorf("p%d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if got := len(c.Groups()[0].Ports); got != 99 {
		t.Errorf("%d members, want 99", got)
	}
	late := podChange("p50", "s9", NodeGroup("new"))
	late.Ensure.Switches = []nb.LogicalSwitch{vendorSwitch("s9")}
	apply(t, w, late)
	if got := len(c.Groups()[0].Ports); got != 100 {
		t.Errorf("%d members, want 100", got)
	}
}

func TestB90RemovalFindsTheRealParent(t *testing.T) {
	s, c, w := setup(t)
	cases := map[string][]string{
		"right switch":       {"external_ids:ls=s1", "external_ids:vendor=kube-ovn"},
		"wrong switch":       {"external_ids:ls=s2", "external_ids:vendor=kube-ovn"},
		"no such switch":     {"external_ids:ls=gone", "external_ids:vendor=kube-ovn"},
		"no switch key":      {"external_ids:vendor=kube-ovn"},
		"no key of any kind": nil,
	}
	for name, ids := range cases {
		t.Run(name, func(t *testing.T) {
			port := strings.ReplaceAll(name, " ", ".")
			s.nbctl("lsp-add", "s1", port)
			if len(ids) > 0 {
				s.nbctl(append([]string{"set", "Logical_Switch_Port", port}, ids...)...)
			}
			waitUntil(t, c, func() bool { p, ok := c.Port(port); return ok && len(p.ExternalIDs) == len(ids) })
			if got := cost(t, w, Change{RemovePorts: []string{port}}); got != 1 {
				t.Errorf("removal took %d transactions, want 1", got)
			}
			if got := s.switchOf(port); got != "" {
				t.Errorf("port is still on %s", got)
			}
			if got := cost(t, w, Change{RemovePorts: []string{port}}); got != 0 {
				t.Errorf("second removal took %d transactions, want 0", got)
			}
		})
	}
}

func TestB95ForeignRowsAreLeftAlone(t *testing.T) {
	s, c, w := setup(t)
	s.nbctl("ls-add", "theirs", "--", "lsp-add", "theirs", "theirs.port", "--", "lr-add", "their-router",
		"--", "lrp-add", "their-router", "their-lrp", "02:00:00:00:00:09", "10.9.0.1/24", "--", "pg-add", "their.group",
		"--", "set", "Logical_Switch", "theirs", "external_ids:vendor=other",
		"--", "set", "Logical_Switch_Port", "theirs.port", "external_ids:vendor=other")
	waitUntil(t, c, func() bool { _, ok := c.Port("theirs.port"); return ok && len(c.Groups()) == 1 })
	cases := map[string]Change{
		"port":           {RemovePorts: []string{"theirs.port"}},
		"switch":         {RemoveSwitches: []string{"theirs"}},
		"router":         {RemoveRouters: []string{"their-router"}},
		"router port":    {RemoveRouterPorts: []string{"their-lrp"}},
		"group":          {RemoveGroups: []string{"their.group"}},
		"ensured port":   {Ensure: nb.Rows{Ports: []nb.Port{{Switch: "s1", Row: nb.LogicalSwitchPort{Name: "theirs.port"}}}}},
		"ensured switch": {Ensure: nb.Rows{Switches: []nb.LogicalSwitch{vendorSwitch("theirs")}}},
	}
	before := w.Transactions()
	for name, ch := range cases {
		t.Run(name, func(t *testing.T) {
			if err, foreign := w.Apply(t.Context(), ch), (*ForeignRowError)(nil); !errors.As(err, &foreign) {
				t.Errorf("%v, want *ForeignRowError", err)
			}
		})
	}
	if got := w.Transactions() - before; got != 0 {
		t.Errorf("%d transactions, want 0", got)
	}
}

func TestForeignKeysAreKept(t *testing.T) {
	s, c, w := setup(t)
	ch := podChange("web-0", "s1")
	ch.Ensure.Ports[0].Row.ExternalIDs[nb.KeyClaim] = "c1"
	apply(t, w, ch)
	s.nbctl("set", "Logical_Switch_Port", "web-0.default", "external_ids:associated_sg_web=true", "options:arp_proxy=true")
	s.nbctl("set", "Logical_Switch", "s1", "other_config:mcast_snoop=true")
	waitUntil(t, c, func() bool { sw, _ := c.Switch("s1"); return len(sw.OtherConfig) == 1 })
	delete(ch.Ensure.Ports[0].Row.ExternalIDs, nb.KeyClaim)
	ch.Ensure.Ports[0].Row.ExternalIDs[nb.KeyPodUID] = "u1"
	ch.Ensure.Ports[0].Row.Options = map[string]string{"requested-chassis": "n1"}
	ch.Ensure.Ports[0].Row.PortSecurity = ch.Ensure.Ports[0].Row.Addresses
	ch.Ensure.Switches = []nb.LogicalSwitch{vendorSwitch("s1")}
	if got := cost(t, w, ch); got != 1 {
		t.Errorf("%d transactions, want 1", got)
	}
	want := nb.LogicalSwitchPort{
		Name: "web-0.default", Addresses: []string{"0a:58:0a:10:00:02 10.16.0.2"},
		PortSecurity: []string{"0a:58:0a:10:00:02 10.16.0.2"},
		ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s1", nb.KeyPod: "default/web-0", nb.KeyPodUID: "u1",
			"associated_sg_web": "true",
		},
		Options: map[string]string{"requested-chassis": "n1", "arp_proxy": "true"},
	}
	got, _ := c.Port("web-0.default")
	got.UUID = ""
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("port (-want +got):\n%s", diff)
	}
	sw, _ := c.Switch("s1")
	if diff := cmp.Diff(map[string]string{"mcast_snoop": "true"}, sw.OtherConfig); diff != "" {
		t.Error(diff)
	}
}

func TestTopologyIsRemovedOnce(t *testing.T) {
	s, c, w := setup(t)
	ids := map[string]string{nb.Vendor: nb.VendorKubeOVN}
	apply(t, w, Change{Ensure: nb.Rows{
		Routers:  []nb.LogicalRouter{{Name: "r", ExternalIDs: ids}},
		Switches: []nb.LogicalSwitch{vendorSwitch("s3")},
		RouterPorts: []nb.RouterPort{{Router: "r", Row: nb.LogicalRouterPort{
			Name: "r-s3", MAC: "02:00:00:00:00:01", Networks: []string{"10.3.0.1/24", "fd03::1/64"}, ExternalIDs: ids}}},
		Ports: []nb.Port{{Switch: "s3", Row: nb.LogicalSwitchPort{Name: "s3-r", Type: "router", Addresses: []string{"router"},
			Options: map[string]string{"router-port": "r-s3"}, ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s3"}}}},
		Groups: []nb.Group{NodeGroup("n1")},
	}})
	if got := s.nbctl("--bare", "--columns=networks", "list", "Logical_Router_Port", "r-s3"); got != "10.3.0.1/24 fd03::1/64" {
		t.Errorf("networks %q", got)
	}
	removal := Change{
		RemoveRouterPorts: []string{"r-s3"}, RemoveSwitches: []string{"s3"}, RemoveRouters: []string{"r"},
		RemoveGroups: []string{"node.n1"}, RemovePorts: []string{"s3-r"},
	}
	for i, want := range []int64{1, 0} {
		if got := cost(t, w, removal); got != want {
			t.Errorf("removal %d took %d transactions, want %d", i, got, want)
		}
	}
	if len(c.Routers())+len(c.RouterPorts())+len(c.Groups()) != 0 {
		t.Error("rows are left")
	}
	if got := len(c.Switches()); got != 2 {
		t.Errorf("%d switches, want 2", got)
	}
}

func TestSwitchIsNeverMadeTwice(t *testing.T) {
	s, c, w := setup(t)
	s.nbctl("ls-add", "twin", "--", "--may-exist", "ls-add", "other")
	s.nbctl("--id=@s", "create", "Logical_Switch", "name=twin")
	waitUntil(t, c, func() bool { return len(c.Switches()) == 5 })
	for name, ch := range map[string]Change{
		"as a parent": podChange("web-0", "twin"),
		"asked for":   {Ensure: nb.Rows{Switches: []nb.LogicalSwitch{vendorSwitch("twin")}}},
	} {
		t.Run(name, func(t *testing.T) {
			if err, twin := w.Apply(t.Context(), ch), (*AmbiguousRowError)(nil); !errors.As(err, &twin) {
				t.Errorf("%v, want *AmbiguousRowError", err)
			}
		})
	}
}
