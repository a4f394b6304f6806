package certs

import (
	"context"
	"crypto"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	registration "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	clocktesting "k8s.io/utils/clock/testing"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"

	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/internal/memkube"
)

func webhooks(names ...string) *registration.MutatingWebhookConfiguration {
	none, url, ignore := registration.SideEffectClassNone, "https://127.0.0.1:1/", registration.Ignore
	cfg := &registration.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"}}
	for _, n := range names {
		cfg.Webhooks = append(cfg.Webhooks, registration.MutatingWebhook{Name: n, SideEffects: &none, FailurePolicy: &ignore,
			ClientConfig: registration.WebhookClientConfig{URL: &url}, AdmissionReviewVersions: []string{"v1"}})
	}
	return cfg
}

// awaitConfig waits until the stored configuration satisfies a condition.
func awaitConfig(ctx context.Context, t *testing.T, cs kubernetes.Interface, ok func(*registration.MutatingWebhookConfiguration) bool) *registration.MutatingWebhookConfiguration {
	t.Helper()
	w, err := cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	for e := range w.ResultChan() {
		if cfg, is := e.Object.(*registration.MutatingWebhookConfiguration); is && e.Type != watch.Deleted && ok(cfg) {
			return cfg
		}
	}
	t.Fatal("the configuration never came to that")
	return nil
}

func all(bundle string) func(*registration.MutatingWebhookConfiguration) bool {
	return func(cfg *registration.MutatingWebhookConfiguration) bool {
		for _, w := range cfg.Webhooks {
			if string(w.ClientConfig.CABundle) != bundle {
				return false
			}
		}
		return true
	}
}

// injectorBesideAnother makes an injector of an authority's bundle, and another authority that it knows nothing of.
func injectorBesideAnother(t *testing.T, cs kubernetes.Interface) (i *Injector, own, other *Authority) {
	t.Helper()
	clk := clocktesting.NewFakeClock(time.Now())
	own, other = replica(t, cs, clk), replica(t, cs, clk, func(o *AuthorityOptions) { o.Secret = "other" })
	reconcile(t, own)
	reconcile(t, other)
	i, err := NewInjector(InjectorOptions{Client: cs, Name: "berth-webhook", Bundle: own.CABundle})
	if err != nil {
		t.Fatal(err)
	}
	return i, own, other
}

func TestInjector(t *testing.T) {
	s, cs := api(t, memkube.Options{})
	injector, a, b := injectorBesideAnother(t, cs)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- injector.Run(ctx) }()
	if err := injector.Healthy(); !errors.Is(err, ErrNotInjected) {
		t.Errorf("before: %v", err)
	}
	configs := cs.AdmissionregistrationV1().MutatingWebhookConfigurations()
	want := webhooks("one.berth.dev", "two.berth.dev")
	if _, err := configs.Create(ctx, want, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bundle := string(a.CABundle())
	got := awaitConfig(ctx, t, cs, all(bundle))
	for n := range want.Webhooks {
		want.Webhooks[n].ClientConfig.CABundle = []byte(bundle)
	}
	if diff := cmp.Diff(want.Webhooks, got.Webhooks); diff != "" {
		t.Errorf("another field was written (-want +got):\n%s", diff)
	}
	for name, patch := range map[string]string{
		"wiped":   `[{"op":"remove","path":"/webhooks/0/clientConfig/caBundle"}]`,
		"changed": `[{"op":"replace","path":"/webhooks/1/clientConfig/caBundle","value":"eA=="}]`,
		"new":     `[{"op":"add","path":"/webhooks/0","value":{"name":"zero.berth.dev","clientConfig":{"url":"https://127.0.0.1:1/"},"sideEffects":"None","admissionReviewVersions":["v1"]}}]`,
	} {
		if _, err := configs.Patch(ctx, "berth-webhook", types.JSONPatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		awaitConfig(ctx, t, cs, all(bundle))
	}
	validates(ctx, t, cs, injector, bundle)
	writes := s.Requests()["patch mutatingwebhookconfigurations"]
	if err := injector.inject(ctx); err != nil || s.Requests()["patch mutatingwebhookconfigurations"] != writes {
		t.Errorf("wrote without need: %v", err)
	}
	if err := injector.Healthy(); err != nil || !injector.Trusts(a.issuer) || injector.Trusts(b.issuer) {
		t.Errorf("healthy %v, trusts ours %v, another %v", err, injector.Trusts(a.issuer), injector.Trusts(b.issuer))
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// validates adds a validating configuration of the name: it gets the bundle too, and it counts.
func validates(ctx context.Context, t *testing.T, cs kubernetes.Interface, i *Injector, bundle string) {
	t.Helper()
	none, url := registration.SideEffectClassNone, "https://127.0.0.1:1/"
	cfg := &registration.ValidatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"}, Webhooks: []registration.ValidatingWebhook{{
		Name: "topology.berth.dev", SideEffects: &none, ClientConfig: registration.WebhookClientConfig{URL: &url}, AdmissionReviewVersions: []string{"v1"}}}}
	api := cs.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	w, err := api.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if _, err := api.Create(ctx, cfg, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for e := range w.ResultChan() {
		if c, is := e.Object.(*registration.ValidatingWebhookConfiguration); is && string(c.Webhooks[0].ClientConfig.CABundle) == bundle {
			break
		}
	}
	if ctx.Err() != nil {
		t.Fatal("the validating configuration never got the bundle")
	}
	i.saw(kindValidating, configuration{hooks: []hook{{name: "topology.berth.dev"}}})
	if err := i.Healthy(); !errors.Is(err, ErrNotInjected) {
		t.Errorf("healthy while the validating configuration has no bundle: %v", err)
	}
	if err := i.inject(ctx); err != nil {
		t.Error(err)
	}
}

// A patch decided on an older list of webhooks writes nothing, neither does one decided before somebody else's write.
func TestPatchTestsWhatItWasMadeFor(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	configs := cs.AdmissionregistrationV1().MutatingWebhookConfigurations()
	stored, err := mutating(configs.Create(t.Context(), webhooks("b", "a"), metav1.CreateOptions{}))
	if err != nil {
		t.Fatal(err)
	}
	reordered, former := stored, stored
	reordered.hooks = []hook{stored.hooks[1], stored.hooks[0]}
	former.version += "0"
	for name, c := range map[string]configuration{"other order": reordered, "former version": former} {
		patch, err := bundlePatch(c, []byte("bundle"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := configs.Patch(t.Context(), "berth-webhook", types.JSONPatchType, patch, metav1.PatchOptions{}); !jsonpatch.Outdated(err) {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

// While webhooks that manage their certificate are replaced by others that have cert-manager's, both run: the bundle is
// cainjector's from the moment the configuration says so. Once it doesn't, it is ours again.
func TestInjectorLeavesWhatCainjectorWrites(t *testing.T) {
	s, cs := api(t, memkube.Options{})
	injector, a, other := injectorBesideAnother(t, cs)
	ctx := t.Context()
	configs := cs.AdmissionregistrationV1().MutatingWebhookConfigurations()
	for _, mark := range []string{injectFrom, injectFromSecret} {
		cfg := webhooks("one.berth.dev", "two.berth.dev")
		cfg.Annotations = map[string]string{mark: "berth-system/berth-webhook"}
		for n := range cfg.Webhooks {
			cfg.Webhooks[n].ClientConfig.CABundle = []byte("cainjector's")
		}
		cfg, err := configs.Create(ctx, cfg, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := injector.inject(ctx); err != nil || s.Requests()["patch mutatingwebhookconfigurations"] != 0 {
			t.Errorf("%s: wrote over cainjector's bundle: %v", mark, err)
		}
		if err := injector.Healthy(); !errors.Is(err, ErrNotInjected) || !strings.Contains(err.Error(), mark+"=berth-system/berth-webhook") {
			t.Errorf("%s: with another's bundle it is %v", mark, err)
		}
		for n := range cfg.Webhooks {
			cfg.Webhooks[n].ClientConfig.CABundle = slices.Concat(other.CABundle(), a.CABundle())
		}
		if _, err = configs.Update(ctx, cfg, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(injector.inject(ctx), injector.Healthy()); err != nil || s.Requests()["patch mutatingwebhookconfigurations"] != 0 {
			t.Errorf("%s: with our authority beside another's it is %v", mark, err)
		}
		if err := configs.Delete(ctx, cfg.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := configs.Create(ctx, webhooks("one.berth.dev"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := injector.inject(ctx); err != nil || injector.Healthy() != nil || s.Requests()["patch mutatingwebhookconfigurations"] != 1 {
		t.Errorf("without the mark: %v, %v", err, injector.Healthy())
	}
}

func writePair(t *testing.T, dir string) *x509.Certificate {
	t.Helper()
	ca, err := newSigner(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	leaf, key, err := ca.sign(time.Now(), time.Hour, []string{serviceName}, nil)
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, ca, leaf, key)
	return leaf
}

func writeFiles(t *testing.T, dir string, ca *signer, leaf *x509.Certificate, key crypto.Signer) {
	t.Helper()
	keyPEM, err := pki.EncodePrivateKey(key, cmapi.PKCS8)
	if err != nil {
		t.Fatal(err)
	}
	certPEM, err := pki.EncodeX509(leaf)
	if err != nil {
		t.Fatal(err)
	}
	caPEM, err := pki.EncodeX509(ca.cert)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{"ca.crt": caPEM, "tls.key": keyPEM, "tls.crt": certPEM} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// A Secret that was of an authority holds that until cert-manager's first certificate is in it: who mounts it waits.
func TestFilesOfAnAuthorityServeNobody(t *testing.T) {
	dir := t.TempDir()
	ca, err := newSigner(time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	writeFiles(t, dir, ca, ca.cert, ca.key)
	f, err := NewFiles(FilesOptions{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Healthy(); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("with an authority's files it is %v", err)
	}
	writePair(t, dir)
	if err := f.watcher.ReadCertificate(); err != nil || f.Healthy() != nil {
		t.Errorf("with a certificate: %v, %v", err, f.Healthy())
	}
}

func TestFilesReload(t *testing.T) {
	dir := t.TempDir()
	if _, err := NewFiles(FilesOptions{Dir: dir}); err == nil {
		t.Error("no files, no error")
	}
	first := writePair(t, dir)
	changed := make(chan struct{}, 10)
	f, err := NewFiles(FilesOptions{Dir: dir, OnChange: func() { changed <- struct{}{} }})
	if err != nil {
		t.Fatal(err)
	}
	<-changed
	if c, err := f.GetCertificate(nil); err != nil || f.Healthy() != nil || !c.Leaf.Equal(first) {
		t.Fatalf("first certificate: %v %v", err, f.Healthy())
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- f.Run(ctx) }()
	before := string(f.CABundle())
	second := writePair(t, dir)
	await(ctx, t, changed)
	if string(f.CABundle()) == before {
		t.Error("bundle is the old one")
	}
	for { // the bundle may be read between two reads of the certificate
		c, err := f.GetCertificate(nil)
		if err == nil && c.Leaf.Equal(second) {
			break
		}
		if ctx.Err() != nil {
			t.Fatalf("second certificate: %v", err)
		}
		runtime.Gosched()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestBuild(t *testing.T) {
	_, cs := api(t, memkube.Options{})
	f := DefaultFlags()
	source, injector, err := f.Build(Deps{Client: cs})
	if _, own := source.(*Authority); err != nil || !own || injector == nil {
		t.Errorf("%T %v %v", source, injector, err)
	}
	f.Source, f.Dir, f.Webhook = MountedFiles, t.TempDir(), ""
	writePair(t, f.Dir)
	source, injector, err = f.Build(Deps{Client: cs})
	if _, files := source.(*Files); err != nil || !files || injector != nil {
		t.Errorf("%T %v %v", source, injector, err)
	}
	f.Source = "magic"
	if _, _, err := f.Build(Deps{Client: cs}); !errors.Is(err, ErrOptions) {
		t.Errorf("unknown source: %v", err)
	}
}
