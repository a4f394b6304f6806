// Package blockstore keeps blocks as AddressBlock objects in the Kubernetes API.
//
// Invariant: blocks are written by POST, PUT and DELETE with a resourceVersion, never by patch or apply, which succeed
// without a compare-and-swap. All reads are quorum reads. The watch alone feeds caches, and keeps no second copy.
package blockstore

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

const resource = "addressblocks"

// Store is an ipam.Store over AddressBlocks.
type Store struct {
	client rest.Interface
	synced atomic.Bool
}

// New makes a Store that talks to the API server of cfg.
func New(cfg *rest.Config) (*Store, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, err
	}
	gv := v1alpha1.GroupVersion()
	c := rest.CopyConfig(cfg)
	c.GroupVersion = &gv
	c.APIPath = "/apis"
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client for %s: %w", resource, err)
	}
	return &Store{client: client}, nil
}

// wrap sorts an API error into those of ipam.Store.
func wrap(verb, name string, err error) error {
	kind := err
	switch {
	case err == nil:
		return nil
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && verb != "get":
		kind = ipam.ErrConflict
	case apierrors.IsNotFound(err):
		kind = ipam.ErrNotFound
	case apierrors.IsInvalid(err), apierrors.IsForbidden(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err), apierrors.IsUnauthorized(err):
		kind = ipam.ErrRefused
	default:
		return fmt.Errorf("%s AddressBlock %s: %w", verb, name, err)
	}
	return fmt.Errorf("%s AddressBlock %s: %w: %w", verb, name, kind, err)
}

// Get reads a block.
func (s *Store) Get(ctx context.Context, name string) (*ipam.Block, error) {
	var o v1alpha1.AddressBlock
	if err := s.client.Get().Resource(resource).Name(name).Do(ctx).Into(&o); err != nil {
		return nil, wrap("get", name, err)
	}
	return Decode(&o)
}

// List reads all blocks of the named subnets; none named means all there are.
func (s *Store) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	r := s.client.Get().Resource(resource)
	if len(subnets) > 0 {
		r = r.Param("labelSelector", v1alpha1.LabelSubnet+" in ("+strings.Join(subnets, ",")+")")
	}
	var l v1alpha1.AddressBlockList
	if err := r.Do(ctx).Into(&l); err != nil {
		return nil, wrap("list", "of "+strings.Join(subnets, ", "), err)
	}
	bs := make([]*ipam.Block, 0, len(l.Items))
	for i := range l.Items {
		b, err := Decode(&l.Items[i])
		if err != nil {
			return nil, err
		}
		bs = append(bs, b)
	}
	return bs, nil
}

// Write creates or replaces a block by compare-and-swap.
func (s *Store) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	var o v1alpha1.AddressBlock
	var err error
	if b.ResourceVersion == "" {
		err = s.client.Post().Resource(resource).Body(Encode(b)).Do(ctx).Into(&o)
		err = wrap("create", b.Name, err)
	} else {
		err = s.client.Put().Resource(resource).Name(b.Name).Body(Encode(b)).Do(ctx).Into(&o)
		err = wrap("update", b.Name, err)
	}
	if err != nil {
		return nil, err
	}
	return Decode(&o)
}

// Delete removes a block at its ResourceVersion.
func (s *Store) Delete(ctx context.Context, b *ipam.Block) error {
	body := &metav1.DeleteOptions{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "DeleteOptions"},
		Preconditions: &metav1.Preconditions{ResourceVersion: &b.ResourceVersion}}
	return wrap("delete", b.Name, s.client.Delete().Resource(resource).Name(b.Name).Body(body).Do(ctx).Error())
}

// Synced tells that the watch has shown all blocks once.
func (s *Store) Synced() bool { return s.synced.Load() }

// Watch tells o of all blocks and of every change until ctx ends. o is not told of a block
// that can't be read: whoever needs it reads it live and gets the error.
func (s *Store) Watch(ctx context.Context, o ipam.Observer) error {
	lw := cache.NewListWatchFromClient(s.client, resource, "", fields.Everything())
	sink := &sink{store: s, to: o}
	cache.NewReflectorWithOptions(lw, &v1alpha1.AddressBlock{}, sink, cache.ReflectorOptions{Name: resource}).RunWithContext(ctx)
	return context.Cause(ctx)
}

// sink feeds an observer what a reflector sees.
type sink struct {
	store *Store
	to    ipam.Observer
}

func (k *sink) see(obj any) error {
	o, ok := obj.(*v1alpha1.AddressBlock)
	if !ok {
		return fmt.Errorf("watch of %s gave a %T", resource, obj)
	}
	b, err := Decode(o)
	if err != nil {
		return err
	}
	k.to.Observe(b)
	return nil
}

// Add implements cache.ReflectorStore.
func (k *sink) Add(obj any) error { return k.see(obj) }

// Update implements cache.ReflectorStore.
func (k *sink) Update(obj any) error { return k.see(obj) }

// Delete implements cache.ReflectorStore.
func (k *sink) Delete(obj any) error {
	if o, ok := obj.(*v1alpha1.AddressBlock); ok {
		k.to.Forget(o.Name, o.ResourceVersion)
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (k *sink) Replace(list []any, resourceVersion string) error {
	bs := make([]*ipam.Block, 0, len(list))
	var bad error
	for _, obj := range list {
		o, ok := obj.(*v1alpha1.AddressBlock)
		if !ok {
			continue
		}
		b, err := Decode(o)
		if err != nil {
			bad = err
			continue
		}
		bs = append(bs, b)
	}
	k.to.Replace(bs, resourceVersion)
	k.store.synced.Store(true)
	return bad
}

// Resync implements cache.ReflectorStore.
func (k *sink) Resync() error { return nil }
