// Package blockstore keeps an ipam ledger's blocks in AddressBlock objects.
//
// Invariant: a block is written by POST, by PUT or by DELETE with a resourceVersion and never in another way, so that
// every write is a compare-and-swap; a write that was not surely refused is reported as of unknown outcome. Reads of
// Get and List are quorum reads.
package blockstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// resource is the plural of AddressBlock.
const resource = "addressblocks"

// Store is an ipam.Store over the Kubernetes API.
type Store struct {
	client rest.Interface
	params runtime.ParameterCodec
	synced atomic.Bool
}

// New makes a store that talks to the API server of cfg.
func New(cfg *rest.Config) (*Store, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("address blocks: %w", err)
	}
	c := rest.CopyConfig(cfg)
	gv := v1alpha1.GroupVersion()
	c.GroupVersion, c.APIPath = &gv, "/apis"
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("client of address blocks can't be made, check the API server's address and credentials: %w", err)
	}
	return &Store{client: client, params: runtime.NewParameterCodec(scheme)}, nil
}

// Get reads a block.
func (s *Store) Get(ctx context.Context, name string) (*ipam.Block, error) {
	var o v1alpha1.AddressBlock
	if err := s.client.Get().Resource(resource).Name(name).Do(ctx).Into(&o); err != nil {
		return nil, wrap("reading", name, err, apierrors.IsNotFound(err), ipam.ErrNotFound)
	}
	b, _ := read(&o)
	return b, nil
}

// List reads the blocks of the named subnets, or all.
func (s *Store) List(ctx context.Context, subnets ...string) ([]*ipam.Block, error) {
	return s.list(ctx, ofSubnets(subnets))
}

// ListOwner reads the blocks of the named subnets that are labelled with the owner's bucket.
func (s *Store) ListOwner(ctx context.Context, owner ipam.Owner, subnets ...string) ([]*ipam.Block, error) {
	return s.list(ctx, append(ofSubnets(subnets), v1alpha1.OwnerLabel(owner.String())))
}

func ofSubnets(subnets []string) []string {
	if len(subnets) == 0 {
		return nil
	}
	names := slices.Sorted(slices.Values(subnets))
	return []string{v1alpha1.LabelSubnet + " in (" + strings.Join(slices.Compact(names), ",") + ")"}
}

func (s *Store) list(ctx context.Context, requirements []string) ([]*ipam.Block, error) {
	opts := metav1.ListOptions{LabelSelector: strings.Join(requirements, ",")}
	var l v1alpha1.AddressBlockList
	if err := s.client.Get().Resource(resource).VersionedParams(&opts, s.params).Do(ctx).Into(&l); err != nil {
		return nil, fmt.Errorf("listing address blocks: %w", err)
	}
	bs := make([]*ipam.Block, len(l.Items))
	for i := range l.Items {
		bs[i], _ = read(&l.Items[i])
	}
	return bs, nil
}

// metadataOnly asks for no more than an object's metadata.
const metadataOnly = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json"

// Write creates or replaces a block.
func (s *Store) Write(ctx context.Context, b *ipam.Block) (*ipam.Block, error) {
	req := s.client.Post().Resource(resource)
	if b.ResourceVersion != "" {
		req = s.client.Put().Resource(resource).Name(b.Name)
	}
	if b.Subnet == "" || b.Name == "" {
		return nil, fmt.Errorf("writing address block %q of subnet %q: it has no name or no subnet: %w", b.Name, b.Subnet, ipam.ErrRefused)
	}
	in := encode(b)
	if b.ResourceVersion == "" {
		in.UID = ""
	}
	// Only the metadata of what was stored is news. A write that is sent again by the client would meet its own effect as
	// a conflict.
	raw, err := req.SetHeader("Accept", metadataOnly).MaxRetries(0).Body(in).Do(ctx).Raw()
	if err != nil {
		return nil, writeError("writing", b, err)
	}
	var o metav1.PartialObjectMetadata
	if err := json.Unmarshal(raw, &o); err != nil {
		return nil, fmt.Errorf("answer to a write of address block %s: %w", b.Name, err)
	}
	stored := *b
	stored.ResourceVersion, stored.UID, stored.Kept = o.ResourceVersion, string(o.UID), keptOf(&o.ObjectMeta)
	return &stored, nil
}

// Delete removes a block.
func (s *Store) Delete(ctx context.Context, b *ipam.Block) error {
	if b.ResourceVersion == "" {
		return fmt.Errorf("deleting address block %s: it was never stored: %w", b.Name, ipam.ErrConflict)
	}
	opts := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{ResourceVersion: &b.ResourceVersion}}
	if b.UID != "" {
		uid := types.UID(b.UID)
		opts.Preconditions.UID = &uid
	}
	if err := s.client.Delete().Resource(resource).Name(b.Name).MaxRetries(0).Body(opts).Do(ctx).Error(); err != nil {
		return writeError("deleting", b, err)
	}
	return nil
}

// writeError tells apart what surely changed nothing and what may have.
func writeError(doing string, b *ipam.Block, err error) error {
	conflict := apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || b.ResourceVersion != "" && apierrors.IsNotFound(err)
	if conflict {
		return wrap(doing, b.Name, err, true, ipam.ErrConflict)
	}
	refused := apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
	return wrap(doing, b.Name, err, refused, ipam.ErrRefused)
}

// wrap says what was done to which block, and adds the kind of the error where it is that.
func wrap(doing, name string, err error, is bool, kind error) error {
	if is {
		err = errors.Join(kind, err)
	}
	return fmt.Errorf("%s address block %s: %w", doing, name, err)
}
