package topology

import (
	"fmt"
	"net/netip"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// OneSidedPeeringError tells that a Vpc names a peer that doesn't name it.
type OneSidedPeeringError struct {
	// Vpc is the one that says nothing of this peering.
	Vpc string
}

// Error implements error.
func (e *OneSidedPeeringError) Error() string {
	return fmt.Sprintf("VPC %s has no peering back: add one to its spec.vpcPeerings, with an address of the same network", e.Vpc)
}

// addPeerings adds a Vpc's ends of its links to other Vpcs. A link works when the other Vpc has its end.
func (b *builder) addPeerings(v *kubeovnv1.Vpc) {
	for i, p := range v.Spec.VpcPeerings {
		path := field.NewPath("spec", "vpcPeerings").Index(i)
		if err := b.addPeering(path, v, p); err != nil {
			b.find(KindVpc, v.Name, err)
		}
	}
}

func (b *builder) addPeering(path *field.Path, v *kubeovnv1.Vpc, p kubeovnv1.VpcPeering) error {
	remote := slices.IndexFunc(b.in.Vpcs, func(o *kubeovnv1.Vpc) bool { return o.Name == p.RemoteVpc })
	switch {
	case p.RemoteVpc == v.Name:
		return field.Invalid(path.Child("remoteVpc"), p.RemoteVpc, "a VPC can't be its own peer")
	case remote < 0:
		return field.NotFound(path.Child("remoteVpc"), p.RemoteVpc)
	}
	networks, err := peerNetworks(path.Child("localConnectIP"), p.LocalConnectIP)
	if err != nil {
		return err
	}
	name, peer := v.Name+"-"+p.RemoteVpc, p.RemoteVpc+"-"+v.Name
	if err := b.claim("router port "+name, "a peering of VPC "+v.Name); err != nil {
		return err
	}
	b.rows.RouterPorts = append(b.rows.RouterPorts, nb.RouterPort{Router: v.Name, Row: nb.LogicalRouterPort{
		Name: name, MAC: b.in.MAC(v.Name + "/" + p.RemoteVpc), Networks: networks, Peer: &peer,
		ExternalIDs: marks(nb.KeyRouter, v.Name),
	}})
	back := func(o kubeovnv1.VpcPeering) bool { return o.RemoteVpc == v.Name }
	if !slices.ContainsFunc(b.in.Vpcs[remote].Spec.VpcPeerings, back) {
		return &OneSidedPeeringError{Vpc: p.RemoteVpc}
	}
	return nil
}

func peerNetworks(path *field.Path, text string) ([]string, error) {
	var out []netip.Prefix
	for part := range splitList(text) {
		p, err := netip.ParsePrefix(part)
		if err != nil || p.Addr().Is4In6() || slices.ContainsFunc(out, func(o netip.Prefix) bool { return o.Addr().Is4() == p.Addr().Is4() }) {
			return nil, field.Invalid(path, text, "give an address with its prefix, such as 169.254.0.1/30, or one of each family")
		}
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, field.Required(path, "the address of this VPC on the link, such as 169.254.0.1/30")
	}
	slices.SortFunc(out, func(a, b netip.Prefix) int { return nb.CompareFamilies(a.Addr(), b.Addr()) })
	var texts []string
	for _, p := range out {
		texts = append(texts, p.String())
	}
	return texts, nil
}
