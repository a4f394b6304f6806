package network

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// What only the cluster router can do is told to be ignored when the pod comes to no subnet of it.
func TestWhatOnlyTheClusterRouterDoes(t *testing.T) {
	const eip, snat, north = "ovn.kubernetes.io/eip", "ovn.kubernetes.io/snat", "ovn.kubernetes.io/north_gateway"
	all := []string{eip, "172.31.0.9", snat, " 172.31.0.10 ", north, "10.1.0.99"}
	told := []string{eip + `="172.31.0.9" was ignored`, snat + `="172.31.0.10" was ignored`, north + `="10.1.0.99" was ignored`}
	of := func(vpc string) func(*kubeovnv1.Subnet) { return func(s *kubeovnv1.Subnet) { s.Spec.Vpc = vpc } }
	logical := func(s *kubeovnv1.Subnet) { s.Spec.LogicalGateway = true }
	for name, c := range map[string]struct {
		subnets string
		pairs   []string
		want    result
	}{
		"at the router":           {"router", all, result{Networks: []string{"ovn from router"}}},
		"by its name":             {"named", all, result{Networks: []string{"ovn from named"}}},
		"another VPC":             {"custom", all, result{Networks: []string{"ovn from custom"}, Warnings: told}},
		"underlay":                {"under", all, result{Networks: []string{"ovn from under"}, Warnings: told}},
		"underlay, OVN's gateway": {"logical", all, result{Networks: []string{"ovn from logical"}}},
		"one of two":              {"custom,router", all, result{Networks: []string{"ovn from custom router"}}},
		"none of two":             {"custom,under", all, result{Networks: []string{"ovn from custom under"}, Warnings: told}},
		"one of the three":        {"custom", all[:2], result{Networks: []string{"ovn from custom"}, Warnings: told[:1]}},
		"nothing is asked for":    {"custom", []string{eip, " "}, result{Networks: []string{"ovn from custom"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := in("red", annotated(c.pairs...), subnet("router", "10.1.0.0/24"), subnet("named", "10.2.0.0/24", of("ovn-cluster")),
				subnet("custom", "10.3.0.0/24", of("v")), subnet("under", "10.4.0.0/24", onVlan("l")), subnet("logical", "10.5.0.0/24", onVlan("l"), logical))
			w.ns.Annotations = map[string]string{ls: c.subnets}
			w.cat.Vpcs["v"] = &kubeovnv1.Vpc{}
			w.cat.Vlans["l"] = &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: "l"}, Spec: kubeovnv1.VlanSpec{Provider: "net"}}
			w.cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
			w.check(t, c.want)
		})
	}
}
