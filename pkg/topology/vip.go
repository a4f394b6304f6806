package topology

import (
	"fmt"
	"slices"
	"strings"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// KindVip is the kind of findings about Vips.
const KindVip = "Vip"

// Types of Vips. One without a type moves between the pods that may use it: its virtual port comes with the first of them.
const (
	// VipOfBalancer is the address of a load balancer on the switch. It has the router's MAC.
	VipOfBalancer = "switch_lb_vip"
	// VipOfMachine is the address of a virtual machine in a pod on the host's network.
	VipOfMachine = "kube_host_vm_vip"

	optionARPProxy = "arp_proxy"
)

// VipNeedsPort tells whether a Vip has a port of its own on its subnet's switch.
func VipNeedsPort(v *kubeovnv1.Vip) bool {
	return v.Spec.Type == VipOfBalancer || v.Spec.Type == VipOfMachine
}

// VipPort is the port of a Vip that has its addresses, under a name, on the switch of its subnet.
func VipPort(v *kubeovnv1.Vip, name string) nb.Port {
	address := slices.DeleteFunc([]string{v.Status.Mac, v.Status.V4IP, v.Status.V6IP}, func(s string) bool { return s == "" })
	row := nb.LogicalSwitchPort{Name: name, Addresses: []string{strings.Join(address, " ")}, ExternalIDs: map[string]string{
		nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: v.Spec.Subnet, nb.KeyVip: v.Name}}
	if v.Spec.Type == VipOfBalancer {
		row.Options = map[string]string{optionARPProxy: "true"}
		row.ExternalIDs[nb.KeyOptions] = optionARPProxy
	}
	return nb.Port{Switch: v.Spec.Subnet, Row: row}
}

// UnrealisedVip lists the fields of a Vip that are set and that nobody realises, by their paths.
func UnrealisedVip(v *kubeovnv1.Vip, m Mode) []string { return unrealised(v, m, vipFields()) }

// VipChooses tells whether a pod with these labels that names the Vip may take its address: without a selector every one
// may. One that can't be read chooses nobody.
func VipChooses(v *kubeovnv1.Vip, labels map[string]string) bool {
	for _, text := range v.Spec.Selector {
		key, value, ok := selects(text)
		if have, labelled := labels[key]; !ok || !labelled || have != value {
			return false
		}
	}
	return true
}

// selects reads one label of a Vip's selector, "key:value".
func selects(text string) (key, value string, ok bool) {
	key, value, ok = strings.Cut(text, ":")
	key, value = strings.TrimSpace(key), strings.TrimSpace(value)
	return key, value, ok && key != "" && !strings.Contains(value, ":")
}

// vipFields has every field of a Vip's spec. Of a selector only what can't be read is told. A load balancer's address is on
// one switch alone.
func vipFields() map[string]untold[kubeovnv1.Vip] {
	type vip = kubeovnv1.Vip
	return fieldsOf(map[string]untold[vip]{
		"spec.selector": func(v *vip, m Mode) []string {
			var out []string
			for i, text := range v.Spec.Selector {
				_, _, ok := selects(text)
				out = append(out, when(m == Alone && !ok, fmt.Sprintf("spec.selector[%d]", i))...)
			}
			return out
		},
		"spec.attachSubnets": func(v *vip, m Mode) []string {
			return when(m == Alone && len(v.Spec.AttachSubnets) > 0, "spec.attachSubnets")
		},
	}, "spec.namespace", "spec.subnet", "spec.type", "spec.v4ip", "spec.v6ip", "spec.macAddress")
}
