package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
)

const (
	// certManagerAnnotation is on every Secret that cert-manager writes.
	certManagerAnnotation = "cert-manager.io/certificate-name"
	// resync is the longest time between two looks at the Secret, retry the time after a failure.
	resync = 10 * time.Minute
	retry  = 5 * time.Second
	// attempts bounds how often one look is repeated because another replica wrote meanwhile.
	attempts = 5
)

// AuthorityOptions configures NewAuthority.
type AuthorityOptions struct {
	// Client reads and writes the Secret; it needs get, list, watch, create and update.
	Client kubernetes.Interface
	// Namespace and Secret name the Secret that all replicas share.
	Namespace, Secret string
	// DNSNames and IPs go into the certificates.
	DNSNames []string
	IPs      []net.IP
	// CADuration is an authority's validity, LeafDuration a certificate's. Zero means a year and a day. The first must be
	// at least three times the second.
	CADuration, LeafDuration time.Duration
	// Propagation is how long a new authority is in the bundle before anything is signed by it. Zero means an hour.
	Propagation time.Duration
	// Trusted, when set, must also say yes before a new authority signs: Injector.Trusts.
	Trusted func(*x509.Certificate) bool
	// Published, when set, gives the authorities that are trusted now: Injector.Published.
	Published func() []*x509.Certificate
	// OnChange, when set, is called after the bundle changed: Injector.Notify.
	OnChange func()
	// Clock is nil for the real one.
	Clock clock.WithTicker
	// Log discards as the zero value.
	Log logr.Logger
}

// Authority is the source that signs for itself: one Secret, shared by all replicas, holds the authorities; each replica
// makes its own short-lived certificate and keeps the key in memory. Replicas need no leader: the Secret is only written
// by create and by update with a resourceVersion, and whoever loses reads again.
//
// An authority is replaced after two thirds of its life. The new one is in the bundle for the propagation delay before it
// signs; the old one stays in the bundle until it expires, which is after every certificate that it signed. To distrust an
// authority at once, stop all replicas, delete the Secret and start them.
type Authority struct {
	opts AuthorityOptions

	mu     sync.RWMutex
	bundle []byte
	leaf   *tls.Certificate
	issuer *x509.Certificate
	failed error
}

// NewAuthority checks the options. Nothing is read or written before Run.
func NewAuthority(o AuthorityOptions) (*Authority, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.CADuration == 0 {
		o.CADuration = 365 * 24 * time.Hour
	}
	if o.LeafDuration == 0 {
		o.LeafDuration = 24 * time.Hour
	}
	if o.Propagation == 0 {
		o.Propagation = time.Hour
	}
	if o.Trusted == nil {
		o.Trusted = func(*x509.Certificate) bool { return true }
	}
	if o.Published == nil {
		o.Published = func() []*x509.Certificate { return nil }
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	switch {
	case o.Client == nil || o.Namespace == "" || o.Secret == "":
		return nil, fmt.Errorf("%w: a client and the Secret's namespace and name are needed", ErrOptions)
	case len(o.DNSNames)+len(o.IPs) == 0:
		return nil, fmt.Errorf("%w: a DNS name or an IP is needed", ErrOptions)
	case o.CADuration < 3*o.LeafDuration || o.LeafDuration < 4*o.Propagation:
		return nil, fmt.Errorf("%w: an authority must be valid for three certificates' lives, a certificate for four propagation delays, got %s, %s and %s",
			ErrOptions, o.CADuration, o.LeafDuration, o.Propagation)
	}
	return &Authority{opts: o}, nil
}

// Run creates and rotates authority and certificate until the context ends.
func (a *Authority) Run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	stop, err := a.watch(ctx, changed)
	if err != nil {
		return err
	}
	defer stop()
	for {
		wait, err := a.reconcile(ctx)
		if ctx.Err() != nil {
			return nil
		}
		a.setFailed(err)
		if err != nil {
			a.opts.Log.Error(err, "serving certificate is not maintained", "secret", a.opts.Namespace+"/"+a.opts.Secret)
			wait = retry
		}
		timer := a.opts.Clock.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C():
		}
	}
}

// watch pokes the channel when the Secret changes.
func (a *Authority) watch(ctx context.Context, changed chan<- struct{}) (stop func(), err error) {
	ctx, cancel := context.WithCancel(ctx)
	byName := fields.OneTermEqualSelector(metav1.ObjectNameField, a.opts.Secret).String()
	factory := informers.NewSharedInformerFactoryWithOptions(a.opts.Client, 0, informers.WithNamespace(a.opts.Namespace),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) { o.FieldSelector = byName }))
	if _, err := factory.Core().V1().Secrets().Informer().AddEventHandler(poker(changed)); err != nil {
		cancel()
		return nil, fmt.Errorf("the authority's Secret can't be watched, allow get, list and watch: %w", err)
	}
	factory.Start(ctx.Done())
	return func() { cancel(); factory.Shutdown() }, nil
}

// poker turns events into pokes; one waiting poke stands for many.
func poker(changed chan<- struct{}) cache.ResourceEventHandler {
	poke := func(any) {
		select {
		case changed <- struct{}{}:
		default:
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: poke, UpdateFunc: func(_, o any) { poke(o) }, DeleteFunc: poke}
}

// reconcile brings the Secret and our certificate to what they should be now, and says when to look again.
func (a *Authority) reconcile(ctx context.Context) (time.Duration, error) {
	for range attempts {
		st, retryNow, err := a.sync(ctx)
		if retryNow {
			continue
		}
		if err != nil {
			return 0, err
		}
		now := a.opts.Clock.Now()
		if err := a.publish(st); err != nil {
			return 0, err
		}
		if err := a.renew(st, now); err != nil {
			return 0, err
		}
		return a.until(st, now), nil
	}
	return 0, fmt.Errorf("the Secret %s/%s was written by others %d times in a row, it will be tried again", a.opts.Namespace, a.opts.Secret, attempts)
}

// sync reads the Secret and writes what it should hold. again: somebody else wrote first.
func (a *Authority) sync(ctx context.Context) (st state, again bool, err error) {
	secrets := a.opts.Client.CoreV1().Secrets(a.opts.Namespace)
	secret, err := secrets.Get(ctx, a.opts.Secret, metav1.GetOptions{})
	missing := apierrors.IsNotFound(err)
	if err != nil && !missing {
		return state{}, false, fmt.Errorf("the Secret %s/%s can't be read, allow get on it: %w", a.opts.Namespace, a.opts.Secret, err)
	}
	if missing {
		secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: a.opts.Secret, Namespace: a.opts.Namespace}, Type: corev1.SecretTypeTLS}
	}
	if secret.Annotations[certManagerAnnotation] != "" {
		return state{}, false, fmt.Errorf("%s/%s: %w", a.opts.Namespace, a.opts.Secret, ErrForeignSecret)
	}
	have, broken := parseState(secret.Data)
	for _, err := range broken {
		a.opts.Log.Error(err, "repairing the Secret of the certificate authority", "secret", a.opts.Namespace+"/"+a.opts.Secret)
	}
	now := a.opts.Clock.Now()
	have.bundle = append(have.bundle, a.inUse(now, len(have.signers) == 0)...)
	want, err := have.next(now, a.opts.CADuration)
	if err != nil {
		return state{}, false, fmt.Errorf("no new certificate authority, check the durations: %w", err)
	}
	data, err := want.encode()
	if err != nil {
		return state{}, false, fmt.Errorf("certificate authority can't be encoded, delete the Secret: %w", err)
	}
	if !missing && equalData(secret.Data, data) {
		return want, false, nil
	}
	secret.Data = merge(secret.Data, data)
	if missing {
		_, err = secrets.Create(ctx, secret, metav1.CreateOptions{})
	} else {
		_, err = secrets.Update(ctx, secret, metav1.UpdateOptions{})
	}
	switch {
	case err == nil, apierrors.IsConflict(err), apierrors.IsAlreadyExists(err), apierrors.IsNotFound(err) && !missing:
		// Also our own write is read back, so that an answer is never taken for the truth.
		return state{}, true, nil
	}
	return state{}, false, fmt.Errorf("the Secret %s/%s can't be written, allow create and update on it: %w", a.opts.Namespace, a.opts.Secret, err)
}

// inUse are authorities that stay in the bundle though the Secret has lost them: that of the certificate that we serve
// and, where the Secret is lost as a whole, all that are trusted now, for other replicas may serve certificates by any of
// them. Who serves nothing yet keeps none: it can't tell a loss from a wish to distrust them.
func (a *Authority) inUse(now time.Time, lost bool) []*x509.Certificate {
	a.mu.RLock()
	defer a.mu.RUnlock()
	switch {
	case a.leaf == nil || now.After(a.leaf.Leaf.NotAfter):
		return nil
	case lost:
		return append(a.opts.Published(), a.issuer)
	}
	return []*x509.Certificate{a.issuer}
}

func ours() []string {
	return []string{keyBundle, keyNewest, keyNewestKey, keyPrevious, keyPreviousKey}
}

func equalData(have, want map[string][]byte) bool {
	return !slices.ContainsFunc(ours(), func(k string) bool { return !bytes.Equal(have[k], want[k]) })
}

// merge replaces our keys and keeps others.
func merge(have, want map[string][]byte) map[string][]byte {
	out := maps.Clone(have)
	if out == nil {
		out = map[string][]byte{}
	}
	for _, k := range ours() {
		delete(out, k)
	}
	maps.Copy(out, want)
	return out
}

func (a *Authority) publish(st state) error {
	bundle, err := encodeAll(st.bundle)
	if err != nil {
		return fmt.Errorf("CA bundle can't be encoded, delete the Secret: %w", err)
	}
	a.mu.Lock()
	changed := !bytes.Equal(a.bundle, bundle)
	a.bundle = bundle
	a.mu.Unlock()
	if changed {
		a.opts.OnChange()
	}
	return nil
}

// renew makes a certificate when there is none, or when ours has passed two thirds of its life and an authority that has
// surely arrived can sign. At eleven twelfths one must do that is in the configurations, at the end any.
func (a *Authority) renew(st state, now time.Time) error {
	s := st.pick(now, a.opts.Propagation, a.opts.Trusted)
	a.mu.RLock()
	leaf := a.leaf
	a.mu.RUnlock()
	if leaf != nil {
		trusted := a.opts.Trusted(s.cert)
		arrived := trusted && !now.Before(s.published().Add(a.opts.Propagation))
		if now.Before(due(leaf.Leaf)) || !arrived && now.Before(last(leaf.Leaf)) || !trusted && now.Before(leaf.Leaf.NotAfter) {
			return nil
		}
	}
	cert, key, err := s.sign(now, a.opts.LeafDuration, a.opts.DNSNames, a.opts.IPs)
	if err != nil {
		return fmt.Errorf("no serving certificate, check names and durations: %w", err)
	}
	a.mu.Lock()
	a.leaf = &tls.Certificate{Certificate: [][]byte{cert.Raw}, PrivateKey: key, Leaf: cert}
	a.issuer = s.cert
	a.mu.Unlock()
	a.opts.Log.Info("new serving certificate", "expires", cert.NotAfter, "authority", s.cert.Subject.String())
	return nil
}

// until is the time to the next thing that has to happen.
func (a *Authority) until(st state, now time.Time) time.Duration {
	a.mu.RLock()
	defer a.mu.RUnlock()
	moments := []time.Time{due(a.leaf.Leaf), last(a.leaf.Leaf), a.leaf.Leaf.NotAfter, due(st.signers[0].cert),
		st.signers[0].published().Add(a.opts.Propagation)}
	for _, c := range st.bundle {
		moments = append(moments, c.NotAfter)
	}
	next := now.Add(resync)
	if !now.Before(last(a.leaf.Leaf)) { // nothing tells when the next authority is trusted
		next = now.Add(retry)
	}
	for _, at := range moments {
		if at.After(now) && at.Before(next) {
			next = at
		}
	}
	return next.Sub(now)
}

func (a *Authority) setFailed(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.failed = err
}

// GetCertificate implements Source.
func (a *Authority) GetCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	a.mu.RLock()
	defer a.mu.RUnlock()
	if err := a.valid(); err != nil {
		return nil, err
	}
	return a.leaf, nil
}

func (a *Authority) valid() error {
	if a.leaf == nil {
		return errors.Join(checkValid(nil, a.opts.Clock.Now()), a.failed)
	}
	return checkValid(a.leaf.Leaf, a.opts.Clock.Now())
}

// Healthy implements Source.
func (a *Authority) Healthy() error {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.valid()
}

// CABundle implements Source.
func (a *Authority) CABundle() []byte {
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.bundle
}
