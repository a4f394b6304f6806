//go:build e2e

package packets

import (
	"net/netip"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// TestVpcs has two VPCs with the same networks and, partly, the same addresses. Each reaches its own, and none the other's.
func TestVpcs(t *testing.T) { checkVpcs(t, start(t)) }

func checkVpcs(t *testing.T, h *harness) {
	ctx := t.Context()
	places := map[string]map[string]*place{}
	for vpc, last := range map[string]string{"red": "21", "blue": "22"} {
		ns := h.namespace(t, "vpc-"+vpc)
		h.make(t, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpc}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{ns}}})
		for name, n := range map[string]int{"-a": 50, "-b": 51} {
			s := h.subnet(vpc+name, n)
			s.Spec.Vpc = vpc
			h.make(t, s)
		}
		at := func(n, last string) podOption {
			return with("ip_address", strings.Join(h.ofFamilies("10."+n+".0."+last, "fd00:10:"+n+"::"+last), ","))
		}
		places[vpc] = h.pods(t, ns, map[string][]podOption{
			vpc + "-client": {in(vpc + "-a"), on("node-1"), at("50", "10")},
			vpc + "-near":   {in(vpc + "-a"), on("node-2"), at("50", last)},
			vpc + "-far":    {in(vpc + "-b"), on("node-2"), at("51", "10")},
		})
		for _, p := range places[vpc] {
			p.serve(t, servicePort)
		}
	}
	outsider := h.pod(t, h.namespace(t, "vpc-none"), "outsider")
	red, blue := places["red"], places["blue"]
	var silence sync.WaitGroup
	for _, v4 := range h.families() {
		for vpc, pods := range places {
			client, near, far := pods[vpc+"-client"], pods[vpc+"-near"], pods[vpc+"-far"]
			client.hears(ctx, t, "tcp", near.of(v4), servicePort, near.name)
			// Both VPCs have a pod of this address.
			client.hears(ctx, t, "udp", far.of(v4), servicePort, far.name)
			silence.Go(func() { outsider.neverReaches(ctx, t, near.of(v4), far.of(v4)) })
			silence.Go(func() { client.neverReaches(ctx, t, outsider.of(v4)) })
		}
		silence.Go(func() { red["red-client"].neverReaches(ctx, t, blue["blue-near"].of(v4)) })
		silence.Go(func() { blue["blue-client"].neverReaches(ctx, t, red["red-near"].of(v4)) })
	}
	silence.Wait()
}

// TestVpcPeering joins two VPCs by a peering and a route each.
func TestVpcPeering(t *testing.T) {
	h, ctx := start(t), t.Context()
	ns := h.namespace(t, "peering")
	clients := map[string][]podOption{}
	for vpc, to := range map[string]struct {
		n             int
		remote        string
		connect, hop  string
		remoteNetwork string
	}{
		"east": {52, "west", "169.254.100.1/30", "169.254.100.2", "10.53.0.0/24"},
		"west": {53, "east", "169.254.100.2/30", "169.254.100.1", "10.52.0.0/24"},
	} {
		h.make(t, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: vpc}, Spec: kubeovnv1.VpcSpec{
			VpcPeerings:  []kubeovnv1.VpcPeering{{RemoteVpc: to.remote, LocalConnectIP: to.connect}},
			StaticRoutes: []kubeovnv1.StaticRoute{{CIDR: to.remoteNetwork, NextHopIP: to.hop, Policy: "policyDst"}},
		}})
		s := h.subnet("peer-"+vpc, to.n)
		s.Spec.Vpc = vpc
		h.make(t, s)
		clients[vpc] = []podOption{in(s.Name)}
	}
	pods := h.pods(t, ns, clients)
	pods["east"].reaches(ctx, t, pods["west"].of(true))
	pods["west"].reaches(ctx, t, pods["east"].of(true))
	pods["east"].neverReaches(ctx, t, pods["west"].of(false)) // nobody has given it a route
}

// TestNorthGateway sends what leaves the VPC through a pod that another pod names as its gateway.
func TestNorthGateway(t *testing.T) { checkNorthGateway(t, start(t)) }

func checkNorthGateway(t *testing.T, h *harness) {
	ctx := t.Context()
	ns := h.namespace(t, "north")
	h.make(t, h.subnet("north-a", 54))
	h.make(t, h.subnet("north-b", 55))
	gateway := h.pod(t, ns, "gateway", in("north-b"), on("node-2"))
	for _, text := range h.ofFamilies("198.51.100.7", "2001:db8:100::7") {
		t.Run(text, func(t *testing.T) {
			beyond := netip.MustParseAddr(text)
			v4, bits := beyond.Is4(), beyond.BitLen()
			gateway.inside(ctx, t, "ip addr add %s/%d dev lo", beyond, bits)
			client := h.pod(t, ns, "client", in("north-a"), on("node-1"), with("north_gateway", gateway.of(v4).String()))
			other := h.pod(t, ns, "other", in("north-a"), on("node-1"))
			client.reaches(ctx, t, beyond)
			other.neverReaches(ctx, t, beyond)
			// What is inside goes its own way.
			client.reaches(ctx, t, other.of(v4))
		})
	}
}
