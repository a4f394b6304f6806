package certs

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/cert-manager/cert-manager/pkg/util/pki"
	"github.com/go-logr/logr"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/certwatcher"
)

// filesInterval is how often files are read again, should the notification of a change be lost.
const filesInterval = 10 * time.Second

// FilesOptions configures NewFiles.
type FilesOptions struct {
	// Dir holds tls.crt and tls.key, and ca.crt if the bundle is to be known.
	Dir string
	// OnChange, when set, is called after the bundle changed.
	OnChange func()
	// Clock is nil for the real one.
	Clock clock.WithTicker
	// Log discards as the zero value.
	Log logr.Logger
}

// Files serves a certificate from mounted files, as cert-manager writes them, and reloads it when they change.
type Files struct {
	opts    FilesOptions
	watcher *certwatcher.CertWatcher

	mu     sync.RWMutex
	bundle []byte
}

// NewFiles reads the files once; the certificate is served from then on, and reloaded while Run runs.
func NewFiles(o FilesOptions) (*Files, error) {
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.OnChange == nil {
		o.OnChange = func() {}
	}
	watcher, err := certwatcher.New(filepath.Join(o.Dir, "tls.crt"), filepath.Join(o.Dir, "tls.key"))
	if err != nil {
		return nil, fmt.Errorf("certificate files in %s can't be used, mount a Secret with tls.crt and tls.key there: %w", o.Dir, err)
	}
	f := &Files{opts: o, watcher: watcher.WithWatchInterval(filesInterval)}
	if err := f.readBundle(); err != nil {
		return nil, err
	}
	return f, nil
}

// readBundle reads ca.crt. A missing one is no bundle; an unreadable one leaves the last in place.
func (f *Files) readBundle() error {
	path := filepath.Join(f.opts.Dir, "ca.crt")
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		_, err = pki.DecodeX509CertificateSetBytes(raw)
	}
	if err != nil {
		return fmt.Errorf("%s holds no certificates in PEM, write the authority there or remove it: %w", path, err)
	}
	f.mu.Lock()
	changed := !bytes.Equal(f.bundle, raw)
	f.bundle = raw
	f.mu.Unlock()
	if changed {
		f.opts.OnChange()
	}
	return nil
}

// Run reloads the files until the context ends.
func (f *Files) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	reread := make(chan struct{}, 1)
	f.watcher.RegisterCallback(func(tls.Certificate) {
		select {
		case reread <- struct{}{}:
		default:
		}
	})
	watched := make(chan error, 1)
	go func() { watched <- f.watcher.Start(ctx) }()
	ticker := f.opts.Clock.NewTicker(filesInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			if err := <-watched; err != nil {
				f.opts.Log.Error(err, "the watch of the certificate files ended badly", "dir", f.opts.Dir)
			}
			return nil
		case err := <-watched:
			if err != nil {
				return fmt.Errorf("certificate files in %s can't be watched, check the mount: %w", f.opts.Dir, err)
			}
			return nil
		case <-reread:
		case <-ticker.C():
			// The watcher reads at its own interval too; this read makes certificate and bundle change together.
			if err := f.watcher.ReadCertificate(); err != nil {
				f.opts.Log.Error(err, "keeping the last certificate")
			}
		}
		if err := f.readBundle(); err != nil {
			f.opts.Log.Error(err, "keeping the last CA bundle")
		}
	}
}

// GetCertificate implements Source.
func (f *Files) GetCertificate(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	return f.watcher.GetCertificate(hello)
}

// Healthy implements Source.
func (f *Files) Healthy() error {
	c, err := f.watcher.GetCertificate(nil)
	if err != nil {
		return err
	}
	return checkValid(c.Leaf, f.opts.Clock.Now())
}

// CABundle implements Source: the content of ca.crt.
func (f *Files) CABundle() []byte {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.bundle
}
