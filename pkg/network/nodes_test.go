package network

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

const netReady, backReady = "net.provider-network.kubernetes.io/ready", "back.provider-network.kubernetes.io/ready"

func onVlan(name string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.Vlan = name }
}

// underlaid is a pod of a catalog with an overlay, two underlays on ProviderNetworks of their own, and two nodes, on one of
// which both are ready.
func underlaid(p Pod) world {
	w := in("red", p, subnet("over", "10.1.0.0/24"), subnet("under", "10.2.0.0/24", onVlan("v")), subnet("back", "10.3.0.0/24", onVlan("b")))
	for vlan, provider := range map[string]string{"v": "net", "b": "back"} {
		w.cat.Vlans[vlan] = &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: vlan}, Spec: kubeovnv1.VlanSpec{Provider: provider}}
	}
	w.cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}, "back": {}}
	w.cat.Nodes = map[string]map[string]string{"ready": {netReady: "true", backReady: "true"}, "half": {netReady: "false", backReady: "true"}, "bare": {}}
	return w
}

// A pod goes only to nodes on which all its underlays are ready.
func TestNodeSelector(t *testing.T) {
	for name, c := range map[string]struct {
		subnets []string
		want    map[string]string
	}{
		"overlay":               {[]string{"over"}, map[string]string{}},
		"underlay":              {[]string{"under"}, map[string]string{netReady: "true"}},
		"both":                  {[]string{"over", "under"}, map[string]string{netReady: "true"}},
		"two underlays":         {[]string{"under", "back"}, map[string]string{netReady: "true", backReady: "true"}},
		"the same twice":        {[]string{"under", "under"}, map[string]string{netReady: "true"}},
		"its Vlan is gone":      {[]string{"lost"}, map[string]string{}},
		"nothing was allocated": {nil, map[string]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := underlaid(annotated())
			w.cat.Subnets["lost"] = NewSubnet(subnet("lost", "10.4.0.0/24", onVlan("gone")), Around{})
			a := &ipam.Allocation{}
			for _, s := range c.subnets {
				a.Interfaces = append(a.Interfaces, ipam.Assignment{Subnet: w.cat.Subnets[s].Set})
			}
			if d := cmp.Diff(c.want, NodeSelector(a, w.cat)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// What a pod itself asks of nodes is told when no node can have both.
func TestContradicts(t *testing.T) {
	need := map[string]string{netReady: "true", backReady: "true"}
	for name, c := range map[string]struct {
		asks map[string]string
		want string
	}{
		"nothing":     {nil, ""},
		"the same":    {map[string]string{netReady: "true"}, ""},
		"others":      {map[string]string{"zone": "a"}, ""},
		"the reverse": {map[string]string{netReady: "false"}, "spec.nodeSelector has " + netReady + "=false, and the pod's network is plugged in only where it is true"},
		"empty":       {map[string]string{backReady: ""}, "spec.nodeSelector has " + backReady + "=, and the pod's network is plugged in only where it is true"},
	} {
		if d := cmp.Diff(c.want, Contradicts(Pod{NodeSelector: c.asks}, need)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

// A pod whose node is preset is refused where its underlay isn't ready; of a node that isn't known yet nothing is said.
func TestPresetNode(t *testing.T) {
	const notReady = `subnet "under" is on the ProviderNetwork "net", which is not ready on node `
	on := func(node, subnets string) world {
		w := underlaid(annotated())
		w.pod.NodeName, w.ns.Annotations = node, map[string]string{ls: subnets}
		return w
	}
	named := underlaid(annotated(ls, "under"))
	named.pod.NodeName = "half"
	cases := map[string]struct {
		world
		want result
	}{
		"ready":              {on("ready", "under"), result{Networks: []string{"ovn from under"}}},
		"not ready":          {on("half", "under"), result{Errors: []string{notReady + "half"}, Warnings: []string{notReady + "half"}}},
		"says nothing":       {on("bare", "under"), result{Errors: []string{notReady + "bare"}, Warnings: []string{notReady + "bare"}}},
		"named, not ready":   {named, result{Errors: []string{ls + `]: Invalid value: "under": ` + notReady + "half"}}},
		"not known yet":      {on("new", "under"), result{Networks: []string{"ovn from under"}}},
		"not preset":         {on("", "under"), result{Networks: []string{"ovn from under"}}},
		"overlay":            {on("bare", "over"), result{Networks: []string{"ovn from over"}}},
		"the next one would": {on("half", "under,back"), result{Networks: []string{"ovn from back"}, Warnings: []string{notReady + "half"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}
