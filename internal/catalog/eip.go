package catalog

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

// ServedEIPs gives those of Kube-OVN's kinds of external addresses that the API server has: a cluster without Kube-OVN has
// none of them. They are Kube-OVN's alone to define, so they are read without types.
func ServedEIPs(m meta.RESTMapper) ([]schema.GroupVersionKind, error) {
	var served []schema.GroupVersionKind
	for _, kind := range []string{ipam.KindOvnEip, ipam.KindIptablesEIP} {
		gvk := kubeovnv1.GroupVersion().WithKind(kind)
		_, err := m.RESTMapping(gvk.GroupKind(), gvk.Version)
		switch {
		case meta.IsNoMatchError(err):
		case err != nil:
			return nil, fmt.Errorf("looking for the kind %s: %w", kind, err)
		default:
			served = append(served, gvk)
		}
	}
	return served, nil
}

// eip is an external address of Kube-OVN.
type eip struct {
	owner  ipam.Owner
	subnet string
	texts  []string
}

// eips lists the external addresses.
func (c *Catalog) eips(ctx context.Context, from client.Reader) ([]eip, error) {
	var out []eip
	for _, gvk := range c.EIPs {
		var list unstructured.UnstructuredList
		list.SetGroupVersionKind(gvk.GroupVersion().WithKind(gvk.Kind + "List"))
		if err := from.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("listing %s: %w", gvk.Kind, err)
		}
		for i := range list.Items {
			o := &list.Items[i]
			subnet, _, _ := unstructured.NestedString(o.Object, "spec", "externalSubnet")
			out = append(out, eip{owner: ipam.Owner{Group: gvk.Group, Kind: gvk.Kind, Name: o.GetName()}, subnet: subnet, texts: EIPAddresses(o)})
		}
	}
	return out, nil
}

// EIPAddresses gives the texts in an external address's object that name addresses: what is asked for, and what was
// given. The kinds spell them each in their own way.
func EIPAddresses(o *unstructured.Unstructured) []string {
	var out []string
	for _, path := range [][]string{{"spec", "v4Ip"}, {"spec", "v6Ip"}, {"spec", "v4ip"}, {"spec", "v6ip"}, {"status", "v4Ip"}, {"status", "v6Ip"}, {"status", "ip"}} {
		if text, ok, err := unstructured.NestedString(o.Object, path...); ok && err == nil && text != "" {
			out = append(out, text)
		}
	}
	return out
}
