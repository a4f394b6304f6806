package ovn

import (
	"errors"
	"maps"
	"slices"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
)

// podInput is a pod d/p with UID u on node n1, with one interface in the overlay subnet s.
func podInput(edit func(*PodInput, *InterfaceInput)) PodInput {
	in := PodInput{Namespace: "d", Name: "p", UID: "u", Config: podConfig(),
		Node: &NodeInput{Name: "n1", JoinIPs: addrs("100.64.0.2")}}
	i := InterfaceInput{Subnet: SubnetInput{Name: "s"}, Addresses: addrs("10.0.0.2", "fd00::2"), MAC: "0a:58:0a:00:00:02"}
	if edit != nil {
		edit(&in, &i)
	}
	in.Interfaces = []InterfaceInput{i}
	return in
}

// columns are what differs between ports.
type columns struct {
	addresses, security []string
	ids, options        map[string]string
	groups              []string
}

type columnsCase struct {
	edit func(*PodInput, *InterfaceInput)
	want columns
}

func columnsCases() map[string]columnsCase {
	const own = "0a:58:0a:00:00:02 10.0.0.2 fd00::2"
	plain := func(f func(*columns)) columns {
		c := columns{addresses: []string{own}, ids: map[string]string{}, groups: []string{}}
		f(&c)
		return c
	}
	rarp := func(chassis string) columns {
		return plain(func(c *columns) {
			c.options = map[string]string{"requested-chassis": chassis, "activation-strategy": "rarp"}
			c.ids["berth-options"] = "activation-strategy,requested-chassis"
		})
	}
	return map[string]columnsCase{
		"nothing asked for": {nil, plain(func(*columns) {})},
		"Vips without security": {func(_ *PodInput, i *InterfaceInput) { i.Vips = addrs("10.0.0.9") },
			plain(func(c *columns) { c.ids["vips"], c.ids["attach-vips"] = "10.0.0.9", "true" })},
		"security and Vips, one of them twice": {func(_ *PodInput, i *InterfaceInput) {
			i.PortSecurity, i.Vips = true, addrs("10.0.0.9", "fd00::9", "10.0.0.9")
		},
			plain(func(c *columns) {
				c.security = []string{own + " 10.0.0.9 fd00::9"}
				c.ids["vips"], c.ids["attach-vips"] = "10.0.0.9,fd00::9", "true"
			})},
		"layer 2": {func(_ *PodInput, i *InterfaceInput) { i.Layer2Forward, i.PortSecurity = true, true },
			plain(func(c *columns) { c.addresses, c.security = []string{own, "unknown"}, []string{own} })},
		"security groups, with blanks": {func(_ *PodInput, i *InterfaceInput) { i.SecurityGroups = []string{" a ", "b-c", "", "a"} },
			plain(func(c *columns) {
				c.groups = []string{"a", "b-c"}
				c.ids["security_groups"], c.ids["associated_sg_a"], c.ids["associated_sg_b-c"] = "a/b-c", "true", "true"
			})},
		"another VPC": {func(_ *PodInput, i *InterfaceInput) { i.Subnet.Vpc = "v1" },
			plain(func(c *columns) { c.ids["associated_sg_default-securitygroup"] = "false" })},
		"another VPC, default group": {func(_ *PodInput, i *InterfaceInput) {
			i.Subnet.Vpc, i.SecurityGroups = "v1", []string{"default-securitygroup"}
		}, plain(func(c *columns) {
			c.groups = []string{"default-securitygroup"}
			c.ids["security_groups"], c.ids["associated_sg_default-securitygroup"] = "default-securitygroup", "true"
		})},
		"activation":                {func(_ *PodInput, i *InterfaceInput) { i.Activation = true }, rarp("n1,n1")},
		"activation without a node": {func(in *PodInput, i *InterfaceInput) { i.Activation, in.Node = true, nil }, plain(func(*columns) {})},
		"migration": {func(in *PodInput, i *InterfaceInput) {
			i.Activation, in.Migration = true, &Migration{"n1", "n2", MigrationRunning}
		}, rarp("n1,n2")},
		"migration done": {func(in *PodInput, _ *InterfaceInput) { in.Migration = &Migration{"n1", "n2", MigrationSucceeded} },
			plain(func(c *columns) {
				c.options, c.ids["berth-options"] = map[string]string{"requested-chassis": "n2"}, "requested-chassis"
			})},
		"migration failed": {func(in *PodInput, _ *InterfaceInput) { in.Migration = &Migration{"n1", "n2", MigrationFailed} },
			plain(func(c *columns) {
				c.options, c.ids["berth-options"] = map[string]string{"requested-chassis": "n1"}, "requested-chassis"
			})},
	}
}

func TestPortColumns(t *testing.T) {
	for name, tc := range columnsCases() {
		t.Run(name, func(t *testing.T) {
			p := podRows(t, podInput(tc.edit)).Ports[0]
			got := columns{p.Row.Addresses, p.Row.PortSecurity, maps.Clone(p.Row.ExternalIDs), p.Row.Options, p.SecurityGroups}
			for _, key := range []string{"vendor", "ls", "pod", "berth-pod-uid"} {
				if got.ids[key] == "" {
					t.Errorf("external_ids:%s is missing", key)
				}
				delete(got.ids, key)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(columns{})); diff != "" {
				t.Errorf("port (-want +got):\n%s", diff)
			}
		})
	}
}

// Two networks on one subnet are two ports.
func TestB111TwoNetworksOnOneSubnet(t *testing.T) {
	in := podInput(nil)
	one, two := in.Interfaces[0], in.Interfaces[0]
	one.Provider, one.Addresses, one.MAC = "n1.a.ovn", addrs("10.0.0.3"), "0a:58:0a:00:00:03"
	two.Provider, two.Addresses, two.MAC = "n1.a.ovn.net2", addrs("10.0.0.4"), "02:00:00:00:00:04"
	in.Interfaces = append(in.Interfaces, one, two)
	got := map[string]string{}
	for _, p := range podRows(t, in).Ports {
		got[p.Row.Name] = p.Row.Addresses[0]
	}
	want := map[string]string{
		"p.d": "0a:58:0a:00:00:02 10.0.0.2 fd00::2", "p.d.n1.a.ovn": "0a:58:0a:00:00:03 10.0.0.3",
		"p.d.n1.a.ovn.net2": "02:00:00:00:00:04 10.0.0.4",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ports (-want +got):\n%s", diff)
	}
}

// subnetDHCP are the rows of a switch s, and what rows of its ports begin with.
func subnetDHCP() (sw, port nb.DHCP) {
	row := func(cidr, protocol string, options ...string) *nb.DHCPOptions {
		d := &nb.DHCPOptions{CIDR: cidr, Options: map[string]string{}, ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s", nb.KeyProtocol: protocol}}
		for i := 0; i < len(options); i += 2 {
			d.Options[options[i]] = options[i+1]
		}
		return d
	}
	return nb.DHCP{V4: row("10.0.0.0/24", "IPv4", "lease_time", "60", "mtu", "1400"), V6: row("fd00::/64", "IPv6", "server_id", "m")},
		nb.DHCP{V4: row("10.0.0.0/24", "IPv4", "lease_time", "3600", "mtu", "1400"), V6: row("fd00::/64", "IPv6", "server_id", "m")}
}

func TestPortDHCP(t *testing.T) {
	sw, port := subnetDHCP()
	with := func(f func(*InterfaceInput)) func(*PodInput, *InterfaceInput) {
		return func(_ *PodInput, i *InterfaceInput) { i.Subnet.DHCP, i.Subnet.PortDHCP = sw, port; f(i) }
	}
	own := &nb.DHCPOptions{CIDR: "10.0.0.0/24", Options: map[string]string{"lease_time": "3600", "mtu": "9000", "dns_server": "{1.1.1.1,8.8.8.8}"},
		ExternalIDs: map[string]string{"vendor": "kube-ovn", "ls": "s", "protocol": "IPv4", "port": "p.d", "pod": "d/p", "berth-pod-uid": "u"}}
	cases := map[string]struct {
		edit func(*PodInput, *InterfaceInput)
		want nb.DHCP
	}{
		"off":        {with(func(*InterfaceInput) {}), nb.DHCP{}},
		"the subnet": {with(func(i *InterfaceInput) { i.Subnet.EnableDHCP = true }), sw},
		"one family": {with(func(i *InterfaceInput) { i.Subnet.EnableDHCP, i.Addresses = true, addrs("10.0.0.2") }), nb.DHCP{V4: sw.V4}},
		"own in place of the subnet's": {with(func(i *InterfaceInput) {
			i.Subnet.EnableDHCP, i.DHCPv4 = true, "mtu=9000, dns_server={1.1.1.1;8.8.8.8}"
		}), nb.DHCP{V4: own, V6: sw.V6}},
		"own where the subnet has none": {with(func(i *InterfaceInput) { i.DHCPv4 = "mtu=9000,dns_server={1.1.1.1;8.8.8.8}" }), nb.DHCP{V4: own}},
		"of a family that isn't there":  {with(func(i *InterfaceInput) { i.DHCPv6, i.Addresses = "server_id=x", addrs("10.0.0.2") }), nb.DHCP{}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(&tc.want, podRows(t, podInput(tc.edit)).Ports[0].DHCP); diff != "" {
				t.Errorf("DHCP (-want +got):\n%s", diff)
			}
		})
	}
}

func policyText(purpose, match, gateway string) string {
	return purpose + ": " + match + " -> " + gateway
}

type routingCase struct {
	edit func(*PodInput, *InterfaceInput)
	want []string
}

func routingCases() map[string]routingCase {
	eip := func(f func(*PodInput, *InterfaceInput)) func(*PodInput, *InterfaceInput) {
		return func(in *PodInput, i *InterfaceInput) {
			in.Config.EnableEIPSNAT, in.Config.External.Gateways = true, addrs("172.16.0.1")
			f(in, i)
		}
	}
	const v4Out = "external: ip4.src == 10.0.0.2 -> 172.16.0.1"
	return map[string]routingCase{
		"nothing": {nil, nil},
		"north gateway of one family": {func(_ *PodInput, i *InterfaceInput) { i.NorthGateways = addrs("10.0.0.254") },
			[]string{policyText("north-gateway", "ip4.src == 10.0.0.2", "10.0.0.254")}},
		"north gateways": {func(_ *PodInput, i *InterfaceInput) { i.NorthGateways = addrs("fd00::fe", "10.0.0.254") },
			[]string{policyText("north-gateway", "ip4.src == 10.0.0.2", "10.0.0.254"), policyText("north-gateway", "ip6.src == fd00::2", "fd00::fe")}},
		"EIP switched off":       {func(_ *PodInput, i *InterfaceInput) { i.EIPs = addrs("172.16.0.9") }, nil},
		"EIP, nothing asked for": {eip(func(*PodInput, *InterfaceInput) {}), []string{"without 10.0.0.2 in rt", "without fd00::2 in rt"}},
		"EIP":                    {eip(func(_ *PodInput, i *InterfaceInput) { i.EIPs = addrs("172.16.0.9") }), []string{v4Out, "dnat_and_snat 172.16.0.9 10.0.0.2"}},
		"EIP before north": {eip(func(_ *PodInput, i *InterfaceInput) {
			i.EIPs, i.NorthGateways = addrs("172.16.0.9"), addrs("10.0.0.254")
		}), []string{v4Out, "dnat_and_snat 172.16.0.9 10.0.0.2"}},
		"several SNAT addresses": {eip(func(_ *PodInput, i *InterfaceInput) { i.SNATs = addrs("172.16.0.9", "172.16.0.8") }), []string{v4Out, "snat 172.16.0.9 10.0.0.2", "snat 172.16.0.8 10.0.0.2"}},
		"distributed": {eip(func(in *PodInput, i *InterfaceInput) {
			i.EIPs, in.Config.External.Distributed = addrs("172.16.0.9"), true
		}), []string{v4Out, "dnat_and_snat 172.16.0.9 10.0.0.2 p.d 0a:58:0a:00:00:02 stateless=true"}},
		"another VPC": {eip(func(_ *PodInput, i *InterfaceInput) { i.EIPs, i.Subnet.Vpc = addrs("172.16.0.9"), "v1" }), nil},
		"underlay":    {eip(func(_ *PodInput, i *InterfaceInput) { i.EIPs, i.Subnet.Vlan = addrs("172.16.0.9"), "v" }), nil},
		"logical gateway": {eip(func(_ *PodInput, i *InterfaceInput) {
			i.EIPs, i.Subnet.Vlan, i.Subnet.LogicalGateway = addrs("172.16.0.9"), "v", true
		}), []string{v4Out, "dnat_and_snat 172.16.0.9 10.0.0.2"}},
		"both families": {eip(func(in *PodInput, i *InterfaceInput) {
			i.EIPs, i.SNATs, in.Config.External.Gateways = addrs("172.16.0.9", "fd16::9"), addrs("fd16::8"), addrs("172.16.0.1", "fd16::1")
		}), []string{v4Out, "external: ip6.src == fd00::2 -> fd16::1", "dnat_and_snat 172.16.0.9 10.0.0.2", "dnat_and_snat fd16::9 fd00::2", "snat fd16::8 fd00::2"}},
	}
}

func TestPortRouting(t *testing.T) {
	for name, tc := range routingCases() {
		t.Run(name, func(t *testing.T) {
			in := podInput(tc.edit)
			in.Interfaces[0].Subnet.RouteTable = "rt"
			r := podRows(t, in).Ports[0].Routing
			if r == nil || r.Router != "ovn-cluster" {
				t.Fatalf("routing %+v", r)
			}
			var got []string
			for _, p := range r.Policies {
				if p.Priority != 29250 || p.Action != "reroute" || p.ExternalIDs["port"] != "p.d" || p.ExternalIDs["subnet"] != "s" {
					t.Errorf("policy %+v", p)
				}
				got = append(got, policyText(p.ExternalIDs["berth-purpose"], p.Match, p.Nexthops[0]))
			}
			for _, n := range r.NATs {
				text := n.Row.Type + " " + n.Row.ExternalIP + " " + n.Row.LogicalIP
				for _, p := range []*string{n.Row.LogicalPort, n.Row.ExternalMAC} {
					if p != nil {
						text += " " + *p
					}
				}
				for k, v := range n.Row.Options {
					text += " " + k + "=" + v
				}
				got = append(got, text)
			}
			for _, w := range r.Without {
				got = append(got, "without "+w.Prefix+" in "+w.Table)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("routing (-want +got):\n%s", diff)
			}
		})
	}
	in := podInput(nil)
	in.Node = nil
	if r := podRows(t, in).Ports[0].Routing; r != nil {
		t.Errorf("routing of a pod without a node: %+v", r)
	}
}

func TestNoExternalGateway(t *testing.T) {
	for name, tc := range map[string]struct{ gateways, family string }{
		"none": {}, "of the other family": {gateways: "fd16::1", family: "IPv4"},
	} {
		t.Run(name, func(t *testing.T) {
			in := podInput(func(in *PodInput, i *InterfaceInput) {
				in.Config.EnableEIPSNAT, i.EIPs = true, addrs("172.16.0.9")
				in.Config.External = ReadExternal(map[string]string{"external-gw-addr": tc.gateways}, "")
			})
			var missing *NoExternalGatewayError
			if _, err := PodRows(in); !errors.As(err, &missing) || missing.Family != tc.family {
				t.Errorf("%v, want no gateway of family %q", err, tc.family)
			}
		})
	}
}

func TestReadExternal(t *testing.T) {
	cases := map[string]struct {
		config map[string]string
		subnet string
		want   External
	}{
		"nothing":                   {},
		"ConfigMap, with a mask":    {map[string]string{"external-gw-addr": "172.16.0.1/16", "type": "distributed"}, "172.17.0.1", External{addrs("172.16.0.1"), true}},
		"the subnet, both families": {map[string]string{"type": "centralized"}, "172.17.0.1,fd17::1", External{addrs("172.17.0.1", "fd17::1"), false}},
		"what can't be read":        {map[string]string{"external-gw-addr": "gw"}, "172.17.0.1", External{addrs("172.17.0.1"), false}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			got := ReadExternal(tc.config, tc.subnet)
			if got.Distributed != tc.want.Distributed || !slices.Equal(got.Gateways, tc.want.Gateways) {
				t.Errorf("%+v, want %+v", got, tc.want)
			}
		})
	}
}
