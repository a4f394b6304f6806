package ovn

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

func aclRowOf(parent, match, action string, priority int) nb.ACL {
	return nb.ACL{Direction: nb.ToLport, Priority: priority, Match: match, Action: action, ExternalIDs: map[string]string{
		nb.Vendor: nb.VendorKubeOVN, nb.KeyParent: parent, nb.KeyACL: "private"}}
}

func switchACLs(rows ...nb.ACL) Change {
	return Change{Key: "acls", Ensure: nb.Rows{ACLs: []nb.ACLs{{Switch: "s1", Rows: rows}}}}
}

// aclsOnSwitch is the view of somebody else.
func (s *server) aclsOnSwitch(sw string) []string {
	s.t.Helper()
	var out []string
	for l := range strings.Lines(s.nbctl("acl-list", sw)) {
		out = append(out, strings.Join(strings.Fields(l), " "))
	}
	slices.Sort(out)
	return out
}

// Ours are added, changed and removed. Those of others on the same switch are as they were, whatever marks they have.
func TestACLsOfASwitch(t *testing.T) {
	s, c, w := setup(t)
	s.nbctl("acl-add", "s1", "to-lport", "900", "ip4", "drop")
	s.nbctl("acl-add", "s1", "from-lport", "901", "ip6", "drop")
	for match, ids := range map[string][]string{
		"tcp":  {"external_ids:vendor=other", "external_ids:parent=s1"},
		"udp":  {"external_ids:vendor=kube-ovn", "external_ids:parent=np.default"},
		"icmp": {"external_ids:vendor=kube-ovn", "external_ids:parent=s1", "external_ids:np=default/np"},
	} {
		s.nbctl("acl-add", "s1", "to-lport", "902", match, "allow")
		uuid := s.nbctl("--bare", "--columns=_uuid", "find", "ACL", "match="+match)
		s.nbctl(append([]string{"set", "ACL", uuid}, ids...)...)
	}
	foreign := s.aclsOnSwitch("s1")
	waitUntil(t, c, func() bool { return len(c.ACLs(nb.ACLs{Switch: "s1"})) == 5 })

	warning, name := nb.SeverityWarning, "s1"
	logged := aclRowOf("s1", "ip", "drop", 1000)
	logged.Log, logged.Severity, logged.Name = true, &warning, &name
	quiet := aclRowOf("s1", "ip", "reject", 1000)
	steps := []struct {
		name string
		rows []nb.ACL
		want []string
	}{
		{"added", []nb.ACL{logged, aclRowOf("s1", "ip4.src == 10.0.0.0/8", "allow-related", 1001)}, []string{
			"to-lport 1000 (ip) drop log(name=s1,severity=warning)", "to-lport 1001 (ip4.src == 10.0.0.0/8) allow-related"}},
		{"changed", []nb.ACL{quiet, aclRowOf("s1", "ip4.src == 10.0.0.0/9", "allow-related", 1001)}, []string{
			"to-lport 1000 (ip) reject", "to-lport 1001 (ip4.src == 10.0.0.0/9) allow-related"}},
		{"one less", []nb.ACL{quiet}, []string{"to-lport 1000 (ip) reject"}},
		{"none", nil, nil},
		{"again", []nb.ACL{logged}, []string{"to-lport 1000 (ip) drop log(name=s1,severity=warning)"}},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			ch := switchACLs(step.rows...)
			if got := cost(t, w, ch); got != 1 {
				t.Errorf("%d transactions, want 1", got)
			}
			want := slices.Concat(foreign, step.want)
			slices.Sort(want)
			if diff := cmp.Diff(want, s.aclsOnSwitch("s1")); diff != "" {
				t.Errorf("ACLs (-want +got):\n%s", diff)
			}
			if got := cost(t, w, ch); got != 0 {
				t.Errorf("second pass took %d transactions", got)
			}
		})
	}
}

// What Kube-OVN made for the same Subnet, in whatever tier, gives way to ours in one transaction.
func TestACLsReplaceThoseOfKubeOVN(t *testing.T) {
	s, c, w := setup(t)
	for i, ids := range [][]string{{"external_ids:parent=s1"}, {"external_ids:parent=s1", "external_ids:vendor=kube-ovn"}} {
		s.nbctl("acl-add", "s1", "to-lport", fmt.Sprint(1000+i), "ip", "drop")
		s.nbctl(append([]string{"set", "ACL", s.nbctl("--bare", "--columns=_uuid", "find", "ACL", fmt.Sprint("priority=", 1000+i))}, ids...)...)
	}
	waitUntil(t, c, func() bool { return len(c.ACLs(nb.ACLs{Switch: "s1"})) == 2 })
	if got := cost(t, w, switchACLs(aclRowOf("s1", "ip", "drop", 1000))); got != 1 {
		t.Errorf("%d transactions, want 1", got)
	}
	if diff := cmp.Diff([]string{"to-lport 1000 (ip) drop"}, s.aclsOnSwitch("s1")); diff != "" {
		t.Errorf("ACLs (-want +got):\n%s", diff)
	}
	if row := c.ACLs(nb.ACLs{Switch: "s1"})[0]; row.ExternalIDs[nb.KeyACL] == "" {
		t.Errorf("marks %v", row.ExternalIDs)
	}
}

// What the database would refuse is refused before it spoils a transaction of others.
func TestACLsThatAreRefused(t *testing.T) {
	_, _, w := setup(t)
	row := func(edit func(*nb.ACL)) []nb.ACL {
		r := aclRowOf("s1", "ip", "drop", 1)
		edit(&r)
		return []nb.ACL{r}
	}
	var (
		invalid *InvalidRowError
		missing *MissingRowError
	)
	cases := map[string]struct {
		acls nb.ACLs
		want any
	}{
		"direction":   {nb.ACLs{Switch: "s1", Rows: row(func(r *nb.ACL) { r.Direction = "" })}, &invalid},
		"priority":    {nb.ACLs{Switch: "s1", Rows: row(func(r *nb.ACL) { r.Priority = 32768 })}, &invalid},
		"action":      {nb.ACLs{Switch: "s1", Rows: row(func(r *nb.ACL) { r.Action = "pass" })}, &invalid},
		"null byte":   {nb.ACLs{Switch: "s1", Rows: row(func(r *nb.ACL) { r.Match = "ip\x00" })}, &invalid},
		"twice":       {nb.ACLs{Switch: "s1", Rows: append(row(func(*nb.ACL) {}), row(func(r *nb.ACL) { r.Action = "allow" })...)}, &invalid},
		"no parent":   {nb.ACLs{}, &invalid},
		"two parents": {nb.ACLs{Switch: "s1", Group: "g"}, &invalid},
		"no switch":   {nb.ACLs{Switch: "s9"}, &missing},
		"no group":    {nb.ACLs{Group: "g"}, &missing},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if err := w.Apply(t.Context(), Change{Ensure: nb.Rows{ACLs: []nb.ACLs{tc.acls}}}); !errors.As(err, tc.want) {
				t.Errorf("%v, want %T", err, tc.want)
			}
		})
	}
}

// securedPod is a pod d/<name> in SecurityGroups.
func securedPod(t *testing.T, name string, host int, groups ...string) Change {
	t.Helper()
	rows, err := PodRows(worldPod(name, host, func(_ *PodInput, i *InterfaceInput) { i.SecurityGroups = groups }))
	if err != nil {
		t.Fatal(err)
	}
	return Change{Key: name, Ensure: rows}
}

func groupObject(name string, rules ...kubeovnv1.SecurityGroupRule) *kubeovnv1.SecurityGroup {
	return &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.SecurityGroupSpec{IngressRules: rules, EgressRules: rules, AllowSameGroupTraffic: true}}
}

func groupChange(g *kubeovnv1.SecurityGroup) Change {
	rows, _ := topology.SecurityRows(g, []*kubeovnv1.SecurityGroup{g})
	return Change{Key: "security group " + g.Name, Ensure: rows}
}

func denyAll() Change { return Change{Key: "deny all", Ensure: topology.DenyAllRows()} }

// sets are the address sets as somebody else sees them.
func (s *server) sets() string {
	s.t.Helper()
	var out []string
	for l := range strings.Lines(s.nbctl("--bare", "--columns=name,addresses", "--format=csv", "list", "Address_Set")) {
		out = append(out, strings.TrimSpace(l))
	}
	slices.Sort(out)
	return strings.Join(out, "\n")
}

// A group that is made after its pods gets them, their addresses, and what denies them the rest; it loses them with
// their annotation, and all goes with the group.
func TestSecurityGroupAfterItsPods(t *testing.T) {
	s, c, w := setup(t)
	apply(t, w, world())
	apply(t, w, securedPod(t, "p1", 2, "web"))
	apply(t, w, securedPod(t, "p2", 3, "web", "db"))
	apply(t, w, securedPod(t, "p3", 4))
	apply(t, w, denyAll())
	if got := c.GroupsOf("p1.d"); slices.Contains(got, "ovn.sg.kubeovn_deny_all") {
		t.Errorf("a port whose group there isn't is denied: %v", got)
	}
	check := func(step string, want map[string][]string, sets string) {
		t.Helper()
		got := map[string][]string{}
		for _, p := range []string{"p1", "p2", "p3"} {
			got[p] = slices.DeleteFunc(c.GroupsOf(p+".d"), func(g string) bool { return !strings.HasPrefix(g, "ovn.sg.") })
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: groups (-want +got):\n%s", step, diff)
		}
		if diff := cmp.Diff(sets, s.sets()); diff != "" {
			t.Errorf("%s: sets (-want +got):\n%s", step, diff)
		}
	}
	const deny, web = "ovn.sg.kubeovn_deny_all", "ovn.sg.web"
	if got := cost(t, w, groupChange(groupObject("web"))); got != 1 {
		t.Errorf("the group took %d transactions, want 1", got)
	}
	check("made", map[string][]string{"p1": {deny, web}, "p2": {deny, web}, "p3": {}},
		"ovn.sg.web.associated.v4,10.0.0.2 10.0.0.3\novn.sg.web.associated.v6,fd00::2 fd00::3")
	apply(t, w, securedPod(t, "p1", 2))
	apply(t, w, securedPod(t, "p3", 4, "web"))
	check("annotations changed", map[string][]string{"p1": {}, "p2": {deny, web}, "p3": {deny, web}},
		"ovn.sg.web.associated.v4,10.0.0.3 10.0.0.4\novn.sg.web.associated.v6,fd00::3 fd00::4")
	apply(t, w, Change{RemovePorts: []string{"p3.d"}})
	check("a pod is gone", map[string][]string{"p1": {}, "p2": {deny, web}, "p3": nil},
		"ovn.sg.web.associated.v4,10.0.0.3\novn.sg.web.associated.v6,fd00::3")
	if got := cost(t, w, groupChange(groupObject("web"))) + cost(t, w, denyAll()); got != 0 {
		t.Errorf("second pass took %d transactions", got)
	}
	if got := cost(t, w, Change{RemoveGroups: []string{web}}); got != 1 {
		t.Errorf("the removal took %d transactions, want 1", got)
	}
	check("removed", map[string][]string{"p1": {}, "p2": {}, "p3": nil}, "")
	if got := s.nbctl("--bare", "--columns=_uuid", "find", "ACL", "external_ids:parent="+web); got != "" {
		t.Errorf("ACLs are left: %s", got)
	}
}

// Further addresses are in the set of a group as far as port security lets the port use them.
func TestSecurityGroupKnowsFurtherAddresses(t *testing.T) {
	s, _, w := setup(t)
	apply(t, w, world())
	apply(t, w, groupChange(groupObject("web")))
	for secure, want := range map[bool]string{
		false: "ovn.sg.web.associated.v4,10.0.0.2\novn.sg.web.associated.v6,fd00::2",
		true:  "ovn.sg.web.associated.v4,10.0.0.2 10.0.0.50\novn.sg.web.associated.v6,fd00::2",
	} {
		rows, err := PodRows(worldPod("p1", 2, func(_ *PodInput, i *InterfaceInput) {
			i.SecurityGroups, i.Vips, i.PortSecurity = []string{"web"}, addrs("10.0.0.50"), secure
		}))
		if err != nil {
			t.Fatal(err)
		}
		apply(t, w, Change{Ensure: rows})
		if diff := cmp.Diff(want, s.sets()); diff != "" {
			t.Errorf("sets (-want +got):\n%s", diff)
		}
	}
}

// Members and ACLs that are none of ours stay with the group; a set of its name that is another's is left alone.
func TestSecurityGroupLeavesOthersAlone(t *testing.T) {
	s, c, w := setup(t)
	s.nbctl("lsp-add", "s1", "theirs", "--", "pg-add", "ovn.sg.web", "theirs",
		"--", "set", "Port_Group", "ovn.sg.web", "external_ids:vendor=kube-ovn", "external_ids:type=security_group", "external_ids:sg=web",
		"--", "create", "Address_Set", "name=ovn.sg.web.associated.v4", "addresses=1.1.1.1", "external_ids:vendor=other")
	s.nbctl("acl-add", "ovn.sg.web", "to-lport", "9", "ip", "drop")
	waitUntil(t, c, func() bool { return len(c.ACLs(nb.ACLs{Group: "ovn.sg.web"})) == 1 })
	apply(t, w, groupChange(groupObject("web")))
	if diff := cmp.Diff([]string{"ovn.sg.web"}, c.GroupsOf("theirs")); diff != "" {
		t.Error(diff)
	}
	if got := s.aclsOnSwitch("ovn.sg.web"); !slices.Contains(got, "to-lport 9 (ip) drop") || len(got) != 15 {
		t.Errorf("ACLs %q", got)
	}
	if got := s.sets(); got != "ovn.sg.web.associated.v4,1.1.1.1\novn.sg.web.associated.v6," {
		t.Errorf("sets %q", got)
	}
	apply(t, w, Change{RemoveGroups: []string{"ovn.sg.web"}})
	if got := s.sets(); got != "ovn.sg.web.associated.v4,1.1.1.1" {
		t.Errorf("sets %q", got)
	}
}

// A group of another SecurityGroup under the same name isn't taken over.
func TestSecurityGroupsOfOneNameClash(t *testing.T) {
	_, _, w := setup(t)
	apply(t, w, groupChange(groupObject("a-b")))
	var clash *ClashError
	if err := w.Apply(t.Context(), groupChange(groupObject("a.b"))); !errors.As(err, &clash) {
		t.Errorf("%v, want *ClashError", err)
	}
}
