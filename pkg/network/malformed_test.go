package network

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// asked is a pod of a catalog in which all can be had that the values below ask for.
func asked(pairs ...string) world {
	w := attached(annotated(pairs...), nad("n1"), nad("n2"))
	w.cat.SecurityGroups = map[string]bool{"web": true, "db": true, "a-b": true, "a.b": true, strings.Repeat("g", 253): true}
	w.cat.Vips = map[string]*kubeovnv1.Vip{"v": vip("v", "ovn-default", "default", "10.16.0.200"), "other": vip("other", "ovn-default", "red", "10.16.0.201")}
	w.cat = withPools(w.cat, pool(1, "p", "ovn-default", "", "10.16.1.0/24"))
	return w
}

func vip(name, subnet, namespace, v4 string) *kubeovnv1.Vip {
	return &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VipSpec{Subnet: subnet, Namespace: namespace}, Status: kubeovnv1.VipStatus{V4IP: v4}}
}

// Every annotation by which users ask takes good values and refuses bad ones by its name and value.
func TestB28EveryAnnotation(t *testing.T) {
	natural := values{good: []string{"0", "10"}, bad: []string{"-1", "1.5", "ten", "1e3", "NaN", "-Inf", "99999999999999999999", " 7 ", " "}}
	truth := values{good: []string{"true", "false"}, bad: []string{"True", "yes", "1", " true"}}
	addresses := values{good: []string{"10.16.0.7", "10.16.0.7, fd00::7,", ","}, bad: []string{"x", "10.16.0.7,y", "10.16.0.300", "fe80::1%eth0", "10.16.0.7/24", "10.16.0.7,fd00::7/64"}}
	one := values{good: []string{"10.16.0.7", " fd00::7 "}, bad: []string{"x", "10.16.0.7,10.16.0.8", "10.16.0.7,fd00::7", ",", "10.16.0.7/24"}}
	dhcp := values{good: []string{"mtu=1400", "router=10.0.0.1, dns_server={1.1.1.1;8.8.8.8}", ","}, bad: []string{"mtu", "=1", "mtu=", "mtu=1,x"}}
	each := map[string]values{ // of every network
		"ingress_rate": natural, "egress_rate": natural, "ingress_burst": natural, "egress_burst": natural,
		"latency": natural, "limit": natural, "jitter": natural,
		"loss":          {good: []string{"0", "100", "0.5"}, bad: []string{"101", "-1", "x", "NaN", " 5"}},
		"port_security": truth, "layer2_forward": truth, "mirror": truth, "default_route": truth,
		"dhcp-v4-options": dhcp, "dhcp-v6-options": dhcp,
		"routes": {good: []string{"[]", `[{"gw":"10.16.0.1"}]`, `[{"dst":"10.0.0.0/8","gw":"10.16.0.1"}]`, `[{"dst":"fd00::/8","gw":"fd00::1"}]`},
			bad: []string{"[{", "{}", `[{"dst":"10.0.0.0","gw":"10.16.0.1"}]`, `[{"dst":"10.0.0.0/8"}]`, `[{"gw":"x"}]`, `[{"dst":7}]`}},
		"port_vips":           addresses,
		"security_groups":     {good: []string{"web", "web , db,", ","}, bad: []string{"nope", "web,nope", "a-b", strings.Repeat("g", 253)}},
		"activation_strategy": {good: []string{"rarp", "anything"}},
		"ip_family":           {bad: []string{"IPv4", "4", "dual", " ipv4"}},
		"ip_address":          {bad: []string{"foo", "10.16.0.300", "10.16.0.7,foo", "10.16.0.7;10.16.0.8", "fe80::1%eth0", "10.16.0.1/33"}},
		"mac_address":         {bad: []string{"zz", "02:00:00:00:00", "01:00:00:00:00:01", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff", "02:00:00:00:00:00:00:01"}},
		"ip_pool":             {bad: []string{"10.16.0.7,foo", "foo;bar", ";", ",", "10.16.0.7;10.16.0.7", "10.16.0.7,10.16.0.8;10.16.0.9", "10.16.0.0/16;", "no-pool"}},
		"logical_switch":      {bad: []string{"nope", "a,b"}},
	}
	for provider, own := range map[string]map[string]values{
		"ovn": {
			"ip_family": {good: []string{"ipv4"}, bad: []string{"ipv6"}}, "ip_address": {good: []string{"10.16.0.7", "10.16.0.7,", " 10.16.0.7 , ", "10.16.0.7/24", "::ffff:10.16.0.7", ","}, bad: []string{"10.99.0.7", "10.16.0.1", "10.16.0.0", "10.16.255.255", "fd00::7"}},
			"mac_address": {good: []string{"02:00:00:00:00:01", "02-00-00-00-00-01", "0200.0000.0001", "02:AB:00:00:00:01"}}, "ip_pool": {good: []string{"p", " p ", "10.16.0.7", " 10.16.0.7 ", "10.16.0.7,10.16.0.8", "10.16.0.7, 10.16.0.8,", "10.16.0.7;10.16.0.8"}, bad: []string{"10.99.0.7", "10.16.0.7;10.16.0.1", "10.16.0.7;10.16.0.8;"}},
			"logical_switch": {good: []string{"ovn-default", " red ", ""}, bad: []string{"join", "s1", "broken", "lost"}},
			"eip":            one, "snat": one, "north_gateway": addresses, "vip": {good: []string{"v", " v "}, bad: []string{"nope", "other"}}, "aaps": {good: []string{"v", "v,", ","}, bad: []string{"nope", "v,other"}},
		},
		"n2.default.ovn": {
			"ip_family": {good: []string{"ipv4", "ipv6"}}, "ip_address": {good: []string{"10.31.0.7", "fd00:31::7,10.31.0.7", "FD00:0031:0::7"}, bad: []string{"10.30.0.7", "fd00:31::1"}},
			"mac_address": {good: []string{"02:00:00:00:00:01"}}, "ip_pool": {good: []string{"10.31.0.7,fd00:31::7;10.31.0.8,fd00:31::8"}, bad: []string{"p", "10.30.0.7"}},
			"logical_switch": {good: []string{"s2"}, bad: []string{"ovn-default"}},
		},
	} {
		for _, table := range []map[string]values{each, own} {
			for suffix, v := range table {
				t.Run(Key(provider, suffix), func(t *testing.T) { v.check(t, provider, suffix) })
			}
		}
	}
}

type values struct{ good, bad []string }

func (v values) check(t *testing.T, provider, suffix string) {
	t.Helper()
	key := Key(provider, suffix)
	for _, value := range v.good {
		w := asked(key, value)
		if _, errs := Plan(w.pod, w.ns, w.cat, w.cfg); len(errs) > 0 {
			t.Errorf("%q: %v", value, errs)
		}
	}
	for _, value := range v.bad {
		w := asked(key, value)
		_, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
		if len(errs) == 0 {
			t.Errorf("%q was taken", value)
		}
		for _, e := range errs {
			if e.Field != "metadata.annotations["+key+"]" {
				t.Errorf("%q: %v", value, e)
			}
		}
	}
}

// Of a network that the pod has not, bad values are refused all the same where the daemon would refuse the pod.
func TestB28NetworksThatThePodHasNot(t *testing.T) {
	for suffix, value := range map[string]string{"ingress_rate": "x", "mirror": "x", "routes": "[{", "security_groups": "nope", "ip_family": "x"} {
		w := asked(Key("n9.default.ovn", suffix), value)
		if _, errs := Plan(w.pod, w.ns, w.cat, w.cfg); len(errs) != 1 || !strings.Contains(errs[0].Field, "n9.default.ovn") {
			t.Errorf("%s: %v", suffix, errs)
		}
	}
}

// Everything that is wrong is told at once, and each thing once.
func TestB28AllAtOnce(t *testing.T) {
	bad := map[string]string{ip: "foo", "ovn.kubernetes.io/pod_nic_type": "tap", mac: "zz", fam: "v4", ls: "nope", "ovn.kubernetes.io/eip": "x", "ovn.kubernetes.io/aaps": "nope",
		"ovn.kubernetes.io/routes": "[{", "ovn.kubernetes.io/ingress_rate": "-1", OrdinalRuleKey: "mine", n1MAC: "zz", "n1.default.ovn.kubernetes.io/mirror": "x"}
	w := asked()
	w.pod.Annotations = bad
	_, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	told := map[string]int{}
	for _, e := range errs {
		told[e.Field]++
	}
	for key := range bad {
		if told["metadata.annotations["+key+"]"] != 1 {
			t.Errorf("%s was told %d times", key, told["metadata.annotations["+key+"]"])
		}
	}
	if len(errs) != len(bad) {
		t.Errorf("%d errors of %d: %v", len(errs), len(bad), errs)
	}
}
