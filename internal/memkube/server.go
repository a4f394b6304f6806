// Package memkube serves the part of the Kubernetes API that Berth's programs use, from memory, over real HTTP, so that
// the programs' real run functions (client-go, informers, leader election) work against it without a cluster.
//
// Invariant: every successful write gets the next value of one counter as its resourceVersion and appears exactly once,
// in that order, on every watch that covers it; a write whose resourceVersion, UID or patch test does not hold changes
// nothing.
//
// What it is not: there are no controllers (no garbage collection by owner, no scheduler, no kubelet), no schemas, no
// authentication, no validating admission, and every list answers with the latest state in one page.
package memkube

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/clock"
)

// Server is a running API.
type Server struct {
	opts  Options
	kinds []Kind
	store *store
	hooks *hookClients
	log   *slog.Logger

	http  *http.Server
	url   string
	ca    []byte
	done  chan struct{}
	close sync.Once

	mu       sync.Mutex
	requests map[string]int
}

// Start serves until Close.
func Start(o Options) (*Server, error) {
	o = o.withDefaults()
	listener, err := net.Listen("tcp", o.Addr) //nolint:noctx // opening a port waits for nothing
	if err != nil {
		return nil, fmt.Errorf("the in-memory API can't listen on %s, choose a free address: %w", o.Addr, err)
	}
	s := &Server{opts: o, kinds: mergeKinds(o.Kinds), log: o.Log, hooks: newHookClients(o.ServiceURL),
		url: "http://" + listener.Addr().String(), done: make(chan struct{}), requests: map[string]int{}}
	s.store = newStore(s.kinds, o.History)
	if err := s.createNamespaces(); err != nil {
		_ = listener.Close() // the reason is the other error
		return nil, err
	}
	if o.TLS {
		certificate, ca, err := loopbackCertificate(o.Clock.Now(), listener.Addr())
		if err != nil {
			_ = listener.Close() // the reason is the other error
			return nil, err
		}
		s.url, s.ca = "https://"+listener.Addr().String(), ca
		listener = tls.NewListener(listener, &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
			Certificates: []tls.Certificate{certificate}})
	}
	s.http = &http.Server{Handler: s, ReadHeaderTimeout: 30 * time.Second,
		ErrorLog: slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug)}
	go func() { _ = s.http.Serve(listener) }() // ends with ErrServerClosed at Close
	return s, nil
}

func (o Options) withDefaults() Options {
	if o.Addr == "" {
		o.Addr = "127.0.0.1:0"
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.History <= 0 {
		o.History = 100_000
	}
	if o.BookmarkEvery <= 0 {
		o.BookmarkEvery = time.Minute
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Intercept == nil {
		o.Intercept = func(Request) Fault { return Fault{} }
	}
	return o
}

func (s *Server) createNamespaces() error {
	t := s.tableOf("", "namespaces")
	names := append([]string{"default", "kube-system", "kube-public", "kube-node-lease"}, s.opts.Namespaces...)
	for _, name := range names {
		obj := map[string]any{"apiVersion": "v1", "kind": "Namespace", "metadata": map[string]any{"name": name}}
		setDefaults(t.kind, obj)
		if _, err := s.create(t, obj, "", false); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

// Close ends all watches, cuts all connections and stops serving. It may be called twice.
func (s *Server) Close() {
	s.close.Do(func() {
		close(s.done)
		_ = s.http.Close() // nothing can be done about a listener that doesn't close
		s.hooks.close()
	})
}

// URL is the base address, http or https.
func (s *Server) URL() string { return s.url }

// Config returns a client configuration of an administrator, without rate limit, JSON only.
func (s *Server) Config() *rest.Config {
	return &rest.Config{
		Host: s.url, QPS: -1, TLSClientConfig: rest.TLSClientConfig{CAData: s.ca},
		ContentConfig: rest.ContentConfig{ContentType: "application/json", AcceptContentTypes: "application/json"},
	}
}

// Kubeconfig returns the same access as the content of a kubeconfig file, for programs in processes of their own.
func (s *Server) Kubeconfig() ([]byte, error) {
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["memkube"] = &clientcmdapi.Cluster{Server: s.url, CertificateAuthorityData: s.ca}
	cfg.AuthInfos["admin"] = &clientcmdapi.AuthInfo{}
	cfg.Contexts["memkube"] = &clientcmdapi.Context{Cluster: "memkube", AuthInfo: "admin"}
	cfg.CurrentContext = "memkube"
	raw, err := clientcmd.Write(*cfg)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig of the in-memory API can't be written, use Config instead: %w", err)
	}
	return raw, nil
}

// Requests counts requests for resources since the start or the last ResetRequests, by "verb resource" or
// "verb resource/subresource", those that failed included.
func (s *Server) Requests() map[string]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.requests)
}

// ResetRequests starts counting afresh.
func (s *Server) ResetRequests() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.requests)
}

// PauseWatch holds back the events of a resource ("pods", or "events.events.k8s.io" with its group) on all its watches
// until the returned function is called. Initial events of new watches are not held.
func (s *Server) PauseWatch(resource string) (resume func()) {
	gate := make(chan struct{})
	s.eachTable(resource, func(t *table) {
		if t.gate == nil {
			t.gate = gate
			t.broadcast()
		}
	})
	return sync.OnceFunc(func() {
		s.eachTable(resource, func(t *table) {
			if t.gate == gate {
				t.gate = nil
			}
		})
		close(gate)
	})
}

// ExpireWatches ends all watches of a resource with 410 and forgets its events, as a compaction does: clients list again.
func (s *Server) ExpireWatches(resource string) {
	s.eachTable(resource, func(t *table) {
		s.store.rv++
		t.floor, t.events = s.store.rv, nil
		t.epoch++
		t.broadcast()
	})
}

// BreakWatches cuts all watches of a resource without a word, as a lost connection does: clients watch again from where
// they were.
func (s *Server) BreakWatches(resource string) {
	s.eachTable(resource, func(t *table) {
		t.epoch++
		t.broadcast()
	})
}

func (s *Server) eachTable(resource string, do func(*table)) {
	resource, group, qualified := strings.Cut(resource, ".")
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, t := range s.store.tables {
		if t.kind.Resource == resource && (!qualified || t.kind.Group == group) {
			do(t)
		}
	}
}

// tableOf returns the table of a resource in any version.
func (s *Server) tableOf(group, resource string) *table {
	for _, k := range s.kinds {
		if k.Group == group && k.Resource == resource {
			return s.store.tables[k.gvr()]
		}
	}
	return nil
}

// pause waits for a duration; false when the request or the server ended first.
func (s *Server) pause(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return true
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
	case <-s.done:
	}
	return false
}

// hold waits for a channel; false when the request or the server ended first.
func (s *Server) hold(ctx context.Context, gate <-chan struct{}) bool {
	if gate == nil {
		return true
	}
	select {
	case <-gate:
		return true
	case <-ctx.Done():
	case <-s.done:
	}
	return false
}
