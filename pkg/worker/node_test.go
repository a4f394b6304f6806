package worker

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// makeSubnet makes a Subnet.
func (w *world) makeSubnet(name string, spec kubeovnv1.SubnetSpec) {
	w.t.Helper()
	w.must(w.client.Create(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}))
}

// makeNode makes a node that is ready, with the annotations that it carries already.
func (w *world) makeNode(name, internal string, annotations map[string]string) *corev1.Node {
	w.t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}}
	w.must(w.client.Create(w.ctx, n))
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: internal}}
	w.must(w.client.Status().Update(w.ctx, n))
	return n
}

func (w *world) node(name string) *corev1.Node {
	w.t.Helper()
	var n corev1.Node
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: name}, &n))
	return &n
}

// announced waits until a node carries its place, and returns it.
func (w *world) announced(name string) map[string]string {
	w.t.Helper()
	var out map[string]string
	w.until("place of "+name, func() error {
		out = map[string]string{}
		for k, v := range w.node(name).Annotations {
			out[strings.TrimPrefix(k, "ovn.kubernetes.io/")] = v
		}
		if out["port_name"] == "" {
			return fmt.Errorf("annotations %v", out)
		}
		return nil
	})
	w.seen(w.node(name)) // so that no pass patches an old view of it
	return out
}

// policies are those of routers with a match like that, in words.
func (w *world) policies(match string) []string {
	w.t.Helper()
	return slices.DeleteFunc(w.find("logical_router_policy", "priority", "match", "action", "nexthops"),
		func(line string) bool { return !strings.Contains(line, match) })
}

// find gives all rows of a table, by their columns, as somebody else sees them.
func (w *world) find(table string, columns ...string) []string {
	w.t.Helper()
	out, err := exec.Command("ovn-nbctl", "--no-leader-only", "--timeout=20", "--db="+w.remote, "--format=csv", "--data=bare", "--no-headings",
		"--columns="+strings.Join(columns, ","), "list", table).Output()
	w.must(err)
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	w.must(err)
	var lines []string
	for _, r := range rows {
		lines = append(lines, strings.Join(r, " "))
	}
	slices.Sort(lines)
	return lines
}

func joinSpec() kubeovnv1.SubnetSpec {
	return kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16,fd00:100::/64", Provider: "ovn", Vpc: "ovn-cluster"}
}

func TestNodeGetsItsPlace(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeSubnet("join", joinSpec())
	w.makeNode("n2", "192.168.0.5", nil)
	got := w.announced("n2")
	mac := got["mac_address"]
	v4, _, _ := strings.Cut(got["ip_address"], ",")
	want := map[string]string{"ip_address": got["ip_address"], "mac_address": mac, "cidr": "100.64.0.0/16,fd00:100::/64",
		"gateway": "100.64.0.1,fd00:100::1", "logical_switch": "join", "allocated": "true", "port_name": "node-n2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	port, _ := w.nb.Port("node-n2")
	if diff := cmp.Diff([]string{mac + " " + strings.ReplaceAll(got["ip_address"], ",", " ")}, port.Addresses); diff != "" {
		t.Errorf("port (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"30000 ip4.dst == 192.168.0.5 reroute " + v4}, w.policies("192.168.0.5")); diff != "" {
		t.Errorf("way to the node (-want +got):\n%s", diff)
	}
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "node-n2"}, &ip))
	if ip.Spec.PodName != "n2" || ip.Spec.IPAddress != got["ip_address"] || ip.Spec.MacAddress != mac || ip.Labels["ovn.kubernetes.io/ip_reserved"] != "false" ||
		len(ip.OwnerReferences) != 1 || ip.OwnerReferences[0].UID != w.node("n2").UID {
		t.Errorf("record %+v", ip)
	}
	// It stays its place, whoever looks for reservations.
	_, err := w.worker.reconcileReservations(w.ctx, request("reservations"))
	w.must(err)
	if held := w.worker.nodeLeases("n2"); len(held) != 2 {
		t.Errorf("leases %v", held)
	}
	// n1 had its address before.
	if got := w.announced("n1"); !strings.HasPrefix(got["ip_address"], "100.64.0.2,fd00:100::") {
		t.Errorf("n1 has %v", got)
	}
}

// Nothing of a node's place is garbage, though no pod has it: its leases, its port and its record outlive the sweeps.
func TestB82PlacesOfNodesOutliveSweeps(t *testing.T) {
	w := newWorld(t, worldOptions{age: time.Millisecond})
	w.makeSubnet("join", joinSpec())
	before := w.announced("n1")
	w.lookAtTopology("join")
	leases := w.worker.nodeLeases("n1")
	for range 4 {
		w.must(w.worker.sweep(w.ctx))
		_, err := w.worker.reconcileReservations(w.ctx, request("reservations"))
		w.must(err)
	}
	if after := w.worker.nodeLeases("n1"); len(leases) == 0 || fmt.Sprint(leases) != fmt.Sprint(after) {
		t.Errorf("leases %v, before %v", after, leases)
	}
	port, ok := w.nb.Port("node-n1")
	if want := before["mac_address"] + " " + strings.ReplaceAll(before["ip_address"], ",", " "); !ok || !slices.Contains(port.Addresses, want) {
		t.Errorf("port %v, want one with %s", port, want)
	}
	var ip kubeovnv1.IP
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "node-n1"}, &ip))
}

func TestNodeWithItsPlaceCostsNothing(t *testing.T) {
	var patches atomic.Int32
	w := newWorld(t, worldOptions{intercept: func(r memkube.Request) memkube.Fault {
		if r.Verb == "patch" && r.Resource == "nodes" {
			patches.Add(1)
		}
		return memkube.Fault{}
	}})
	w.makeSubnet("join", joinSpec())
	w.announced("n1")
	w.lookAtTopology("join")
	w.seen(w.node("n1"))
	w.seen(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "node-n1"}})
	before := w.worker.writer.Transactions()
	patches.Store(0)
	for range 3 {
		w.lookAtTopology("join")
	}
	if n := w.worker.writer.Transactions() - before; n != 0 {
		t.Errorf("%d transactions without a change", n)
	}
	if n := patches.Load(); n != 0 {
		t.Errorf("%d patches of the node without a change", n)
	}
}

func TestNodeThatHasChangedIsNotAnnotated(t *testing.T) {
	w := newWorld(t, worldOptions{})
	old := w.node("n1")
	changed := old.DeepCopy()
	changed.Labels = map[string]string{"a": "b"}
	w.must(w.client.Patch(w.ctx, changed, client.MergeFrom(old)))
	if err := w.worker.annotateNode(w.ctx, old, map[string]string{"cidr": "10.0.0.0/8"}); !apierrors.IsConflict(err) {
		t.Errorf("the patch of an old view gave %v", err)
	}
	gone := old.DeepCopy()
	gone.Name = "n9"
	w.must(w.worker.annotateNode(w.ctx, gone, map[string]string{"cidr": "10.0.0.0/8"}))
	if diff := cmp.Diff(old.Annotations, w.node("n1").Annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
}

func TestNodeThatIsGoneGivesBack(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeSubnet("join", joinSpec())
	w.makeNode("n2", "192.168.0.5", nil)
	w.announced("n2")
	w.must(w.client.Delete(w.ctx, w.node("n2")))
	w.until("nothing left of n2", func() error {
		var ip kubeovnv1.IP
		err := w.client.Get(w.ctx, client.ObjectKey{Name: "node-n2"}, &ip)
		_, port := w.nb.Port("node-n2")
		leases := w.ledger.ByOwner(ipam.Owner{Kind: ipam.KindNode, Name: "n2"})
		if !apierrors.IsNotFound(err) || port || len(leases) > 0 || len(w.policies("192.168.0.5")) > 0 || len(w.nb.MissingGroups([]nb.Group{nb.NodeGroup("n2")})) == 0 {
			return fmt.Errorf("record %w, port %v, leases %v, policies %v", err, port, leases, w.policies("192.168.0.5"))
		}
		return nil
	})
	if _, ok := w.nb.Port("node-n1"); !ok {
		t.Error("n1 has lost its port")
	}
}

// TestStaleCacheRemovesNothing has a worker see a node go, while the API server still has it.
func TestStaleCacheRemovesNothing(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeSubnet("join", joinSpec())
	w.announced("n1")
	w.lookAtTopology("join")
	l, err := w.worker.survey(w.ctx)
	w.must(err)
	delete(l.nodes, "n1")
	if err := w.worker.confirmNodes(w.ctx, l); err == nil {
		t.Error("the node's port would go, and the node is there")
	}
}

func TestTwoNodesThatCarryOneAddress(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeNode("n2", "192.168.0.5", map[string]string{"ovn.kubernetes.io/ip_address": "100.64.0.2"})
	w.makeNode("n3", "192.168.0.6", map[string]string{"ovn.kubernetes.io/ip_address": "10.99.0.2"}) // from before the CIDR changed
	w.makeSubnet("join", joinSpec())
	if got := w.announced("n3"); !strings.HasPrefix(got["ip_address"], "100.64.") {
		t.Errorf("n3 has %v", got)
	}
	w.until("one of the two has the address", func() error {
		var holders []string
		for _, n := range []string{"n1", "n2"} {
			if _, ok := w.nb.Port("node-" + n); ok {
				holders = append(holders, n)
			}
		}
		if len(holders) != 1 {
			return fmt.Errorf("it is with %v; n1 has %v, n2 has %v", holders, w.node("n1").Annotations, w.node("n2").Annotations)
		}
		return nil
	})
}

// TestPlaceOutlivesItsLease takes the ledger's word for a node's place away: the port stays as it is.
func TestPlaceOutlivesItsLease(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeSubnet("join", joinSpec())
	w.announced("n1")
	before, _ := w.nb.Port("node-n1")
	w.edit("join", func(s *kubeovnv1.SubnetSpec) { s.ExcludeIps = []string{"100.64.0.1..nonsense"} })
	w.seen(w.subnet("join"))
	w.until("a look at the topology", func() error {
		_, err := w.worker.reconcileTopology(w.ctx, request("topology"))
		return err
	})
	after, _ := w.nb.Port("node-n1")
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the node's port (-before +after):\n%s", diff)
	}
	if len(w.policies("$s.n1_ip4")) != 1 {
		t.Errorf("policies %v", w.policies(""))
	}
}
