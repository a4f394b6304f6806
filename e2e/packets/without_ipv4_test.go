//go:build e2e

package packets

import (
	"encoding/json"
	"net/netip"
	"regexp"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/proc"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// TestIPv6Only sends the same packets on a cluster that has no IPv4 anywhere, and then looks for any. This file is the
// last one, so that the cluster of both families is started once.
func TestIPv6Only(t *testing.T) {
	h := startOf(t, cluster.IPv6)
	for _, c := range []struct {
		name  string
		check func(*testing.T, *harness)
	}{
		{"Reach", checkReach}, {"AddressMoves", checkAddressMoves}, {"SecurityGroup", checkSecurityGroup}, {"PrivateSubnet", checkPrivateSubnet},
		{"SubnetACLs", checkSubnetACLs}, {"PortSecurity", checkPortSecurity}, {"PortSecurityChanges", checkPortSecurityChanges},
		{"Layer2Forward", checkLayer2Forward}, {"VipMoves", checkVipMoves}, {"Vpcs", checkVpcs}, {"NorthGateway", checkNorthGateway},
		{"Underlay", checkUnderlay}, {"NoIPv4", checkNoIPv4},
	} {
		t.Run(c.name, func(t *testing.T) { c.check(t, h) })
	}
}

// checkNoIPv4 has pods of several kinds, and looks for an IPv4 address in what is stored of them and of all others: in the
// API server's objects, leases and records among them, and in the northbound database.
func checkNoIPv4(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "no-ipv4")
	h.make(t, &kubeovnv1.SecurityGroup{ObjectMeta: metav1.ObjectMeta{Name: "six"}, Spec: kubeovnv1.SecurityGroupSpec{
		IngressRules: []kubeovnv1.SecurityGroupRule{rule(false, 10, "tcp", anywhere(false), "allow")},
		EgressRules:  []kubeovnv1.SecurityGroupRule{rule(false, 10, "all", anywhere(false), "allow")}}})
	private := h.subnet("six", 47)
	private.Spec.Private = true
	h.make(t, private)
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "six"}, Spec: kubeovnv1.VipSpec{Namespace: ns, Subnet: "six"}}
	h.make(t, vip)
	pods := h.pods(t, ns, map[string][]podOption{
		"default":   {on("node-1")},
		"guarded":   {in("six"), on("node-2"), with("security_groups", "six"), with("port_security", "true")},
		"asked-for": {in("six"), with("ip_address", "fd00:10:47::47")},
		"beside":    {in("six"), with("aaps", "six")},
	})
	for name, p := range pods {
		if len(p.addresses) != 1 || !p.addresses[0].Is6() {
			t.Errorf("pod %s has addresses %v, want one of IPv6", name, p.addresses)
		}
		var ips []string
		for _, ip := range p.object.Status.PodIPs {
			ips = append(ips, ip.IP)
		}
		if !slices.Equal(ips, []string{p.of(false).String()}) {
			t.Errorf("pod %s says of itself %v, want %s", name, ips, p.of(false))
		}
	}
	pods["default"].reaches(ctx, t, h.nodeAddress(t, "node-2"))
	for _, kind := range []schema.GroupVersionKind{
		{Version: "v1", Kind: "Pod"}, {Version: "v1", Kind: "Node"}, {Version: "v1", Kind: "Service"},
		{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice"}, {Group: "berth.dev", Version: "v1alpha1", Kind: "AddressBlock"},
		{Group: "kubeovn.io", Version: "v1", Kind: "IP"}, {Group: "kubeovn.io", Version: "v1", Kind: "Subnet"},
		{Group: "kubeovn.io", Version: "v1", Kind: "Vpc"}, {Group: "kubeovn.io", Version: "v1", Kind: "Vip"},
		{Group: "kubeovn.io", Version: "v1", Kind: "SecurityGroup"},
	} {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(kind)
		if err := h.api.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 0 {
			t.Errorf("there is no %s, so nothing was looked at", kind.Kind)
		}
		for _, o := range list.Items {
			o.SetManagedFields(nil)
			if kind.Kind == "Pod" {
				unstructured.RemoveNestedField(o.Object, "spec") // programs may be told to listen at 127.0.0.1
			}
			text, err := json.Marshal(o.Object)
			if err != nil {
				t.Fatal(err)
			}
			noIPv4(t, kind.Kind+" "+o.GetName(), string(text))
		}
	}
	rows, err := proc.Run(ctx, "", "ovsdb-client", "--timeout=20", "--format=list", "dump", h.NBSocket(), "OVN_Northbound")
	if err != nil {
		t.Fatal(err)
	}
	noIPv4(t, "northbound database", rows)
}

// nodeAddress is a node's address on the pods' network.
func (h *harness) nodeAddress(t *testing.T, name string) netip.Addr {
	t.Helper()
	var node corev1.Node
	if err := h.api.Get(t.Context(), client.ObjectKey{Name: name}, &node); err != nil {
		t.Fatal(err)
	}
	a, err := netip.ParseAddr(node.Annotations["ovn.kubernetes.io/ip_address"])
	if err != nil {
		t.Fatalf("node %s: %v", name, err)
	}
	return a
}

func noIPv4(t *testing.T, where, text string) {
	t.Helper()
	for _, at := range regexp.MustCompile(`\b\d{1,3}\.\d{1,3}\.\d{1,3}\.\d{1,3}\b`).FindAllStringIndex(text, -1) {
		t.Errorf("%s has the IPv4 address %s: ...%s...", where, text[at[0]:at[1]], text[max(0, at[0]-80):min(len(text), at[1]+40)])
	}
}
