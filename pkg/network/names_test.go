package network

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNamesThatAreTooLong(t *testing.T) {
	long := strings.Repeat("p", 240)
	called := func(p Pod, name, generate string) Pod {
		p.Name, p.GenerateName = name, generate
		return p
	}
	cases := map[string]struct {
		world
		want result
	}{
		"port, just fits":         {usually(called(annotated(), long[:245-len("default")]+"", "")), result{Networks: []string{"ovn from ovn-default"}}},
		"port":                    {usually(called(annotated(), long+long[:6], "")), result{Errors: []string{"metadata.name: Invalid value"}}},
		"attachment's port alone": {attached(called(annotated(), long[:238], ""), nad("n1")), result{Errors: []string{"has 261 characters of at most 253"}}},
		"name to be made is cut":  {attached(called(annotated(), "", long+long[:10]), nad("n1")), result{Networks: []string{"ovn from ovn-default", "n1.default.ovn from s1"}}},
		"subnet, not asked for": {func() world {
			w := in("red", annotated(), subnet(long[:64], "10.1.0.0/24", bound("red")), subnet("s", "10.2.0.0/24", bound("red")))
			return w
		}(), result{Networks: []string{"ovn from s"}, Warnings: []string{"has 64 characters of at most 63"}}},
		"subnet, asked for": {in("red", annotated(ls, long[:64]), subnet(long[:64], "10.1.0.0/24")), result{Errors: []string{ls + `]: Invalid value: "` + long[:64] + `": the subnet's name is a label`}}},
		"subnet, just fits": {in("red", annotated(), subnet(long[:63], "10.1.0.0/24", bound("red"))), result{Networks: []string{"ovn from " + long[:63]}}},
		"Vip's mark":        {lent(called(annotated(vipKey, "v"), long[:56], "")), result{Errors: []string{vipKey + `]: Invalid value: "v": ` + vipKey + " marks the Vip with the port's name"}}},
		"Vip's mark fits":   {lent(called(annotated(vipKey, "v"), long[:55], "")), result{Networks: []string{"ovn from ovn-default, asks 10.16.0.200, for kubeovn.io/Vip//v"}}},
		"machine's":         {usually(controlled(called(annotated(), "virt-launcher", ""), "kubevirt.io/v1", "VirtualMachineInstance", long+long[:6])), result{Errors: []string{"metadata.name: Invalid value"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// Dots join the parts of a port's name, so a pod's name with dots can be taken for a network of another pod.
func TestNamesThatCollide(t *testing.T) {
	pod := func(namespace, name string) world {
		p := annotated()
		p.Namespace, p.Name = namespace, name
		w := attached(p)
		return w
	}
	cases := map[string]struct {
		world
		err string
	}{
		"attachment's":       {pod("ovn", "web.prod.n1.default"), "the port's name web.prod.n1.default.ovn is also that of network n1.default.ovn of pod web in namespace prod"},
		"dots before":        {pod("ovn", "a.b.prod.n1.default"), "of pod a.b in namespace prod"},
		"address alone":      {pod("default", "web.prod.mv"), "of network mv.default of pod web in namespace prod"},
		"no namespace there": {pod("ovn", "web.n1.default"), ""},
		"dots alone":         {pod("default", "web.prod"), ""},
		"no such network":    {pod("ovn", "web.prod.n9.default"), ""},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			want := result{Networks: []string{"ovn from ovn-default"}}
			if c.err != "" {
				want = result{Errors: []string{c.err}}
			}
			c.check(t, want)
		})
	}
}

func TestKeys(t *testing.T) {
	for key, want := range map[string][3]string{
		"ovn.kubernetes.io/ip_address":                  {"ovn", "ip_address", "yes"},
		"n1.default.ovn.net2.kubernetes.io/mac_address": {"n1.default.ovn.net2", "mac_address", "yes"},
		"n1.default.kubernetes.io/ip_address.net2":      {"n1.default", "ip_address.net2", "yes"},
		"a.kubernetes.io/b.kubernetes.io/c":             {"a", "b.kubernetes.io/c", "yes"},
		"kubernetes.io/config.mirror":                   {"kubernetes.io/config.mirror", "", ""},
		".kubernetes.io/ip_address":                     {"", "ip_address", ""},
		"ovn.kubernetes.io/":                            {"ovn", "", ""},
		"berth.dev/claim":                               {"berth.dev/claim", "", ""},
	} {
		provider, suffix, ok := SplitKey(key)
		if d := cmp.Diff(want[:2], []string{provider, suffix}); d != "" || ok != (want[2] != "") {
			t.Errorf("%s: %s %v", key, d, ok)
		}
		if ok && Key(provider, suffix) != key {
			t.Errorf("%s is put together as %s", key, Key(provider, suffix))
		}
	}
}
