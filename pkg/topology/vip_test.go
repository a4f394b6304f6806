package topology

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func TestVipPort(t *testing.T) {
	status := kubeovnv1.VipStatus{V4IP: "10.0.0.9", V6IP: "fd00::9", Mac: "0a:58:0a:00:00:09"}
	cases := map[string]struct {
		kind   string
		status kubeovnv1.VipStatus
		needs  bool
		want   nb.LogicalSwitchPort
	}{
		"moves between pods": {"", status, false, nb.LogicalSwitchPort{Addresses: []string{"0a:58:0a:00:00:09 10.0.0.9 fd00::9"}, ExternalIDs: vendor("ls", "s", "berth-vip", "v")}},
		"virtual machine":    {"kube_host_vm_vip", status, true, nb.LogicalSwitchPort{Addresses: []string{"0a:58:0a:00:00:09 10.0.0.9 fd00::9"}, ExternalIDs: vendor("ls", "s", "berth-vip", "v")}},
		"load balancer": {"switch_lb_vip", kubeovnv1.VipStatus{V6IP: "fd00::9", Mac: "02:00:00:00:00:01"}, true, nb.LogicalSwitchPort{
			Addresses: []string{"02:00:00:00:00:01 fd00::9"}, Options: map[string]string{"arp_proxy": "true"},
			ExternalIDs: vendor("ls", "s", "berth-vip", "v", "berth-options", "arp_proxy")}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v := &kubeovnv1.Vip{Spec: kubeovnv1.VipSpec{Subnet: "s", Type: tc.kind}, Status: tc.status}
			v.Name = "v"
			if got := VipNeedsPort(v); got != tc.needs {
				t.Errorf("needs a port: %v", got)
			}
			tc.want.Name = "v.app"
			if diff := cmp.Diff(nb.Port{Switch: "s", Row: tc.want}, VipPort(v, "v.app")); diff != "" {
				t.Errorf("port (-want +got):\n%s", diff)
			}
		})
	}
}

func TestVipChooses(t *testing.T) {
	labels := map[string]string{"app": "web", "tier": "", "example.com/x": "y"}
	cases := map[string]struct {
		selector []string
		want     bool
	}{
		"every one":        {nil, true},
		"by a label":       {[]string{"app:web"}, true},
		"with blanks":      {[]string{" app : web "}, true},
		"another value":    {[]string{"app:db"}, false},
		"no such label":    {[]string{"zone:web"}, false},
		"both":             {[]string{"app:web", "example.com/x:y"}, true},
		"one of both":      {[]string{"app:web", "example.com/x:z"}, false},
		"an empty value":   {[]string{"tier:"}, true},
		"empty, not there": {[]string{"zone:"}, false},
		"unreadable":       {[]string{"app"}, false},
		"two colons":       {[]string{"app:web:x"}, false},
		"nothing":          {[]string{""}, false},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if got := VipChooses(&kubeovnv1.Vip{Spec: kubeovnv1.VipSpec{Selector: c.selector}}, labels); got != c.want {
				t.Errorf("%v, want %v", got, c.want)
			}
		})
	}
}
