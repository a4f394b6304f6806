package serve

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/spf13/pflag"
)

// ErrStranger is why a client's handshake fails whose certificate is a good one, of somebody else.
var ErrStranger = errors.New("the client's certificate names nobody who is allowed")

// Clients says who may call. The zero value lets everybody.
type Clients struct {
	// CAFile holds the authorities of the clients' certificates, in PEM; empty: no certificate is asked for. It is read
	// at each handshake, so a new one counts at once.
	CAFile string
	// Names are those allowed, as common name or DNS name; empty: all whom the authorities vouch for.
	Names []string
}

// Register adds the flags, with the present values as defaults.
func (c *Clients) Register(fs *pflag.FlagSet) {
	fs.StringVar(&c.CAFile, "client-ca-file", c.CAFile, "authorities of clients' certificates; empty asks for none. The API server presents what its --admission-control-config-file says")
	fs.StringSliceVar(&c.Names, "client-name", c.Names, "common or DNS names of clients that may call; empty allows all that --client-ca-file vouches for")
}

// Validate tells what is wrong with the files.
func (c Clients) Validate() error {
	if c.CAFile == "" {
		if len(c.Names) > 0 {
			return errors.New("--client-name needs --client-ca-file")
		}
		return nil
	}
	_, err := c.pool()
	return err
}

func (c Clients) pool() (*x509.CertPool, error) {
	raw, err := os.ReadFile(c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("authorities of clients, check --client-ca-file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(raw) {
		return nil, fmt.Errorf("authorities of clients: %s has no certificate in PEM", c.CAFile)
	}
	return pool, nil
}

// apply makes conf ask for certificates.
func (c Clients) apply(conf *tls.Config) *tls.Config {
	if c.CAFile == "" {
		return conf
	}
	base := conf.Clone()
	conf.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		pool, err := c.pool()
		if err != nil {
			return nil, err
		}
		own := base.Clone()
		own.ClientAuth, own.ClientCAs = tls.RequireAndVerifyClientCert, pool
		own.VerifyConnection = func(s tls.ConnectionState) error { return c.check(s.PeerCertificates) }
		return own, nil
	}
	return conf
}

func (c Clients) check(chain []*x509.Certificate) error {
	if len(chain) == 0 {
		return ErrStranger
	}
	leaf := chain[0]
	if len(c.Names) == 0 || slices.Contains(c.Names, leaf.Subject.CommonName) ||
		slices.ContainsFunc(leaf.DNSNames, func(n string) bool { return slices.Contains(c.Names, n) }) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrStranger, leaf.Subject)
}
