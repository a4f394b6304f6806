//go:build e2e

package ship

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/cluster"
)

// Names of the webhook's Certificate, of who issues it, and of its Secret, which has that name whoever writes it.
const (
	certificateName   = "berth-webhook"
	certificateIssuer = "berth-webhook-ca"
	certificateSecret = "berth-webhook-tls"
)

// TestCertManager installs the shipped component for cert-manager beside cert-manager's own controllers: they issue the
// certificate and inject its authority, pods get their addresses, before, during and after, and a renewal reaches webhooks
// that go on running.
func TestCertManager(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	controllers := h.startCertManager(ctx, t)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		if err := controllers.Stop(ctx); err != nil {
			t.Error(err)
		}
		h.kubectl(ctx, t, "-n", system, "delete", "certificates,issuers,certificaterequests", "--all")
		h.kubectl(ctx, t, "-n", system, "delete", "secret", certificateSecret, certificateIssuer, "--ignore-not-found")
		h.install(ctx, t, h.overlay(t, "local", h.Repo, nil, nil))
	})
	failed, _ := h.webhookCounts(ctx, t)
	load := h.startLoad(ctx, t)
	h.install(ctx, t, h.overlay(t, "certmanager", h.Repo, []string{"cert-manager"}, nil))
	h.injected(ctx, t)
	first := h.awaitCertificates(ctx, t, "that of the Secret", h.notOfSecret(ctx, t))
	load.check(t, "change to cert-manager")

	running := h.processes(t)
	h.renewCertificate(ctx, t)
	second := h.awaitCertificates(ctx, t, "renewed", known(nil, first.serials))
	load.check(t, "renewal")
	load.stop()
	after, _ := h.webhookCounts(ctx, t)
	unchanged(t, failed, after)
	if len(first.serials) != 1 || len(second.serials) != 1 || !maps.Equal(first.issuers, second.issuers) {
		t.Errorf("certificates %v, then %v", first, second)
	}
	if now := h.processes(t); !slices.Equal(running, now) {
		t.Errorf("webhooks were restarted: %v, before %v", now, running)
	}
	h.kubectl(ctx, t, "-n", "demo", "delete", "pods", "--all", "--wait=false")
	h.empty(ctx, t)
}

// startCertManager installs cert-manager's kinds and starts its controllers.
func (h *harness) startCertManager(ctx context.Context, t *testing.T) *cluster.Process {
	t.Helper()
	cmd := exec.CommandContext(ctx, filepath.Join(h.Repo, "hack", "tools.sh"), "certmanager")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("build cert-manager's controllers, run '%s' and see why: %v", cmd, err)
	}
	dir := strings.TrimSpace(string(out))
	h.kubectl(ctx, t, "apply", "--server-side", "-f", filepath.Join(dir, "kinds"))
	h.kubectl(ctx, t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "certificates.cert-manager.io", "issuers.cert-manager.io",
		"clusterissuers.cert-manager.io", "certificaterequests.cert-manager.io")
	return h.run(ctx, t, "certmanager", filepath.Join(dir, "certmanager"), "--kubeconfig="+h.Kubeconfig())
}

// injected waits until cert-manager has issued the certificate, and its injector has put the authority into all webhooks.
func (h *harness) injected(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, "the authority is injected", func(ctx context.Context) error {
		var s corev1.Secret
		if err := h.api.Get(ctx, client.ObjectKey{Namespace: system, Name: certificateSecret}, &s); err != nil {
			return err
		}
		if by := s.Annotations["cert-manager.io/issuer-name"]; by != certificateIssuer {
			return fmt.Errorf("the Secret's certificate is of issuer %q", by)
		}
		var m admissionregistration.MutatingWebhookConfiguration
		var v admissionregistration.ValidatingWebhookConfiguration
		if err := errors.Join(h.api.Get(ctx, client.ObjectKey{Name: webhook}, &m), h.api.Get(ctx, client.ObjectKey{Name: webhook}, &v)); err != nil {
			return err
		}
		bundles := map[string][]byte{}
		for _, w := range m.Webhooks {
			bundles[w.Name] = w.ClientConfig.CABundle
		}
		for _, w := range v.Webhooks {
			bundles[w.Name] = w.ClientConfig.CABundle
		}
		for name, b := range bundles {
			// The injector adds to the authorities that are there, so that none of former certificates is refused.
			if ca := bytes.TrimSpace(s.Data["ca.crt"]); len(ca) == 0 || !bytes.Contains(b, ca) {
				return fmt.Errorf("webhook %s has the bundle %q, the Secret %q; fields of %v and %v", name, names(b), names(ca),
					managers(m.ManagedFields), managers(v.ManagedFields))
			}
		}
		if len(bundles) < 2 {
			return fmt.Errorf("there are %d webhooks", len(bundles))
		}
		return nil
	})
}

// names are the authorities of a bundle.
func names(bundle []byte) (out []string) {
	for block, rest := pem.Decode(bundle); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return append(out, err.Error())
		}
		out = append(out, c.Subject.String())
	}
	return out
}

// managers are who wrote an object, and when.
func managers(fields []metav1.ManagedFieldsEntry) (out []string) {
	for _, f := range fields {
		out = append(out, fmt.Sprintf("%s %s at %s", f.Manager, f.Operation, f.Time))
	}
	return out
}

// notOfSecret tells certificates that are another one than the Secret has.
func (h *harness) notOfSecret(ctx context.Context, t *testing.T) func(*x509.Certificate) bool {
	t.Helper()
	var s corev1.Secret
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: system, Name: certificateSecret}, &s); err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(s.Data[corev1.TLSCertKey])
	if block == nil {
		t.Fatalf("Secret %s holds no certificate", certificateSecret)
	}
	return func(c *x509.Certificate) bool { return !bytes.Equal(c.Raw, block.Bytes) }
}

// processes are those of the webhooks.
func (h *harness) processes(t *testing.T) (out []string) {
	t.Helper()
	all, err := h.Containers(cluster.WebhookImage)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		out = append(out, fmt.Sprint(r.Process))
	}
	slices.Sort(out)
	if len(out) == 0 {
		t.Fatal("no webhook runs")
	}
	return out
}

// renewCertificate asks for a new certificate before its time, by the condition by which cert-manager's tool asks too.
func (h *harness) renewCertificate(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, "the renewal is asked for", func(ctx context.Context) error {
		var c struct {
			Metadata struct{ Generation int64 }
			Status   struct{ Conditions []map[string]any }
		}
		if err := json.Unmarshal([]byte(h.kubectl(ctx, t, "-n", system, "get", "certificate", certificateName, "-o", "json")), &c); err != nil {
			return err
		}
		if !slices.ContainsFunc(c.Status.Conditions, func(x map[string]any) bool { return x["type"] == "Ready" && x["status"] == "True" }) {
			return fmt.Errorf("the Certificate has conditions %v", c.Status.Conditions)
		}
		conditions := append(c.Status.Conditions, map[string]any{"type": "Issuing", "status": "True", "reason": "ManuallyTriggered",
			"message": "Renewed before its time", "observedGeneration": c.Metadata.Generation})
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
		if err != nil {
			return err
		}
		h.kubectl(ctx, t, "-n", system, "patch", "certificate", certificateName, "--subresource=status", "--type=merge", "-p", string(patch))
		return nil
	})
}
