package topology

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

func testConfig() Config {
	return Config{ClusterRouter: "ovn-cluster", DefaultSubnet: "ovn-default", NodeSwitch: "join"}
}

func subnet(name string, spec kubeovnv1.SubnetSpec) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

// defaultsCase is a Subnet and the merge patch that it needs; it is called s unless the case says otherwise.
type defaultsCase struct {
	name string
	spec kubeovnv1.SubnetSpec
	want string
}

func defaultsCases() map[string]defaultsCase {
	return map[string]defaultsCase{
		"only a CIDR": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.3.4/16"},
			want: `{"spec":{"vpc":"ovn-cluster","protocol":"IPv4","cidrBlock":"10.16.0.0/16","gateway":"10.16.0.1","excludeIps":["10.16.0.1"],"provider":"ovn","gatewayType":"distributed"}}`,
		},
		"complete": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.0.1", ExcludeIps: []string{"10.16.0.1"}, Protocol: "IPv4",
				Vpc: "ovn-cluster", Provider: "ovn", GatewayType: "centralized"},
		},
		"two families, the wrong way round, one gateway": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "FD00:10::/64, 10.16.0.0/16", Gateway: "10.16.0.254", Vpc: "v", Provider: "net1.default.ovn",
				ExcludeIps: []string{"FD00:10::5", "10.16.0.9..10.16.0.20", "10.16.0.2..10.16.0.10"}},
			want: `{"spec":{"protocol":"Dual","cidrBlock":"10.16.0.0/16,fd00:10::/64","gateway":"10.16.0.254,fd00:10::1","excludeIps":["10.16.0.2..10.16.0.20","10.16.0.254","fd00:10::1","fd00:10::5"]}}`,
		},
		"IPv6": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "fd00::/64", Provider: "ovn", Vpc: "v"},
			want: `{"spec":{"protocol":"IPv6","gateway":"fd00::1","excludeIps":["fd00::1"]}}`,
		},
		"gateway excluded by a range already": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Gateway: "10.16.0.1", ExcludeIps: []string{"10.16.0.0..10.16.0.9"}, Protocol: "IPv4",
				Vpc: "v", Provider: "ovn"},
		},
		"whole range excluded": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/24", Gateway: "10.16.0.1", ExcludeIps: []string{"10.16.0.0..10.16.0.255"}, Protocol: "IPv4",
				Vpc: "v", Provider: "ovn"},
		},
		"two addresses": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.2/31", Provider: "ovn", Vpc: "v"},
			want: `{"spec":{"protocol":"IPv4","gateway":"10.0.0.2","excludeIps":["10.0.0.2"]}}`,
		},
		"join": {
			name: "join",
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "100.64.0.0/16"},
			want: `{"spec":{"vpc":"ovn-cluster","protocol":"IPv4","gateway":"100.64.0.1","excludeIps":["100.64.0.1"],"provider":"ovn"}}`,
		},
		"foreign provider": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Provider: "macvlan.default"},
			want: `{"spec":{"protocol":"IPv4","gateway":"10.16.0.1","excludeIps":["10.16.0.1"]}}`,
		},
		"VLAN without addresses": {
			spec: kubeovnv1.SubnetSpec{Vlan: "v1", Vpc: "v", Provider: "ovn"},
			want: `{"spec":{"protocol":"Mac"}}`,
		},
		"only one default": {
			spec: kubeovnv1.SubnetSpec{Default: true, Vlan: "v1", Protocol: "Mac", Provider: "ovn", Vpc: "ovn-cluster", GatewayType: "distributed"},
			want: `{"spec":{"default":false}}`,
		},
		"the default subnet": {
			name: "ovn-default",
			spec: kubeovnv1.SubnetSpec{Default: true, Vlan: "v1", Protocol: "Mac", Provider: "ovn", Vpc: "ovn-cluster", GatewayType: "distributed"},
		},
	}
}

func TestDefaults(t *testing.T) {
	for name, tc := range defaultsCases() {
		t.Run(name, func(t *testing.T) {
			s := subnet("s", tc.spec)
			if tc.name != "" {
				s.Name = tc.name
			}
			patch, err := Defaults(s, testConfig())
			if err != nil {
				t.Fatal(err)
			}
			got, err := patch.MergePatch()
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, string(got)); diff != "" {
				t.Errorf("patch (-want +got):\n%s", diff)
			}
			patch.Apply(s)
			if again, err := Defaults(s, testConfig()); err != nil || !again.Empty() {
				t.Errorf("defaults of a subnet with defaults: %+v, %v", again, err)
			}
		})
	}
}

func TestDefaultsRefuse(t *testing.T) {
	cases := map[string]struct {
		spec kubeovnv1.SubnetSpec
		want []string
	}{
		"no CIDR":              {kubeovnv1.SubnetSpec{}, []string{"spec.cidrBlock: Required"}},
		"gateway without CIDR": {kubeovnv1.SubnetSpec{Vlan: "v", LogicalGateway: true}, []string{"spec.cidrBlock: Required"}},
		"not a CIDR":           {kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0"}, []string{"is no CIDR"}},
		"one address":          {kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.1/32"}, []string{"one address only"}},
		"one address, IPv6":    {kubeovnv1.SubnetSpec{CIDRBlock: "fd00::1/128"}, []string{"one address only"}},
		"one family twice":     {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,10.0.1.0/24"}, []string{"two CIDRs of one family"}},
		"commas":               {kubeovnv1.SubnetSpec{CIDRBlock: ","}, []string{"no CIDR in it"}},
		"multicast":            {kubeovnv1.SubnetSpec{CIDRBlock: "224.0.0.0/24"}, []string{"can't be routed"}},
		"mapped":               {kubeovnv1.SubnetSpec{CIDRBlock: "::ffff:10.0.0.0/120"}, []string{"is no CIDR"}},
		"gateway outside":      {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "10.0.1.1"}, []string{"outside 10.0.0.0/24"}},
		"gateway is network":   {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "10.0.0.0"}, []string{"network or broadcast"}},
		"gateway is broadcast": {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/20", Gateway: "10.0.15.255"}, []string{"network or broadcast"}},
		"gateway twice":        {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "10.0.0.1,10.0.0.2"}, []string{"two gateways"}},
		"gateway is a word":    {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", Gateway: "gw"}, []string{"gw is no address"}},
		"unknown gateway type": {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", GatewayType: "x"}, []string{"spec.gatewayType: Unsupported"}},
		"excluded: range":      {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", ExcludeIps: []string{"10.0.0.9..10.0.0.2"}}, []string{"ends before it begins"}},
		"excluded: families":   {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24", ExcludeIps: []string{"10.0.0.9..fd00::1"}}, []string{"different families"}},
		"all that is wrong":    {kubeovnv1.SubnetSpec{CIDRBlock: "10.0.0.0/24,x", Gateway: "y", ExcludeIps: []string{"z"}}, []string{"x is no CIDR", "y is no address", "spec.excludeIps[0]"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			patch, err := Defaults(subnet("s", tc.spec), testConfig())
			if err == nil {
				t.Fatalf("no error, patch %+v", patch)
			}
			for _, want := range tc.want {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q lacks %q", err, want)
				}
			}
			if !patch.Empty() {
				t.Errorf("patch %+v beside an error", patch)
			}
		})
	}
}

func genSpec() *rapid.Generator[kubeovnv1.SubnetSpec] {
	return rapid.Custom(func(t *rapid.T) kubeovnv1.SubnetSpec {
		v4 := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 3).Draw(t, "net")),
			rapid.Byte().Draw(t, "b"), rapid.Byte().Draw(t, "c")}), rapid.IntRange(8, 31).Draw(t, "bits"))
		v6 := netip.PrefixFrom(netip.AddrFrom16([16]byte{0xfd, byte(rapid.IntRange(0, 3).Draw(t, "net6")),
			15: rapid.Byte().Draw(t, "host6")}), rapid.IntRange(8, 127).Draw(t, "bits6"))
		spec := kubeovnv1.SubnetSpec{
			CIDRBlock: rapid.SampledFrom([]string{
				v4.String(), v6.String(), v4.String() + "," + v6.String(), strings.ToUpper(v6.String()) + ", " + v4.String(), "bad",
			}).Draw(t, "cidr"),
			Vpc:            rapid.SampledFrom([]string{"", "ovn-cluster", "v1", "v2", "nowhere"}).Draw(t, "vpc"),
			Vlan:           rapid.SampledFrom([]string{"", "", "vlan1", "vlan2"}).Draw(t, "vlan"),
			Provider:       rapid.SampledFrom([]string{"", "ovn", "a.b.ovn", "a.b"}).Draw(t, "provider"),
			LogicalGateway: rapid.Bool().Draw(t, "lgw"),
		}
		for range rapid.IntRange(0, 4).Draw(t, "excluded") {
			from := v4.Masked().Addr()
			for range rapid.IntRange(0, 9).Draw(t, "from") {
				from = from.Next()
			}
			to := from
			for range rapid.IntRange(0, 5).Draw(t, "length") {
				to = to.Next()
			}
			spec.ExcludeIps = append(spec.ExcludeIps, addrRange{from, to}.String())
		}
		return spec
	})
}

func TestDefaultsAreIdempotent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := subnet("s", genSpec().Draw(t, "spec"))
		patch, err := Defaults(s, testConfig())
		if err != nil {
			return
		}
		patch.Apply(s)
		again, err := Defaults(s, testConfig())
		if err != nil {
			t.Fatalf("defaults aren't valid: %v", err)
		}
		if !again.Empty() {
			t.Fatalf("second patch %+v of %+v", again, s.Spec)
		}
	})
}
