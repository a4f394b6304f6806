package blockstore

import (
	"context"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// Synced tells that a watch has told all blocks at least once.
func (s *Store) Synced() bool { return s.synced.Load() }

// Watch tells o all blocks, then every change, until ctx ends; then it returns nil. A block that can't be read is
// logged, and told as one that is.
func (s *Store) Watch(ctx context.Context, o ipam.Observer) error {
	lw := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, opts metav1.ListOptions) (runtime.Object, error) {
			var l v1alpha1.AddressBlockList
			err := s.client.Get().Resource(resource).VersionedParams(&opts, s.params).Do(ctx).Into(&l)
			return &l, err
		},
		WatchFuncWithContext: func(ctx context.Context, opts metav1.ListOptions) (watch.Interface, error) {
			opts.Watch = true
			return s.client.Get().Resource(resource).VersionedParams(&opts, s.params).Watch(ctx)
		},
	}
	sink := &sink{ctx: ctx, observer: o, synced: func() { s.synced.Store(true) }}
	r := cache.NewReflectorWithOptions(lw, &v1alpha1.AddressBlock{}, sink, cache.ReflectorOptions{Name: "address-blocks"})
	r.RunWithContext(ctx)
	return nil
}

// sink is the reflector's store. It keeps nothing: the observer is the cache.
type sink struct {
	ctx      context.Context //nolint:containedctx // a reflector's store gets none, and it lives as long as the watch
	observer ipam.Observer
	synced   func()
}

// Add tells of a block.
func (k *sink) Add(obj any) error {
	o, ok := obj.(*v1alpha1.AddressBlock)
	if !ok {
		return fmt.Errorf("watch of address blocks sent a %T", obj)
	}
	k.observer.Observe(k.read(o))
	return nil
}

// Update tells of a block.
func (k *sink) Update(obj any) error { return k.Add(obj) }

// Delete tells that a block is gone.
func (k *sink) Delete(obj any) error {
	o, ok := obj.(*v1alpha1.AddressBlock)
	if !ok {
		return fmt.Errorf("watch of address blocks sent a %T", obj)
	}
	k.observer.Forget(o.Name, o.ResourceVersion)
	return nil
}

// Replace tells all blocks.
func (k *sink) Replace(objs []any, resourceVersion string) error {
	bs := make([]*ipam.Block, 0, len(objs))
	for _, obj := range objs {
		o, ok := obj.(*v1alpha1.AddressBlock)
		if !ok {
			return fmt.Errorf("list of address blocks has a %T", obj)
		}
		bs = append(bs, k.read(o))
	}
	k.observer.Replace(bs, resourceVersion)
	k.synced()
	return nil
}

// Resync has nothing to do.
func (k *sink) Resync() error { return nil }

func (k *sink) read(o *v1alpha1.AddressBlock) *ipam.Block {
	b, err := read(o)
	if err != nil {
		klog.FromContext(k.ctx).Error(err, "address block can't be read", "block", o.Name, "resourceVersion", o.ResourceVersion)
	}
	return b
}
