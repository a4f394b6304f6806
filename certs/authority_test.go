package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/cert-manager/cert-manager/pkg/util/pki"
	"github.com/go-logr/logr/funcr"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/berth-net/berth/internal/memkube"
)

const (
	testNamespace = "default"
	testSecret    = "berth-webhook-tls"
	serviceName   = "berth-webhook.default.svc"
)

func api(t *testing.T, o memkube.Options) (*memkube.Server, kubernetes.Interface) {
	t.Helper()
	s, err := memkube.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cs, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return s, cs
}

func replica(t *testing.T, cs kubernetes.Interface, clk *clocktesting.FakeClock, change ...func(*AuthorityOptions)) *Authority {
	t.Helper()
	o := AuthorityOptions{Client: cs, Namespace: testNamespace, Secret: testSecret, DNSNames: ServiceNames("berth-webhook", testNamespace),
		IPs: []net.IP{net.IPv4(127, 0, 0, 1)}, CADuration: 9 * 24 * time.Hour, LeafDuration: 24 * time.Hour, Propagation: 6 * time.Hour, Clock: clk}
	if clk == nil {
		o.Clock = nil
	}
	for _, f := range change {
		f(&o)
	}
	a, err := NewAuthority(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func published(t *testing.T, cs kubernetes.Interface) *corev1.Secret {
	t.Helper()
	s, err := cs.CoreV1().Secrets(testNamespace).Get(t.Context(), testSecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// verify checks what a replica serves against a bundle, as the API server would.
func verify(a *Authority, bundle []byte, now time.Time) error {
	c, err := a.GetCertificate(nil)
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(bundle)
	_, err = c.Leaf.Verify(x509.VerifyOptions{Roots: pool, DNSName: serviceName, CurrentTime: now,
		KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	return err
}

func reconcile(t *testing.T, a *Authority) time.Duration {
	t.Helper()
	wait, err := a.reconcile(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return wait
}

func TestCreation(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	a := replica(t, cs, clk)
	if err := a.Healthy(); !errors.Is(err, ErrNoCertificate) || a.CABundle() != nil {
		t.Errorf("before the start: %v", err)
	}
	reconcile(t, a)
	secret := published(t, cs)
	if secret.Type != corev1.SecretTypeTLS || string(secret.Data[keyBundle]) != string(a.CABundle()) {
		t.Errorf("secret %s, bundle differs: %v", secret.Type, string(secret.Data[keyBundle]) != string(a.CABundle()))
	}
	if err := errors.Join(a.Healthy(), verify(a, a.CABundle(), clk.Now())); err != nil {
		t.Error(err)
	}
	reconcile(t, a)
	if again := published(t, cs); again.ResourceVersion != secret.ResourceVersion {
		t.Error("a second look wrote the Secret")
	}
	clk.Step(25 * time.Hour)
	if err := a.Healthy(); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("expired certificate: %v", err)
	}
}

func TestReplicasRaceToOneAuthority(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	replicas := make([]*Authority, 4)
	var running sync.WaitGroup
	for i := range replicas {
		replicas[i] = replica(t, cs, clk)
		running.Go(func() {
			if _, err := replicas[i].reconcile(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	secret := published(t, cs)
	cas, err := pki.DecodeX509CertificateSetBytes(secret.Data[keyBundle])
	if err != nil || len(cas) != 1 {
		t.Fatalf("%d authorities, %v", len(cas), err)
	}
	for i, a := range replicas {
		if err := verify(a, secret.Data[keyBundle], clk.Now()); err != nil {
			t.Errorf("replica %d: %v", i, err)
		}
	}
}

// Through several rotations, with replicas that look at different times, every certificate served verifies against the
// bundle of that time and against every bundle that a cache may still hold.
func TestRotationOverlaps(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	replicas := []*Authority{replica(t, cs, clk), replica(t, cs, clk)}
	next := []time.Time{clk.Now(), clk.Now()}
	type bundle struct {
		until time.Time
		pem   []byte
	}
	var cached []bundle
	authorities := map[string]bool{}
	random := rand.New(rand.NewPCG(1, 2))
	for step := range 24 * 30 {
		for i, a := range replicas {
			if !clk.Now().Before(next[i]) {
				reconcile(t, a)
				next[i] = clk.Now().Add(time.Duration(random.IntN(180)) * time.Minute)
			}
		}
		pem := published(t, cs).Data[keyBundle]
		if n := len(cached); n == 0 || string(cached[n-1].pem) != string(pem) {
			if n > 0 {
				cached[n-1].until = clk.Now().Add(6*time.Hour - 3*time.Hour) // a late replica may switch first
			}
			cached = append(cached, bundle{pem: pem})
		}
		cas, err := pki.DecodeX509CertificateSetBytes(pem)
		if err != nil || len(cas) > 2 {
			t.Fatalf("step %d: %d authorities in the bundle, %v", step, len(cas), err)
		}
		for _, ca := range cas {
			authorities[ca.SerialNumber.String()] = true
		}
		for i, a := range replicas {
			for n, b := range cached {
				if n < len(cached)-1 && b.until.Before(clk.Now()) {
					continue
				}
				if err := verify(a, b.pem, clk.Now()); err != nil {
					t.Fatalf("step %d, replica %d, bundle %d of %d: %v", step, i, n, len(cached), err)
				}
			}
		}
		clk.Step(time.Hour)
	}
	if len(authorities) < 5 {
		t.Errorf("only %d authorities in 30 days", len(authorities))
	}
}

// A new authority that the webhook configuration does not carry yet signs nothing.
func TestUntrustedAuthorityWaits(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	var first *x509.Certificate
	a := replica(t, cs, clk, func(o *AuthorityOptions) {
		o.Trusted = func(c *x509.Certificate) bool { return first == nil || c.Equal(first) }
	})
	reconcile(t, a)
	first = a.issuer
	for clk.Now().Before(first.NotAfter.Add(-2 * time.Hour)) {
		reconcile(t, a)
		if !a.issuer.Equal(first) {
			t.Fatal("signed by an authority that is not trusted yet")
		}
		clk.Step(time.Hour)
	}
	clk.Step(3 * time.Hour)
	reconcile(t, a)
	if a.issuer.Equal(first) || a.Healthy() != nil {
		t.Errorf("after the old authority's end: %v", a.Healthy())
	}
}

func TestBrokenSecretIsRepaired(t *testing.T) {
	garbage := []byte("garbage")
	cases := map[string]struct {
		spoil func(*corev1.Secret)
		want  error
	}{
		"key":          {spoil: func(s *corev1.Secret) { s.Data[keyNewestKey] = garbage }},
		"certificate":  {spoil: func(s *corev1.Secret) { s.Data[keyNewest] = garbage }},
		"bundle":       {spoil: func(s *corev1.Secret) { s.Data[keyBundle] = garbage }},
		"empty bundle": {spoil: func(s *corev1.Secret) { delete(s.Data, keyBundle) }},
		"everything": {spoil: func(s *corev1.Secret) {
			s.Data = map[string][]byte{keyBundle: garbage, keyNewest: garbage, keyNewestKey: garbage}
		}},
		"emptied": {spoil: func(s *corev1.Secret) { s.Data = nil }},
		"another key": {spoil: func(s *corev1.Secret) {
			key, _ := pki.GenerateECPrivateKey(authorityCurve)
			s.Data[keyNewestKey], _ = pki.EncodeECPrivateKey(key)
		}},
		"cert-manager's": {spoil: func(s *corev1.Secret) { s.Annotations = map[string]string{certManagerAnnotation: "x"} }, want: ErrForeignSecret},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, cs := api(t, memkube.Options{})
			clk := clocktesting.NewFakeClock(time.Now())
			a := replica(t, cs, clk)
			reconcile(t, a)
			secret := published(t, cs)
			c.spoil(secret)
			secret.Data = merge(map[string][]byte{"other": []byte("kept")}, secret.Data)
			if _, err := cs.CoreV1().Secrets(testNamespace).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := a.reconcile(t.Context()); !errors.Is(err, c.want) {
				t.Fatalf("want %v, got %v", c.want, err)
			}
			if c.want != nil {
				return
			}
			fresh := replica(t, cs, clk)
			reconcile(t, fresh)
			now := published(t, cs)
			if diff := cmp.Diff("kept", string(now.Data["other"])); diff != "" {
				t.Error(diff)
			}
			for who, r := range map[string]*Authority{"old": a, "fresh": fresh} {
				if err := verify(r, now.Data[keyBundle], clk.Now()); err != nil {
					t.Errorf("%s replica: %v", who, err)
				}
			}
			if st, broken := parseState(now.Data); len(broken) > 0 || len(st.signers) != 1 {
				t.Errorf("repaired to %v with %d signers", broken, len(st.signers))
			}
		})
	}
}

func TestDeletedSecretKeepsRunningReplicasTrusted(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	a, b := replica(t, cs, clk), replica(t, cs, clk)
	reconcile(t, a)
	if err := cs.CoreV1().Secrets(testNamespace).Delete(t.Context(), testSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	reconcile(t, b)
	reconcile(t, a)
	bundle := published(t, cs).Data[keyBundle]
	if err := errors.Join(verify(a, bundle, clk.Now()), verify(b, bundle, clk.Now())); err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	cases := map[string]AuthorityOptions{
		"no client":       {Namespace: "n", Secret: "s", DNSNames: []string{"d"}},
		"no name":         {Client: cs, Namespace: "n", Secret: "s"},
		"short authority": {Client: cs, Namespace: "n", Secret: "s", DNSNames: []string{"d"}, CADuration: time.Hour},
		"slow spread":     {Client: cs, Namespace: "n", Secret: "s", DNSNames: []string{"d"}, Propagation: 12 * time.Hour},
	}
	for name, o := range cases {
		if _, err := NewAuthority(o); !errors.Is(err, ErrOptions) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Run renews by its own clock and repairs what the watch reports.
func TestRun(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	renewed, bundles := make(chan struct{}, 100), make(chan struct{}, 100)
	a := replica(t, cs, clk, func(o *AuthorityOptions) {
		o.OnChange = func() { bundles <- struct{}{} }
		o.Log = funcr.New(func(_, _ string) { renewed <- struct{}{} }, funcr.Options{})
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(ctx) }()
	await(ctx, t, renewed)
	await(ctx, t, bundles)
	first, err := a.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	for len(renewed) == 0 && ctx.Err() == nil { // in steps: one that comes between a look and its timer counts for nothing
		if clk.HasWaiters() {
			clk.Step(time.Hour)
		}
		runtime.Gosched()
	}
	await(ctx, t, renewed)
	if c, err := a.GetCertificate(nil); err != nil || c.Leaf.Equal(first.Leaf) {
		t.Errorf("not renewed: %v", err)
	}
	if err := cs.CoreV1().Secrets(testNamespace).Delete(ctx, testSecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	await(ctx, t, bundles)
	if err := verify(a, published(t, cs).Data[keyBundle], clk.Now()); err != nil {
		t.Error(err)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func await(ctx context.Context, t *testing.T, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-ctx.Done():
		t.Fatal("nothing happened")
	}
}

func TestHandshakeAndMetric(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	clk := clocktesting.NewFakeClock(time.Now())
	a := replica(t, cs, clk)
	reconcile(t, a)
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{MinVersion: tls.VersionTLS13, GetCertificate: a.GetCertificate})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = io.WriteString(c, "hello")
			_ = c.Close()
		}
	}()
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.CABundle())
	for _, name := range []string{serviceName, "127.0.0.1"} {
		c, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{RootCAs: pool, ServerName: name})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got, err := io.ReadAll(c); err != nil || string(got) != "hello" {
			t.Errorf("%s: %q %v", name, got, err)
		}
	}
	reg := prometheus.NewRegistry()
	if err := RegisterExpiry(reg, a); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := a.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprintf("%s %.0f", families[0].GetName(), families[0].GetMetric()[0].GetGauge().GetValue())
	if diff := cmp.Diff(fmt.Sprintf("berth_certificate_expiry_timestamp_seconds %d", leaf.Leaf.NotAfter.Unix()), got); diff != "" {
		t.Error(diff)
	}
}
