//go:build e2e

package packets

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// TestVipMoves moves the address of a Vip between two pods that may use it, whose ports are secured. A third pod that
// may not use it is not heard with it.
func TestVipMoves(t *testing.T) { checkVipMoves(t, start(t)) }

func checkVipMoves(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "vip")
	h.make(t, h.subnet("vip", 70))
	h.make(t, h.subnet("vip-peers", 71))
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "vip-service"}, Spec: kubeovnv1.VipSpec{Namespace: ns, Subnet: "vip"}}
	h.make(t, vip)
	addresses := map[bool]netip.Addr{}
	until(ctx, t, "the Vip has addresses", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(vip), vip); err != nil {
			return err
		}
		for v4, text := range map[bool]string{true: vip.Status.V4IP, false: vip.Status.V6IP} {
			a, err := netip.ParseAddr(text)
			if wanted := slices.Contains(h.families(), v4); wanted != (err == nil) {
				return fmt.Errorf("addresses %q and %q", vip.Status.V4IP, vip.Status.V6IP)
			} else if wanted {
				addresses[v4] = a
			}
		}
		return nil
	})
	mayUse := with("aaps", vip.Name)
	pods := h.pods(t, ns, map[string][]podOption{
		"first":    {in("vip"), on("node-1"), mayUse, with("port_security", "true")},
		"second":   {in("vip"), on("node-2"), mayUse, with("port_security", "true")},
		"stranger": {in("vip"), on("node-2"), with("port_security", "true")},
		"near":     {in("vip"), on("node-1")},
		"far":      {in("vip-peers"), on("node-2")},
	})
	near, far, stranger := pods["near"], pods["far"], pods["stranger"]
	for _, p := range pods {
		if p != near && p != far {
			p.serve(t, servicePort)
		}
	}
	take := func(p *place, a netip.Addr) {
		p.inside(ctx, t, "ip addr add %s dev eth0 %s", onItsNetwork(a), withoutSearch(a))
	}
	for _, name := range []string{"first", "second", "first"} {
		holder := pods[name]
		for _, v4 := range h.families() {
			a := addresses[v4]
			take(holder, a)
			until(ctx, t, name+" holds the Vip", func(ctx context.Context) error {
				holder.sendRaw(t, announcement(holder.mac, a))
				who, _, err := near.ask(ctx, "tcp", a, servicePort)
				if err == nil && who != name {
					return errors.New(who + " answers")
				}
				return err
			})
			// Also through the router.
			far.hears(ctx, t, "tcp", a, servicePort, name)
		}
		for _, v4 := range h.families() {
			holder.inside(ctx, t, "ip addr del %s dev eth0", onItsNetwork(addresses[v4]))
		}
		near.inside(ctx, t, "ip neigh flush dev eth0")
	}
	for _, v4 := range h.families() {
		a := addresses[v4]
		near.loses(ctx, t, "the Vip", func() error { _, _, err := near.ask(ctx, "tcp", a, servicePort); return err })
		take(stranger, a)
		stranger.sendRaw(t, announcement(stranger.mac, a))
		near.neverHears(ctx, t, "tcp", a, servicePort)
	}
}

// onItsNetwork gives an address with the length of its subnet.
func onItsNetwork(a netip.Addr) netip.Prefix {
	if a.Is4() {
		return netip.PrefixFrom(a, 24)
	}
	return netip.PrefixFrom(a, 120)
}

// withoutSearch spares an IPv6 address the search for its duplicates.
func withoutSearch(a netip.Addr) string {
	if a.Is6() {
		return "nodad"
	}
	return ""
}
