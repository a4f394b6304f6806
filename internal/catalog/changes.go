package catalog

import (
	"context"
	"fmt"
	"sync/atomic"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// Changes counts what a cache learns of the objects that a catalog reads.
type Changes struct {
	n        atomic.Uint64
	watching atomic.Bool
}

// Count is a number that grows with every change, and with every call as long as nobody watches.
func (c *Changes) Count() uint64 {
	if !c.watching.Load() {
		return c.n.Add(1)
	}
	return c.n.Load()
}

// matters tells whether a topology depends on an object. Records of pods of ours come and go with every pod, and are none
// of it.
func matters(obj any) bool {
	ip, ok := obj.(*kubeovnv1.IP)
	return !ok || ip.Labels[network.ClaimKey] == ""
}

// Watch starts the informers of Kinds and of the served kinds of external addresses, and counts from then on. It does not
// wait for them.
func (c *Changes) Watch(ctx context.Context, from cache.Cache, eips []schema.GroupVersionKind) error {
	bump := func(any) { c.n.Add(1) }
	kinds := Kinds()
	for _, gvk := range eips {
		o := &unstructured.Unstructured{}
		o.SetGroupVersionKind(gvk)
		kinds = append(kinds, o)
	}
	for _, obj := range kinds {
		i, err := from.GetInformer(ctx, obj, cache.BlockUntilSynced(false))
		if err != nil {
			return fmt.Errorf("watching %T, check that its CRD is installed and that this account may watch it: %w", obj, err)
		}
		handler := toolscache.FilteringResourceEventHandler{FilterFunc: matters,
			Handler: toolscache.ResourceEventHandlerFuncs{AddFunc: bump, UpdateFunc: func(_, now any) { bump(now) }, DeleteFunc: bump}}
		if _, err := i.AddEventHandler(handler); err != nil {
			return fmt.Errorf("watching %T: %w", obj, err)
		}
	}
	c.watching.Store(true)
	return nil
}
