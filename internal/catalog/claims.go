package catalog

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// Claims gives the claims that the pods of a namespace carry, read live and by their metadata alone.
func (c *Catalog) Claims(ctx context.Context, namespace string) (map[ipam.Claim]bool, error) {
	var pods metav1.PartialObjectMetadataList
	pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := c.Live.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("listing the pods of namespace %s: %w", namespace, err)
	}
	out := make(map[ipam.Claim]bool, len(pods.Items))
	for i := range pods.Items {
		if claim, ok := network.ClaimOf(pods.Items[i].Annotations); ok {
			out[claim] = true
		}
	}
	return out, nil
}
