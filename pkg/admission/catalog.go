package admission

import (
	"context"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// Catalog is a Topology that reads from a cache of the API server. A subnet is worked out once for each of its
// versions, so that the ledger meets the same value again and again.
type Catalog struct {
	reader client.Reader
	mu     sync.Mutex
	memo   map[string]worked
}

type worked struct {
	uid     types.UID
	version string
	subnet  network.Subnet
}

// NewCatalog reads from a cache: what it gives is shared, and must not be changed.
func NewCatalog(reader client.Reader) *Catalog {
	return &Catalog{reader: reader, memo: map[string]worked{}}
}

// Catalog gives the namespace and all topology.
func (c *Catalog) Catalog(ctx context.Context, namespace string) (network.Namespace, network.Catalog, error) {
	var ns corev1.Namespace
	if err := c.reader.Get(ctx, client.ObjectKey{Name: namespace}, &ns); err != nil {
		return network.Namespace{}, network.Catalog{}, fmt.Errorf("reading namespace %s: %w", namespace, err)
	}
	var subnets kubeovnv1.SubnetList
	var vpcs kubeovnv1.VpcList
	var vlans kubeovnv1.VlanList
	for _, list := range []client.ObjectList{&subnets, &vpcs, &vlans} {
		if err := c.reader.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return network.Namespace{}, network.Catalog{}, fmt.Errorf("listing %T: %w", list, err)
		}
	}
	cat := network.Catalog{Subnets: c.subnets(subnets.Items), Vpcs: make(map[string]*kubeovnv1.Vpc, len(vpcs.Items)),
		Vlans: make(map[string]*kubeovnv1.Vlan, len(vlans.Items))}
	for i := range vpcs.Items {
		cat.Vpcs[vpcs.Items[i].Name] = &vpcs.Items[i]
	}
	for i := range vlans.Items {
		cat.Vlans[vlans.Items[i].Name] = &vlans.Items[i]
	}
	return network.Namespace{Name: ns.Name, Labels: ns.Labels, Annotations: ns.Annotations}, cat, nil
}

func (c *Catalog) subnets(items []kubeovnv1.Subnet) map[string]network.Subnet {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make(map[string]network.Subnet, len(items))
	for i := range items {
		s := &items[i]
		w, ok := c.memo[s.Name]
		if !ok || w.uid != s.UID || w.version != s.ResourceVersion {
			w = worked{uid: s.UID, version: s.ResourceVersion, subnet: network.NewSubnet(s)}
			c.memo[s.Name] = w
		}
		out[s.Name] = w.subnet
	}
	for name := range c.memo {
		if _, ok := out[name]; !ok {
			delete(c.memo, name)
		}
	}
	return out
}
