package worker

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// externalConfig writes the ConfigMap of the external network.
func (w *world) externalConfig(data map[string]string) {
	w.t.Helper()
	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-external-gw-config"}}
	err := w.client.Get(w.ctx, client.ObjectKeyFromObject(cm), cm)
	if cm.Data = data; apierrors.IsNotFound(err) {
		w.must(w.client.Create(w.ctx, cm))
		return
	}
	w.must(err)
	w.must(w.client.Update(w.ctx, cm))
}

// TestClusterRouterGetsOut connects the cluster router to the external network: by an address of its own choice, by one
// that is chosen for it, and not any more.
func TestClusterRouterGetsOut(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.makeUnderlay("external", kubeovnv1.SubnetSpec{CIDRBlock: "10.90.0.0/24", Gateway: "10.90.0.1"})
	w.must(w.client.Create(w.ctx, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}, Spec: kubeovnv1.VpcSpec{EnableExternal: true}}))
	w.makeNode("n2", "192.168.0.5", map[string]string{"ovn.kubernetes.io/chassis": "c2"})
	w.realised("ovn-cluster", "external-gw-nodes")
	w.externalConfig(map[string]string{"external-gw-nodes": "n2"})
	port := func(networks string, chassis int) {
		t.Helper()
		w.until("the router port", func() error {
			p, ok := w.nb.RouterPort("ovn-cluster-external")
			if !ok && networks == "" {
				return nil
			}
			if strings.Join(p.Networks, ",") != networks || len(p.GatewayChassis) != chassis {
				return fmt.Errorf("port %+v", p)
			}
			return nil
		})
	}
	leased := func(want ...string) {
		t.Helper()
		w.until("the router's leases", func() error {
			var got []string
			for _, h := range w.ledger.ByOwner(ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindSubnet, Name: "external"}) {
				if h.Address.IsValid() {
					got = append(got, h.Address.String())
				}
			}
			if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
				return fmt.Errorf("-want +got:\n%s", diff)
			}
			return nil
		})
	}
	w.realised("ovn-cluster", "")
	chosen, _ := w.nb.RouterPort("ovn-cluster-external")
	address, ok := strings.CutSuffix(strings.Join(chosen.Networks, ","), "/24")
	if !ok || !strings.HasPrefix(address, "10.90.0.") || len(chosen.GatewayChassis) != 1 {
		t.Fatalf("port %+v", chosen)
	}
	leased(address)
	w.externalConfig(map[string]string{"external-gw-nodes": "n2", "nic-ip": "10.90.0.254/24", "nic-mac": "0a:58:0a:5a:00:fe"})
	port("10.90.0.254/24", 1)
	leased("10.90.0.254")
	// What can't be read changes nothing.
	w.externalConfig(map[string]string{"external-gw-nodes": "n2", "nic-ip": "10.90.0.253"})
	w.realised("ovn-cluster", "nic-ip")
	port("10.90.0.254/24", 1)
	leased("10.90.0.254")
	var v kubeovnv1.Vpc
	w.must(w.client.Get(w.ctx, client.ObjectKey{Name: "ovn-cluster"}, &v))
	old := v.DeepCopy()
	v.Spec.EnableExternal = false
	w.must(w.client.Patch(w.ctx, &v, client.MergeFrom(old)))
	port("", 0)
	leased()
}

// realised waits until a Vpc's condition tells of something, or of nothing that is wrong.
func (w *world) realised(vpc, text string) {
	w.t.Helper()
	w.until("the condition of VPC "+vpc, func() error {
		var v kubeovnv1.Vpc
		if err := w.client.Get(w.ctx, client.ObjectKey{Name: vpc}, &v); err != nil {
			return err
		}
		for _, c := range v.Status.Conditions {
			if c.Type == conditionRealised && strings.Contains(c.Message, text) && (text == "") == (c.Status == "True") {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", v.Status.Conditions)
	})
}
