//go:build e2e

package ship

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Certificates that live for seconds. A new authority signs when it has been in the bundle for the propagation.
var shortLives = []string{"--cert-leaf-duration=20s", "--cert-propagation=5s", "--cert-ca-duration=60s"}

// TestNoCallIsLost creates pods while webhooks are replaced, evicted and given new certificates: every answer carries a
// claim, and the API server never did without a webhook.
func TestNoCallIsLost(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	failed, calls := h.webhookCounts(ctx, t)
	load := h.startLoad(ctx, t)
	for _, s := range []struct {
		what string
		do   func(context.Context, *testing.T)
	}{
		{"rolling update", h.restartWebhook},
		{"drain of a node", h.drainNode},
		{"rotation of certificate and authority", h.rotate},
	} {
		s.do(ctx, t)
		load.check(t, s.what)
	}
	load.stop()
	after, called := h.webhookCounts(ctx, t)
	unchanged(t, failed, after)
	if called-calls < float64(load.total) {
		t.Errorf("the API server counts %.0f calls of the webhook, and %d pods got a claim", called-calls, load.total)
	}
	h.kubectl(ctx, t, "-n", "demo", "delete", "pods", "-l", "e2e=load", "--wait=false")
	h.empty(ctx, t)
}

// restartWebhook replaces all webhooks.
func (h *harness) restartWebhook(ctx context.Context, t *testing.T) {
	t.Helper()
	old := h.uids(ctx, t, webhook)
	h.kubectl(ctx, t, "-n", system, "rollout", "restart", "deployment", webhook)
	h.rolledOut(ctx, t, webhook)
	for uid := range h.uids(ctx, t, webhook) {
		if old[uid] {
			t.Errorf("pod %s was not replaced", uid)
		}
	}
}

// drainNode evicts all pods of a node, and lets pods back onto it.
func (h *harness) drainNode(ctx context.Context, t *testing.T) {
	t.Helper()
	node := h.NodeNames()[0]
	on := func() int {
		pods, err := h.podsOf(ctx, webhook)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, p := range pods {
			if p.Spec.NodeName == node {
				n++
			}
		}
		return n
	}
	if on() != 1 {
		t.Fatalf("%d webhooks are on %s, want one", on(), node)
	}
	h.kubectl(ctx, t, "drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout="+limit.String())
	if on() != 0 {
		t.Errorf("webhooks are on %s, which was drained", node)
	}
	h.kubectl(ctx, t, "uncordon", node)
	for _, d := range []string{webhook, worker} {
		h.rolledOut(ctx, t, d)
	}
}

// rotate has the certificates of short life replaced, and their authority twice: first because its Secret is lost while
// webhooks run, then because it is due. Then they get their long lives back: whoever starts meanwhile finds authorities
// that end soon.
func (h *harness) rotate(ctx context.Context, t *testing.T) {
	t.Helper()
	args := h.args(ctx, t, webhook)
	h.setArgs(ctx, t, webhook, append(slices.Clone(args), shortLives...))
	first := h.awaitCertificates(ctx, t, "served", nil)
	h.loseAuthority(ctx, t)
	second := h.awaitCertificates(ctx, t, "signed by the authority that replaces the lost one", known(first.issuers, first.serials))
	before := maps.Clone(first.issuers)
	maps.Copy(before, second.issuers)
	third := h.awaitCertificates(ctx, t, "signed by the next authority", known(before, second.serials))
	t.Logf("authorities %v, then %v, then %v", first.issuers, second.issuers, third.issuers)
	h.setArgs(ctx, t, webhook, args)
	h.loseAuthority(ctx, t)
	h.awaitCertificates(ctx, t, "valid for long", func(c *x509.Certificate) bool { return time.Until(c.NotAfter) < time.Hour })
}

// loseAuthority deletes the Secret of the authority.
func (h *harness) loseAuthority(ctx context.Context, t *testing.T) {
	t.Helper()
	h.kubectl(ctx, t, "-n", system, "delete", "secret", certificateSecret)
}

// args are those of a Deployment's container.
func (h *harness) args(ctx context.Context, t *testing.T, name string) []string {
	t.Helper()
	return h.deployment(ctx, t, name).Spec.Template.Spec.Containers[0].Args
}

// setArgs replaces them, and waits until the Deployment runs with them.
func (h *harness) setArgs(ctx context.Context, t *testing.T, name string, args []string) {
	t.Helper()
	d := h.deployment(ctx, t, name)
	was := d.DeepCopy()
	d.Spec.Template.Spec.Containers[0].Args = args
	if err := h.api.Patch(ctx, d, client.MergeFrom(was)); err != nil {
		t.Fatal(err)
	}
	h.rolledOut(ctx, t, name)
}

// served is what the webhooks show to who calls them.
type served struct{ issuers, serials map[string]bool }

// known tells certificates of these authorities, and these certificates.
func known(issuers, serials map[string]bool) func(*x509.Certificate) bool {
	return func(c *x509.Certificate) bool { return issuers[issuerOf(c)] || serials[c.SerialNumber.String()] }
}

// issuerOf tells an authority from others of its name.
func issuerOf(c *x509.Certificate) string {
	return fmt.Sprintf("%s %x", c.Issuer, c.AuthorityKeyId)
}

// awaitCertificates waits until no webhook shows a certificate that is not wanted; nil wants any.
func (h *harness) awaitCertificates(ctx context.Context, t *testing.T, what string, unwanted func(*x509.Certificate) bool) served {
	t.Helper()
	got := served{}
	until(ctx, t, "all certificates are "+what, func(ctx context.Context) error {
		got = served{issuers: map[string]bool{}, serials: map[string]bool{}}
		pods, err := h.podsOf(ctx, webhook)
		if err != nil {
			return err
		}
		for _, p := range pods {
			c, err := certificate(ctx, p)
			if err != nil {
				return err
			}
			if unwanted != nil && unwanted(c) {
				return fmt.Errorf("%s shows certificate %s of %s, which ends at %s", p.Name, c.SerialNumber, issuerOf(c), c.NotAfter)
			}
			got.issuers[issuerOf(c)], got.serials[c.SerialNumber.String()] = true, true
		}
		if len(got.serials) == 0 {
			return errors.New("there is no webhook")
		}
		return nil
	})
	return got
}

// certificate is what a webhook shows. The handshake alone tells it: nobody is trusted by it.
func certificate(ctx context.Context, p corev1.Pod) (*x509.Certificate, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	d := tls.Dialer{Config: &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true}}
	c, err := d.DialContext(ctx, "tcp", net.JoinHostPort(p.Status.PodIP, "9443"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	conn, ok := c.(*tls.Conn)
	if !ok || len(conn.ConnectionState().PeerCertificates) == 0 {
		return nil, fmt.Errorf("%s shows no certificate", p.Name)
	}
	return conn.ConnectionState().PeerCertificates[0], nil
}
