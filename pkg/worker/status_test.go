package worker

import (
	"fmt"
	"math/big"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// Figures and ranges follow the leases, and nothing is written when nothing changes.
func TestFiguresFollowTheLeases(t *testing.T) {
	w := newWorld(t, worldOptions{})
	pool := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: kubeovnv1.IPPoolSpec{Subnet: "wide", IPs: []string{"10.18.0.4..10.18.0.5"}}}
	w.must(w.client.Create(w.ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "wide"},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.18.0.0/29,fd18::/64", Gateway: "10.18.0.1,fd18::1", ExcludeIps: []string{"10.18.0.6"}, Provider: "ovn", Vpc: "ovn-cluster"}}))
	w.must(w.client.Create(w.ctx, pool))
	w.must(w.client.Create(w.ctx, podNamed("a", onNode, func(p *corev1.Pod) {
		p.Annotations = map[string]string{"ovn.kubernetes.io/logical_switch": "wide", addressKey: "10.18.0.4,fd18::9"}
	})))
	w.wired("a")
	shows := func(subnetWant, poolWant []string) {
		t.Helper()
		w.until("the figures", func() error {
			var s kubeovnv1.Subnet
			if err := w.client.Get(w.ctx, client.ObjectKey{Name: "wide"}, &s); err != nil {
				return err
			}
			if err := w.client.Get(w.ctx, client.ObjectKeyFromObject(pool), pool); err != nil {
				return err
			}
			x, y := s.Status, pool.Status
			got := []string{x.V4AvailableIPs.String(), x.V4AvailableIPRange, x.V4UsingIPs.String(), x.V4UsingIPRange, x.V6UsingIPs.String(), x.V6UsingIPRange}
			if d := cmp.Diff(subnetWant, got); d != "" {
				return fmt.Errorf("subnet (-want +got):\n%s", d)
			}
			got = []string{y.V4AvailableIPs.String(), y.V4AvailableIPRange, y.V4UsingIPs.String(), y.V4UsingIPRange}
			if d := cmp.Diff(poolWant, got); d != "" {
				return fmt.Errorf("pool (-want +got):\n%s", d)
			}
			if x.V6AvailableIPs.BitLen() < 60 {
				return fmt.Errorf("IPv6: %s left", x.V6AvailableIPs.String())
			}
			return nil
		})
	}
	shows([]string{"3", "10.18.0.2-10.18.0.3,10.18.0.5", "1", "10.18.0.4", "1", "fd18::9"}, []string{"1", "10.18.0.5", "1", "10.18.0.4"})
	w.until("no write", func() error {
		w.kube.ResetRequests()
		for range 3 {
			w.must(w.worker.writeStatus(w.ctx))
		}
		for k, n := range w.kube.Requests() {
			if strings.Contains(k, "status") && n > 0 {
				return fmt.Errorf("%d × %s", n, k)
			}
		}
		return nil
	})
	w.end("a")
	shows([]string{"4", "10.18.0.2-10.18.0.5", "0", "", "0", ""}, []string{"2", "10.18.0.4-10.18.0.5", "0", ""})
}

func TestSameCount(t *testing.T) {
	big64 := new(big.Int).Lsh(big.NewInt(1), 64)
	for name, c := range map[string]struct {
		a, b *big.Int
		want bool
	}{
		"small":                  {big.NewInt(5), big.NewInt(5), true},
		"small, other":           {big.NewInt(5), big.NewInt(6), false},
		"large, rounded":         {big64, new(big.Int).Sub(big64, big.NewInt(2)), true},
		"large, other":           {big64, new(big.Int).Lsh(big.NewInt(1), 63), false},
		"as exact as numbers go": {big.NewInt(1 << 53), big.NewInt(1<<53 - 1), false},
	} {
		if got := sameCount(c.a, c.b); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
