package topology

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

func TestDHCPOfASubnet(t *testing.T) {
	mac := DefaultMAC("dhcp/s")
	v4 := func(mtu, router string, more ...string) map[string]string {
		m := map[string]string{"lease_time": "3600", "server_id": "169.254.0.254", "server_mac": mac, "mtu": mtu, "router": router}
		for i := 0; i < len(more); i += 2 {
			m[more[i]] = more[i+1]
		}
		return m
	}
	cases := map[string]struct {
		spec   kubeovnv1.SubnetSpec
		u2o    string
		v4, v6 map[string]string
	}{
		"overlay": {spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "10.0.0.1"}, v4: v4("1400", "10.0.0.1")},
		"dual": {spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,fd00::/64", Gateway: "10.0.0.1,fd00::1", Mtu: 9000},
			v4: v4("9000", "10.0.0.1"), v6: map[string]string{"server_id": mac}},
		"options of the Subnet": {spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,fd00::/64", Gateway: "10.0.0.1", Vlan: "v",
			DHCPv4Options: "lease_time=60, dns_server={1.1.1.1;8.8.8.8},nonsense", DHCPv6Options: "server_id=02:00:00:00:00:01"},
			v4: v4("1500", "10.0.0.1", "lease_time", "60", "dns_server", "{1.1.1.1,8.8.8.8}"), v6: map[string]string{"server_id": "02:00:00:00:00:01"}},
		"underlay joined to the overlay": {spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "10.0.0.1", Vlan: "v", U2OInterconnection: true},
			u2o: "10.0.0.9", v4: v4("1500", "10.0.0.9")},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			s := subnet("s", tc.spec)
			s.Status.U2OInterconnectionIP = tc.u2o
			got := DHCP(s)
			for family, c := range map[string]struct {
				want map[string]string
				row  *nb.DHCPOptions
			}{nb.ProtocolIPv4: {tc.v4, got.V4}, nb.ProtocolIPv6: {tc.v6, got.V6}} {
				if c.row == nil || c.want == nil {
					if c.row != nil || c.want != nil {
						t.Errorf("%s: row %v, want options %v", family, c.row, c.want)
					}
					continue
				}
				if diff := cmp.Diff(c.want, c.row.Options); diff != "" {
					t.Errorf("%s (-want +got):\n%s", family, diff)
				}
				if diff := cmp.Diff(vendor("ls", "s", "protocol", family), c.row.ExternalIDs); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestServicesOfASwitch(t *testing.T) {
	rows, findings := Rows(Input{Config: testConfig(), Subnets: []*kubeovnv1.Subnet{
		subnet("on", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,fd00::/64", EnableDHCP: true, Vips: []string{"10.0.0.9", "x", "10.0.0.9"}}),
		subnet("off", kubeovnv1.SubnetSpec{CIDRBlock: "10.1.0.0/24", DHCPv4Options: "lease_time=60"}),
		subnet("broken", kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/99", EnableDHCP: true}),
	}})
	if len(findings) != 1 {
		t.Errorf("findings %v", findings)
	}
	if diff := cmp.Diff([]string{"off", "on"}, rows.Complete); diff != "" {
		t.Errorf("complete (-want +got):\n%s", diff)
	}
	var cidrs []string
	for _, d := range rows.DHCP {
		cidrs = append(cidrs, d.ExternalIDs[nb.KeySwitch]+" "+d.CIDR)
	}
	if diff := cmp.Diff([]string{"on 10.0.0.0/24", "on fd00::/64"}, cidrs); diff != "" {
		t.Errorf("DHCP (-want +got):\n%s", diff)
	}
	want := nb.Port{Switch: "on", Row: nb.LogicalSwitchPort{Name: "on-vip-10.0.0.9", Type: "virtual",
		Options: map[string]string{"virtual-ip": "10.0.0.9"}, ExternalIDs: vendor("ls", "on")}}
	found := 0
	for _, p := range rows.Ports {
		if p.Row.Type != "virtual" {
			continue
		}
		found++
		if diff := cmp.Diff(want, p); diff != "" {
			t.Errorf("virtual port (-want +got):\n%s", diff)
		}
	}
	if found != 1 {
		t.Errorf("%d virtual ports, want 1", found)
	}
}
