package ovn

import (
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// guardWorld is a database with SecurityGroups, pods in them and a subnet with ACLs, as they were wished for last.
type guardWorld struct {
	c      *Client
	w      *Writer
	empty  []string
	groups map[string]*kubeovnv1.SecurityGroup
	pods   map[string][]string
	subnet kubeovnv1.SubnetSpec
}

// newGuardWorld has rows of others on the same switch, and a NetworkPolicy's group with its own.
func newGuardWorld(t *testing.T) *guardWorld {
	s := startServer(t, installedSchema)
	g := &guardWorld{c: s.connect(), groups: map[string]*kubeovnv1.SecurityGroup{}, pods: map[string][]string{}}
	epoch, err := g.c.RaiseEpoch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	g.w = NewWriter(g.c, WriterOptions{Epoch: epoch, MaxDelay: time.Microsecond})
	runWriter(t, g.w)
	apply(t, g.w, world())
	apply(t, g.w, denyAll())
	s.nbctl("acl-add", "s1", "to-lport", "1000", "ip", "allow")
	s.nbctl("pg-add", "np.default", "--", "set", "Port_Group", "np.default", "external_ids:vendor=kube-ovn", "external_ids:np=default/np")
	s.nbctl("acl-add", "np.default", "to-lport", "2000", "outport == @np.default && ip", "drop")
	s.nbctl("set", "ACL", s.nbctl("--bare", "--columns=_uuid", "find", "ACL", "priority=2000"),
		"external_ids:vendor=kube-ovn", "external_ids:parent=np.default")
	waitUntil(t, g.c, func() bool {
		rows := g.c.ACLs(nb.ACLs{Group: "np.default"})
		return len(rows) == 1 && len(rows[0].ExternalIDs) == 2 && len(g.c.ACLs(nb.ACLs{Switch: "s1"})) == 1
	})
	g.empty = dump(g.c)
	return g
}

func (g *guardWorld) apply(r *rapid.T, ch Change) {
	if err := g.w.Apply(r.Context(), ch); err != nil {
		r.Fatal(err)
	}
}

func (g *guardWorld) pod(r *rapid.T, name string, groups []string) Change {
	rows, err := PodRows(worldPod(name, 2+slices.Index(pods(), name), func(in *PodInput, i *InterfaceInput) {
		if name == "a@b" {
			in.Name, in.Namespace, i.Provider = "c", "b", "d"
		}
		i.SecurityGroups = groups
	}))
	if err != nil {
		r.Fatal(err)
	}
	return Change{Key: name, Ensure: rows}
}

// group is what a SecurityGroup asks for among those that there are.
func (g *guardWorld) group(name string) Change {
	all := slices.Collect(maps.Values(g.groups))
	rows, _ := topology.SecurityRows(g.groups[name], all)
	return Change{Key: name, Ensure: rows}
}

func (g *guardWorld) switchACLs() Change {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "s1"}, Spec: g.subnet}
	s.Spec.CIDRBlock = "10.0.0.0/24"
	rows, _ := topology.Rows(topology.Input{Subnets: []*kubeovnv1.Subnet{s}, Config: topology.Config{ClusterRouter: "ovn-cluster"}})
	return Change{Key: "s1", Ensure: nb.Rows{ACLs: rows.ACLs}}
}

// all asks for everything once more.
func (g *guardWorld) all(r *rapid.T) {
	g.apply(r, denyAll())
	for _, name := range slices.Sorted(maps.Keys(g.groups)) {
		g.apply(r, g.group(name))
	}
	for _, name := range slices.Sorted(maps.Keys(g.pods)) {
		g.apply(r, g.pod(r, name, g.pods[name]))
	}
	g.apply(r, g.switchACLs())
}

func drawGroup(r *rapid.T, name string) *kubeovnv1.SecurityGroup {
	g := &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}}
	g.Spec.AllowSameGroupTraffic = rapid.Bool().Draw(r, "same group")
	for range rapid.IntRange(0, 3).Draw(r, "rules") {
		rule := kubeovnv1.SecurityGroupRule{IPVersion: "ipv4", RemoteType: "address", RemoteAddress: "10.9.0.0/16",
			Priority: rapid.IntRange(1, 2).Draw(r, "priority"), Policy: rapid.SampledFrom([]string{"allow", "drop", "pass"}).Draw(r, "policy")}
		if rapid.Bool().Draw(r, "remote group") {
			rule.RemoteType, rule.RemoteSecurityGroup = "securityGroup", rapid.SampledFrom(guardNames()).Draw(r, "remote")
		}
		g.Spec.IngressRules = append(g.Spec.IngressRules, rule)
	}
	return g
}

func guardNames() []string { return []string{"web", "a-b", "db"} }

// step changes one thing.
func (g *guardWorld) step(r *rapid.T) {
	group, pod := rapid.SampledFrom(guardNames()).Draw(r, "group"), rapid.SampledFrom(pods()).Draw(r, "pod")
	switch rapid.SampledFrom([]string{"group", "group", "pod", "pod", "no group", "no pod", "subnet"}).Draw(r, "do") {
	case "group":
		g.groups[group] = drawGroup(r, group)
		g.apply(r, g.group(group))
	case "no group":
		delete(g.groups, group)
		g.apply(r, Change{Key: group, RemoveGroups: []string{nb.SecurityGroupName(group)}})
	case "pod":
		g.pods[pod] = rapid.SliceOfDistinct(rapid.SampledFrom(guardNames()), rapid.ID[string]).Draw(r, "groups")
		g.apply(r, g.pod(r, pod, g.pods[pod]))
	case "no pod":
		delete(g.pods, pod)
		g.apply(r, Change{Key: pod, RemovePorts: []string{g.pod(r, pod, nil).Ensure.Ports[0].Row.Name}})
	case "subnet":
		g.subnet = kubeovnv1.SubnetSpec{Private: rapid.Bool().Draw(r, "private"), AllowEWTraffic: rapid.Bool().Draw(r, "east-west"),
			AllowSubnets: rapid.SliceOf(rapid.SampledFrom([]string{"10.8.0.0/16", "10.9.0.0/16"})).Draw(r, "allowed")}
		g.apply(r, g.switchACLs())
	}
}

// clear takes all away again, and holds what is left against the beginning.
func (g *guardWorld) clear(r *rapid.T) {
	gone := Change{Key: "all", Ensure: nb.Rows{ACLs: []nb.ACLs{{Switch: "s1"}}}}
	for _, pod := range pods() {
		gone.RemovePorts = append(gone.RemovePorts, g.pod(r, pod, nil).Ensure.Ports[0].Row.Name)
	}
	for _, p := range g.c.Groups() {
		if followsNode(p.ExternalIDs) || isSecurityGroup(p.ExternalIDs) && p.ExternalIDs[nb.KeySecurityGroup] != nb.DenyAll {
			gone.RemoveGroups = append(gone.RemoveGroups, p.Name)
		}
	}
	g.apply(r, gone)
	g.groups, g.pods, g.subnet = map[string]*kubeovnv1.SecurityGroup{}, map[string][]string{}, kubeovnv1.SubnetSpec{}
	if diff := cmp.Diff(g.empty, dump(g.c)); diff != "" {
		r.Fatalf("rows after all have gone (-before +after):\n%s", diff)
	}
}

// Whatever the way, ACLs, members and sets are those of the last wishes; what is others' is as it was, and asking again
// writes nothing.
func TestGuardsDependOnTheLastWishesAlone(t *testing.T) {
	t.Parallel()
	g, anew := newGuardWorld(t), newGuardWorld(t)
	rapid.Check(t, func(r *rapid.T) {
		for range rapid.IntRange(1, 10).Draw(r, "steps") {
			g.step(r)
		}
		g.all(r) // rules name groups that have come or gone since
		anew.groups, anew.pods, anew.subnet = maps.Clone(g.groups), maps.Clone(g.pods), g.subnet
		anew.all(r)
		if diff := cmp.Diff(dump(anew.c), dump(g.c)); diff != "" {
			r.Fatalf("rows (-built anew +after all changes):\n%s", diff)
		}
		before := g.w.Transactions()
		g.all(r)
		if got := g.w.Transactions() - before; got != 0 {
			r.Fatalf("second pass took %d transactions, want 0", got)
		}
		g.clear(r)
		anew.clear(r)
	})
}

// All at once, in whatever order they meet in transactions, comes to the same.
func TestGuardsMeetInTransactions(t *testing.T) {
	t.Parallel()
	g, anew := newGuardWorld(t), newGuardWorld(t)
	rapid.Check(t, func(r *rapid.T) {
		for _, name := range guardNames() {
			if rapid.Bool().Draw(r, "there") {
				g.groups[name] = drawGroup(r, name)
			}
		}
		for _, pod := range pods() {
			g.pods[pod] = rapid.SliceOfDistinct(rapid.SampledFrom(guardNames()), rapid.ID[string]).Draw(r, "groups")
		}
		anew.groups, anew.pods = maps.Clone(g.groups), maps.Clone(g.pods)
		changes := []Change{denyAll()}
		for name := range g.groups {
			changes = append(changes, g.group(name))
		}
		for pod, groups := range g.pods {
			changes = append(changes, g.pod(r, pod, groups))
		}
		done := make(chan error, len(changes))
		for _, ch := range changes {
			go func() { done <- g.w.Apply(r.Context(), ch) }()
		}
		for range changes {
			if err := <-done; err != nil {
				r.Fatal(err)
			}
		}
		anew.all(r)
		if diff := cmp.Diff(dump(anew.c), dump(g.c)); diff != "" {
			r.Fatalf("rows (-one by one +all at once):\n%s", diff)
		}
		g.clear(r)
		anew.clear(r)
	})
}
