package catalog

import (
	"context"
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// World gives what a change of the topology is judged against, but for leases and configuration. It may be late by what the
// cache lags behind: what it refuses is to be judged again by WorldLive.
func (c *Catalog) World(ctx context.Context) (network.World, error) {
	cat, err := c.Topology(ctx)
	if err != nil {
		return network.World{}, err
	}
	return world(ctx, cat, c.Cache)
}

// WorldLive gives it as the API server has it now.
func (c *Catalog) WorldLive(ctx context.Context) (network.World, error) {
	cat, err := c.liveTopology(ctx, c.live.clock.Add(1))
	if err != nil {
		return network.World{}, err
	}
	return world(ctx, cat, c.Live)
}

func world(ctx context.Context, cat network.Catalog, from client.Reader) (network.World, error) {
	w := network.World{Catalog: cat, Nodes: map[netip.Addr]string{}}
	var namespaces corev1.NamespaceList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&namespaces, &nodes} {
		if err := from.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return network.World{}, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	for i := range namespaces.Items {
		ns := &namespaces.Items[i]
		w.Namespaces = append(w.Namespaces, network.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations})
	}
	for i := range nodes.Items {
		for _, a := range nodes.Items[i].Status.Addresses {
			if ip, err := netip.ParseAddr(a.Address); err == nil && a.Type == corev1.NodeInternalIP {
				w.Nodes[ip.Unmap()] = nodes.Items[i].Name
			}
		}
	}
	return w, nil
}
