package topology

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// A router learns from what it hears only where somebody stands beside it whom OVN doesn't know: another VPC's router, a
// physical gateway, the external network.
func TestRoutersThatLearn(t *testing.T) {
	joined := func(vpc, vlan string) *kubeovnv1.Subnet {
		return subnet("u", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/16", Vpc: vpc, Vlan: vlan, U2OInterconnection: true})
	}
	peers := vpcWith("v1", func(s *kubeovnv1.VpcSpec) {
		s.VpcPeerings = []kubeovnv1.VpcPeering{{RemoteVpc: "v2", LocalConnectIP: "169.254.0.1/30"}}
	})
	external := vpcWith("v1", func(s *kubeovnv1.VpcSpec) { s.EnableExternal = true })
	cases := map[string]struct {
		in   Input
		want map[string]string
	}{
		"nobody":                      {Input{Vpcs: []*kubeovnv1.Vpc{vpc("v1")}}, map[string]string{"ovn-cluster": "false", "v1": "false"}},
		"a peer":                      {Input{Vpcs: []*kubeovnv1.Vpc{peers, vpc("v2")}}, map[string]string{"ovn-cluster": "false", "v1": "true", "v2": "false"}},
		"the external network":        {Input{Vpcs: []*kubeovnv1.Vpc{external}}, map[string]string{"ovn-cluster": "false", "v1": "true"}},
		"a physical gateway":          {Input{Subnets: []*kubeovnv1.Subnet{joined("", "v")}}, map[string]string{"ovn-cluster": "true"}},
		"that of another VPC":         {Input{Vpcs: []*kubeovnv1.Vpc{vpc("v1")}, Subnets: []*kubeovnv1.Subnet{joined("v1", "v")}}, map[string]string{"ovn-cluster": "false", "v1": "true"}},
		"asked for without a network": {Input{Subnets: []*kubeovnv1.Subnet{joined("", "")}}, map[string]string{"ovn-cluster": "false"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			tc.in.Config = testConfig()
			rows, _ := Rows(tc.in)
			got := map[string]string{}
			for _, r := range rows.Routers {
				got[r.Name] = r.Options["always_learn_from_arp_request"]
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("learns (-want +got):\n%s", diff)
			}
		})
	}
}
