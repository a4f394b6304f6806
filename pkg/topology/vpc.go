package topology

import (
	"fmt"
	"slices"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// marks are the external_ids of a row that follows from topology.
func marks(more ...string) map[string]string {
	ids := map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyPurpose: nb.PurposeTopology}
	for i := 0; i+1 < len(more); i += 2 {
		ids[more[i]] = more[i+1]
	}
	return ids
}

func (b *builder) addRouters(subnets []*kubeovnv1.Subnet) {
	learn := map[string]bool{}
	for _, s := range subnets {
		if s.Spec.U2OInterconnection && s.Spec.Vlan != "" {
			learn[b.vpcOf(s)] = true
		}
	}
	if WantsExternal(b.in) {
		learn[b.in.Config.ClusterRouter] = true
	}
	names := []string{b.in.Config.ClusterRouter}
	for _, v := range b.in.Vpcs {
		names = append(names, v.Name)
		if v.Spec.EnableExternal || len(v.Spec.VpcPeerings) > 0 {
			learn[v.Name] = true
		}
		if slices.ContainsFunc(subnets, func(s *kubeovnv1.Subnet) bool { return s.Name == v.Name }) {
			b.find(KindVpc, v.Name, &NameClashError{Row: v.Name, Other: "subnet " + v.Name})
		}
	}
	for _, name := range names {
		if b.routers[name] {
			continue
		}
		b.routers[name] = true
		b.rows.Routers = append(b.rows.Routers, nb.LogicalRouter{
			Name:        name,
			ExternalIDs: marks(),
			Options: map[string]string{
				"mac_binding_age_threshold":     "300",
				"dynamic_neigh_routers":         "true",
				"always_learn_from_arp_request": fmt.Sprint(learn[name]),
			},
		})
	}
}

// addVpcs adds what the Vpcs say of themselves. Their peerings come after the subnets: a subnet's router port has its
// name first.
func (b *builder) addVpcs() {
	for _, v := range b.in.Vpcs {
		b.addStaticRoutes(v)
		b.addPolicyRoutes(v)
		b.addPeerings(v)
	}
}
