package serve

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

func TestPageValidate(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		on   bool
		want string
	}{
		"off":                {[]string{"--web-bind-address=0"}, false, ""},
		"nothing said":       {nil, false, ""},
		"loopback":           {[]string{"--web-bind-address=127.0.0.1:8084"}, true, ""},
		"loopback of IPv6":   {[]string{"--web-bind-address=[::1]:8084"}, true, ""},
		"by its name":        {[]string{"--web-bind-address=localhost:8084"}, true, ""},
		"everywhere":         {[]string{"--web-bind-address=:8084"}, true, "in the clear"},
		"another address":    {[]string{"--web-bind-address=10.0.0.1:8084"}, true, "in the clear"},
		"no port":            {[]string{"--web-bind-address=127.0.0.1"}, true, "write it like"},
		"everywhere, in TLS": {[]string{"--web-bind-address=:8084", "--web-cert-dir=/certs"}, true, ""},
	} {
		t.Run(name, func(t *testing.T) {
			p := Page{Addr: "0"}
			fs := pflag.NewFlagSet("p", pflag.ContinueOnError)
			p.Register(fs)
			if err := fs.Parse(c.args); err != nil {
				t.Fatal(err)
			}
			err := p.Validate()
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if open := errors.Is(err, ErrOpenPage); open != (c.want == "in the clear") {
				t.Errorf("%v is ErrOpenPage: %v", err, open)
			}
			if p.On() != c.on {
				t.Errorf("on is %v", p.On())
			}
		})
	}
}

func TestRunPage(t *testing.T) {
	l := localListener(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "hello") })
	go func() { ended <- RunPage(ctx, PageOptions{Listener: l, Handler: handler}) }()
	if got, err := get(t, http.DefaultClient, "http://"+l.Addr().String()); err != nil || got.body != "hello" {
		t.Errorf("%+v, %v", got, err)
	}
	taken := localListener(t)
	err := RunPage(ctx, PageOptions{Page: Page{Addr: taken.Addr().String()}, Handler: handler})
	if err == nil || !strings.Contains(err.Error(), "--web-bind-address") {
		t.Errorf("on an address that is taken: %v", err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A page with a certificate speaks TLS 1.3.
func TestRunPageTLS(t *testing.T) {
	cert, pool := certificate(t)
	l := localListener(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, tls.VersionName(r.TLS.Version)) })
	go func() {
		ended <- RunPage(ctx, PageOptions{Listener: l, Handler: handler,
			GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &cert, nil }})
	}()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	got, err := get(t, client, "https://"+l.Addr().String())
	if err != nil || got.body != "TLS 1.3" {
		t.Errorf("%+v, %v", got, err)
	}
	client.CloseIdleConnections()
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
