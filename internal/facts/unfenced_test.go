package facts

import (
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/ipam"
)

func TestUnfenced(t *testing.T) {
	pod := func(annotations map[string]string) *corev1.Pod {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "u", Annotations: annotations}}
	}
	lease := func(provider, uid string) []ipam.Held {
		return []ipam.Held{{Lease: ipam.Lease{Address: netip.MustParseAddr("10.32.0.9"), Provider: provider, PodUID: uid}}}
	}
	given := map[string]string{"mv.app.kubernetes.io/ip_address": "10.32.0.9", "mv.app.kubernetes.io/cidr": "10.32.0.0/24"}
	for name, c := range map[string]struct {
		pod    *corev1.Pod
		leases []ipam.Held
		want   bool
	}{
		"nothing":                   {pod: pod(nil)},
		"ports":                     {pod: pod(map[string]string{"ovn.kubernetes.io/ip_address": "10.16.0.9", "ovn.kubernetes.io/cidr": "10.16.0.0/24"}), leases: lease("ovn", "u")},
		"a second port":             {pod: pod(map[string]string{"n.app.ovn.kubernetes.io/ip_address": "10.16.0.9", "n.app.ovn.kubernetes.io/cidr": "10.16.0.0/24"}), leases: lease("n.app.ovn", "u")},
		"one of several on a NAD":   {pod: pod(map[string]string{"n.app.ovn.net2.kubernetes.io/ip_address": "10.16.0.9", "n.app.ovn.net2.kubernetes.io/cidr": "10.16.0.0/24"}), leases: lease("n.app.ovn.net2", "u")},
		"another CNI's NIC":         {pod: pod(given), want: true},
		"only asked for":            {pod: pod(map[string]string{"mv.app.kubernetes.io/ip_address": "10.32.0.9"})},
		"no longer carried":         {pod: pod(nil), leases: lease("mv.app", "u"), want: true},
		"not bound yet":             {pod: pod(nil), leases: lease("mv.app", ""), want: true},
		"bound to the other holder": {pod: pod(nil), leases: lease("mv.app", "v")},
	} {
		if got := Unfenced(c.pod, c.leases); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
