package catalog

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// CacheOptions are those of a cache that only a catalog reads from: of nodes their addresses, of IP objects those that
// are none of ours.
func CacheOptions(scheme *runtime.Scheme) cache.Options {
	return cache.Options{
		Scheme:           scheme,
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Node{}:  {Transform: SlimNode},
			&kubeovnv1.IP{}: {Label: foreign()},
		},
	}
}

// foreign selects the IP objects that are none of ours.
func foreign() labels.Selector {
	s := labels.NewSelector()
	if r, err := labels.NewRequirement(network.ClaimKey, selection.DoesNotExist, nil); err == nil { // the key is a constant
		s = s.Add(*r)
	}
	return s
}

// SlimNode drops images and volumes, which are most of a node.
func SlimNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	n.ManagedFields = nil
	n.Status = corev1.NodeStatus{Conditions: n.Status.Conditions, Addresses: n.Status.Addresses}
	return n, nil
}
