package app

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// names gives the names of all objects of a kind.
func (e *env) names(ctx context.Context, gvk schema.GroupVersionKind, opts ...client.ListOption) ([]string, error) {
	c, err := e.connect()
	if err != nil {
		return nil, err
	}
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(gvk)
	if err := c.client.List(ctx, &list, opts...); err != nil {
		return nil, err
	}
	var out []string
	for i := range list.Items {
		out = append(out, list.Items[i].Name)
	}
	return out, nil
}

func (e *env) subnetNames(ctx context.Context, _ string) ([]string, error) {
	return e.names(ctx, kubeovnv1.GroupVersion().WithKind("SubnetList"))
}

func (e *env) namespaceNames(ctx context.Context, _ string) ([]string, error) {
	return e.names(ctx, corev1.SchemeGroupVersion.WithKind("NamespaceList"))
}

func (e *env) podNames(ctx context.Context, _ string) ([]string, error) {
	namespace, err := e.podNamespace()
	if err != nil {
		return nil, err
	}
	return e.names(ctx, corev1.SchemeGroupVersion.WithKind("PodList"), client.InNamespace(namespace))
}

// podNamespace is that of --namespace, else the context's.
func (e *env) podNamespace() (string, error) {
	namespace, _, err := e.flags.ToRawKubeConfigLoader().Namespace()
	return namespace, err
}
