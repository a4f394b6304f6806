package memnb_test

import (
	"testing"

	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// A port goes from options of its own to those of its switch and back, and to none.
func TestPortChangesItsDHCPOptions(t *testing.T) {
	c := connect(t, startMemory(t))
	w := writer(t, c)
	apply(t, w, switches("s1"))
	row := func(port string) *nb.DHCPOptions {
		d := &nb.DHCPOptions{CIDR: "10.0.0.0/24", Options: map[string]string{"mtu": "1400"}, ExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s1", nb.KeyProtocol: nb.ProtocolIPv4}}
		if port != "" {
			d.ExternalIDs[nb.KeyPort] = port
		}
		return d
	}
	for _, d := range []*nb.DHCPOptions{row(""), row(portName("web-0")), row(""), nil, row(portName("web-0")), nil} {
		ch := podChange("web-0", "s1")
		ch.Ensure.Ports[0].DHCP = &nb.DHCP{V4: d}
		apply(t, w, ch)
		if p, _ := c.Port(portName("web-0")); (p.DHCPv4 != nil) != (d != nil) {
			t.Errorf("options %v, port refers to %v", d, p.DHCPv4)
		}
	}
	apply(t, w, ovn.Change{RemovePorts: []string{portName("web-0")}})
}
