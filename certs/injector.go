package certs

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/cert-manager/cert-manager/pkg/util/pki"
	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/jsonpatch"
)

// ErrNotInjected means that the API server does not trust our certificate yet.
var ErrNotInjected = errors.New("the webhook configuration does not carry the CA bundle")

// InjectorOptions configures NewInjector.
type InjectorOptions struct {
	// Client needs get, list, watch and patch on the configurations.
	Client kubernetes.Interface
	// Name is that of the MutatingWebhookConfiguration, and of the ValidatingWebhookConfiguration. All their webhooks are
	// taken to be ours.
	Name string
	// Bundle gives the PEM bundle to write; nothing is written while it is empty.
	Bundle func() []byte
	// Clock is nil for the real one.
	Clock clock.WithTicker
	// Log discards as the zero value.
	Log logr.Logger
}

// Injector keeps a CA bundle in clientConfig.caBundle of every webhook of the MutatingWebhookConfiguration and of the
// ValidatingWebhookConfiguration of one name, and writes no other field: a JSON patch that tests the version it was made
// for, and each webhook's name at its index. The mutating one has to be there, the validating one may be. One that is
// marked for cert-manager's cainjector is left to that: of two writers, the last one would win.
type Injector struct {
	opts    InjectorOptions
	targets []target
	changed chan struct{}

	mu   sync.RWMutex
	seen map[string]configuration // by kind; a configuration that is not there has no entry
}

// NewInjector checks the options.
func NewInjector(o InjectorOptions) (*Injector, error) {
	if o.Client == nil || o.Name == "" || o.Bundle == nil {
		return nil, fmt.Errorf("%w: a client, the configuration's name and a bundle are needed", ErrOptions)
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	return &Injector{opts: o, targets: targets(o.Client, o.Name), changed: make(chan struct{}, 1), seen: map[string]configuration{}}, nil
}

// Notify says that the bundle may have changed. A nil Injector ignores it.
func (i *Injector) Notify() {
	if i == nil {
		return
	}
	select {
	case i.changed <- struct{}{}:
	default:
	}
}

// Run injects, and restores what others wipe, until the context ends.
func (i *Injector) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, i.opts.Name).String()
	factory := informers.NewSharedInformerFactoryWithOptions(i.opts.Client, 0,
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = byName }))
	api := factory.Admissionregistration().V1()
	for _, informer := range []cache.SharedIndexInformer{api.MutatingWebhookConfigurations().Informer(), api.ValidatingWebhookConfigurations().Informer()} {
		if _, err := informer.AddEventHandler(poker(i.changed)); err != nil {
			return fmt.Errorf("the webhook configurations %s can't be watched, allow get, list and watch: %w", i.opts.Name, err)
		}
	}
	factory.Start(ctx.Done())
	defer factory.Shutdown()
	defer cancel()
	i.Notify()
	wait := resync
	for {
		timer := i.opts.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-i.changed:
			timer.Stop()
		case <-timer.C():
		}
		wait = resync
		if err := i.inject(ctx); err != nil && ctx.Err() == nil {
			i.opts.Log.Error(err, "CA bundle is not injected", "configuration", i.opts.Name)
			wait = retry
		}
	}
}

// inject reads the configurations, live, and writes the bundle where it is missing. One that can't be written does not
// keep the other from it.
func (i *Injector) inject(ctx context.Context) error {
	var errs []error
	for _, t := range i.targets {
		errs = append(errs, i.injectInto(ctx, t))
	}
	return errors.Join(errs...)
}

func (i *Injector) injectInto(ctx context.Context, t target) error {
	for range attempts {
		c, err := t.get(ctx)
		if apierrors.IsNotFound(err) {
			i.gone(t.kind)
			return nil // the watch tells when it is there
		}
		if err != nil {
			return fmt.Errorf("%s %s can't be read, allow get on it: %w", t.kind, i.opts.Name, err)
		}
		i.saw(t.kind, c)
		patch, err := bundlePatch(c, i.opts.Bundle())
		if err != nil || patch == nil {
			return err
		}
		c, err = t.patch(ctx, patch)
		switch {
		case err == nil:
			i.saw(t.kind, c)
			i.opts.Log.Info("wrote the CA bundle", "kind", t.kind, "configuration", i.opts.Name)
			return nil
		case jsonpatch.Outdated(err), apierrors.IsConflict(err), apierrors.IsNotFound(err):
			continue // it changed since it was read
		default:
			return fmt.Errorf("%s %s can't be patched, allow patch on it: %w", t.kind, i.opts.Name, err)
		}
	}
	return fmt.Errorf("%s %s changed %d times in a row, it will be tried again", t.kind, i.opts.Name, attempts)
}

// bundlePatch is nil when every webhook carries the bundle already, there is none, or another writes it.
func bundlePatch(c configuration, bundle []byte) ([]byte, error) {
	if len(bundle) == 0 || c.source != "" {
		return nil, nil
	}
	var ops []jsonpatch.Operation
	for n, w := range c.hooks {
		if bytes.Equal(w.bundle, bundle) {
			continue
		}
		at := fmt.Sprintf("/webhooks/%d", n)
		ops = append(ops, jsonpatch.Test(at+"/name", w.name), jsonpatch.Add(at+"/clientConfig/caBundle", bundle))
	}
	if len(ops) == 0 {
		return nil, nil
	}
	ops = slices.Insert(ops, 0, jsonpatch.Test(jsonpatch.ResourceVersion, c.version))
	patch, err := json.Marshal(ops)
	if err != nil {
		return nil, fmt.Errorf("patch of the CA bundle can't be encoded, report this: %w", err)
	}
	return patch, nil
}

func (i *Injector) saw(kind string, c configuration) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.seen[kind] = c
}

func (i *Injector) gone(kind string) {
	i.mu.Lock()
	defer i.mu.Unlock()
	delete(i.seen, kind)
}

// Healthy is nil once every webhook of the configurations, as last seen, carries the bundle.
func (i *Injector) Healthy() error {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if _, there := i.seen[kindMutating]; !there {
		return fmt.Errorf("%w: %s %s is not there, apply the manifests", ErrNotInjected, kindMutating, i.opts.Name)
	}
	bundle := i.opts.Bundle()
	if len(bundle) == 0 {
		return fmt.Errorf("%w: there is no bundle yet", ErrNotInjected)
	}
	for _, t := range i.targets {
		c := i.seen[t.kind]
		for _, w := range c.hooks {
			switch {
			case bytes.Equal(w.bundle, bundle):
			case c.source != "" && holds(w.bundle, bundle):
			case c.source != "":
				return fmt.Errorf("%w: %s %s is left to cert-manager by its annotation %s, start the webhook with that certificate, or remove the annotation",
					ErrNotInjected, t.kind, i.opts.Name, c.source)
			default:
				return fmt.Errorf("%w: webhook %s of %s %s, see the log for why it can't be written", ErrNotInjected, w.name, t.kind, i.opts.Name)
			}
		}
	}
	return nil
}

// holds says whether a bundle holds every certificate of another: cainjector adds to those that are there.
func holds(bundle, part []byte) bool {
	all, err := pki.DecodeX509CertificateSetBytes(bundle)
	if err != nil {
		return false
	}
	wanted, err := pki.DecodeX509CertificateSetBytes(part)
	return err == nil && !slices.ContainsFunc(wanted, func(c *x509.Certificate) bool { return !slices.ContainsFunc(all, c.Equal) })
}

// Trusts says whether every webhook of the configurations, as last seen, trusts an authority.
func (i *Injector) Trusts(ca *x509.Certificate) bool {
	i.mu.RLock()
	defer i.mu.RUnlock()
	if len(i.seen[kindMutating].hooks) == 0 {
		return false
	}
	for _, t := range i.targets {
		for _, w := range i.seen[t.kind].hooks {
			bundle, err := pki.DecodeX509CertificateSetBytes(w.bundle)
			if err != nil || !slices.ContainsFunc(bundle, ca.Equal) {
				return false
			}
		}
	}
	return true
}

// Published gives the authorities that the webhooks of the configurations, as last seen, trust.
func (i *Injector) Published() []*x509.Certificate {
	i.mu.RLock()
	defer i.mu.RUnlock()
	var out []*x509.Certificate
	for _, t := range i.targets {
		for _, w := range i.seen[t.kind].hooks {
			if bundle, err := pki.DecodeX509CertificateSetBytes(w.bundle); err == nil { // nobody is trusted by one that can't be read
				out = append(out, bundle...)
			}
		}
	}
	return out
}
