//go:build e2e

package packets

import (
	"net/netip"
	"strings"
	"testing"
)

const servicePort = 8080

// TestReach sends packets of each family between pods: on one subnet and between subnets, on one node and between
// nodes.
func TestReach(t *testing.T) { checkReach(t, start(t)) }

func checkReach(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "reach")
	h.make(t, h.subnet("reach-a", 41))
	h.make(t, h.subnet("reach-b", 42))
	pods := h.pods(t, ns, map[string][]podOption{
		"client":     {in("reach-a"), on("node-1")},
		"near":       {in("reach-a"), on("node-1")},
		"far":        {in("reach-a"), on("node-2")},
		"other-near": {in("reach-b"), on("node-1")},
		"other-far":  {in("reach-b"), on("node-2")},
	})
	client := pods["client"]
	for name, to := range map[string]*place{
		"one subnet, one node": pods["near"], "one subnet, two nodes": pods["far"],
		"two subnets, one node": pods["other-near"], "two subnets, two nodes": pods["other-far"],
	} {
		t.Run(name, func(t *testing.T) {
			if len(to.addresses) != len(h.families()) {
				t.Fatalf("%s has addresses %v, want one of each family", to.name, to.addresses)
			}
			to.serve(t, servicePort)
			client.reaches(ctx, t, to.addresses...)
			for _, a := range to.addresses {
				for _, network := range []string{"tcp", "udp"} {
					from := client.hears(ctx, t, network, a, servicePort, to.name)
					if want := client.of(a.Is4()).String(); from != want {
						t.Errorf("%s to %s: came from %s, want %s", network, a, from, want)
					}
				}
			}
		})
	}
}

// TestAddressMoves gives the address of a deleted pod to the next one on another node: packets follow.
func TestAddressMoves(t *testing.T) { checkAddressMoves(t, start(t)) }

func checkAddressMoves(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "moves")
	h.make(t, h.subnet("moves", 43))
	addresses := h.ofFamilies("10.43.0.77", "fd00:10:43::77")
	client := h.pod(t, ns, "client", in("moves"), on("node-1"))
	for _, node := range []string{"node-1", "node-2"} {
		p := h.pod(t, ns, "holder-"+node, in("moves"), on(node), with("ip_address", strings.Join(addresses, ",")))
		p.serve(t, servicePort)
		for _, text := range addresses {
			client.hears(ctx, t, "tcp", netip.MustParseAddr(text), servicePort, p.name)
		}
		h.unmake(t, p.object)
	}
}
