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

// What cert-manager's cainjector reads on an object to see that it writes the bundle there.
const (
	injectFrom       = "cert-manager.io/inject-ca-from"
	injectFromSecret = "cert-manager.io/inject-ca-from-secret"
)

// hook is what an Injector knows of one webhook.
type hook struct {
	name   string
	bundle []byte
}

// configuration is what an Injector knows of one configuration.
type configuration struct {
	version string // metadata.resourceVersion
	source  string // the annotation that tells cainjector where to take the bundle from; empty when it is ours to write
	hooks   []hook
}

// target is one configuration, and the ways to it.
type target struct {
	kind  string
	get   func(context.Context) (configuration, error)
	patch func(context.Context, []byte) (configuration, error)
}

func targets(client kubernetes.Interface, name string) []target {
	m := client.AdmissionregistrationV1().MutatingWebhookConfigurations()
	v := client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	return []target{
		{kindMutating, func(ctx context.Context) (configuration, error) {
			return mutating(m.Get(ctx, name, metav1.GetOptions{}))
		},
			func(ctx context.Context, patch []byte) (configuration, error) {
				return mutating(m.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}))
			}},
		{kindValidating, func(ctx context.Context) (configuration, error) {
			return validating(v.Get(ctx, name, metav1.GetOptions{}))
		},
			func(ctx context.Context, patch []byte) (configuration, error) {
				return validating(v.Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{}))
			}},
	}
}

func mutating(c *registration.MutatingWebhookConfiguration, err error) (configuration, error) {
	if err != nil {
		return configuration{}, err
	}
	hooks := make([]hook, len(c.Webhooks))
	for i, w := range c.Webhooks {
		hooks[i] = hook{w.Name, w.ClientConfig.CABundle}
	}
	return configurationOf(c.ObjectMeta, hooks), nil
}

func validating(c *registration.ValidatingWebhookConfiguration, err error) (configuration, error) {
	if err != nil {
		return configuration{}, err
	}
	hooks := make([]hook, len(c.Webhooks))
	for i, w := range c.Webhooks {
		hooks[i] = hook{w.Name, w.ClientConfig.CABundle}
	}
	return configurationOf(c.ObjectMeta, hooks), nil
}

func configurationOf(meta metav1.ObjectMeta, hooks []hook) configuration {
	c := configuration{version: meta.ResourceVersion, hooks: hooks}
	for _, mark := range []string{injectFrom, injectFromSecret} {
		if from := meta.Annotations[mark]; from != "" {
			c.source = mark + "=" + from
		}
	}
	return c
}
