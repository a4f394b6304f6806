package faults

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
)

// slow is for how long a request is held under APISlow.
const slow = 5 * time.Second

// Proxy stands between Berth's programs and the API server, and does to their requests what it is told.
//
// Invariant: a request without a fault is passed on as it came, and its answer as it came back.
type Proxy struct {
	listener net.Listener
	server   *http.Server
	// where gives the API server and its keys, once the cluster has them.
	where func() (*upstream, error)

	mu      sync.Mutex
	random  *rand.Rand
	active  map[Kind]chan struct{} // closed when the fault ends
	hits    map[Kind]int
	watches map[*watching]bool
}

// watching is one open watch.
type watching struct{ cut context.CancelFunc }

// upstream is the API server, and what the proxy needs to look like it.
type upstream struct {
	handler http.Handler
	serving tls.Certificate
}

// Shares, of 100, of the requests that meet their fault.
const (
	shareExpired = 60
	shareLost    = 50
	shareSlow    = 30
	shareRefused = 50
)

// NewProxy listens on all addresses. dir is that of the cluster, which may be made later.
func NewProxy(ctx context.Context, dir string, seed uint64) (*Proxy, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", ":0")
	if err != nil {
		return nil, fmt.Errorf("listen for what goes to the API server: %w", err)
	}
	p := newProxy(seed)
	p.listener = l
	p.where = sync.OnceValues(func() (*upstream, error) { return p.find(dir) })
	p.server = &http.Server{Handler: p, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			u, err := p.where()
			if err != nil {
				return nil, err
			}
			return &u.serving, nil
		}}}
	go func() { _ = p.server.ServeTLS(l, "", "") }()
	return p, nil
}

func newProxy(seed uint64) *Proxy {
	return &Proxy{random: rand.New(rand.NewPCG(seed, 2)), active: map[Kind]chan struct{}{}, hits: map[Kind]int{}, watches: map[*watching]bool{}}
}

// Port is where it listens.
func (p *Proxy) Port() string {
	_, port, _ := net.SplitHostPort(p.listener.Addr().String())
	return port
}

// Close ends it, and all that goes through it.
func (p *Proxy) Close() error { return p.server.Close() }

// find reads where the cluster's API server is, and its certificate.
func (p *Proxy) find(dir string) (*upstream, error) {
	config, err := clientcmd.BuildConfigFromFlags("", filepath.Join(dir, "admin.kubeconfig"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's kubeconfig: %w", err)
	}
	target, err := url.Parse(config.Host)
	if err != nil {
		return nil, fmt.Errorf("address of the API server: %w", err)
	}
	pki := filepath.Join(dir, "pki")
	serving, err := tls.LoadX509KeyPair(filepath.Join(pki, "apiserver.crt"), filepath.Join(pki, "apiserver.key"))
	if err != nil {
		return nil, fmt.Errorf("read the API server's certificate: %w", err)
	}
	authority, err := os.ReadFile(filepath.Join(pki, "ca.crt"))
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority)
	transport := &http.Transport{ForceAttemptHTTP2: true, TLSClientConfig: &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		HTTP2: &http.HTTP2Config{SendPingTimeout: 15 * time.Second, PingTimeout: 15 * time.Second}}
	return &upstream{handler: passOn(target, transport), serving: serving}, nil
}

// passOn gives a handler that passes requests on. Where no answer comes, the connection breaks, as it would without it.
func passOn(target *url.URL, transport http.RoundTripper) http.Handler {
	return &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     transport,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
	}
}

// Begin begins a fault, and the returned function ends it. Faults of one kind are begun one after the other.
func (p *Proxy) Begin(k Kind) (end func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	over := make(chan struct{})
	p.active[k] = over
	if k == WatchCut || k == WatchExpired {
		for w := range p.watches {
			p.hits[k]++
			w.cut()
		}
	}
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.active, k)
		close(over)
	})
}

// Hits is how many requests have met each kind of fault.
func (p *Proxy) Hits(k Kind) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.hits[k]
}

// meets tells whether a request meets a fault now, by its share, and gives the fault's end.
func (p *Proxy) meets(k Kind, share int) (over <-chan struct{}, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	end, on := p.active[k]
	if !on || p.random.IntN(100) >= share {
		return nil, false
	}
	p.hits[k]++
	return end, true
}

// ServeHTTP serves one request.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	u, err := p.where()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if _, hit := p.meets(APIRefuses, shareRefused); hit {
		refuse(w, http.StatusServiceUnavailable, metav1.StatusReasonServiceUnavailable)
		return
	}
	if over, hit := p.meets(APISlow, shareSlow); hit && !hold(r.Context(), over) {
		panic(http.ErrAbortHandler)
	}
	switch {
	case isWatch(r):
		p.watch(u, w, r)
	case isWrite(r):
		u.handler.ServeHTTP(&answer{ResponseWriter: w, proxy: p}, r)
	default:
		u.handler.ServeHTTP(w, r)
	}
}

// hold waits until a request was held long enough, or the fault is over; false: the caller has left.
func hold(ctx context.Context, over <-chan struct{}) bool {
	timer := time.NewTimer(slow)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-over:
	case <-ctx.Done():
		return false
	}
	return true
}

func isWatch(r *http.Request) bool {
	yes, err := strconv.ParseBool(r.URL.Query().Get("watch"))
	return err == nil && yes && r.Method == http.MethodGet
}

func isWrite(r *http.Request) bool {
	switch r.Method {
	case http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete:
		return true
	}
	return false
}

// refuse answers as the API server does when it can't serve.
func refuse(w http.ResponseWriter, code int, reason metav1.StatusReason) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"},
		Status: metav1.StatusFailure, Code: int32(code), Reason: reason, Message: "a fault was injected"})
}

// watch serves a watch.
func (p *Proxy) watch(u *upstream, w http.ResponseWriter, r *http.Request) {
	if _, hit := p.meets(WatchCut, 100); hit {
		panic(http.ErrAbortHandler)
	}
	if _, hit := p.meets(WatchExpired, shareExpired); hit {
		refuse(w, http.StatusGone, metav1.StatusReasonExpired)
		return
	}
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	mine := &watching{cut: cancel}
	p.mu.Lock()
	p.watches[mine] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.watches, mine)
		p.mu.Unlock()
	}()
	u.handler.ServeHTTP(&events{ResponseWriter: w, proxy: p, life: ctx}, r.WithContext(ctx))
}

// events is the answer to a watch.
type events struct {
	http.ResponseWriter
	proxy *Proxy
	life  context.Context //nolint:containedctx // a writer's methods take none
}

// Unwrap lets the answer be flushed.
func (e *events) Unwrap() http.ResponseWriter { return e.ResponseWriter }

// Write passes events on, once watches are not stalled any more.
func (e *events) Write(b []byte) (int, error) {
	if over, stalled := e.proxy.meets(WatchStalled, 100); stalled {
		select {
		case <-over:
		case <-e.life.Done():
			return 0, e.life.Err()
		}
	}
	return e.ResponseWriter.Write(b)
}

// errLost is written into nothing: the connection is broken by then.
var errLost = errors.New("the answer was lost")

// answer is the answer to a write.
type answer struct {
	http.ResponseWriter
	proxy *Proxy
	lost  bool
}

// Unwrap lets the answer be flushed.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader loses the answer to a write that was stored.
func (a *answer) WriteHeader(code int) {
	if code >= 200 && code < 300 && !a.lost {
		if _, a.lost = a.proxy.meets(AnswerLost, shareLost); a.lost {
			panic(http.ErrAbortHandler)
		}
	}
	a.ResponseWriter.WriteHeader(code)
}

// Write writes what was not lost.
func (a *answer) Write(b []byte) (int, error) {
	if a.lost {
		return 0, errLost
	}
	return a.ResponseWriter.Write(b)
}
