package certs

import (
	"context"

	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// Kinds of configurations that carry the bundle.
const (
	kindMutating   = "MutatingWebhookConfiguration"
	kindValidating = "ValidatingWebhookConfiguration"
)

// hook is what an Injector knows of one webhook.
type hook struct {
	name   string
	bundle []byte
}

// target is one configuration.
type target struct {
	kind  string
	get   func(context.Context) ([]hook, error)
	patch func(context.Context, []byte) ([]hook, error)
}

func targets(client kubernetes.Interface, name string) []target {
	m := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	v := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	return []target{
		{kindMutating, func(ctx context.Context) ([]hook, error) { return mutating(m.Get(ctx, name, metav1.GetOptions{})) },
			func(ctx context.Context, patch []byte) ([]hook, error) {
				return mutating(m.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}))
			}},
		{kindValidating, func(ctx context.Context) ([]hook, error) { return validating(v.Get(ctx, name, metav1.GetOptions{})) },
			func(ctx context.Context, patch []byte) ([]hook, error) {
				return validating(v.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}))
			}},
	}
}

func mutating(c *registration.MutatingWebhookConfiguration, err error) ([]hook, error) {
	if err != nil {
		return nil, err
	}
	hooks := make([]hook, len(c.Webhooks))
	for i, w := range c.Webhooks {
		hooks[i] = hook{w.Name, w.ClientConfig.CABundle}
	}
	return hooks, nil
}

func validating(c *registration.ValidatingWebhookConfiguration, err error) ([]hook, error) {
	if err != nil {
		return nil, err
	}
	hooks := make([]hook, len(c.Webhooks))
	for i, w := range c.Webhooks {
		hooks[i] = hook{w.Name, w.ClientConfig.CABundle}
	}
	return hooks, nil
}
