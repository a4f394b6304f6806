package network

import (
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func TestAnnotations(t *testing.T) {
	cat := catalog(subnet("s", "10.0.0.0/24,fd00::/64", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v"; s.Spec.LogicalGateway = true }))
	cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
	cat.Vlans["v"] = &kubeovnv1.Vlan{Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "net"}}
	planned, errs := Plan(annotated(ls, "s", "ovn.kubernetes.io/pod_nic_type", "internal-port"), Namespace{}, cat, config())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	r := planned.Request(claimA, true)
	if r.Claim != claimA || !r.Existing || len(r.Interfaces) != 1 || r.Interfaces[0].Candidates[0].Subnet != cat.Subnets["s"].Set {
		t.Errorf("request %+v", r)
	}
	lease := func(a string) ipam.Held { return ipam.Held{Lease: ipam.Lease{Address: netip.MustParseAddr(a)}} }
	got := Annotations(planned, &ipam.Allocation{Claim: claimA, Interfaces: []ipam.Assignment{{Provider: "ovn", Subnet: cat.Subnets["s"].Set,
		Leases: []ipam.Held{lease("10.0.0.5"), lease("fd00::5")}, MAC: ipam.MAC{0x0a, 0x58, 10, 0, 0, 5}}}}, cat, config())
	want := map[string]string{ClaimKey: claimA, RequestedKey: `{"ovn":{"logical_switch":"s","pod_nic_type":"internal-port"}}`,
		ip: "10.0.0.5,fd00::5", mac: "0a:58:0a:00:00:05", ls: "s", "ovn.kubernetes.io/cidr": "10.0.0.0/24,fd00::/64",
		"ovn.kubernetes.io/gateway": "10.0.0.1,fd00::1", "ovn.kubernetes.io/pod_nic_type": "internal-port",
		"ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/vlan_id": "7", "ovn.kubernetes.io/provider_network": "net"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	carried := Carried(got)
	if len(carried) != 1 || carried[0].Subnet != "s" || join(carried[0].Addresses) != got[ip] || carried[0].MAC.String() != got[mac] {
		t.Errorf("carried %+v", carried)
	}
	got["app"] = "x"
	kept, dropped := Strip(got)
	if d := cmp.Diff([]string{"app", RequestedKey}, slices.Sorted(maps.Keys(kept))); d != "" || len(dropped) != 10 {
		t.Error(d, dropped)
	}
}

func TestCarried(t *testing.T) {
	got := Carried(map[string]string{ip: "x, fd00::1,10.0.0.1,10.0.0.2", mac: "zz", "net1.default.ovn.kubernetes.io/ip_address": "10.1.0.1",
		"a.b.kubernetes.io/mac_address": "02:00:00:00:00:01", "kubernetes.io/ip_address": "10.0.0.9", "e.kubernetes.io/ip_address": ""})
	var texts []string
	for _, c := range got {
		texts = append(texts, c.Provider+" "+join(c.Addresses)+" "+c.MAC.String())
	}
	want := []string{"ovn 10.0.0.1,fd00::1 ", "a.b  02:00:00:00:00:01", "net1.default.ovn 10.1.0.1 "}
	if d := cmp.Diff(want, texts); d != "" {
		t.Error(d)
	}
	if _, ok := ClaimOf(map[string]string{ClaimKey: ClaimPreview}); ok {
		t.Error("a preview was taken for a claim")
	}
}
