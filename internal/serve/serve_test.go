package serve

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
)

func TestChecks(t *testing.T) {
	ok := func() error { return nil }
	bad := func() error { return errors.New("no ledger:\n read it") }
	cases := map[string]struct {
		checks map[string]Check
		query  string
		code   int
		body   string
	}{
		"empty":    {code: 200, body: "ok"},
		"healthy":  {checks: map[string]Check{"a": ok}, code: 200, body: "ok"},
		"verbose":  {checks: map[string]Check{"b": ok, "a": ok}, query: "?verbose", code: 200, body: "[+]a ok\n[+]b ok\nok\n"},
		"failing":  {checks: map[string]Check{"a": ok, "b": bad}, code: 503, body: "[+]a ok\n[-]b failed: no ledger: read it\n1 check(s) failed\n"},
		"excluded": {checks: map[string]Check{"a": ok, "b": bad}, query: "?exclude=b", code: 200, body: "ok"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			var checks Checks
			for n, f := range c.checks {
				checks.Add(n, f)
			}
			w := httptest.NewRecorder()
			checks.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/readyz"+c.query, nil))
			if diff := cmp.Diff(fmt.Sprint(c.code, " ", c.body), fmt.Sprint(w.Code, " ", w.Body.String())); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if c.query == "" && (checks.Err() == nil) != (c.code == 200) {
				t.Errorf("Err is %v", checks.Err())
			}
		})
	}
}

func TestFlags(t *testing.T) {
	f := DefaultFlags()
	fs := pflag.NewFlagSet("test", pflag.ContinueOnError)
	f.Register(fs)
	if err := fs.Parse([]string{"--metrics-bind-address=0", "--kube-api-qps=5", "--log-level=debug", "--drain-delay=1s"}); err != nil {
		t.Fatal(err)
	}
	want := DefaultFlags()
	want.MetricsAddr, want.QPS, want.LogLevel, want.DrainDelay = "0", 5, "debug", time.Second
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestRESTConfig(t *testing.T) {
	dir := t.TempDir()
	file := func(name, host string) string {
		path := filepath.Join(dir, name)
		content := "apiVersion: v1\nkind: Config\nclusters:\n- name: c\n  cluster: {server: " + host + "}\ncontexts:\n- name: c\n  context: {cluster: c}\ncurrent-context: c\n"
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	flag, env := file("flag", "http://flag"), file("env", "http://env")
	cases := map[string]struct {
		flag, env, host string
		fails           bool
	}{
		"flag wins":        {flag: flag, env: env, host: "http://flag"},
		"then environment": {env: env, host: "http://env"},
		"list of files":    {env: filepath.Join(dir, "none") + string(os.PathListSeparator) + env, host: "http://env"},
		"no such file":     {flag: filepath.Join(dir, "none"), fails: true},
		"outside of a pod": {fails: true},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			t.Setenv("KUBECONFIG", c.env)
			t.Setenv("KUBERNETES_SERVICE_HOST", "")
			f := DefaultFlags()
			f.Kubeconfig = c.flag
			cfg, err := f.RESTConfig("berth-test")
			if (err != nil) != c.fails {
				t.Fatal(err)
			}
			if err == nil {
				if diff := cmp.Diff([]any{c.host, float32(1000), 2000, "berth-test"}, []any{cfg.Host, cfg.QPS, cfg.Burst, cfg.UserAgent}); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
}

func TestLogger(t *testing.T) {
	cases := map[string]struct {
		level, format, want string
		fails               bool
	}{
		"json info":    {level: "info", format: "json", want: `"msg":"zero"`},
		"text debug":   {level: "debug", format: "text", want: "msg=four"},
		"number":       {level: "-4", format: "text", want: "msg=four"},
		"error only":   {level: "error", format: "text", want: ""},
		"wrong level":  {level: "loud", format: "json", fails: true},
		"wrong format": {level: "info", format: "xml", fails: true},
	}
	for name, c := range cases {
		var out bytes.Buffer
		log, err := NewLogger(&out, c.level, c.format)
		if (err != nil) != c.fails {
			t.Errorf("%s: %v", name, err)
			continue
		}
		log.Info("zero")
		log.V(4).Info("four")
		log.V(5).Info("five")
		if got := out.String(); !strings.Contains(got, c.want) || c.want == "" && got != "" || strings.Contains(got, "five") {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func localListener(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// answer is what a GET brought. last tells that the server ends the connection after it.
type answer struct {
	code int
	body string
	last bool
}

func get(t *testing.T, c *http.Client, url string) (answer, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{code: resp.StatusCode, body: string(body), last: resp.Close}, err
}

func TestOps(t *testing.T) {
	reg := prometheus.NewRegistry()
	if err := RegisterBuildInfo(reg, "webhook", Build{Version: "v1", Revision: "abc", GoVersion: "go1"}); err != nil {
		t.Fatal(err)
	}
	if err := RegisterBuildInfo(reg, "webhook", Build{Version: "v1", Revision: "abc", GoVersion: "go1"}); err == nil {
		t.Error("registered twice")
	}
	var ready Checks
	ready.Add("ledger", func() error { return errors.New("loading") })
	health, metrics := localListener(t), localListener(t)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- Ops(ctx, OpsOptions{HealthListener: health, MetricsListener: metrics, Gatherer: reg, Ready: &ready})
	}()
	cases := map[string]struct {
		url, body string
		code      int
	}{
		"live":    {"http://" + health.Addr().String() + "/healthz", "ok", 200},
		"ready":   {"http://" + health.Addr().String() + "/readyz", "ledger failed: loading", 503},
		"metrics": {"http://" + metrics.Addr().String() + "/metrics", `berth_build_info{goversion="go1",program="webhook",revision="abc",version="v1"} 1`, 200},
	}
	for name, c := range cases {
		got, err := get(t, http.DefaultClient, c.url)
		if err != nil || got.code != c.code || !strings.Contains(got.body, c.body) {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	taken := localListener(t)
	defer func() { _ = taken.Close() }()
	if err := Ops(t.Context(), OpsOptions{HealthAddr: taken.Addr().String()}); err == nil {
		t.Error("listened on a taken address")
	}
	if b := BuildInfo(); b.GoVersion == "" || b.Version == "" {
		t.Errorf("build %+v", b)
	}
}

func certificate(t *testing.T) (tls.Certificate, *x509.CertPool) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, pool
}

// secure starts HTTPS and returns a client that would take HTTP/2, the address and the way to stop it.
func secure(t *testing.T, o HTTPSOptions) (client *http.Client, url string, stop context.CancelFunc, ended chan error) {
	t.Helper()
	cert, pool := certificate(t)
	o.Listener = localListener(t)
	o.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended = make(chan error, 1)
	url = "https://" + o.Listener.Addr().String()
	go func() { ended <- HTTPS(ctx, o) }()
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport}, url, cancel, ended
}

func TestHTTPSProtocol(t *testing.T) {
	client, url, stop, ended := secure(t, HTTPSOptions{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "%s %s", r.Proto, tls.VersionName(r.TLS.Version))
	})})
	got, err := get(t, client, url)
	if err != nil || got.body != "HTTP/1.1 TLS 1.3" || got.last {
		t.Errorf("%+v, %v", got, err)
	}
	old := client.Transport.(*http.Transport).Clone()
	old.TLSClientConfig.MaxVersion = tls.VersionTLS12
	if _, err := get(t, &http.Client{Transport: old}, url); err == nil {
		t.Error("TLS 1.2 was accepted")
	}
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := HTTPS(t.Context(), HTTPSOptions{}); !errors.Is(err, ErrNoCertificate) {
		t.Errorf("without certificate: %v", err)
	}
}

// While draining the server is not ready, still answers, closes each connection, and finishes what it accepted.
func TestDrain(t *testing.T) {
	var ready Checks
	arrived, release := make(chan struct{}, 10), make(chan struct{})
	client, url, stop, ended := secure(t, HTTPSOptions{Ready: &ready, DrainDelay: 300 * time.Millisecond, Grace: time.Minute,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				arrived <- struct{}{}
				<-release
			}
			fmt.Fprint(w, "done")
		})})
	slow := make(chan error, 1)
	go func() {
		got, err := get(t, client, url+"/slow")
		if got.body != "done" {
			err = errors.Join(err, fmt.Errorf("slow request got %q", got.body))
		}
		slow <- err
	}()
	<-arrived
	stop()
	for ready.Err() == nil {
		select {
		case err := <-ended:
			t.Fatalf("ended without drain: %v", err)
		default:
		}
	}
	if !errors.Is(ready.Err(), ErrDraining) {
		t.Errorf("readiness says %v", ready.Err())
	}
	got, err := get(t, client, url)
	if err != nil || got.body != "done" || !got.last {
		t.Errorf("during the drain: %+v, %v", got, err)
	}
	for err == nil { // until the listener is closed
		_, err = get(t, client, url)
	}
	select {
	case err := <-ended:
		t.Errorf("ended before the slow request: %v", err)
	default:
	}
	close(release)
	if err := errors.Join(<-slow, <-ended); err != nil {
		t.Error(err)
	}
}

func TestGraceEnds(t *testing.T) {
	arrived, release := make(chan struct{}), make(chan struct{})
	client, url, stop, ended := secure(t, HTTPSOptions{Grace: time.Millisecond,
		Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(arrived); <-release })})
	cut := make(chan error, 1)
	go func() { _, err := get(t, client, url); cut <- err }()
	<-arrived
	stop()
	if err := <-ended; !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("ended with %v", err)
	}
	close(release)
	if err := <-cut; err == nil {
		t.Error("the request outlived the grace")
	}
}
