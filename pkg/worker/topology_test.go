package worker

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func (w *world) subnet(name string) *kubeovnv1.Subnet {
	w.t.Helper()
	var s kubeovnv1.Subnet
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &s))
	return &s
}

// edit changes a Subnet.
func (w *world) edit(name string, change func(*kubeovnv1.SubnetSpec)) {
	w.t.Helper()
	s := w.subnet(name)
	old := s.DeepCopy()
	change(&s.Spec)
	w.must(w.client.Patch(w.ctx, s, client.MergeFrom(old)))
}

// status waits until a Subnet's status is as wanted.
func (w *world) status(name, what string, ok func(kubeovnv1.SubnetStatus) bool) kubeovnv1.SubnetStatus {
	w.t.Helper()
	var got kubeovnv1.SubnetStatus
	w.until(what, func() error {
		if got = w.subnet(name).Status; !ok(got) {
			return fmt.Errorf("status %+v", got)
		}
		return nil
	})
	return got
}

func (w *world) makeUnderlay(name string, spec kubeovnv1.SubnetSpec) {
	w.t.Helper()
	w.must(w.client.Create(w.ctx, &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: "pn"}, Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: "eth1"}}))
	w.must(w.client.Create(w.ctx, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "v7"}, Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "pn"}}))
	spec.Vlan, spec.Provider, spec.Vpc = "v7", "ovn", "ovn-cluster"
	w.makeSubnet(name, spec)
}

func TestGatewayMovesFromANodeThatIsNotReady(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeSubnet("join", joinSpec())
	w.makeNode("n2", "192.168.0.5", nil)
	w.makeNode("n3", "192.168.0.6", nil)
	w.announced("n3")
	w.edit("s", func(s *kubeovnv1.SubnetSpec) { s.GatewayType, s.GatewayNode = "centralized", "n2,n3" })
	w.status("s", "n2 routes", func(s kubeovnv1.SubnetStatus) bool { return s.ActivateGateway == "n2" })
	n := w.node("n2")
	n.Status.Conditions[0].Status = "False"
	w.must(w.client.Status().Update(w.ctx, n))
	w.status("s", "n3 routes", func(s kubeovnv1.SubnetStatus) bool { return s.ActivateGateway == "n3" })
	v4, _, _ := strings.Cut(w.announced("n3")["ip_address"], ",")
	if diff := cmp.Diff([]string{"29000 ip4.src == 10.16.0.0/24 reroute " + v4}, w.policies("ip4.src == 10.16.0.0/24")); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
	// n2 is back, and n3 stays.
	n = w.node("n2")
	n.Status.Conditions[0].Status = "True"
	w.must(w.client.Status().Update(w.ctx, n))
	w.seen(n)
	w.seen(w.subnet("s"))
	w.lookAtTopology("s")
	if got := w.subnet("s").Status.ActivateGateway; got != "n3" {
		t.Errorf("%s routes", got)
	}
}

// TestPodsFollowTheGateway makes a centralized subnet distributed: pods that are there already come into the new groups.
func TestPodsFollowTheGateway(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.edit("s", func(s *kubeovnv1.SubnetSpec) { s.GatewayType, s.GatewayNode = "centralized", "n1" })
	w.seen(w.subnet("s"))
	w.makeSubnet("join", joinSpec())
	w.announced("n1")
	w.admit(podNamed("a", onNode))
	w.wired("a")
	if diff := cmp.Diff([]string{"node.n1"}, w.nb.GroupsOf("a.app")); diff != "" {
		t.Fatalf("groups (-want +got):\n%s", diff)
	}
	w.edit("s", func(s *kubeovnv1.SubnetSpec) { s.GatewayType = "distributed" })
	w.until("the group of the subnet", func() error {
		if got := w.nb.GroupsOf("a.app"); len(got) != 2 || got[1] != "s.n1" {
			return fmt.Errorf("groups %v", got)
		}
		return nil
	})
	if diff := cmp.Diff([]string{"29000 ip4.src == $s.n1_ip4 reroute 100.64.0.2"}, w.policies("ip4.src == ")); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

func TestUnderlayIsJoinedToTheOverlay(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeUnderlay("u", kubeovnv1.SubnetSpec{CIDRBlock: "10.20.0.0/24", Gateway: "10.20.0.254"})
	w.until("the localnet port", func() error {
		p, ok := w.nb.Port("localnet.u")
		if !ok || p.Tag == nil || *p.Tag != 7 || p.Options["network_name"] != "pn" {
			return fmt.Errorf("port %+v", p)
		}
		return nil
	})
	w.edit("u", func(s *kubeovnv1.SubnetSpec) { s.U2OInterconnection, s.U2OInterconnectionIP = true, "10.20.0.9" })
	got := w.status("u", "the router's address", func(s kubeovnv1.SubnetStatus) bool {
		return s.U2OInterconnectionIP != "" && s.U2OInterconnectionMAC != ""
	})
	lrp, _ := w.nb.RouterPort("ovn-cluster-u")
	if got.U2OInterconnectionIP != "10.20.0.9" || got.U2OInterconnectionMAC != lrp.MAC || got.U2OInterconnectionVPC != "ovn-cluster" {
		t.Errorf("status %+v, router port %+v", got, lrp)
	}
	if diff := cmp.Diff([]string{"10.20.0.9/24"}, lrp.Networks); diff != "" {
		t.Errorf("networks (-want +got):\n%s", diff)
	}
	name := "u2o-interconnection.ovn-cluster.u"
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &ip))
	if ip.Spec.IPAddress != "10.20.0.9" || ip.Spec.Namespace != "default" || ip.Spec.Subnet != "u" {
		t.Errorf("record %+v", ip.Spec)
	}
	// It stays, whoever looks for reservations.
	_, err := w.worker.reconcileReservations(w.ctx, request("reservations"))
	w.must(err)
	owner := ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindSubnet, Name: "u"}
	if h, ok := w.ledger.Lookup("u", addressesIn("10.20.0.9")[0]); !ok || h.Owner != owner {
		t.Errorf("lease %+v", h)
	}
	w.edit("u", func(s *kubeovnv1.SubnetSpec) { s.U2OInterconnection, s.U2OInterconnectionIP = false, "" })
	w.status("u", "no address", func(s kubeovnv1.SubnetStatus) bool {
		return s.U2OInterconnectionIP == "" && s.U2OInterconnectionMAC == ""
	})
	w.until("nothing left", func() error {
		_, port := w.nb.RouterPort("ovn-cluster-u")
		_, leased := w.ledger.Lookup("u", addressesIn("10.20.0.9")[0])
		err := w.client.Get(w.ctx, client.ObjectKey{Name: name}, &ip)
		if port || leased || !apierrors.IsNotFound(err) {
			return fmt.Errorf("router port %v, lease %v, record %w", port, leased, err)
		}
		return nil
	})
}

func TestVpcComesAndGoes(t *testing.T) {
	w := newWorld(t, worldOptions{})
	v := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v1"}, Spec: kubeovnv1.VpcSpec{
		StaticRoutes: []kubeovnv1.StaticRoute{{CIDR: "0.0.0.0/0", NextHopIP: "10.30.0.254", Policy: "policyDst"}}}}
	w.must(w.client.Create(w.ctx, v))
	w.makeSubnet("t", kubeovnv1.SubnetSpec{CIDRBlock: "10.30.0.0/24", Vpc: "v1", Provider: "ovn"})
	router := func(want bool) func() error {
		return func() error {
			if r, ok := w.nb.Router("v1"); ok != want || ok && len(r.StaticRoutes) != 1 {
				return fmt.Errorf("router %+v", r)
			}
			return nil
		}
	}
	w.until("the router", router(true))
	w.until("its port", func() error {
		if _, ok := w.nb.RouterPort("v1-t"); !ok {
			return fmt.Errorf("no port")
		}
		return nil
	})
	// The router stays while a subnet is on it, and so does the port.
	w.must(w.client.Delete(w.ctx, v))
	w.until("the worker sees it", func() error {
		var have kubeovnv1.Vpc
		if err := w.worker.Client.Get(w.ctx, client.ObjectKey{Name: "v1"}, &have); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	})
	w.until("a look at the topology", func() error {
		_, err := w.worker.reconcileTopology(w.ctx, request("topology"))
		return err
	})
	if _, ok := w.nb.RouterPort("v1-t"); !ok {
		t.Error("the subnet has lost its router")
	}
	w.must(w.client.Delete(w.ctx, w.subnet("t")))
	w.until("no router", router(false))
	if _, ok := w.nb.Switch("t"); ok {
		t.Error("the switch is still there")
	}
}

func TestSwitchStaysUntilItsPodsAreGone(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode))
	w.wired("a")
	w.must(w.client.Delete(w.ctx, w.subnet("s")))
	if s := w.subnet("s"); len(s.Finalizers) > 0 { // somebody strips it
		s.Finalizers = nil
		w.must(w.client.Update(w.ctx, s))
	}
	w.until("the worker sees it", func() error {
		var have kubeovnv1.Subnet
		if err := w.worker.Client.Get(w.ctx, client.ObjectKey{Name: "s"}, &have); !apierrors.IsNotFound(err) {
			return fmt.Errorf("still there: %w", err)
		}
		return nil
	})
	_, err := w.worker.reconcileTopology(w.ctx, request("topology"))
	w.must(err)
	_, sw := w.nb.Switch("s")
	_, port := w.nb.RouterPort("ovn-cluster-s")
	if !sw || !port {
		t.Errorf("switch %v, router port %v", sw, port)
	}
}

// TestForeignPolicyIsInNobodysWay has somebody else's policy where one of ours belongs: it stays, and all else is written.
func TestForeignPolicyIsInNobodysWay(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.must(w.worker.apply(w.ctx, ovn.Change{Key: "theirs", Ensure: nb.Rows{
		Policies: []nb.Policy{{Router: "ovn-cluster", Row: nb.RouterPolicy{Priority: 31000, Match: "ip4.dst == 10.40.0.0/24", Action: "drop"}}},
	}}))
	w.makeSubnet("t", kubeovnv1.SubnetSpec{CIDRBlock: "10.40.0.0/24", Provider: "ovn"})
	w.until("the subnet", func() error {
		if _, ok := w.nb.RouterPort("ovn-cluster-t"); !ok {
			return fmt.Errorf("no router port")
		}
		return nil
	})
	if diff := cmp.Diff([]string{"31000 ip4.dst == 10.40.0.0/24 drop "}, w.policies("10.40.0.0/24")); diff != "" {
		t.Errorf("policies (-want +got):\n%s", diff)
	}
}

// nbctl changes the northbound database as somebody else does.
func (w *world) nbctl(args ...string) {
	w.t.Helper()
	out, err := exec.Command("ovn-nbctl", append([]string{"--no-leader-only", "--timeout=20", "--db=" + w.remote}, args...)...).CombinedOutput()
	if err != nil {
		w.t.Fatalf("ovn-nbctl %v: %v: %s", args, err, out)
	}
}

// switches counts the switches of a name.
func (w *world) switches(name string) int {
	n := 0
	for _, s := range w.nb.Switches() {
		if s.Name == name {
			n++
		}
	}
	return n
}

// TestTwinOfASwitchIsInNobodysWay has somebody else make a switch with the name of one of ours: what is there stays, all else
// is made and removed.
func TestTwinOfASwitchIsInNobodysWay(t *testing.T) {
	w := newWorld(t, worldOptions{})
	linked := func(subnets ...string) func() error {
		return func() error {
			for _, name := range subnets {
				if _, ok := w.nb.RouterPort("ovn-cluster-" + name); !ok || w.switches(name) == 0 {
					return fmt.Errorf("router port of %s: %v, %d switches", name, ok, w.switches(name))
				}
			}
			return nil
		}
	}
	for i, name := range []string{"t", "u"} {
		w.makeSubnet(name, kubeovnv1.SubnetSpec{CIDRBlock: fmt.Sprintf("10.4%d.0.0/24", i), Provider: "ovn"})
	}
	w.until("the subnets", linked("t", "u"))
	w.nbctl("create", "Logical_Switch", "name=t", "external_ids:vendor=other")
	w.until("the twin is seen", func() error {
		if n := w.switches("t"); n != 2 {
			return fmt.Errorf("%d switches", n)
		}
		return nil
	})
	w.makeSubnet("v", kubeovnv1.SubnetSpec{CIDRBlock: "10.49.0.0/24", Provider: "ovn"})
	w.until("a subnet that comes later", linked("t", "v"))
	for _, name := range []string{"t", "u"} {
		w.must(w.client.Delete(w.ctx, w.subnet(name)))
	}
	w.until("the other that is deleted", func() error {
		if n := w.switches("u"); n != 0 {
			return fmt.Errorf("%d switches", n)
		}
		return nil
	})
	w.must(linked("v")())
	if n := w.switches("t"); n != 2 {
		t.Errorf("%d switches t, want the foreign one and ours", n)
	}
}

func TestSpare(t *testing.T) {
	ch := ovn.Change{RemoveSwitches: []string{"a", "b"}, RemoveRouters: []string{"r", "a"}}
	if !spare(&ch, "a") || spare(&ch, "x") {
		t.Error("it doesn't tell what it does")
	}
	if d := cmp.Diff(ovn.Change{RemoveSwitches: []string{"b"}, RemoveRouters: []string{"r"}}, ch, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Pods that belong into a new group are all looked at, however many they are.
func TestRegroupPassesNobodyOver(t *testing.T) {
	w := newWorld(t, worldOptions{})
	const pods = 5
	for i := range pods {
		w.admit(podNamed(fmt.Sprintf("p%d", i), onNode))
	}
	w.stop()
	h := w.employ(worldOptions{})
	defer h.end()
	h.wake = make(chan event.GenericEvent, 1)
	ended := make(chan error, 1)
	go func() {
		ended <- h.regroup(w.ctx, []nb.Group{{Name: "s.n1", ExternalIDs: map[string]string{nb.KeySubnet: "s", nb.KeyNode: "n1"}}})
	}()
	got := map[string]bool{}
	for len(got) < pods {
		select {
		case e := <-h.wake:
			got[e.Object.GetName()] = true
		case <-w.ctx.Done():
			t.Fatalf("only %v are looked at", got)
		}
	}
	w.must(<-ended)
}

func TestLeaveOut(t *testing.T) {
	rows := func() nb.Rows {
		return nb.Rows{
			Routers: []nb.LogicalRouter{{Name: "r"}}, Switches: []nb.LogicalSwitch{{Name: "a"}, {Name: "b"}}, Complete: []string{"a", "b"},
			RouterPorts: []nb.RouterPort{{Router: "r", Row: nb.LogicalRouterPort{Name: "r-a"}}},
			Ports:       []nb.Port{{Switch: "a", Row: nb.LogicalSwitchPort{Name: "a-r"}}, {Switch: "b", Row: nb.LogicalSwitchPort{Name: "b-r"}}},
			Policies:    []nb.Policy{{Router: "r", Row: nb.RouterPolicy{Priority: 1, Match: "ip4"}}}, Routes: []nb.Route{{Router: "r"}},
			Groups: []nb.Group{{Name: "g"}},
		}
	}
	cases := map[string]struct {
		name string
		want func(*nb.Rows)
	}{
		"a switch and its ports": {"a", func(r *nb.Rows) { r.Switches, r.Complete, r.Ports = r.Switches[1:], r.Complete[1:], r.Ports[1:] }},
		"a port":                 {"b-r", func(r *nb.Rows) { r.Ports = r.Ports[:1] }},
		"a router and all on it": {"r", func(r *nb.Rows) { r.Routers, r.RouterPorts, r.Policies, r.Routes = nil, nil, nil, nil }},
		"a router port":          {"r-a", func(r *nb.Rows) { r.RouterPorts = nil }},
		"a policy":               {"r 1 ip4", func(r *nb.Rows) { r.Policies = nil }},
		"a group":                {"g", func(r *nb.Rows) { r.Groups = nil }},
		"nothing":                {"x", nil},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got, want := rows(), rows()
			if tc.want != nil {
				tc.want(&want)
			}
			if leaveOut(&got, tc.name) != (tc.want != nil) {
				t.Errorf("says it is %v", tc.want == nil)
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("rows (-want +got):\n%s", diff)
			}
		})
	}
}

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
}

func TestNodeMoved(t *testing.T) {
	cases := map[string]struct {
		change func(*corev1.Node)
		want   bool
	}{
		"heartbeat": {change: func(n *corev1.Node) {
			n.ResourceVersion, n.Status.Conditions[0].LastHeartbeatTime = "2", metav1.Now()
		}},
		"foreign annotation": {change: func(n *corev1.Node) { n.Annotations["a"] = "b" }},
		"not ready":          {change: func(n *corev1.Node) { n.Status.Conditions[0].Status = "Unknown" }, want: true},
		"label":              {change: func(n *corev1.Node) { n.Labels = map[string]string{"a": "b"} }, want: true},
		"address":            {change: func(n *corev1.Node) { n.Status.Addresses[0].Address = "192.168.0.6" }, want: true},
		"its place is gone":  {change: func(n *corev1.Node) { n.Annotations = nil }, want: true},
		"made anew":          {change: func(n *corev1.Node) { n.UID = "u2" }, want: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			before := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "u1", Annotations: map[string]string{"ovn.kubernetes.io/ip_address": "100.64.0.2"}}}
			before.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
			before.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.5"}}
			after := before.DeepCopy()
			tc.change(after)
			if got := nodeMoved(before, after); got != tc.want {
				t.Errorf("moved is %v, want %v", got, tc.want)
			}
		})
	}
}
