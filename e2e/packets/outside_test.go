//go:build e2e

package packets

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/cluster"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// providerNetwork plugs all nodes into the physical network.
func (h *harness) providerNetwork(t *testing.T, name string) {
	t.Helper()
	h.make(t, &kubeovnv1.ProviderNetwork{ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: kubeovnv1.ProviderNetworkSpec{DefaultInterface: cluster.PhysicalNIC}})
	until(t.Context(), t, "the nodes are plugged into "+name, func(ctx context.Context) error {
		var nodes corev1.NodeList
		if err := h.api.List(ctx, &nodes); err != nil {
			return err
		}
		for _, n := range nodes.Items {
			if got := n.Labels[network.ReadyLabel(name)]; got != "true" {
				return fmt.Errorf("node %s is labelled %q", n.Name, got)
			}
		}
		return nil
	})
}

// vlan makes a VLAN of a physical network.
func (h *harness) vlan(t *testing.T, name, provider string, id int) {
	t.Helper()
	h.make(t, &kubeovnv1.Vlan{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VlanSpec{ID: id, Provider: provider}})
}

// outside makes a machine in a VLAN of the physical network.
func (h *harness) outside(t *testing.T, number, vlan int, addresses ...string) *place {
	t.Helper()
	ctx := t.Context()
	netns, err := h.Outside(ctx, number, vlan)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.RemoveOutside(context.WithoutCancel(ctx), number); err != nil {
			t.Error(err)
		}
	})
	p := &place{name: fmt.Sprintf("outside-%d", number), netns: netns}
	for _, text := range addresses {
		a := netip.MustParsePrefix(text)
		p.addresses = append(p.addresses, a.Addr())
		p.inside(ctx, t, "ip addr add %s dev eth0 %s", text, withoutSearch(a.Addr()))
	}
	return p
}

// TestUnderlay puts pods of two nodes into a VLAN of the physical network, whose gateway is a machine there.
func TestUnderlay(t *testing.T) { checkUnderlay(t, start(t)) }

func checkUnderlay(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "underlay")
	h.providerNetwork(t, "physical")
	h.vlan(t, "vlan100", "physical", 100)
	h.vlan(t, "vlan200", "physical", 200)
	gateway := h.outside(t, 1, 100, h.ofFamilies("10.80.0.1/24", "fd00:10:80::1/120")...)
	other := h.outside(t, 2, 200, h.ofFamilies("10.81.0.1/24", "fd00:10:81::1/120")...)
	// It is in the first VLAN's networks, and in the second VLAN.
	stray := h.outside(t, 3, 200, h.ofFamilies("10.80.0.3/24", "fd00:10:80::3/120")...)
	for name, n := range map[string]int{"vlan100": 80, "vlan200": 81} {
		s := h.subnet("under-"+name, n)
		s.Spec.Vlan = name
		h.make(t, s)
	}
	pods := h.pods(t, ns, map[string][]podOption{
		"one":   {in("under-vlan100"), on("node-1")},
		"two":   {in("under-vlan100"), on("node-2")},
		"three": {in("under-vlan200"), on("node-1")},
	})
	one, two, three := pods["one"], pods["two"], pods["three"]
	one.serve(t, servicePort)
	one.reaches(ctx, t, append(gateway.addresses, two.addresses...)...)
	two.reaches(ctx, t, append(gateway.addresses, one.addresses...)...)
	three.reaches(ctx, t, other.addresses...)
	for _, v4 := range h.families() {
		for _, from := range []*place{gateway, two} {
			if got, want := from.hears(ctx, t, "tcp", one.of(v4), servicePort, one.name), from.of(v4).String(); got != want {
				t.Errorf("%s came from %s, want its own address %s", from.name, got, want)
			}
		}
		stray.neverReaches(ctx, t, one.of(v4), two.of(v4))
		one.neverReaches(ctx, t, stray.of(v4))
	}
}

// external connects the default router to the physical network: by the network's objects, by the ConfigMap that tells
// the gateway, and by the nodes that may do it.
func (h *harness) external(t *testing.T, provider string) {
	t.Helper()
	ctx := t.Context()
	h.providerNetwork(t, provider)
	h.vlan(t, "external", provider, 0)
	for _, name := range h.NodeNames() {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		change(ctx, t, h, node, func(n *corev1.Node) { n.Labels["ovn.kubernetes.io/external-gw"] = "true" })
	}
	h.make(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "kube-system", Name: "ovn-external-gw-config"}, Data: map[string]string{
		"enable-external-gw": "true", "type": "centralized", "external-gw-nodes": "node-1,node-2", "external-gw-nic": cluster.PhysicalNIC,
		"external-gw-addr": "10.90.0.1/24", "nic-ip": "10.90.0.254/24", "nic-mac": "0a:58:0a:5a:00:fe",
	}})
	s := h.subnet("external", 90)
	s.Spec.Protocol, s.Spec.CIDRBlock, s.Spec.Gateway, s.Spec.Vlan = "IPv4", "10.90.0.0/24", "10.90.0.1", "external"
	h.make(t, s)
	router := &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}
	change(ctx, t, h, router, func(v *kubeovnv1.Vpc) { v.Spec.EnableExternal = true })
	t.Cleanup(func() {
		off := client.RawPatch(types.MergePatchType, []byte(`{"spec":{"enableExternal":null}}`))
		if err := h.api.Patch(context.WithoutCancel(ctx), router, off); err != nil {
			t.Error(err)
		}
	})
}

// TestExternalAddresses reaches a pod from outside by its EIP, and has others leave with their SNAT address.
func TestExternalAddresses(t *testing.T) {
	h, ctx := start(t), t.Context()
	ns := h.namespace(t, "external")
	out := h.outside(t, 4, 0, "10.90.0.1/24")
	h.external(t, "external")
	h.make(t, h.subnet("inner", 91))
	eip, snat := netip.MustParseAddr("10.90.0.10"), netip.MustParseAddr("10.90.0.20")
	pods := h.pods(t, ns, map[string][]podOption{
		"eip":   {in("inner"), on("node-1"), with("eip", eip.String())},
		"snat":  {in("inner"), on("node-2"), with("snat", snat.String())},
		"peer":  {in("inner"), on("node-2"), with("eip", "10.90.0.11")},
		"plain": {in("inner"), on("node-1")},
	})
	out.serve(t, servicePort)
	pods["eip"].serve(t, servicePort)
	out.hears(ctx, t, "tcp", eip, servicePort, "eip")
	for name, want := range map[string]netip.Addr{"eip": eip, "snat": snat} {
		for _, network := range []string{"tcp", "udp"} {
			if got := pods[name].hears(ctx, t, network, out.of(true), servicePort, out.name); got != want.String() {
				t.Errorf("%s leaves by %s with %s, want %s", name, network, got, want)
			}
		}
	}
	out.neverReaches(ctx, t, snat)
	pods["plain"].neverReaches(ctx, t, out.of(true))
	pods["eip"].reaches(ctx, t, pods["plain"].addresses...)

	t.Run("moves to another pod", func(t *testing.T) {
		h.annotate(t, pods["eip"], "eip", "")
		h.annotate(t, pods["peer"], "eip", eip.String())
		pods["peer"].serve(t, servicePort)
		out.hears(ctx, t, "tcp", eip, servicePort, "peer")
	})
}
