package topology

import (
	"fmt"
	"net/netip"
	"slices"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// maxVlan is the highest VLAN.
const maxVlan = 4095

// MissingVlanError tells that a subnet's way to the physical network isn't known.
type MissingVlanError struct {
	// Kind is Vlan or ProviderNetwork, Name the missing object.
	Kind, Name string
}

// Error implements error.
func (e *MissingVlanError) Error() string {
	return fmt.Sprintf("%s %s does not exist: create it, or correct the name", e.Kind, e.Name)
}

// VlanIDError tells that a Vlan has a number that there is not.
type VlanIDError struct {
	Vlan string
	ID   int
}

// Error implements error.
func (e *VlanIDError) Error() string {
	return fmt.Sprintf("Vlan %s has the id %d: give one from 0 (untagged) to %d", e.Vlan, e.ID, maxVlan)
}

// addLocalnet leads an underlay subnet to its physical network. While the Vlan isn't known, the port stays as it is.
func (b *builder) addLocalnet(s *kubeovnv1.Subnet) {
	if s.Spec.Vlan == "" {
		return
	}
	i := slices.IndexFunc(b.in.Vlans, func(v *kubeovnv1.Vlan) bool { return v.Name == s.Spec.Vlan })
	if i < 0 {
		b.hold(s.Name, &MissingVlanError{Kind: "Vlan", Name: s.Spec.Vlan})
		return
	}
	v := b.in.Vlans[i]
	if v.Spec.ID < 0 || v.Spec.ID > maxVlan {
		b.hold(s.Name, &VlanIDError{Vlan: v.Name, ID: v.Spec.ID})
		return
	}
	if !slices.ContainsFunc(b.in.ProviderNetworks, func(n *kubeovnv1.ProviderNetwork) bool { return n.Name == v.Spec.Provider }) {
		b.find(KindSubnet, s.Name, &MissingVlanError{Kind: "ProviderNetwork", Name: v.Spec.Provider})
	}
	row := nb.LogicalSwitchPort{
		Name: nb.LocalnetName(s.Name), Type: nb.TypeLocalnet, Addresses: []string{"unknown"},
		Options:     map[string]string{nb.OptionNetworkName: v.Spec.Provider},
		ExternalIDs: marks(nb.KeySwitch, s.Name),
	}
	if id := v.Spec.ID; id > 0 {
		row.Tag = &id
	}
	for text := range splitList(s.Spec.CIDRBlock) {
		switch c, err := netip.ParsePrefix(text); {
		case err != nil:
		case c.Addr().Is4():
			row.ExternalIDs[nb.KeyIPv4Network] = c.Masked().String()
		default:
			row.ExternalIDs[nb.KeyIPv6Network] = c.Masked().String()
		}
	}
	b.rows.Ports = append(b.rows.Ports, nb.Port{Switch: s.Name, Row: row})
}
