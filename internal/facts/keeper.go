package facts

import (
	"context"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
)

const kindStatefulSet = "StatefulSet"

// Keeper asks the API server whether sticky owners still want their leases, each at most once. It is not safe for
// concurrent use.
type Keeper struct {
	live   client.Reader
	mapper meta.RESTMapper
	known  map[ipam.Owner]lifecycle.Answer
}

// NewKeeper makes one that reads from live.
func NewKeeper(live client.Reader, mapper meta.RESTMapper) *Keeper {
	return &Keeper{live: live, mapper: mapper, known: map[ipam.Owner]lifecycle.Answer{}}
}

// Keeps answers Unknown on any doubt: the kind isn't served, the read failed, the object isn't understood.
func (k *Keeper) Keeps(ctx context.Context, o ipam.Owner) lifecycle.Answer {
	if !o.Sticky() {
		return lifecycle.No
	}
	a, ok := k.known[o]
	if !ok {
		a = k.ask(ctx, o)
		k.known[o] = a
	}
	return a
}

func (k *Keeper) ask(ctx context.Context, o ipam.Owner) lifecycle.Answer {
	mapping, err := k.mapper.RESTMapping(schema.GroupKind{Group: o.Group, Kind: o.Kind})
	if err != nil {
		return lifecycle.Unknown
	}
	name, ordinal := o.Name, int64(-1)
	if o.Kind == kindStatefulSet {
		if name, ordinal, ok := splitOrdinal(o.Name); ok {
			return k.read(ctx, mapping.GroupVersionKind, o.Namespace, name, ordinal)
		}
		return lifecycle.Unknown
	}
	name, _, _ = strings.Cut(name, ":") // of a configured kind: who must exist, and whose address it is
	return k.read(ctx, mapping.GroupVersionKind, o.Namespace, name, ordinal)
}

func (k *Keeper) read(ctx context.Context, gvk schema.GroupVersionKind, namespace, name string, ordinal int64) lifecycle.Answer {
	var obj unstructured.Unstructured
	obj.SetGroupVersionKind(gvk)
	err := k.live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, &obj)
	switch {
	case apierrors.IsNotFound(err):
		return lifecycle.No
	case err != nil:
		return lifecycle.Unknown
	case obj.GetDeletionTimestamp() != nil:
		return lifecycle.No
	case ordinal < 0:
		return lifecycle.Yes
	}
	replicas, found, err := unstructured.NestedInt64(obj.Object, "spec", "replicas")
	if err != nil {
		return lifecycle.Unknown
	}
	if !found {
		replicas = 1
	}
	start, _, err := unstructured.NestedInt64(obj.Object, "spec", "ordinals", "start")
	switch {
	case err != nil:
		return lifecycle.Unknown
	case ordinal < start || ordinal >= start+replicas:
		return lifecycle.No
	}
	return lifecycle.Yes
}

// splitOrdinal splits the name of a StatefulSet's pod.
func splitOrdinal(pod string) (set string, ordinal int64, ok bool) {
	i := strings.LastIndexByte(pod, '-')
	if i <= 0 {
		return "", 0, false
	}
	n, err := strconv.ParseInt(pod[i+1:], 10, 32)
	if err != nil || n < 0 {
		return "", 0, false
	}
	return pod[:i], n, true
}
