//go:build e2e

package packets

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// TestVipMoves moves the address of a Vip between two pods that may use it, whose ports are secured. A third pod that
// may not use it is not heard with it.
func TestVipMoves(t *testing.T) {
	h, ctx := start(t), t.Context()
	ns := h.namespace(t, "vip")
	h.make(t, subnet("vip", 70))
	h.make(t, subnet("vip-peers", 71))
	vip := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "vip-service"}, Spec: kubeovnv1.VipSpec{Namespace: ns, Subnet: "vip"}}
	h.make(t, vip)
	var address, address6 netip.Addr
	until(ctx, t, "the Vip has addresses", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(vip), vip); err != nil {
			return err
		}
		a, err := netip.ParseAddr(vip.Status.V4IP)
		b, err6 := netip.ParseAddr(vip.Status.V6IP)
		address, address6 = a, b
		return errors.Join(err, err6)
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
	for _, name := range []string{"first", "second", "first"} {
		holder := pods[name]
		holder.inside(ctx, t, "ip addr add %s/24 dev eth0", address)
		holder.inside(ctx, t, "ip addr add %s/120 dev eth0 nodad", address6)
		until(ctx, t, name+" holds the Vip", func(ctx context.Context) error {
			holder.sendRaw(t, announcement(holder.mac, address))
			who, _, err := near.ask(ctx, "tcp", address, servicePort)
			if err == nil && who != name {
				return errors.New(who + " answers")
			}
			return err
		})
		near.hears(ctx, t, "tcp", address6, servicePort, name)
		// Also through the router.
		far.hears(ctx, t, "tcp", address, servicePort, name)
		holder.inside(ctx, t, "ip addr del %s/24 dev eth0", address)
		holder.inside(ctx, t, "ip addr del %s/120 dev eth0", address6)
		near.inside(ctx, t, "ip neigh flush dev eth0")
	}
	near.loses(ctx, t, "the Vip", func() error { _, _, err := near.ask(ctx, "tcp", address, servicePort); return err })
	stranger.inside(ctx, t, "ip addr add %s/24 dev eth0", address)
	stranger.sendRaw(t, announcement(stranger.mac, address))
	near.neverHears(ctx, t, "tcp", address, servicePort)
}
