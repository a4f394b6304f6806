package app

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/network"
)

func (e *env) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Tell how Berth is",
		Long: `Tell how Berth is: its mode, webhook and worker, blocks and leases, pods that wait, the certificate, and who realises
what. Alone, Berth has the topology; beside, kube-ovn-controller has. Warnings tell what is wrong and what to do.`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := e.connect()
			if err != nil {
				return err
			}
			s, err := c.status(cmd.Context())
			if err != nil {
				return err
			}
			return e.write(s.Complete(e.clock.Now()))
		},
	}
}

// status gathers the state of the installation.
func (c *cluster) status(ctx context.Context) (*report.Status, error) {
	set, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	s := &report.Status{Mode: report.Beside, Namespace: c.namespace, Webhook: program(webhookName, set.webhook), Worker: program(workerName, set.worker)}
	if set.topology == "ensure" {
		s.Mode = report.Alone
	}
	stock, err := c.deployment(ctx, "kube-system", "kube-ovn-controller")
	if err != nil {
		return nil, err
	}
	s.Controller = program("kube-ovn-controller", stock)
	if s.Leader, err = c.leader(ctx); err != nil {
		return nil, err
	}
	if s.Hook, err = c.hook(ctx, set.hook); err != nil {
		return nil, err
	}
	s.Certificate = c.certificate(ctx, set.secret)
	ledger, blocks, err := c.ledger(ctx, set)
	if err != nil {
		return nil, err
	}
	s.Counts.CountLedger(blocks, ledger.Leases())
	err = c.eachPod(ctx, c.progress("pods read"), func(p *corev1.Pod) {
		_, served := network.ClaimOf(p.Annotations)
		if served {
			s.Counts.Served++
		}
		if served && p.DeletionTimestamp != nil {
			s.Counts.Terminating++
		}
		if slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == network.AddressGate }) {
			s.Counts.Waiting++
		}
	})
	return s, err
}

func program(name string, d *appsv1.Deployment) report.Program {
	if d == nil {
		return report.Program{Name: name}
	}
	p := report.Program{Name: name, Found: true, Ready: d.Status.ReadyReplicas, Want: 1}
	if d.Spec.Replicas != nil {
		p.Want = *d.Spec.Replicas
	}
	if containers := d.Spec.Template.Spec.Containers; len(containers) > 0 {
		p.Image = containers[0].Image
	}
	return p
}

// leader reads the lease by which workers elect their leader.
func (c *cluster) leader(ctx context.Context) (report.Leader, error) {
	var l coordinationv1.Lease
	err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: leaseName}, &l)
	switch {
	case apierrors.IsNotFound(err):
		return report.Leader{}, nil
	case err != nil:
		return report.Leader{}, fmt.Errorf("read Lease %s/%s: %w", c.namespace, leaseName, err)
	}
	return report.LeaderOf(&l, c.clock.Now()), nil
}

// hook reads the configuration by which the API server calls the webhook.
func (c *cluster) hook(ctx context.Context, name string) (report.Hook, error) {
	var w admissionv1.MutatingWebhookConfiguration
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &w)
	switch {
	case apierrors.IsNotFound(err):
		return report.Hook{}, nil
	case err != nil:
		return report.Hook{}, fmt.Errorf("read MutatingWebhookConfiguration %s: %w", name, err)
	}
	out := report.Hook{Found: true, Trusted: len(w.Webhooks) > 0}
	for _, h := range w.Webhooks {
		out.Trusted = out.Trusted && len(h.ClientConfig.CABundle) > 0
		if h.Name == podHook && h.FailurePolicy != nil {
			out.FailurePolicy = string(*h.FailurePolicy)
		}
	}
	return out, nil
}

// certificate reads when the newest certificate in the webhook's Secret ends. Not everybody may read Secrets.
func (c *cluster) certificate(ctx context.Context, name string) report.Certificate {
	out := report.Certificate{Secret: c.namespace + "/" + name}
	var secret corev1.Secret
	if err := c.client.Get(ctx, client.ObjectKey{Namespace: c.namespace, Name: name}, &secret); err != nil {
		out.Problem = err.Error()
		return out
	}
	block, _ := pem.Decode(secret.Data[corev1.TLSCertKey])
	if block == nil {
		out.Problem = "it has no certificate in " + corev1.TLSCertKey
		return out
	}
	cert, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		out.Problem = err.Error()
		return out
	}
	at := cert.NotAfter.UTC()
	out.NotAfter = &at
	return out
}
