package worker

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/topology"
)

// externalKey names the ConfigMap of the external network.
func (r Routing) externalKey() client.ObjectKey {
	return client.ObjectKey{Namespace: cmp.Or(r.ExternalNamespace, metav1.NamespaceSystem), Name: externalConfigMap}
}

// externalSubnet names the subnet of the external network.
func (r Routing) externalSubnet() string { return cmp.Or(r.ExternalSubnet, "external") }

// readExternal reads how the cluster router gets to the external network.
func (w *Worker) readExternal(ctx context.Context) (topology.External, error) {
	var config corev1.ConfigMap
	key := w.Routing.externalKey()
	if err := w.Client.Get(ctx, key, &config); client.IgnoreNotFound(err) != nil {
		return topology.External{}, fmt.Errorf("read ConfigMap %s: %w", key, err)
	}
	return topology.ReadExternal(config.Data), nil
}

// placeExternal leases the router's addresses in the external subnet: those that are chosen, or any. So no pod gets them.
func (w *Worker) placeExternal(ctx context.Context, l *landscape) error {
	e := &l.External
	s, err := topology.ExternalSubnet(l.Input)
	if err != nil || e.Err != nil || !topology.WantsExternal(l.Input) {
		return nil // Rows tells what is wrong
	}
	cat, ok := l.catalog.Subnets[s.Name]
	if !ok || cat.Set == nil || s.DeletionTimestamp != nil {
		return nil
	}
	families := cat.Set.Families()
	var asked []netip.Addr
	if len(e.Networks) > 0 {
		families = nil
	}
	for _, p := range e.Networks {
		if within(cat.Set, p.Addr()) {
			asked, families = append(asked, p.Addr()), append(families, ipam.FamilyOf(p.Addr()))
		}
	}
	if len(families) == 0 {
		return nil
	}
	held, err := w.placeLink(ctx, cat, asked, families)
	if refusal, ok := ipam.AsRefusal(err); ok {
		e.Err = refusal
		return nil
	}
	if err != nil {
		e.Err = err
		return fmt.Errorf("lease the router's address in subnet %s: %w", s.Name, err)
	}
	l.outer = held
	if len(e.Networks) > 0 {
		return nil
	}
	for _, a := range addressesOf(held) {
		if p, ok := cat.Set.Prefix(ipam.FamilyOf(a)); ok {
			e.Networks = append(e.Networks, netip.PrefixFrom(a, p.Bits()))
		}
	}
	return nil
}

// linksOf are the router's leases in a subnet that it is on beside the subnet's gateway.
func (l *landscape) linksOf(subnet string) []ipam.Held {
	if len(l.outer) > 0 && subnet == l.Config.ExternalSubnet {
		return l.outer
	}
	return l.links[subnet]
}
