package topology

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

func TestNetworks(t *testing.T) {
	join := func(protocol, cidr, gateway string, exclude ...string) *kubeovnv1.Subnet {
		return subnet("join", kubeovnv1.SubnetSpec{Vpc: "ovn-cluster", Provider: "ovn", Protocol: protocol, CIDRBlock: cidr, Gateway: gateway,
			ExcludeIps: exclude, DisableInterConnection: true})
	}
	pods := func(protocol, cidr, gateway string, exclude ...string) *kubeovnv1.Subnet {
		return subnet("ovn-default", kubeovnv1.SubnetSpec{Vpc: "ovn-cluster", Provider: "ovn", Protocol: protocol, CIDRBlock: cidr, Gateway: gateway,
			ExcludeIps: exclude, Default: true, NatOutgoing: true, GatewayType: "distributed"})
	}
	cases := map[string]struct {
		networks Networks
		want     []*kubeovnv1.Subnet
		// err is in the error, which is of that subnet.
		subnet, err string
	}{
		"none": {},
		"Kube-OVN's": {networks: Networks{PodCIDR: "10.16.0.0/16", NodeCIDR: "100.64.0.0/16"}, want: []*kubeovnv1.Subnet{
			join("IPv4", "100.64.0.0/16", "100.64.0.1", "100.64.0.1"), pods("IPv4", "10.16.0.0/16", "10.16.0.1", "10.16.0.1")}},
		"dual stack": {networks: Networks{PodCIDR: "fd00:10::/112,10.16.0.0/16", NodeCIDR: "100.64.0.0/16, fd00:64::/112"}, want: []*kubeovnv1.Subnet{
			join("Dual", "100.64.0.0/16,fd00:64::/112", "100.64.0.1,fd00:64::1", "100.64.0.1", "fd00:64::1"),
			pods("Dual", "10.16.0.0/16,fd00:10::/112", "10.16.0.1,fd00:10::1", "10.16.0.1", "fd00:10::1")}},
		"IPv6": {networks: Networks{PodCIDR: "fd00:10::/112", NodeCIDR: "fd00:64::/112"}, want: []*kubeovnv1.Subnet{
			join("IPv6", "fd00:64::/112", "fd00:64::1", "fd00:64::1"), pods("IPv6", "fd00:10::/112", "fd00:10::1", "fd00:10::1")}},
		"chosen": {networks: Networks{PodCIDR: "10.16.0.0/16", PodGateway: "10.16.0.254", PodExclude: "10.16.0.2..10.16.0.9, 10.16.0.20"}, want: []*kubeovnv1.Subnet{
			pods("IPv4", "10.16.0.0/16", "10.16.0.254", "10.16.0.2..10.16.0.9", "10.16.0.20", "10.16.0.254")}},
		"nodes alone":          {networks: Networks{NodeCIDR: "100.64.0.0/16", NodeGateway: "100.64.0.9"}, want: []*kubeovnv1.Subnet{join("IPv4", "100.64.0.0/16", "100.64.0.9", "100.64.0.9")}},
		"no network":           {networks: Networks{PodCIDR: "10.16.0.0"}, subnet: "ovn-default", err: "cidrBlock"},
		"gateway outside":      {networks: Networks{NodeCIDR: "100.64.0.0/16", NodeGateway: "10.0.0.1"}, subnet: "join", err: "gateway"},
		"excluded is no range": {networks: Networks{PodCIDR: "10.16.0.0/16", PodExclude: "x"}, subnet: "ovn-default", err: "excludeIps"},
		"overlap":              {networks: Networks{PodCIDR: "100.64.0.0/16", NodeCIDR: "100.64.0.0/10"}, subnet: "ovn-default", err: "overlaps"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			v, got, err := tc.networks.Objects(testConfig())
			var bad *NetworksError
			if tc.err != "" {
				if !errors.As(err, &bad) || bad.Subnet != tc.subnet || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want one of %s with %q", err, tc.subnet, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			specs := func(subnets []*kubeovnv1.Subnet) (out []string) {
				for _, s := range subnets {
					out = append(out, fmt.Sprintf("%s: %+v", s.Name, s.Spec))
				}
				return out
			}
			if diff := cmp.Diff(specs(tc.want), specs(got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if (v != nil) != (len(tc.want) > 0) || v != nil && v.Name != "ovn-cluster" {
				t.Errorf("Vpc %v", v)
			}
			for _, s := range got { // there is nothing left to fill in
				if patch, err := Defaults(s, testConfig()); err != nil || !patch.Empty() {
					t.Errorf("%s lacks %+v, error %v", s.Name, patch, err)
				}
			}
		})
	}
}
