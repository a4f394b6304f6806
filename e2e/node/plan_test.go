package node

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// provided returns the annotations of one provider.
func provided(provider string, pairs ...string) map[string]string {
	out := map[string]string{}
	for n := 0; n < len(pairs); n += 2 {
		out[provider+".kubernetes.io/"+pairs[n]] = pairs[n+1]
	}
	return out
}

func podWith(maps ...map[string]string) *corev1.Pod {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "web-0", Namespace: "shop", UID: "u-1", Annotations: map[string]string{}}}
	for _, m := range maps {
		for k, v := range m {
			pod.Annotations[k] = v
		}
	}
	return pod
}

func primary() map[string]string {
	return provided("ovn", "ip_address", "10.16.0.5,fd00:10:16::5", "mac_address", "0A:58:0a:10:00:05", "cidr", "10.16.0.0/16,fd00:10:16::/112",
		"gateway", "10.16.0.1,fd00:10:16::1", "logical_switch", "ovn-default", "routed", "true")
}

// sketch is a plan in one line per interface.
func sketch(plan []Interface) []string {
	var out []string
	for _, i := range plan {
		var words []string
		words = append(words, i.Name, i.Port, i.MAC)
		for _, p := range i.Addresses {
			words = append(words, p.String())
		}
		for _, g := range i.Gateways {
			words = append(words, "via "+g.String())
		}
		if i.DefaultRoute {
			words = append(words, "default")
		}
		for _, r := range i.Routes {
			words = append(words, "route "+r.Dst.String()+" via "+r.Via.String())
		}
		out = append(out, strings.Join(words, " "))
	}
	return out
}

func TestPlan(t *testing.T) {
	attachment := provided("back.shop.ovn", "ip_address", "10.20.0.5", "mac_address", "0a:58:0a:14:00:05", "cidr", "10.20.0.0/24", "gateway", "10.20.0.1")
	second := provided("back.shop.ovn.fast0", "ip_address", "10.20.0.6", "mac_address", "0a:58:0a:14:00:06", "cidr", "10.20.0.0/24", "gateway", "10.20.0.1")
	eth0 := "eth0 web-0.shop 0a:58:0a:10:00:05 10.16.0.5/16 fd00:10:16::5/112 via 10.16.0.1 via fd00:10:16::1 default"
	cases := []struct {
		name string
		pod  *corev1.Pod
		want []string
	}{
		{"dual stack", podWith(primary()), []string{eth0}},
		{"one family of a dual subnet keeps its own gateway", podWith(primary(), provided("ovn", "ip_address", "fd00:10:16::5")),
			[]string{"eth0 web-0.shop 0a:58:0a:10:00:05 fd00:10:16::5/112 via fd00:10:16::1 default"}},
		{"an attachment has no default route and doesn't wait for routed", podWith(primary(), attachment,
			map[string]string{keyNetworks: "back"}),
			[]string{eth0, "net1 web-0.shop.back.shop.ovn 0a:58:0a:14:00:05 10.20.0.5/24 via 10.20.0.1"}},
		{"attachments keep the list's order and names", podWith(primary(), attachment, second,
			map[string]string{keyNetworks: `[{"name":"back","interface":"fast0"},{"name":"back","namespace":"shop"}]`}),
			[]string{eth0, "fast0 web-0.shop.back.shop.ovn.fast0 0a:58:0a:14:00:06 10.20.0.6/24 via 10.20.0.1",
				"net2 web-0.shop.back.shop.ovn 0a:58:0a:14:00:05 10.20.0.5/24 via 10.20.0.1"}},
		{"addresses of other plugins are not ports of OVN", podWith(primary(),
			provided("mv.shop", "ip_address", "10.30.0.5", "cidr", "10.30.0.0/24")), []string{eth0}},
		{"a VM's ports carry its name", podWith(primary(), provided("ovn", "virtualmachine", "db")),
			[]string{strings.Replace(eth0, "web-0.shop", "db.shop", 1)}},
		{"routes", podWith(primary(), provided("ovn", "routes", `[{"dst":"10.99.0.0/16","gw":"10.16.0.9"}]`)),
			[]string{eth0 + " route 10.99.0.0/16 via 10.16.0.9"}},
		{"a subnet that gives MACs only", podWith(provided("ovn", "ip_address", "", "allocated", "true", "mac_address", "0e:00:00:00:00:01")),
			[]string{"eth0 web-0.shop 0e:00:00:00:00:01 default"}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			plan, err := Plan(c.pod)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, sketch(plan)); d != "" {
				t.Error(d)
			}
			seen := map[string]bool{}
			for _, i := range plan {
				if len(i.HostName) > maxInterfaceNameLen || seen[i.HostName] {
					t.Errorf("host end %q is too long or twice there", i.HostName)
				}
				seen[i.HostName] = true
			}
		})
	}
}

func TestPlanWaits(t *testing.T) {
	for name, pod := range map[string]*corev1.Pod{
		"nothing yet":             podWith(),
		"address but not routed":  podWith(primary(), provided("ovn", "routed", "")),
		"other default network":   podWith(primary(), map[string]string{keyDefaultNetwork: "back"}),
		"MAC only, not allocated": podWith(provided("ovn", "ip_address", "", "mac_address", "0e:00:00:00:00:01")),
	} {
		if _, err := Plan(pod); !errors.Is(err, ErrNotYet) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestPlanRefuses(t *testing.T) {
	for name, change := range map[string]map[string]string{
		"no CIDR":                provided("ovn", "cidr", ""),
		"no mask":                provided("ovn", "cidr", "10.16.0.0"),
		"two addresses one CIDR": provided("ovn", "cidr", "10.16.0.0/16"),
		"outside of the CIDR":    provided("ovn", "ip_address", "10.17.0.5"),
		"not an address":         provided("ovn", "ip_address", "ten"),
		"a gateway is missing":   provided("ovn", "gateway", "10.16.0.1"),
		"not a gateway":          provided("ovn", "gateway", "x"),
		"no MAC":                 provided("ovn", "mac_address", ""),
		"routes not JSON":        provided("ovn", "routes", "10.0.0.0/8"),
		"route without gateway":  provided("ovn", "routes", `[{"dst":"10.0.0.0/8"}]`),
	} {
		_, err := Plan(podWith(primary(), change))
		var wrong *AnnotationError
		if !errors.As(err, &wrong) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAddressBatch(t *testing.T) {
	plan, err := Plan(podWith(primary()))
	if err != nil {
		t.Fatal(err)
	}
	want := `link set lo up
link set eth0 up
addr add 10.16.0.5/16 dev eth0
addr add fd00:10:16::5/112 dev eth0 nodad
route replace default via 10.16.0.1 dev eth0
route replace default via fd00:10:16::1 dev eth0
`
	if d := cmp.Diff(want, addressBatch(&plan[0])); d != "" {
		t.Error(d)
	}
}

func TestHostName(t *testing.T) {
	seen := map[string]bool{}
	for _, uid := range []string{"a", "b"} {
		for _, name := range []string{"eth0", "net1", "net10", "averylonginterf"} {
			got := HostName(uid, name)
			if len(got) > maxInterfaceNameLen || seen[got] || !strings.HasSuffix(got, "_h") {
				t.Errorf("%s %s: %q", uid, name, got)
			}
			seen[got] = true
		}
	}
}
