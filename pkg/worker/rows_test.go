package worker

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// What a pod asks for by annotations is on its port, and goes with the annotation.
func TestAnnotationsReachThePort(t *testing.T) {
	w := newWorld(t, worldOptions{})
	w.admit(podNamed("a", onNode, func(p *corev1.Pod) {
		p.Annotations = map[string]string{
			"ovn.kubernetes.io/port_security": "true", "ovn.kubernetes.io/layer2_forward": "true", "ovn.kubernetes.io/port_vips": "10.1.0.200, 10.1.0.201",
			"ovn.kubernetes.io/activation_strategy": "rarp", "ovn.kubernetes.io/dhcp-v4-options": "lease_time=60",
		}
	}))
	p := w.wired("a")
	port, _ := w.nb.Port("a.app")
	own := p.Annotations["ovn.kubernetes.io/mac_address"] + " " + p.Annotations["ovn.kubernetes.io/ip_address"]
	if got := strings.Join(port.PortSecurity, "|"); got != own+" 10.1.0.200 10.1.0.201" {
		t.Errorf("port_security %q", got)
	}
	if len(port.Addresses) != 2 || port.ExternalIDs[nb.KeyVips] != "10.1.0.200,10.1.0.201" || port.Options["requested-chassis"] != "n1,n1" || port.DHCPv4 == nil {
		t.Errorf("port %+v", port)
	}
	p.Annotations["ovn.kubernetes.io/port_vips"] = ""
	delete(p.Annotations, "ovn.kubernetes.io/dhcp-v4-options")
	delete(p.Annotations, "ovn.kubernetes.io/activation_strategy")
	w.must(w.client.Update(w.ctx, p))
	w.until("the port without them", func() error {
		port, _ := w.nb.Port("a.app")
		if port.ExternalIDs[nb.KeyAttachVips] != "" || port.DHCPv4 != nil || len(port.Options) > 0 {
			return fmt.Errorf("port %+v", port)
		}
		return nil
	})
}
