package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// makeCredentials writes the authority, the API server's certificate, the service accounts' key, the tokens and a
// kubeconfig for each user.
func (c *Cluster) makeCredentials() error {
	dir := c.pki("")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the directory of keys: %w", err)
	}
	ca, caKey, err := c.authority()
	if err != nil {
		return err
	}
	if err := c.servingCertificate(ca, caKey); err != nil {
		return err
	}
	if _, err := c.newKey("sa.key"); err != nil {
		return err
	}
	users := map[string]string{"admin": c.Kubeconfig()}
	for _, u := range []string{"system:kube-controller-manager", "system:kube-scheduler"} {
		users[u] = c.componentKubeconfig(u)
	}
	for _, n := range c.NodeNames() {
		users["system:node:"+n] = c.nodeKubeconfig(n)
	}
	var tokens strings.Builder
	for user, file := range users {
		token := make([]byte, 16)
		if _, err := rand.Read(token); err != nil {
			return fmt.Errorf("draw a token: %w", err)
		}
		text := hex.EncodeToString(token)
		fmt.Fprintf(&tokens, "%s,%s,%s,\"system:masters\"\n", text, user, user)
		if err := c.writeKubeconfig(file, user, text); err != nil {
			return err
		}
	}
	return write(c.pki("tokens.csv"), []byte(tokens.String()))
}

func (c *Cluster) pki(name string) string { return filepath.Join(c.Dir, "pki", name) }

func (c *Cluster) componentKubeconfig(user string) string {
	return c.pki(strings.TrimPrefix(user, "system:") + ".kubeconfig")
}

func (c *Cluster) authority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	key, err := c.newKey("ca.key")
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: c.Name + "-ca"}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	cert, err := c.sign("ca.crt", template, nil, key, key)
	return cert, key, err
}

func (c *Cluster) servingCertificate(ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	key, err := c.newKey("apiserver.key")
	if err != nil {
		return err
	}
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kube-apiserver"},
		DNSNames:    []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
		IPAddresses: []net.IP{net.ParseIP(c.hostIP()), net.ParseIP("127.0.0.1"), net.ParseIP(c.serviceIP())},
		KeyUsage:    x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	_, err = c.sign("apiserver.crt", template, ca, key, caKey)
	return err
}

// sign completes a certificate and writes it; without a parent it signs itself.
func (c *Cluster) sign(file string, t, parent *x509.Certificate, key, signer *ecdsa.PrivateKey) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("draw a serial number: %w", err)
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial, time.Now().Add(-time.Hour), time.Now().AddDate(1, 0, 0)
	if parent == nil {
		parent = t
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, key.Public(), signer)
	if err != nil {
		return nil, fmt.Errorf("sign %s: %w", file, err)
	}
	if err := write(c.pki(file), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func (c *Cluster) newKey(file string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return key, write(c.pki(file), pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}))
}

func (c *Cluster) writeKubeconfig(file, user, token string) error {
	ca, err := os.ReadFile(c.pki("ca.crt"))
	if err != nil {
		return fmt.Errorf("read the authority's certificate: %w", err)
	}
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[c.Name] = &clientcmdapi.Cluster{Server: "https://" + c.at(6443), CertificateAuthorityData: ca}
	cfg.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token}
	cfg.Contexts[c.Name] = &clientcmdapi.Context{Cluster: c.Name, AuthInfo: user}
	cfg.CurrentContext = c.Name
	if err := clientcmd.WriteToFile(*cfg, file); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", file, err)
	}
	return nil
}

// write writes a file that only its owner reads, and its directory.
func write(file string, text []byte) error {
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make the directory of %s: %w", file, err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return fmt.Errorf("write %s, is the disk full: %w", file, err)
	}
	return nil
}
