package ovn

import (
	"errors"
	"strings"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
)

// wire applies a pod's rows, twice: the second time nothing may differ.
func wire(t *testing.T, w *Writer, in PodInput) {
	t.Helper()
	ch := Change{Key: in.Namespace + "/" + in.Name, Ensure: podRows(t, in)}
	apply(t, w, ch)
	if got := cost(t, w, ch); got != 0 {
		t.Errorf("second pass of %s took %d transactions, want 0", ch.Key, got)
	}
}

func unwire(t *testing.T, w *Writer, port string) {
	t.Helper()
	apply(t, w, Change{Key: port, RemovePorts: []string{port}})
	if got := cost(t, w, Change{Key: port, RemovePorts: []string{port}}); got != 0 {
		t.Errorf("second removal of %s took %d transactions, want 0", port, got)
	}
}

func setupWorld(t *testing.T) (*server, *Client, *Writer) {
	t.Helper()
	s, c, w := setup(t)
	apply(t, w, world())
	if got := cost(t, w, world()); got != 0 {
		t.Errorf("second pass of the topology took %d transactions, want 0", got)
	}
	return s, c, w
}

func eipPod(name string, host int, from ...string) PodInput {
	return worldPod(name, host, func(_ *PodInput, i *InterfaceInput) { i.EIPs, i.EIPsFrom = addrs("172.16.0.9"), from })
}

func TestB92EIPMovesWhileTheOldPodTerminates(t *testing.T) {
	_, c, w := setupWorld(t)
	to := func(pod, ip string) {
		t.Helper()
		if got := linesWith(c, "nat ovn-cluster", "172.16.0.9 "+ip, "pod=d/"+pod); len(got) != 1 || len(linesWith(c, "nat ")) != 1 {
			t.Errorf("translations %q, want that of %s alone", linesWith(c, "nat "), pod)
		}
	}
	wire(t, w, eipPod("p1", 2))
	to("p1", "10.0.0.2")
	var clash *ClashError
	if err := w.Apply(t.Context(), Change{Ensure: podRows(t, eipPod("p2", 3))}); !errors.As(err, &clash) || clash.Have != "d/p1" {
		t.Errorf("EIP of a living pod: %v, want *ClashError", err)
	}
	to("p1", "10.0.0.2")
	wire(t, w, eipPod("p2", 3, "d/p1"))
	to("p2", "10.0.0.3")
	if diff := cmp.Diff([]string{"d/p2"}, c.EIPHolders("172.16.0.9")); diff != "" {
		t.Error(diff)
	}
	unwire(t, w, "p1.d")
	to("p2", "10.0.0.3")
	if got := linesWith(c, "pod=d/p1"); got != nil {
		t.Errorf("rows of p1 are left: %q", got)
	}
	unwire(t, w, "p2.d")
	if got := append(linesWith(c, "nat "), linesWith(c, "policy ")...); got != nil {
		t.Errorf("rows are left: %q", got)
	}
}

// The annotation goes from one pod and comes to the other in one batch, in either order.
func TestB92EIPMovesInOneBatch(t *testing.T) {
	_, c, w := setupWorld(t)
	wire(t, w, eipPod("p1", 2))
	errs := make(chan error, 2)
	for _, in := range []PodInput{worldPod("p1", 2, nil), eipPod("p2", 3, "d/p1")} {
		ch := Change{Ensure: podRows(t, in)}
		go func() { errs <- w.Apply(t.Context(), ch) }()
	}
	for range 2 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	if got := linesWith(c, "nat "); len(got) != 1 || !strings.Contains(got[0], "pod=d/p2") {
		t.Errorf("translations %q, want that of p2", got)
	}
}

func TestSNATAddressIsShared(t *testing.T) {
	_, c, w := setupWorld(t)
	snat := func(_ *PodInput, i *InterfaceInput) { i.SNATs = addrs("172.16.0.9", "172.16.0.8") }
	wire(t, w, worldPod("p1", 2, snat))
	wire(t, w, worldPod("p2", 3, snat))
	if got := linesWith(c, "nat "); len(got) != 4 {
		t.Errorf("%d translations, want 4: %q", len(got), got)
	}
	before := linesWith(c, "pod=d/p2")
	unwire(t, w, "p1.d")
	if diff := cmp.Diff(before, linesWith(c, "pod=d/p2")); diff != "" {
		t.Errorf("rows of the other pod:\n%s", diff)
	}
	wire(t, w, worldPod("p2", 3, nil))
	if got := linesWith(c, "nat "); got != nil {
		t.Errorf("without the annotation: %q", got)
	}
}

func TestB95ForeignRoutesAndTranslations(t *testing.T) {
	s, c, w := setupWorld(t)
	s.nbctl("lr-nat-add", "ovn-cluster", "dnat_and_snat", "172.16.0.9", "10.0.0.2", "--", "lr-nat-add", "ovn-cluster", "snat", "172.16.0.7", "10.0.0.0/24",
		"--", "lr-policy-add", "ovn-cluster", "29250", "ip4.src == 10.0.0.3", "drop", "--", "lr-policy-add", "v1", "29250", "ip4.src == 10.0.0.2", "drop")
	waitUntil(t, c, func() bool { return len(linesWith(c, "nat ovn"))+len(linesWith(c, "policy ")) == 4 })
	foreign := append(linesWith(c, "nat "), linesWith(c, "policy ")...)
	check := func() {
		t.Helper()
		have := map[string]bool{}
		for _, l := range dump(c) {
			have[l] = true
		}
		for _, l := range foreign {
			if !have[l] {
				t.Errorf("foreign row is gone or changed: %s", l)
			}
		}
	}
	// p1's translation is there already, by somebody else's hand.
	wire(t, w, eipPod("p1", 2))
	if got := linesWith(c, "nat "); len(got) != 2 {
		t.Errorf("translations %q, want two", got)
	}
	check()
	wire(t, w, worldPod("p1", 2, nil))
	check()
	var alien *ForeignRowError
	north := worldPod("p2", 3, func(_ *PodInput, i *InterfaceInput) { i.NorthGateways = addrs("10.0.0.254") })
	for name, in := range map[string]PodInput{"translation": eipPod("p3", 4), "policy": north} {
		if err := w.Apply(t.Context(), Change{Ensure: podRows(t, in)}); !errors.As(err, &alien) {
			t.Errorf("%s: %v, want *ForeignRowError", name, err)
		}
	}
	unwire(t, w, "p1.d")
	check()
}

// A route of somebody else says nothing of a policy: it is passed over, and stays.
func TestB94RouteWithoutAPolicy(t *testing.T) {
	s, c, w := setupWorld(t)
	s.nbctl("lr-route-add", "ovn-cluster", "10.99.0.0/24", "10.0.0.254")
	if got := s.nbctl("--bare", "--columns=policy", "find", "Logical_Router_Static_Route", "ip_prefix=10.99.0.0/24"); got != "" {
		t.Fatalf("the route has the policy %q", got)
	}
	theirs := func() []string { return linesWith(c, "route ", "10.99.0.0/24") }
	waitUntil(t, c, func() bool { return len(theirs()) == 1 })
	before := theirs()
	wire(t, w, worldPod("p1", 2, nil))
	unwire(t, w, "p1.d")
	if diff := cmp.Diff(before, theirs()); diff != "" {
		t.Errorf("their route (-before +after):\n%s", diff)
	}
}

func TestLegacyStaticRoutes(t *testing.T) {
	s, c, w := setupWorld(t)
	for _, args := range [][]string{{"10.0.0.2", "ovn-cluster", "kube-ovn"}, {"10.0.0.2", "v1", "kube-ovn"}, {"10.0.0.4", "ovn-cluster", "kube-ovn"}, {"fd00::2", "ovn-cluster", "other"}} {
		s.nbctl("--id=@r", "create", "Logical_Router_Static_Route", "ip_prefix=\""+args[0]+"\"", "nexthop=\"100.64.0.1\"", "external_ids:vendor="+args[2],
			"--", "add", "Logical_Router", args[1], "static_routes", "@r")
	}
	waitUntil(t, c, func() bool { return len(linesWith(c, "route ")) == 4 })
	wire(t, w, worldPod("p1", 2, nil))
	if got := linesWith(c, "route "); len(got) != 3 || len(linesWith(c, "route ovn-cluster:  10.0.0.2 ")) != 0 {
		t.Errorf("routes %q", got)
	}
}

func TestB93SecurityGroups(t *testing.T) {
	s, c, w := setupWorld(t)
	for sg, group := range map[string]string{"web": "ovn.sg.web", "a-b": "ovn.sg.a.b", nb.DenyAll: "ovn.sg.kubeovn_deny_all"} {
		s.nbctl("pg-add", group, "--", "set", "Port_Group", group, "external_ids:vendor=kube-ovn", "external_ids:type=security_group", "external_ids:sg="+sg)
	}
	waitUntil(t, c, func() bool { return len(c.Groups()) == 3 })
	groups := func(sgs ...string) PodInput {
		return worldPod("p1", 2, func(in *PodInput, i *InterfaceInput) { i.SecurityGroups, in.Node = sgs, nil })
	}
	for _, tc := range []struct {
		name string
		sgs  []string
		want []string
	}{
		{"two", []string{"web", " a-b"}, []string{"ovn.sg.a.b", "ovn.sg.kubeovn_deny_all", "ovn.sg.web"}},
		{"one less", []string{"web"}, []string{"ovn.sg.kubeovn_deny_all", "ovn.sg.web"}},
		{"one that has no group yet", []string{"new"}, nil},
		{"the other's name, dotted", []string{"a.b"}, nil},
		{"one again", []string{"a-b"}, []string{"ovn.sg.a.b", "ovn.sg.kubeovn_deny_all"}},
		{"none", nil, nil},
		{"both", []string{"web", "a-b"}, []string{"ovn.sg.a.b", "ovn.sg.kubeovn_deny_all", "ovn.sg.web"}},
	} {
		wire(t, w, groups(tc.sgs...))
		if diff := cmp.Diff(tc.want, c.GroupsOf("p1.d")); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, diff)
		}
		row, _ := c.Port("p1.d")
		for key := range row.ExternalIDs {
			if sg, ok := strings.CutPrefix(key, nb.PrefixAssociated); ok && !strings.Contains(strings.Join(tc.sgs, ","), sg) {
				t.Errorf("%s: external_ids:%s is left", tc.name, key)
			}
		}
	}
	// The next launcher of a virtual machine takes the port over, under another UID, and with it the groups.
	restarted := groups("web", "a-b")
	restarted.UID = "u2"
	wire(t, w, restarted)
	if got := c.GroupsOf("p1.d"); len(got) != 3 {
		t.Errorf("groups after a restart: %q", got)
	}
}

func TestDHCPRowsFollowThePort(t *testing.T) {
	_, c, w := setupWorld(t)
	dhcp := func(edit func(*InterfaceInput)) PodInput {
		return worldPod("p1", 2, func(_ *PodInput, i *InterfaceInput) { edit(i) })
	}
	shared := func(i *InterfaceInput) { i.Subnet.EnableDHCP = true }
	own := func(i *InterfaceInput) { i.Subnet.EnableDHCP, i.DHCPv4 = true, "mtu=9000" }
	for _, tc := range []struct {
		name       string
		edit       func(*InterfaceInput)
		refs, rows int
	}{
		{"none", func(*InterfaceInput) {}, 0, 2}, {"the switch's", shared, 2, 2}, {"own", own, 2, 3},
		{"own, otherwise", func(i *InterfaceInput) { own(i); i.DHCPv4 = "lease_time=9" }, 2, 3}, {"the switch's again", shared, 2, 2},
		{"own only", func(i *InterfaceInput) { i.DHCPv6 = "server_id=x" }, 1, 3},
	} {
		wire(t, w, dhcp(tc.edit))
		row, _ := c.Port("p1.d")
		if got := len(pointed(row.DHCPv4)) + len(pointed(row.DHCPv6)); got != tc.refs {
			t.Errorf("%s: %d references, want %d", tc.name, got, tc.refs)
		}
		if got := linesWith(c, "dhcp "); len(got) != tc.rows+len(linesWith(c, "port ", "<")) && len(linesWith(c, "protocol=")) == 0 {
			t.Errorf("%s: rows %q", tc.name, got)
		}
		if got := len(rowsOf[*dhcpRow](c, tableDHCP)); got != tc.rows {
			t.Errorf("%s: %d rows, want %d", tc.name, got, tc.rows)
		}
	}
	unwire(t, w, "p1.d")
	if got := len(rowsOf[*dhcpRow](c, tableDHCP)); got != 2 {
		t.Errorf("%d rows after the port has gone, want the switch's two", got)
	}
	off := world()
	off.Ensure.DHCP, off.Ensure.Ports = nil, nil
	apply(t, w, off)
	if got := append(linesWith(c, "protocol="), linesWith(c, "virtual")...); got != nil {
		t.Errorf("the subnet no longer has any of it: %q", got)
	}
}

func TestVirtualPortsKnowTheirParents(t *testing.T) {
	_, c, w := setupWorld(t)
	pod := func(name string, host int, sw string, vips ...string) PodInput {
		return worldPod(name, host, func(_ *PodInput, i *InterfaceInput) {
			i.Subnet.Name, i.Vips = sw, addrs(vips...)
			for _, v := range vips {
				if v == "10.0.0.50" {
					i.Virtuals = []Virtual{{"vip1", addrs(v)[0]}}
				}
			}
		})
	}
	parents := func(port string) string {
		row, ok := c.Port(port)
		if !ok {
			return "none"
		}
		return row.Options["virtual-parents"]
	}
	for _, tc := range []struct {
		name         string
		do           func()
		subnet, vip1 string
	}{
		{"nobody", func() {}, "", "none"},
		{"one of both", func() { wire(t, w, pod("p1", 2, "s1", "10.0.0.100", "10.0.0.50")) }, "p1.d", "p1.d"},
		{"another", func() { wire(t, w, pod("p2", 3, "s1", "10.0.0.100", "10.0.0.50")) }, "p1.d,p2.d", "p1.d,p2.d"},
		{"on another switch", func() { wire(t, w, pod("p3", 4, "s2", "10.0.0.100")) }, "p1.d,p2.d", "p1.d,p2.d"},
		{"moved", func() { wire(t, w, pod("p2", 3, "s2", "10.0.0.100")) }, "p1.d", "p1.d"},
		{"annotation gone", func() { wire(t, w, pod("p1", 2, "s1", "10.0.0.100")) }, "p1.d", "none"},
		{"pod gone", func() { unwire(t, w, "p1.d") }, "", "none"},
	} {
		tc.do()
		if got := parents("s1-vip-10.0.0.100"); got != tc.subnet {
			t.Errorf("%s: parents of the subnet's port %q, want %q", tc.name, got, tc.subnet)
		}
		if got := parents("vip1"); got != tc.vip1 {
			t.Errorf("%s: parents of the Vip's port %q, want %q", tc.name, got, tc.vip1)
		}
		if got := cost(t, w, world()); got != 0 {
			t.Errorf("%s: the topology took %d transactions, want 0", tc.name, got)
		}
	}
}

func TestOptionsOfOthersStay(t *testing.T) {
	s, c, w := setupWorld(t)
	active := worldPod("p1", 2, func(_ *PodInput, i *InterfaceInput) { i.Activation = true })
	wire(t, w, active)
	s.nbctl("set", "Logical_Switch_Port", "p1.d", "options:arp_proxy=true")
	waitUntil(t, c, func() bool { p, _ := c.Port("p1.d"); return p.Options["arp_proxy"] != "" })
	moved := active
	moved.Node = &NodeInput{Name: "n2"}
	wire(t, w, moved)
	row, _ := c.Port("p1.d")
	if diff := cmp.Diff("n2,n2", row.Options["requested-chassis"]); diff != "" {
		t.Error(diff)
	}
	wire(t, w, worldPod("p1", 2, nil))
	row, _ = c.Port("p1.d")
	if diff := cmp.Diff(map[string]string{"arp_proxy": "true"}, row.Options); diff != "" {
		t.Errorf("options (-want +got):\n%s", diff)
	}
}

// Two pods whose ports would have one name, since dots join the parts of it.
func TestPortOfAnotherPodIsLeftAlone(t *testing.T) {
	_, c, w := setupWorld(t)
	wire(t, w, worldPod("a.b", 2, nil))
	other := worldPod("a", 3, func(in *PodInput, i *InterfaceInput) { in.Namespace, i.Provider = "b", "d" })
	var clash *ClashError
	if err := w.Apply(t.Context(), Change{Ensure: podRows(t, other)}); !errors.As(err, &clash) {
		t.Errorf("%v, want *ClashError", err)
	}
	if row, _ := c.Port("a.b.d"); row.ExternalIDs["pod"] != "d/a.b" {
		t.Errorf("port %+v", row)
	}
}

func TestOrphansAreFoundAndRemoved(t *testing.T) {
	s, c, w := setupWorld(t)
	wire(t, w, eipPod("p1", 2))
	wire(t, w, eipPod("p1", 2))
	s.nbctl("lsp-del", "p1.d")
	waitUntil(t, c, func() bool { _, ok := c.Port("p1.d"); return !ok })
	if diff := cmp.Diff([]string{"p1.d"}, c.Orphans()); diff != "" {
		t.Errorf("orphans (-want +got):\n%s", diff)
	}
	unwire(t, w, "p1.d")
	if got := append(linesWith(c, "nat "), linesWith(c, "policy ")...); got != nil || c.Orphans() != nil {
		t.Errorf("rows are left: %q, %q", got, c.Orphans())
	}
}
