package serve

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// authority signs clients' certificates.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) authority {
	t.Helper()
	own, _ := certificate(t)
	cert, err := x509.ParseCertificate(own.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	return authority{cert, own.PrivateKey.(*ecdsa.PrivateKey)}
}

func (a authority) pem() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.cert.Raw})
}

func (a authority) sign(t *testing.T, name string, dns ...string) *tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: dns, NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func TestClients(t *testing.T) {
	ours, theirs := newAuthority(t), newAuthority(t)
	file := filepath.Join(t.TempDir(), "ca.crt")
	write := func(raw []byte) {
		t.Helper()
		if err := os.WriteFile(file, raw, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(ours.pem())
	apiServer := ours.sign(t, "kube-apiserver")
	for name, c := range map[string]struct {
		clients Clients
		present *tls.Certificate
		served  bool
	}{
		"nothing is asked for":  {Clients{}, nil, true},
		"no certificate":        {Clients{CAFile: file}, nil, false},
		"of another authority":  {Clients{CAFile: file}, theirs.sign(t, "kube-apiserver"), false},
		"vouched for":           {Clients{CAFile: file}, apiServer, true},
		"named":                 {Clients{CAFile: file, Names: []string{"x", "kube-apiserver"}}, apiServer, true},
		"named by its DNS name": {Clients{CAFile: file, Names: []string{"api.test"}}, ours.sign(t, "", "api.test"), true},
		"somebody else":         {Clients{CAFile: file, Names: []string{"kube-apiserver"}}, ours.sign(t, "kubelet", "node"), false},
	} {
		t.Run(name, func(t *testing.T) {
			if err := c.clients.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := call(t, c.clients, c.present); (got == nil) != c.served {
				t.Errorf("the answer is %v", got)
			}
		})
	}
	write(theirs.pem())
	if err := call(t, Clients{CAFile: file}, apiServer); err == nil {
		t.Error("the file's new authority does not count yet")
	}
	write([]byte("nothing"))
	if err := call(t, Clients{CAFile: file}, apiServer); err == nil {
		t.Error("served, although no authority is known")
	}
}

// call gives the error of a call by somebody who presents a certificate.
func call(t *testing.T, clients Clients, present *tls.Certificate) error {
	t.Helper()
	client, url, stop, ended := secure(t, HTTPSOptions{Clients: clients, Handler: http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})})
	if present != nil {
		client.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{*present}
	}
	_, err := get(t, client, url)
	client.CloseIdleConnections()
	stop()
	if ended := <-ended; ended != nil {
		t.Error(ended)
	}
	return err
}

func TestClientsValidate(t *testing.T) {
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]Clients{"no file": {CAFile: empty + "x"}, "no PEM": {CAFile: empty}, "names alone": {Names: []string{"a"}}} {
		if err := c.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
