package worker

import (
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

const (
	webGroup  = "ovn.sg.web"
	denyGroup = "ovn.sg.kubeovn_deny_all"
)

func securityGroup(name string, rules ...kubeovnv1.SecurityGroupRule) *kubeovnv1.SecurityGroup {
	return &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SecurityGroupSpec{IngressRules: rules}}
}

func fromGroup(name string) kubeovnv1.SecurityGroupRule {
	return kubeovnv1.SecurityGroupRule{IPVersion: "ipv4", Protocol: "all", Priority: 1, RemoteType: "securityGroup", RemoteSecurityGroup: name, Policy: "allow"}
}

func inGroups(names string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = "n1"
		p.Annotations = map[string]string{"ovn.kubernetes.io/security_groups": names}
	}
}

// secured waits until the port is in these groups of SecurityGroups and no other.
func (w *world) secured(port string, want ...string) {
	w.t.Helper()
	w.until("groups of "+port, func() error {
		got := slices.DeleteFunc(w.nb.GroupsOf(port), func(g string) bool { return !strings.HasPrefix(g, "ovn.sg.") })
		if !slices.Equal(got, want) {
			return fmt.Errorf("%v, want %v", got, want)
		}
		return nil
	})
}

func (w *world) groupStatus(name string, ok func(kubeovnv1.SecurityGroupStatus) bool) kubeovnv1.SecurityGroup {
	w.t.Helper()
	var g kubeovnv1.SecurityGroup
	w.until("status of "+name, func() error {
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, &g); err != nil {
			return err
		}
		if !ok(g.Status) {
			return fmt.Errorf("it is %+v", g.Status)
		}
		return nil
	})
	return g
}

func condition(conditions []kubeovnv1.Condition) kubeovnv1.Condition {
	for _, c := range conditions {
		if c.Type == conditionRealised {
			return c
		}
	}
	return kubeovnv1.Condition{}
}

// A SecurityGroup has the pods that name it; its status says what is written. It takes all with it when it goes, and has
// the pods that are there when it comes back.
func TestSecurityGroups(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, securityGroup("web", fromGroup("web"))))
	w.seen(securityGroup("web"))
	for _, name := range []string{"a", "b"} {
		w.must(w.client.Create(w.ctx, podNamed(name, inGroups("web"))))
		w.wired(name)
		w.secured(name+".app", denyGroup, webGroup)
	}
	g := w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool { return s.IngressLastSyncSuccess && s.EgressLastSyncSuccess })
	if g.Status.PortGroup != webGroup || len(g.Status.IngressMd5) != 32 || len(g.Status.Conditions) > 0 {
		t.Errorf("status %+v", g.Status)
	}
	rows := w.nb.ACLs(nb.ACLs{Group: webGroup})
	if !slices.ContainsFunc(rows, func(r nb.ACL) bool {
		return r.Match == "outport == @ovn.sg.web && ip4 && ip4.src == $ovn.sg.web.associated.v4"
	}) {
		t.Errorf("ACLs %v", rows)
	}
	w.must(w.client.Delete(w.ctx, securityGroup("web")))
	w.secured("a.app")
	w.secured("b.app")
	w.must(w.client.Create(w.ctx, securityGroup("web")))
	w.secured("a.app", denyGroup, webGroup)
	w.secured("b.app", denyGroup, webGroup)
}

// A rule about a group that there isn't is told, and realised when the group comes.
func TestRuleAboutAMissingGroup(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, securityGroup("web", fromGroup("db"))))
	g := w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool { return condition(s.Conditions).Status == "False" })
	if c := condition(g.Status.Conditions); !strings.Contains(c.Message, "spec.ingressRules[0].remoteSecurityGroup") || g.Status.IngressLastSyncSuccess {
		t.Errorf("status %+v", g.Status)
	}
	w.must(w.client.Create(w.ctx, securityGroup("db")))
	w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool {
		return s.IngressLastSyncSuccess && condition(s.Conditions).Status == "True"
	})
	w.must(w.client.Delete(w.ctx, securityGroup("db")))
	w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool {
		return !s.IngressLastSyncSuccess && condition(s.Conditions).Status == "False"
	})
}

// Where nothing has changed nothing is written, neither here nor there.
func TestSecurityGroupSecondPass(t *testing.T) {
	var patches atomic.Int64
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Resource == "security-groups" && r.Verb == "patch" {
			patches.Add(1)
		}
		return memkube.Fault{}
	}})
	w.must(w.client.Create(w.ctx, securityGroup("web", fromGroup("nobody"))))
	g := w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool { return condition(s.Conditions).Status == "False" })
	w.seen(&g)
	if n := patches.Load(); n != 2 {
		t.Errorf("%d patches, want one of the status and one of the condition", n)
	}
	// The topology's own first transactions may fall into a pass: in one of them there are none.
	w.until("a pass without a transaction", func() error {
		transactions := w.worker.writer.Transactions()
		for _, name := range []string{"web", nb.DenyAll} {
			if _, err := w.worker.reconcileSecurity(w.ctx, requestFor(name)); err != nil {
				return err
			}
		}
		if n := w.worker.writer.Transactions() - transactions; n != 0 {
			return fmt.Errorf("%d transactions", n)
		}
		return nil
	})
	if n := patches.Load(); n != 2 {
		t.Errorf("%d patches after a second pass, want 2", n)
	}
}

// A SecurityGroup that changes concerns those with a rule about it and those that would have its port group: not itself,
// though it has a rule about itself, for its own event asks for it already.
func TestSecurityGroupConcernsOthers(t *testing.T) {
	w := newWorld(t, worldOptions{})
	for _, g := range []*kubeovnv1.SecurityGroup{
		securityGroup("a-b", fromGroup("a-b")), securityGroup("a.b"), securityGroup("about", fromGroup("a-b")), securityGroup("apart", fromGroup("about")),
	} {
		w.must(w.client.Create(w.ctx, g))
		w.seen(g)
	}
	var got []string
	for _, r := range w.worker.concerned(w.ctx, securityGroup("a-b")) {
		got = append(got, r.Name)
	}
	slices.Sort(got)
	if diff := cmp.Diff([]string{"a.b", "about"}, got); diff != "" {
		t.Errorf("concerned (-want +got):\n%s", diff)
	}
}

// A group whose SecurityGroup went while nobody looked is removed at the start. One without the marks stays, whatever its
// name.
func TestB95SecurityGroupThatWentUnseen(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, securityGroup("web")))
	w.groupStatus("web", func(s kubeovnv1.SecurityGroupStatus) bool { return s.IngressLastSyncSuccess })
	w.must(w.worker.apply(w.ctx, ovn.Change{Ensure: nb.Rows{Groups: []nb.Group{
		{Name: "ovn.sg.theirs", ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyNP: "app/theirs"}}}}}))
	w.stop()
	w.must(w.client.Delete(w.ctx, securityGroup("web")))
	w.start(worldOptions{})
	w.until("the group is gone", func() error {
		var names []string
		for _, g := range w.nb.Groups() {
			if strings.HasPrefix(g.Name, "ovn.sg.") {
				names = append(names, g.Name)
			}
		}
		if diff := cmp.Diff([]string{denyGroup, "ovn.sg.theirs"}, names); diff != "" {
			return fmt.Errorf("groups (-want +got):\n%s", diff)
		}
		return nil
	})
}

// Of two SecurityGroups that would have one port group the older one has it, until it goes.
func TestSecurityGroupsOfOnePortGroup(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.client.Create(w.ctx, securityGroup("a-b")))
	w.groupStatus("a-b", func(s kubeovnv1.SecurityGroupStatus) bool { return s.PortGroup == "ovn.sg.a.b" })
	w.must(w.client.Create(w.ctx, securityGroup("a.b")))
	g := w.groupStatus("a.b", func(s kubeovnv1.SecurityGroupStatus) bool { return condition(s.Conditions).Status == "False" })
	if g.Status.PortGroup != "" || !strings.Contains(condition(g.Status.Conditions).Message, "SecurityGroup a-b") {
		t.Errorf("status %+v", g.Status)
	}
	w.must(w.client.Delete(w.ctx, securityGroup("a-b")))
	w.groupStatus("a.b", func(s kubeovnv1.SecurityGroupStatus) bool {
		return s.PortGroup == "ovn.sg.a.b" && s.IngressLastSyncSuccess
	})
}

// A Subnet's ACLs come and go with its fields, and what nobody realises is told by its name until it is no more.
func TestSubnetTellsWhatIsNotRealised(t *testing.T) {
	w := newWorld(t, worldOptions{})
	edit := func(change func(*kubeovnv1.SubnetSpec)) {
		t.Helper()
		var s kubeovnv1.Subnet
		w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &s))
		old := s.DeepCopy()
		change(&s.Spec)
		w.must(w.client.Patch(w.ctx, &s, client.MergeFrom(old)))
	}
	status := func(want, message string) kubeovnv1.Subnet {
		t.Helper()
		var s kubeovnv1.Subnet
		w.until("condition "+want, func() error {
			w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "s"}, &s))
			if c := condition(s.Status.Conditions); c.Status != want || !strings.Contains(c.Message, message) {
				return fmt.Errorf("it is %+v", s.Status.Conditions)
			}
			return nil
		})
		return s
	}
	acls := func(want int) {
		t.Helper()
		w.until(fmt.Sprint(want, " ACLs"), func() error {
			if got := w.nb.ACLs(nb.ACLs{Switch: "s"}); len(got) != want {
				return fmt.Errorf("%v", got)
			}
			return nil
		})
	}
	status("", "")
	yes := true
	edit(func(s *kubeovnv1.SubnetSpec) { s.Private, s.EnableLb, s.AllowSubnets = true, &yes, []string{"x"} })
	status("False", "spec.allowSubnets[0]")
	s := status("False", "spec.enableLb")
	acls(2)
	w.lookAtTopology("s")
	if again := status("False", ""); again.ResourceVersion != s.ResourceVersion {
		t.Errorf("status was written again: %+v, then %+v", s.Status, again.Status)
	}
	edit(func(s *kubeovnv1.SubnetSpec) { s.Private, s.EnableLb, s.AllowSubnets = false, nil, nil })
	status("True", "")
	acls(0)
}

// Beside another controller the status isn't ours: an event tells.
func TestEventTellsWhatIsNotRealised(t *testing.T) {
	w := newWorld(t, worldOptions{})
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "mv"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Provider: "macvlan.app", Private: true}}
	w.must(w.client.Create(w.ctx, s))
	w.seen(s)
	_, err := w.worker.tellUnrealised(w.ctx, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
	w.must(err)
	w.until("an event", func() error {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(schema.GroupVersionKind{Group: "events.k8s.io", Version: "v1", Kind: "EventList"})
		if err := w.client.List(w.ctx, &list); err != nil {
			return err
		}
		for _, e := range list.Items {
			if note, _, _ := unstructured.NestedString(e.Object, "note"); strings.Contains(note, "spec.private") {
				return nil
			}
		}
		return fmt.Errorf("there are %d others", len(list.Items))
	})
}

func TestWithCondition(t *testing.T) {
	at := func(sec int64) metav1.Time { return metav1.Unix(sec, 0) }
	no := kubeovnv1.Condition{Type: conditionRealised, Status: "False", Reason: reasonNobody, Message: "x"}
	yes := kubeovnv1.Condition{Type: conditionRealised, Status: "True", Reason: reasonRealised}
	other := kubeovnv1.Condition{Type: "Ready", Status: "True"}
	with := func(c kubeovnv1.Condition, updated, moved int64) kubeovnv1.Condition {
		c.LastUpdateTime, c.LastTransitionTime = at(updated), at(moved)
		return c
	}
	text := no
	text.Message = "y"
	cases := map[string]struct {
		have    []kubeovnv1.Condition
		want    kubeovnv1.Condition
		out     []kubeovnv1.Condition
		changed bool
	}{
		"first":            {[]kubeovnv1.Condition{other}, no, []kubeovnv1.Condition{other, with(no, 9, 9)}, true},
		"never anything":   {[]kubeovnv1.Condition{other}, yes, []kubeovnv1.Condition{other, with(yes, 9, 9)}, false},
		"the same":         {[]kubeovnv1.Condition{with(no, 1, 1)}, no, []kubeovnv1.Condition{with(no, 1, 1)}, false},
		"another text":     {[]kubeovnv1.Condition{with(no, 1, 1), other}, text, []kubeovnv1.Condition{with(text, 9, 1), other}, true},
		"realised by then": {[]kubeovnv1.Condition{other, with(no, 1, 1)}, yes, []kubeovnv1.Condition{other, with(yes, 9, 9)}, true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			out, changed := withCondition(tc.have, tc.want, at(9))
			if diff := cmp.Diff(tc.out, out); diff != "" || changed != tc.changed {
				t.Errorf("changed %v; conditions (-want +got):\n%s", changed, diff)
			}
		})
	}
}
