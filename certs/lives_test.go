package certs

import (
	"crypto/x509"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/cert-manager/cert-manager/pkg/util/pki"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-net/berth/internal/memkube"
)

// Lives that are short against the backdating of certificates are lived, too: nothing is due the moment that it is made.
func TestShortLives(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	a := replica(t, cs, clk, func(o *AuthorityOptions) {
		o.CADuration, o.LeafDuration, o.Propagation = time.Minute, 20*time.Second, 5*time.Second
	})
	authorities, leaves := map[string]bool{}, map[string]bool{}
	for range 120 {
		reconcile(t, a)
		bundle := published(t, cs).Data[keyBundle]
		if err := verify(a, bundle, clk.Now()); err != nil {
			t.Fatal(err)
		}
		authorities[a.issuer.SerialNumber.String()], leaves[a.leaf.Leaf.SerialNumber.String()] = true, true
		clk.Step(time.Second)
	}
	if a, l := len(authorities), len(leaves); a != 3 || l < 8 || l > 10 {
		t.Errorf("%d authorities and %d certificates in two minutes, want 3 and some 9", a, l)
	}
}

// Who is told to make things last longer goes on from authorities that end soon: it always serves something valid, though
// it looks only when it means to.
func TestLongerLives(t *testing.T) {
	for _, age := range []int{41, 54, 59} {
		t.Run(fmt.Sprintf("of %d seconds", age), func(t *testing.T) {
			_, cs := api(t, memkube.Options{})
			clk := clocktesting.NewFakeClock(time.Now())
			short := replica(t, cs, clk, func(o *AuthorityOptions) {
				o.CADuration, o.LeafDuration, o.Propagation = time.Minute, 20*time.Second, 5*time.Second
			})
			for range age {
				reconcile(t, short)
				clk.Step(time.Second)
			}
			a := replica(t, cs, clk)
			next := clk.Now()
			for range 400 {
				if !clk.Now().Before(next) {
					next = clk.Now().Add(reconcile(t, a))
				}
				if err := verify(a, published(t, cs).Data[keyBundle], clk.Now()); err != nil {
					t.Fatal(err)
				}
				clk.Step(250 * time.Millisecond)
			}
			if left := a.leaf.Leaf.NotAfter.Sub(clk.Now()); left < time.Hour {
				t.Errorf("the certificate lives for %s more", left)
			}
		})
	}
}

// Replicas may serve certificates by different authorities when the Secret is lost. Who finds that out first keeps all of
// them trusted; who has just started trusts none.
func TestDeletedSecretKeepsOthersTrusted(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	var configured []byte
	known := func(o *AuthorityOptions) {
		o.Published = func() []*x509.Certificate {
			all, err := pki.DecodeX509CertificateSetBytes(configured)
			if err != nil {
				t.Error(err)
			}
			return all
		}
	}
	reconcile(t, replica(t, cs, clk, known))
	clk.Step(6*24*time.Hour - time.Hour)
	a := replica(t, cs, clk, known)
	reconcile(t, a)
	clk.Step(time.Hour)
	reconcile(t, a) // the next authority is made
	clk.Step(7 * time.Hour)
	b := replica(t, cs, clk, known)
	reconcile(t, b)
	if a.issuer.Equal(b.issuer) {
		t.Fatal("one authority has signed for both")
	}
	configured = b.CABundle()
	lose := func() {
		t.Helper()
		if err := cs.CoreV1().Secrets(testNamespace).Delete(t.Context(), testSecret, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	lose()
	reconcile(t, a)
	bundle := published(t, cs).Data[keyBundle]
	if err := errors.Join(verify(a, bundle, clk.Now()), verify(b, bundle, clk.Now())); err != nil {
		t.Error(err)
	}
	lose()
	reconcile(t, replica(t, cs, clk, known))
	if err := verify(b, published(t, cs).Data[keyBundle], clk.Now()); err == nil {
		t.Error("who has just started trusts an authority that is gone")
	}
}
