package network

import (
	"net/netip"
	"testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

const vipKey = "ovn.kubernetes.io/vip"

// lent is a world in which addresses of ovn-default and dual are reserved for Vips, IPs and a node.
func lent(p Pod) world {
	w := usually(p)
	w.cat.Vips = map[string]*kubeovnv1.Vip{"v": vip("v", "ovn-default", "default", "10.16.0.200"), "red": vip("red", "ovn-default", "red", "10.16.0.201"),
		"anywhere": vip("anywhere", "ovn-default", "", "10.16.0.202"), "young": vip("young", "ovn-default", "", ""), "old": dying(vip("old", "ovn-default", "", "10.16.0.203")),
		"lb": vip("lb", "ovn-default", "", "10.16.0.204"), "both": vip("both", "dual", "", "10.17.0.200"), "homeless": vip("homeless", "gone", "", "10.16.0.205"), "bad": vip("bad", "ovn-default", "", "x"),
		"outside": vip("outside", "ovn-default", "", "10.99.0.1")}
	w.cat.Vips["lb"].Spec.Type = "switch_lb_vip"
	w.cat.Vips["both"].Status.V6IP = "fd00:17::200"
	reserved := map[string]map[netip.Addr]ipam.Owner{"ovn-default": {netip.MustParseAddr("10.16.0.10"): {Kind: ipam.KindNode, Name: "n"}}, "dual": {}}
	add := func(subnet, kind, name string, as ...netip.Addr) {
		for _, a := range as {
			if reserved[subnet] != nil && a.IsValid() {
				reserved[subnet][a] = ipam.Owner{Group: kubeOVNGroup, Kind: kind, Name: name}
			}
		}
	}
	for name, v := range w.cat.Vips {
		as, _ := ParseAddresses(v.Status.V4IP + "," + v.Status.V6IP)
		add(v.Spec.Subnet, ipam.KindVip, name, as...)
	}
	w.cat.Reservations = map[string]Reservation{
		"web.default":   {Subnet: "ovn-default", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.100")}, MAC: ipam.MAC{2, 0, 0, 0, 0, 1}},
		"plain.default": {Subnet: "dual", Addresses: []netip.Addr{netip.MustParseAddr("10.17.0.100")}, MAC: ipam.DerivedMAC(netip.MustParseAddr("10.17.0.100"))},
		"lost.default":  {Subnet: "gone", Addresses: []netip.Addr{netip.MustParseAddr("10.16.0.101")}},
		"out.default":   {Subnet: "ovn-default", Addresses: []netip.Addr{netip.MustParseAddr("10.99.0.1")}},
	}
	for name, r := range w.cat.Reservations {
		add(r.Subnet, ipam.KindIP, name, r.Addresses...)
	}
	for name, as := range reserved {
		w.cat.Subnets[name] = NewSubnet(w.cat.Subnets[name].Object, Around{Reserved: as})
	}
	return w
}

func TestVipRequest(t *testing.T) {
	at := "metadata.annotations[" + vipKey + "]: "
	cases := map[string]struct {
		pod  Pod
		want result
	}{
		"its namespace's":      {annotated(vipKey, "v"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.200, for kubeovn.io/Vip//v"}}},
		"any namespace's":      {annotated(vipKey, "anywhere"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.202, for kubeovn.io/Vip//anywhere"}}},
		"both families":        {annotated(vipKey, "both"), result{Networks: []string{"ovn from dual, asks 10.17.0.200,fd00:17::200, for kubeovn.io/Vip//both"}}},
		"and its subnet":       {annotated(vipKey, "both", ls, "dual"), result{Networks: []string{"ovn from dual, asks 10.17.0.200,fd00:17::200, for kubeovn.io/Vip//both"}, Requested: `{"ovn":{"logical_switch":"dual"}}`}},
		"and a MAC":            {annotated(vipKey, "v", mac, "02:00:00:00:00:09"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.200, mac 02:00:00:00:00:09, for kubeovn.io/Vip//v"}, Requested: `{"ovn":{"mac_address":"02:00:00:00:00:09"}}`}},
		"beside the claim":     {annotated(vipKey, "v", ClaimKey, claimA, ip, "10.16.0.200", "ovn.kubernetes.io/cidr", "10.16.0.0/16"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.200, for kubeovn.io/Vip//v"}}},
		"missing":              {annotated(vipKey, "nope"), result{Errors: []string{at + `Invalid value: "nope": there is no Vip`}}},
		"another namespace's":  {annotated(vipKey, "red"), result{Errors: []string{at + `Invalid value: "red": the Vip "red" is for namespace red`}}},
		"without address":      {annotated(vipKey, "young"), result{Errors: []string{`Vip "young" has no address yet`}}},
		"unreadable":           {annotated(vipKey, "bad"), result{Errors: []string{at + `Invalid value: "bad": "x" is not an IP address`}}},
		"being deleted":        {annotated(vipKey, "old"), result{Errors: []string{`Vip "old" is being deleted`}}},
		"of a load balancer":   {annotated(vipKey, "lb"), result{Errors: []string{`Vip "lb" is of type switch_lb_vip`}}},
		"and an address":       {annotated(vipKey, "v", ip, "10.16.0.9"), result{Errors: []string{at + `Invalid value: "v": an address is asked for by ` + ip}}},
		"and a list":           {annotated(vipKey, "v", poolKey, "10.16.0.9"), result{Errors: []string{"keep one of them"}}},
		"and another subnet":   {annotated(vipKey, "v", ls, "dual"), result{Errors: []string{`Vip "v" is in subnet ovn-default, and dual is asked for`}}},
		"and the other family": {annotated(vipKey, "v", fam, "ipv6"), result{Errors: []string{fam + `]: Invalid value: "ipv6": ` + vipKey + " asks for 10.16.0.200, of the other family"}}},
		"its subnet is gone":   {annotated(vipKey, "homeless"), result{Errors: []string{`metadata.annotations[` + ls + `]: Invalid value: "gone"`}}},
		"outside its subnet":   {annotated(vipKey, "outside"), result{Errors: []string{at + `Invalid value: "outside": `}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { lent(c.pod).check(t, c.want) })
	}
}

// The address of an IP that was made before its pod is that pod's, and nobody else's.
func TestReservationByIP(t *testing.T) {
	called := func(name string, p Pod) Pod {
		p.Name = name
		return p
	}
	generated := annotated()
	generated.Name, generated.GenerateName = "", "web-"
	const own = "ovn from ovn-default, asks 10.16.0.100, mac 02:00:00:00:00:01, for kubeovn.io/IP//web.default"
	cases := map[string]struct {
		pod  Pod
		want result
	}{
		"its own":              {annotated(), result{Networks: []string{own}}},
		"asked for, too":       {annotated(ip, "10.16.0.100"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.100, for kubeovn.io/IP//web.default"}, Requested: `{"ovn":{"ip_address":"10.16.0.100"}}`}},
		"another is asked for": {annotated(ip, "10.16.0.9"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.9"}, Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"another MAC":          {annotated(mac, "02:00:00:00:00:09"), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.100, mac 02:00:00:00:00:09, for kubeovn.io/IP//web.default"}, Requested: `{"ovn":{"mac_address":"02:00:00:00:00:09"}}`}},
		"a derived MAC":        {called("plain", annotated()), result{Networks: []string{"ovn from dual, asks 10.17.0.100, for kubeovn.io/IP//plain.default"}}},
		"another subnet":       {annotated(ls, "dual"), result{Networks: []string{"ovn from dual"}, Requested: `{"ovn":{"logical_switch":"dual"}}`, Warnings: []string{"the reservation IP web.default was ignored: it is in subnet ovn-default, and dual is asked for"}}},
		"another family":       {called("plain", annotated(fam, "ipv6", ls, "dual")), result{Networks: []string{"ovn from dual, only IPv6"}, Requested: `{"ovn":{"logical_switch":"dual"}}`, Warnings: []string{"the reservation IP plain.default was ignored: it has 10.17.0.100, and IPv6 is asked for"}}},
		"no name yet":          {generated, result{Networks: []string{"ovn from ovn-default"}}},
		"another pod":          {called("other", annotated()), result{Networks: []string{"ovn from ovn-default"}}},
		"its subnet is gone":   {called("lost", annotated()), result{Errors: []string{`metadata.annotations[` + ls + `]: Invalid value: "gone"`}}},
		"outside its subnet":   {called("out", annotated()), result{Errors: []string{`metadata.name: Invalid value: "out": the IP out.default reserves an address`}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { lent(c.pod).check(t, c.want) })
	}
}

// A static address that is somebody's who is no pod is refused at once, and whose it is is told.
func TestB117ReservedForAnother(t *testing.T) {
	for name, c := range map[string]struct{ address, holder string }{
		"Vip": {"10.16.0.200", "Vip v"}, "IP": {"10.16.0.100", "IP web.default"}, "node": {"10.16.0.10", "Node n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := annotated(ip, c.address)
			p.Name = "other"
			w := lent(p)
			w.check(t, result{Errors: []string{"metadata.annotations[" + ip + `]: Invalid value: "` + c.address + `": `}})
			_, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
			has(t, "error", []string{errs[0].Detail}, []string{c.holder})
		})
	}
}
