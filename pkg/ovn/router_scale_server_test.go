package ovn

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// wide is a topology of distributed subnets, each with a group and a policy for every node.
func wide(subnets, nodes int) topology.Input {
	in := topology.Input{Config: landConfig(), Subnets: []*kubeovnv1.Subnet{{ObjectMeta: metav1.ObjectMeta{Name: "join"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16"}}}}
	for i := range subnets {
		in.Subnets = append(in.Subnets, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("s%d", i)},
			Spec: kubeovnv1.SubnetSpec{CIDRBlock: fmt.Sprintf("10.%d.%d.0/24", i/256, i%256)}})
	}
	for i := range nodes {
		in.Nodes = append(in.Nodes, topology.Node{Name: fmt.Sprintf("n%d", i), Ready: true, MAC: "0a:58:64:40:00:02",
			Join: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 1, byte(i)})}, Internal: []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i)})}})
	}
	return in
}

func policiesOf(c *Client) []nb.RouterPolicy {
	return all(c.latest(), tablePolicy, func(r *policyRow) (nb.RouterPolicy, bool) { return nb.RouterPolicy(*r), true })
}

// TestBulkOfTopology writes a topology of 201 subnets and 100 nodes in parts: no transaction is as long as the whole would
// be, the rows are the same, and a second pass writes nothing.
func TestBulkOfTopology(t *testing.T) {
	s := startServer(t, installedSchema)
	c := s.connect()
	w := s.writer(c)
	apply := func(rows nb.Rows) (took time.Duration) {
		t.Helper()
		began := time.Now()
		if err := w.Apply(t.Context(), Change{Key: "topology", Ensure: rows}); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	few, _ := topology.Rows(wide(2, 10))
	if parts := c.Bulk(few, 2000); parts != nil {
		t.Errorf("%d parts of a small topology", len(parts))
	}
	rows, _ := topology.Rows(wide(200, 100))
	parts := c.Bulk(rows, 2000)
	if len(parts) != 23 {
		t.Errorf("%d parts of %d groups and %d policies", len(parts), len(rows.Groups), len(rows.Policies))
	}
	began, longest := time.Now(), time.Duration(0)
	for _, p := range parts {
		if n := len(p.Groups) + len(p.Policies); n > 2000 || p.Whole {
			t.Errorf("a part has %d rows, whole: %v", n, p.Whole)
		}
		longest = max(longest, apply(p))
	}
	last := apply(rows)
	t.Logf("%d groups and %d policies in %s: the longest part took %s, the rest %s", len(rows.Groups), len(rows.Policies), time.Since(began), longest, last)
	if parts := c.Bulk(rows, 2000); parts != nil {
		t.Errorf("%d parts of what is there", len(parts))
	}
	before := w.Transactions()
	t.Logf("looking at it again took %s", apply(rows))
	if n := w.Transactions() - before; n != 0 {
		t.Errorf("%d transactions without a change", n)
	}
	if groups, policies := len(c.Groups()), len(policiesOf(c)); groups != len(rows.Groups) || policies != len(rows.Policies) {
		t.Errorf("%d groups and %d policies, want %d and %d", groups, policies, len(rows.Groups), len(rows.Policies))
	}
	rows, _ = topology.Rows(wide(200, 99))
	t.Logf("the loss of a node took %s", apply(rows))
}
