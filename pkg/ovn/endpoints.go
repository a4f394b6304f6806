package ovn

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
)

const (
	schemeTCP  = "tcp"
	schemeSSL  = "ssl"
	schemeUnix = "unix"
)

// ParseEndpoints reads a comma-separated list of OVSDB remotes: tcp:host:port, ssl:host:port and unix:/path. A host may
// stand in brackets, whatever its family, as Kube-OVN writes them.
func ParseEndpoints(s string) ([]string, error) {
	var endpoints []string
	for field := range strings.SplitSeq(s, ",") {
		field = strings.TrimSpace(field)
		if field == "" {
			continue
		}
		e, err := parseEndpoint(field)
		if err != nil {
			return nil, fmt.Errorf("northbound endpoint %q: %w", field, err)
		}
		endpoints = append(endpoints, e)
	}
	if len(endpoints) == 0 {
		return nil, errors.New("no northbound endpoint: give at least one, such as tcp:[10.0.0.1]:6641 or unix:/run/ovn/ovnnb_db.sock")
	}
	return endpoints, nil
}

func parseEndpoint(s string) (string, error) {
	scheme, rest, found := strings.Cut(s, ":")
	if !found {
		return "", errors.New("no scheme: tcp:, ssl: or unix: must stand before the address")
	}
	switch scheme {
	case schemeUnix:
		if !strings.HasPrefix(rest, "/") {
			return "", errors.New("the socket's path after unix: is not absolute")
		}
		return s, nil
	case schemeTCP, schemeSSL:
		host, port, err := net.SplitHostPort(rest)
		if err != nil {
			return "", fmt.Errorf("give host:port after %s: %w", scheme, err)
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("port %q is not between 1 and 65535", port)
		}
		if host == "" {
			return "", errors.New("the host is empty")
		}
		return scheme + ":" + net.JoinHostPort(host, port), nil
	}
	return "", fmt.Errorf("unknown scheme %q: use tcp, ssl or unix", scheme)
}

// tlsConfig reads the files anew, so that a rotated certificate is used from the next connection on.
func (c Config) tlsConfig() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(c.Cert, c.Key)
	if err != nil {
		return nil, fmt.Errorf("load the northbound client certificate: %w", err)
	}
	pem, err := os.ReadFile(c.CACert)
	if err != nil {
		return nil, fmt.Errorf("load the northbound CA certificate: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load the northbound CA certificate: no certificate in %s", c.CACert)
	}
	return &tls.Config{
		Certificates: []tls.Certificate{cert},
		MinVersion:   tls.VersionTLS12,
		// OVN's certificates carry no host names, and OVN's own programs check the chain alone: so does this.
		InsecureSkipVerify: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			return verifyChain(state, roots)
		},
	}, nil
}

func verifyChain(state tls.ConnectionState, roots *x509.CertPool) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("the northbound server sent no certificate")
	}
	opts := x509.VerifyOptions{Roots: roots, Intermediates: x509.NewCertPool(), KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}
	for _, c := range state.PeerCertificates[1:] {
		opts.Intermediates.AddCert(c)
	}
	if _, err := state.PeerCertificates[0].Verify(opts); err != nil {
		return fmt.Errorf("verify the northbound server's certificate: %w", err)
	}
	return nil
}
