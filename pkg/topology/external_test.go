package topology

import (
	stdcmp "cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// gatewayNode is a node with a chassis, labelled for the external network or not.
func gatewayNode(name string, labelled bool) Node {
	n := node(name, "")
	n.Chassis = "c-" + name
	if labelled {
		n.Labels = map[string]string{LabelExternalGateway: "true"}
	}
	return n
}

// sound is a cluster whose ConfigMap and nodes say all that is needed.
func sound() Input {
	in := Input{
		Config: testConfig(), Vpcs: []*kubeovnv1.Vpc{vpc("ovn-cluster")},
		Subnets:          []*kubeovnv1.Subnet{subnet("external", kubeovnv1.SubnetSpec{CIDRBlock: "10.90.0.0/24", Vlan: "v"})},
		Vlans:            []*kubeovnv1.Vlan{vlan("v", 0, "pn")},
		ProviderNetworks: []*kubeovnv1.ProviderNetwork{{ObjectMeta: metav1.ObjectMeta{Name: "pn"}}},
		Nodes:            []Node{gatewayNode("n1", true), gatewayNode("n2", false), gatewayNode("n3", true)},
		External: ReadExternal(map[string]string{"enable-external-gw": "true", "type": "centralized", "external-gw-nodes": "n2, n9,n1",
			"nic-ip": "10.90.0.254/24", "nic-mac": "0A:58:0A:5A:00:FE"}),
	}
	in.Config.ExternalSubnet = "external"
	return in
}

// links writes what connects routers to switches.
func links(rows nb.Rows) []string {
	var out []string
	for _, p := range rows.RouterPorts {
		mac := "any"
		if p.FixedMAC {
			mac = p.Row.MAC
		}
		out = append(out, fmt.Sprintf("%s on %s: %s %s by %s", p.Row.Name, p.Router, strings.Join(p.Row.Networks, ","), mac, strings.Join(p.Chassis, ",")))
	}
	for _, p := range rows.Ports {
		if p.Row.Type == nb.TypeRouter {
			out = append(out, fmt.Sprintf("%s on %s to %s announces %q", p.Row.Name, p.Switch, p.Row.Options["router-port"], p.Row.Options["nat-addresses"]))
		}
	}
	return out
}

type externalCase struct {
	change func(*Input)
	links  []string
	// found is in the only finding, which is of the default VPC unless vpc says otherwise; held, that what there is stays.
	found, vpc string
	held       bool
	// deaf: the router doesn't learn from what it hears.
	deaf bool
}

func externalCases() map[string]externalCase {
	link := func(port string) []string {
		return []string{"ovn-cluster-external on ovn-cluster: " + port, `external-ovn-cluster on external to ovn-cluster-external announces "router"`}
	}
	full := link("10.90.0.254/24 0a:58:0a:5a:00:fe by c-n2,c-n1,c-n3")
	byVpc := func(in *Input) { in.External.Enabled, in.Vpcs[0].Spec.EnableExternal = false, true }
	return map[string]externalCase{
		"by the ConfigMap":        {links: full},
		"by the Vpc":              {change: byVpc, links: full},
		"turned off":              {change: func(in *Input) { in.External.Enabled = false }, deaf: true},
		"nothing is said of it":   {change: func(in *Input) { in.External = External{} }, deaf: true},
		"broken and turned off":   {change: func(in *Input) { in.External = External{Err: errors.New("bad")} }, deaf: true},
		"any MAC":                 {change: func(in *Input) { in.External.MAC = "" }, links: link("10.90.0.254/24 any by c-n2,c-n1,c-n3")},
		"labelled nodes alone":    {change: func(in *Input) { in.External.Nodes = nil }, links: link("10.90.0.254/24 0a:58:0a:5a:00:fe by c-n1,c-n3")},
		"nodes without a chassis": {change: func(in *Input) { in.Nodes[0].Chassis = "" }, links: link("10.90.0.254/24 0a:58:0a:5a:00:fe by c-n2,c-n3")},
		"both families": {change: func(in *Input) {
			in.External = ReadExternal(map[string]string{"enable-external-gw": "true", "type": "distributed", "external-gw-nodes": "n2", "nic-ip": "fd00::fe/64,10.90.0.254/24"})
		}, links: link("10.90.0.254/24,fd00::fe/64 any by c-n1,c-n3")},
		"another VPC": {change: func(in *Input) {
			v := vpc("v1")
			v.Spec.EnableExternal = true
			in.Vpcs = append(in.Vpcs, v)
		}, links: full, vpc: "v1", found: "for VPC ovn-cluster alone"},
		"no node":             {change: func(in *Input) { in.Nodes = nil }, found: "external-gw=true", held: true},
		"no address":          {change: func(in *Input) { in.External.Networks = nil }, found: "set nic-ip", held: true},
		"broken":              {change: func(in *Input) { in.External.Err = errors.New("bad") }, found: "bad", held: true},
		"no subnet":           {change: func(in *Input) { in.Subnets = nil }, found: "create it with a spec.vlan"},
		"not OVN's subnet":    {change: func(in *Input) { in.Subnets[0].Spec.Provider = "macvlan.default" }, found: "create it with a spec.vlan"},
		"a pods' network":     {change: func(in *Input) { in.Subnets[0].Spec.Vlan = "" }, found: "give it a spec.vlan", links: []string{"ovn-cluster-external on ovn-cluster: 10.90.0.1/24 any by ", `external-ovn-cluster on external to ovn-cluster-external announces ""`}},
		"joined to the pods'": {change: func(in *Input) { in.Subnets[0].Spec.U2OInterconnection = true }, found: "neither logicalGateway nor u2oInterconnection"},
	}
}

func TestExternal(t *testing.T) {
	for name, tc := range externalCases() {
		t.Run(name, func(t *testing.T) {
			in := sound()
			if tc.change != nil {
				tc.change(&in)
			}
			rows, findings := Rows(in)
			if diff := cmp.Diff(tc.links, links(rows)); diff != "" {
				t.Errorf("links (-want +got):\n%s", diff)
			}
			if held := len(rows.Held) > 0; held != tc.held {
				t.Errorf("held: %v", rows.Held)
			}
			if got, want := rows.Routers[0].Options["always_learn_from_arp_request"], fmt.Sprint(!tc.deaf); got != want {
				t.Errorf("the router learns: %s, want %s", got, want)
			}
			of := stdcmp.Or(tc.vpc, "ovn-cluster")
			switch {
			case tc.found == "" && len(findings) > 0:
				t.Errorf("findings %v", findings)
			case tc.found != "" && (len(findings) != 1 || findings[0].Kind != KindVpc || findings[0].Name != of || !strings.Contains(findings[0].Err.Error(), tc.found)):
				t.Errorf("findings %v, want one of %s with %q", findings, of, tc.found)
			}
		})
	}
}

func TestReadExternal(t *testing.T) {
	cases := map[string]struct {
		data map[string]string
		want External
		err  string
	}{
		"nothing":          {},
		"not turned on":    {data: map[string]string{"enable-external-gw": "yes"}},
		"distributed":      {data: map[string]string{"type": "distributed", "external-gw-nodes": "n1"}},
		"centralized":      {data: map[string]string{"external-gw-nodes": " n1,,n2 "}, want: External{Nodes: []string{"n1", "n2"}}},
		"address alone":    {data: map[string]string{"nic-ip": "10.90.0.254"}, err: "nic-ip"},
		"mapped":           {data: map[string]string{"nic-ip": "::ffff:10.0.0.1/120"}, err: "nic-ip"},
		"two of a family":  {data: map[string]string{"nic-ip": "10.0.0.1/8,10.0.0.2/8"}, err: "nic-ip"},
		"no MAC":           {data: map[string]string{"nic-mac": "0a:58"}, err: "nic-mac"},
		"a group's MAC":    {data: map[string]string{"nic-mac": "01:00:5e:00:00:01"}, err: "nic-mac"},
		"a longer address": {data: map[string]string{"nic-mac": "00:00:5e:10:00:00:00:01"}, err: "nic-mac"},
		"all": {data: map[string]string{"enable-external-gw": "true", "nic-ip": "10.0.0.1/8", "nic-mac": "0A:00:00:00:00:01"},
			want: External{Enabled: true, Networks: []netip.Prefix{netip.MustParsePrefix("10.0.0.1/8")}, MAC: "0a:00:00:00:00:01"}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := ReadExternal(tc.data)
			var bad *ExternalConfigError
			if tc.err != "" {
				if !errors.As(got.Err, &bad) || bad.Key != tc.err {
					t.Errorf("error %v, want one of %s", got.Err, tc.err)
				}
				return
			}
			if diff := cmp.Diff(tc.want, got, cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
