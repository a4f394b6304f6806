package network

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	n1IP  = "n1.default.ovn.kubernetes.io/ip_address"
	n1MAC = "n1.default.ovn.kubernetes.io/mac_address"
)

// attached is a pod with attachments, in a catalog that has them.
func attached(p Pod, selections ...Selection) world {
	p.Networks = selections
	w := usually(p)
	for _, o := range []struct{ name, cidr, provider string }{
		{"s1", "10.30.0.0/24", "n1.default.ovn"}, {"s2", "10.31.0.0/24,fd00:31::/64", "n2.default.ovn"}, {"mv", "10.32.0.0/24", "mv.default"},
	} {
		w.cat.Subnets[o.name] = NewSubnet(subnet(o.name, o.cidr, serving(o.provider)), Around{})
	}
	w.cat.Attachments = map[string]Attachment{"default/n1": {Provider: "n1.default.ovn"}, "default/n2": {Provider: "n2.default.ovn"},
		"default/mv": {Provider: "mv.default", IPAMOnly: true}, "default/foreign": {}, "default/void": {Provider: "void.default.ovn"},
		"default/bad": {Err: errors.New("unexpected end")}, "default/again": {Provider: "n1.default.ovn"}}
	return w
}

func nad(name string, change ...func(*Selection)) Selection {
	s := Selection{Namespace: "default", Name: name}
	for _, c := range change {
		c(&s)
	}
	return s
}

func onInterface(ifName string) func(*Selection) { return func(s *Selection) { s.Interface = ifName } }
func asking(mac string, ips ...string) func(*Selection) {
	return func(s *Selection) { s.MAC, s.IPs = mac, ips }
}

func TestAttachments(t *testing.T) {
	const def = "ovn from ovn-default"
	cases := map[string]struct {
		world
		want result
	}{
		"one":               {attached(annotated(), nad("n1")), result{Networks: []string{def, "n1.default.ovn from s1"}}},
		"several, in order": {attached(annotated(), nad("n2"), nad("mv"), nad("n1")), result{Networks: []string{def, "n2.default.ovn from s2", "mv.default from mv, address alone", "n1.default.ovn from s1"}}},
		"foreign":           {attached(annotated(), nad("foreign"), nad("n1")), result{Networks: []string{def, "n1.default.ovn from s1"}}},
		"missing": {attached(annotated(), nad("gone"), nad("n1")), result{Errors: []string{
			`metadata.annotations[k8s.v1.cni.cncf.io/networks]: Invalid value: "default/gone": there is no NetworkAttachmentDefinition gone in namespace default`}}},
		"unreadable": {attached(annotated(), nad("bad")), result{Errors: []string{"NetworkAttachmentDefinition default/bad can't be read: unexpected end"}}},
		"both, at once": {attached(annotated(ip, "foo"), nad("bad"), nad("gone")), result{Errors: []string{
			"default/bad can't be read", "there is no NetworkAttachmentDefinition gone", `"foo" is not an IP address`}}},
		"two of one network": {attached(annotated(), nad("n1"), nad("again")), result{Errors: []string{`networks][1]: Duplicate value: "default/again"`}}},
		"static by annotation": {attached(annotated(n1IP, "10.30.0.9", n1MAC, "02-00-00-00-00-01"), nad("n1")), result{
			Networks: []string{def, "n1.default.ovn from s1, asks 10.30.0.9, mac 02:00:00:00:00:01"}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9","mac_address":"02:00:00:00:00:01"}}`}},
		"static by selection": {attached(annotated(), nad("n2", asking("02:00:00:00:00:02", "fd00:31::9", "10.31.0.9"))), result{
			Networks: []string{def, "n2.default.ovn from s2, asks 10.31.0.9,fd00:31::9, mac 02:00:00:00:00:02"}}},
		"selection over annotation": {attached(annotated(n1IP, "10.30.0.9"), nad("n1", asking("", "10.30.0.10"))), result{
			Networks: []string{def, "n1.default.ovn from s1, asks 10.30.0.10"}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9"}}`,
			Warnings: []string{`ip_address="10.30.0.9" was ignored: k8s.v1.cni.cncf.io/networks says "10.30.0.10"`}}},
		"bad selection": {attached(annotated(), nad("n1", asking("zz", "x"))), result{Errors: []string{
			`metadata.annotations[k8s.v1.cni.cncf.io/networks][default/n1]: Invalid value: "x"`, `networks][default/n1]: Invalid value: "zz"`}}},
		"selection outside": {attached(annotated(), nad("n1", asking("", "10.31.0.9"))), result{Errors: []string{`networks][default/n1]: Invalid value: "10.31.0.9"`}}},
		"its subnet named":  {attached(annotated("n1.default.ovn.kubernetes.io/logical_switch", "s1"), nad("n1")), result{Networks: []string{def, "n1.default.ovn from s1"}, Requested: `{"n1.default.ovn":{"logical_switch":"s1"}}`}},
		"another's subnet":  {attached(annotated("n1.default.ovn.kubernetes.io/logical_switch", "s2"), nad("n1")), result{Errors: []string{`subnet "s2" serves the network "n2.default.ovn" and not "n1.default.ovn"`}}},
		"its family": {attached(annotated("n2.default.ovn.kubernetes.io/ip_family", "ipv6"), nad("n2")), result{
			Networks: []string{def, "n2.default.ovn from s2, only IPv6"}}},
		"its list": {attached(annotated("n1.default.ovn.kubernetes.io/ip_pool", "10.30.0.5;10.30.0.6"), nad("n1")), result{
			Networks: []string{def, "n1.default.ovn from s1, asks 10.30.0.5;10.30.0.6"}}},
		"no such network": {attached(annotated(n1IP, "10.30.0.9", "n1.default.kubernetes.io/ip_address.net1", "10.30.0.9", "n1.default.ovn.kubernetes.io/mirror", "true")), result{
			Networks: []string{def}, Warnings: []string{"n1.default.ovn.kubernetes.io/mirror is for the network", "n1.default.kubernetes.io/ip_address.net1 is for the network", n1IP + " is for the network"}}},
		"no such network, bad family": {attached(annotated("n1.default.ovn.kubernetes.io/ip_family", "v4")), result{Errors: []string{`ip_family]: Invalid value: "v4"`}}},
		"not understood": {func() world {
			w := attached(annotated(NetworksKey, "[{", ip, "foo"))
			w.pod.NetworksErr = errors.New("write a list")
			return w
		}(), result{Errors: []string{`metadata.annotations[k8s.v1.cni.cncf.io/networks]: Invalid value: "[{": write a list`, `"foo"`}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// The default network is what replaces it, or none of ours when another CNI has it.
func TestDefaultNetworkReplaced(t *testing.T) {
	replaced := func(w world, s Selection) world {
		w.pod.DefaultNetwork = &s
		return w
	}
	secondary := func(w world) world {
		w.cfg.NonPrimary = true
		return w
	}
	const def = "ovn from ovn-default"
	cases := map[string]struct {
		world
		want result
	}{
		"replaced":            {replaced(attached(annotated()), nad("n1")), result{Networks: []string{"n1.default.ovn from s1"}}},
		"replaced by foreign": {replaced(attached(annotated(), nad("n2")), nad("foreign")), result{Networks: []string{"n2.default.ovn from s2"}}},
		"replaced by nothing": {replaced(attached(annotated()), nad("gone")), result{Errors: []string{
			`metadata.annotations[v1.multus-cni.io/default-network]: Invalid value: "default/gone"`}}},
		"replaced, and again": {replaced(attached(annotated(), nad("n1")), nad("n1")), result{Errors: []string{"Duplicate value"}}},
		"replaced, but asked": {replaced(attached(annotated(ip, "10.16.0.9")), nad("n1")), result{Networks: []string{"n1.default.ovn from s1"}, Warnings: []string{ip + ` is for the network "ovn"`}}},
		"secondary":           {secondary(attached(annotated(), nad("n1"))), result{Networks: []string{"n1.default.ovn from s1"}}},
		"secondary, alone":    {secondary(attached(annotated())), result{}},
		"secondary, replaced": {secondary(replaced(attached(annotated()), nad("n1"))), result{Networks: []string{"n1.default.ovn from s1"}}},
		"secondary, a copy":   {secondary(attached(annotated(ClaimKey, ClaimPreview, n1IP, "10.30.0.9"), nad("n1"))), result{Networks: []string{"n1.default.ovn from s1"}, Warnings: []string{`"preview", a copy's and no claim: these were ignored: berth.dev/claim, ` + n1IP}}},
		"kept":                {attached(annotated()), result{Networks: []string{def}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// Each interface of one attachment is a network of its own, and what is asked for one is given to that one.
func TestB111OneAttachmentTwice(t *testing.T) {
	const def, first, second = "ovn from ovn-default", "n1.default.ovn.net1 from s1", "n1.default.ovn.net2 from s1"
	const ipOf2, macOf2 = "n1.default.kubernetes.io/ip_address.net2", "n1.default.kubernetes.io/mac_address.net2"
	both := []Selection{nad("n1", onInterface("net1")), nad("n1", onInterface("net2"))}
	cases := map[string]struct {
		world
		want result
	}{
		"without names":   {attached(annotated(), nad("n1"), nad("n1")), result{Networks: []string{def, "n1.default.ovn from s1", second}}},
		"after another":   {attached(annotated(), nad("n2"), nad("n1"), nad("n1")), result{Networks: []string{def, "n2.default.ovn from s2", "n1.default.ovn from s1", "n1.default.ovn.net3 from s1"}}},
		"with names":      {attached(annotated(), both...), result{Networks: []string{def, first, second}}},
		"one name":        {attached(annotated(), nad("n1", onInterface("eth7")), nad("n1")), result{Networks: []string{def, "n1.default.ovn.eth7 from s1", "n1.default.ovn from s1"}}},
		"one name twice":  {attached(annotated(), nad("n1", onInterface("a")), nad("n1", onInterface("a"))), result{Errors: []string{`networks][1]: Duplicate value: "default/n1"`}}},
		"name, but once":  {attached(annotated(), nad("n1", onInterface("net1"))), result{Networks: []string{def, "n1.default.ovn from s1"}}},
		"the second asks": {attached(annotated(ipOf2, " 10.30.0.9 ", macOf2, "02:00:00:00:00:01"), both...), result{Networks: []string{def, first, second + ", asks 10.30.0.9, mac 02:00:00:00:00:01"}}},
		"asks, but once":  {attached(annotated(ipOf2, "10.30.0.9"), nad("n1", onInterface("net2"))), result{Networks: []string{def, second + ", asks 10.30.0.9"}}},
		"by selection":    {attached(annotated(), nad("n1", onInterface("net1")), nad("n1", onInterface("net2"), asking("", "10.30.0.9"))), result{Networks: []string{def, first, second + ", asks 10.30.0.9"}}},
		"by both ways": {attached(annotated(ipOf2, "10.30.0.9"), nad("n1", onInterface("net1")), nad("n1", onInterface("net2"), asking("", "10.30.0.8"))), result{Networks: []string{def, first, second + ", asks 10.30.0.9"},
			Warnings: []string{`networks="10.30.0.8" was ignored: ` + ipOf2 + ` says "10.30.0.9"`}}},
		"by its network's key": {attached(annotated("n1.default.ovn.net2.kubernetes.io/ip_address", "10.30.0.9"), both...), result{Networks: []string{def, first, second + ", asks 10.30.0.9"}, Requested: `{"n1.default.ovn.net2":{"ip_address":"10.30.0.9"}}`}},
		"bad":                  {attached(annotated(ipOf2, "x", macOf2, "zz"), both...), result{Errors: []string{"metadata.annotations[" + ipOf2 + `]: Invalid value: "x"`, "metadata.annotations[" + macOf2 + `]: Invalid value: "zz"`}}},
		"outside":              {attached(annotated(ipOf2, "10.31.0.9"), both...), result{Errors: []string{"metadata.annotations[" + ipOf2 + `]: Invalid value: "10.31.0.9"`}}},
		"another interface's":  {attached(annotated("n1.default.kubernetes.io/ip_address.net9", "10.30.0.9"), both...), result{Networks: []string{def, first, second}, Warnings: []string{"net9 is for the network"}}},
		"the attachment's": {attached(annotated(n1IP, "10.30.0.9", "n1.default.ovn.kubernetes.io/logical_switch", "s1"), both...), result{Networks: []string{def, first, second},
			Warnings: []string{n1IP + " is for the network"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// An address that a network's annotations ask for is never looked for in another network.
func TestB24AttachmentWithoutSubnet(t *testing.T) {
	w := attached(annotated(), nad("void"))
	delete(w.cat.Subnets, "ovn-default")
	w.check(t, result{Warnings: []string{`subnet "ovn-default" does not exist`}, Errors: []string{
		"no subnet serves this namespace", `networks]: Invalid value: "default/void": no subnet has spec.provider "void.default.ovn"`}})
	attached(annotated(), nad("void")).check(t, result{Errors: []string{"void.default.ovn"}})
}

// Another webhook adds a network to a pod that has its addresses: only that network's annotations are read as a request.
func TestB43NetworkAddedLater(t *testing.T) {
	before := annotated(ClaimKey, claimA, RequestedKey, `{"ovn":{"ip_address":"10.16.0.9"}}`, ip, "10.16.0.9", mac, "0a:58:0a:10:00:09",
		ls, "ovn-default", "ovn.kubernetes.io/cidr", "10.16.0.0/16", "n2.default.ovn.kubernetes.io/ip_address", "10.31.0.7",
		"n2.default.ovn.kubernetes.io/mac_address", "0a:58:0a:1f:00:07", "n2.default.ovn.kubernetes.io/logical_switch", "s2", "n2.default.ovn.kubernetes.io/cidr", "10.31.0.0/24")
	const def, second = "ovn from ovn-default, asks 10.16.0.9", "n2.default.ovn from s2"
	cases := map[string]struct {
		world
		want result
	}{
		"unchanged":         {attached(before, nad("n2")), result{Networks: []string{def, second}, Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"added":             {attached(before, nad("n2"), nad("n1")), result{Networks: []string{def, second, "n1.default.ovn from s1"}, Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"added with a wish": {attached(before.with(n1IP, "10.30.0.9"), nad("n1"), nad("n2")), result{Networks: []string{def, "n1.default.ovn from s1, asks 10.30.0.9", second}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9"},"ovn":{"ip_address":"10.16.0.9"}}`}},
		"replaced":          {attached(before, nad("n1")), result{Networks: []string{def, "n1.default.ovn from s1"}, Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"wish, all fields": {attached(before.with(n1IP, "10.30.0.9", n1MAC, "02:00:00:00:00:01"), nad("n1")), result{
			Networks: []string{def, "n1.default.ovn from s1, asks 10.30.0.9, mac 02:00:00:00:00:01"}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9","mac_address":"02:00:00:00:00:01"},"ovn":{"ip_address":"10.16.0.9"}}`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// RequestedKey keeps what each network was asked for, and is read network by network.
func TestRequestedByNetwork(t *testing.T) {
	kept := `{"n1.default.ovn":{"ip_address":"10.30.0.9"},"ovn":{"logical_switch":"red"}}`
	cases := map[string]struct {
		world
		want result
	}{
		"both":           {attached(annotated(RequestedKey, kept), nad("n1")), result{Networks: []string{"ovn from red", "n1.default.ovn from s1, asks 10.30.0.9"}, Requested: kept}},
		"one gone":       {attached(annotated(RequestedKey, kept)), result{Networks: []string{"ovn from red"}, Requested: `{"ovn":{"logical_switch":"red"}}`, Warnings: []string{`berth.dev/requested names the network "n1.default.ovn"`}}},
		"another asks":   {attached(annotated(RequestedKey, kept, "n2.default.ovn.kubernetes.io/ip_address", "10.31.0.9"), nad("n2"), nad("n1")), result{Networks: []string{"ovn from red", "n2.default.ovn from s2, asks 10.31.0.9", "n1.default.ovn from s1, asks 10.30.0.9"}, Requested: `{"n1.default.ovn":{"ip_address":"10.30.0.9"},"n2.default.ovn":{"ip_address":"10.31.0.9"},"ovn":{"logical_switch":"red"}}`}},
		"null":           {attached(annotated(RequestedKey, `{"n1.default.ovn":null}`), nad("n1", asking("", "10.30.0.9"))), result{Networks: []string{"ovn from ovn-default", "n1.default.ovn from s1, asks 10.30.0.9"}}},
		"unknown suffix": {attached(annotated(RequestedKey, `{"ovn":{"cidr":"x"}}`)), result{Networks: []string{"ovn from ovn-default"}}},
		"bad value":      {attached(annotated(RequestedKey, `{"ovn":{"mac_address":"zz"}}`)), result{Errors: []string{`metadata.annotations[berth.dev/requested].ovn.mac_address: Invalid value: "zz"`}}},
		"bad value, n1":  {attached(annotated(RequestedKey, `{"n1.default.ovn":{"ip_address":"x"}}`), nad("n1")), result{Errors: []string{`metadata.annotations[berth.dev/requested].n1.default.ovn.ip_address: Invalid value: "x"`}}},
		"no object":      {attached(annotated(RequestedKey, `[]`)), result{Errors: []string{"berth.dev/requested"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// What is asked for by the selection is not the network's own wish: it stands in the pod as long as the pod does.
func TestSelectionIsNotKept(t *testing.T) {
	w := attached(annotated(ClaimKey, claimA, n1IP, "10.30.0.9", "n1.default.ovn.kubernetes.io/cidr", "10.30.0.0/24"), nad("n1", asking("", "10.30.0.9")))
	planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	if d := cmp.Diff([]string{"", "n1.default.ovn from s1, asks 10.30.0.9"}, []string{planned.Requested, told(planned.Interfaces[1])}); d != "" {
		t.Error(d)
	}
}
