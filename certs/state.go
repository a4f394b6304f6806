package certs

import (
	"crypto"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"slices"
	"time"

	cmapi "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	"github.com/cert-manager/cert-manager/pkg/util/pki"
)

// Keys of the Secret. The newest authority is where a TLS Secret has its certificate, the one before it beside; ca.crt
// is the bundle: every authority that may have signed a certificate which is still valid.
const (
	keyBundle       = "ca.crt"
	keyNewest       = "tls.crt"
	keyNewestKey    = "tls.key"
	keyPrevious     = "previous.crt"
	keyPreviousKey  = "previous.key"
	authorityName   = "berth-webhook-ca"
	backdate        = 5 * time.Minute // for clocks that run behind
	authorityCurve  = 384
	certificateBits = 256
)

// signer is an authority with its key.
type signer struct {
	cert *x509.Certificate
	key  crypto.Signer
}

// published is when the authority was made and put into the bundle.
func (s *signer) published() time.Time { return made(s.cert) }

// made is when a certificate was made. Its life counts from then: one that lives for a few minutes would be due at once
// otherwise.
func made(c *x509.Certificate) time.Time { return c.NotBefore.Add(backdate) }

// due is when two thirds of a certificate's life are over.
func due(c *x509.Certificate) time.Time {
	return made(c).Add(c.NotAfter.Sub(made(c)) * 2 / 3)
}

// last is when eleven twelfths are over: a certificate is then replaced by whatever authority there is.
func last(c *x509.Certificate) time.Time {
	return c.NotAfter.Add(-c.NotAfter.Sub(made(c)) / 12)
}

// state is the content of the Secret, parsed. Newest first.
type state struct {
	signers []*signer
	bundle  []*x509.Certificate
}

// parseState reads what is usable and names what is not; it never fails, because a broken Secret is repaired.
func parseState(data map[string][]byte) (state, []error) {
	var st state
	var broken []error
	for _, pair := range [][2]string{{keyNewest, keyNewestKey}, {keyPrevious, keyPreviousKey}} {
		if len(data[pair[0]]) == 0 && len(data[pair[1]]) == 0 {
			continue
		}
		s, err := parseSigner(data[pair[0]], data[pair[1]])
		if err != nil {
			broken = append(broken, fmt.Errorf("%s, %s: %w", pair[0], pair[1], err))
			continue
		}
		st.signers = append(st.signers, s)
	}
	if len(data[keyBundle]) > 0 {
		bundle, err := pki.DecodeX509CertificateSetBytes(data[keyBundle])
		if err != nil {
			broken = append(broken, fmt.Errorf("%s: %w", keyBundle, err))
		}
		st.bundle = bundle
	}
	slices.SortStableFunc(st.signers, func(a, b *signer) int { return b.cert.NotBefore.Compare(a.cert.NotBefore) })
	return st, broken
}

func parseSigner(certPEM, keyPEM []byte) (*signer, error) {
	cert, err := pki.DecodeX509CertificateBytes(certPEM)
	if err != nil {
		return nil, err
	}
	key, err := pki.DecodePrivateKeyBytes(keyPEM)
	if err != nil {
		return nil, err
	}
	if ok, err := pki.PublicKeyMatchesCertificate(key.Public(), cert); err != nil || !ok {
		return nil, fmt.Errorf("the key is not the certificate's (%w)", err)
	}
	if !cert.IsCA {
		return nil, fmt.Errorf("the certificate %q is no authority", cert.Subject.CommonName)
	}
	return &signer{cert: cert, key: key}, nil
}

// next is what the Secret should hold at a time: expired authorities are gone, and there is a new one when the newest
// has passed two thirds of its life or none is usable. The bundle holds every authority until it expires, and with it
// the last certificate that it can have signed.
func (st state) next(now time.Time, duration time.Duration) (state, error) {
	var out state
	for _, s := range st.signers {
		if now.Before(s.cert.NotAfter) {
			out.signers = append(out.signers, s)
		}
	}
	if len(out.signers) == 0 || !now.Before(due(out.signers[0].cert)) {
		s, err := newSigner(now, duration)
		if err != nil {
			return state{}, err
		}
		out.signers = append([]*signer{s}, out.signers...)
	}
	out.signers = out.signers[:min(2, len(out.signers))]
	add := func(c *x509.Certificate) {
		if now.Before(c.NotAfter) && !slices.ContainsFunc(out.bundle, c.Equal) {
			out.bundle = append(out.bundle, c)
		}
	}
	for _, s := range append(slices.Clone(out.signers), st.signers...) {
		add(s.cert)
	}
	for _, c := range st.bundle {
		if c.IsCA {
			add(c)
		}
	}
	slices.SortStableFunc(out.bundle, func(a, b *x509.Certificate) int { return b.NotBefore.Compare(a.NotBefore) })
	return out, nil
}

// encode writes the Secret's data.
func (st state) encode() (map[string][]byte, error) {
	data := map[string][]byte{}
	bundle, err := encodeAll(st.bundle)
	if err != nil {
		return nil, err
	}
	data[keyBundle] = bundle
	for i, keys := range [][2]string{{keyNewest, keyNewestKey}, {keyPrevious, keyPreviousKey}} {
		if i >= len(st.signers) {
			break
		}
		s := st.signers[i]
		if data[keys[0]], err = pki.EncodeX509(s.cert); err != nil {
			return nil, err
		}
		if data[keys[1]], err = pki.EncodePrivateKey(s.key, cmapi.PKCS8); err != nil {
			return nil, err
		}
	}
	return data, nil
}

func encodeAll(certs []*x509.Certificate) ([]byte, error) {
	var out []byte
	for _, c := range certs {
		pem, err := pki.EncodeX509(c)
		if err != nil {
			return nil, err
		}
		out = append(out, pem...)
	}
	return out, nil
}

// pick chooses who signs now: the newest authority that has been published for the propagation delay and that the webhook
// configuration is known to trust, else the oldest, which had the most time to arrive. One that is about to expire is left
// out then: what it signs ends with it, again and again.
func (st state) pick(now time.Time, propagation time.Duration, trusted func(*x509.Certificate) bool) *signer {
	for _, s := range st.signers {
		if !now.Before(s.published().Add(propagation)) && trusted(s.cert) {
			return s
		}
	}
	for _, s := range slices.Backward(st.signers) {
		if now.Before(last(s.cert)) {
			return s
		}
	}
	if len(st.signers) == 0 {
		return nil
	}
	return st.signers[0]
}

// newSigner makes an authority that can sign certificates but no further authorities.
func newSigner(now time.Time, duration time.Duration) (*signer, error) {
	key, err := pki.GenerateECPrivateKey(authorityCurve)
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: authorityName, SerialNumber: now.UTC().Format("20060102150405")},
		IsCA:    true, BasicConstraintsValid: true, MaxPathLenZero: true, PublicKeyAlgorithm: x509.ECDSA,
		NotBefore: now.Add(-backdate), NotAfter: now.Add(duration), KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	_, cert, err := pki.SignCertificate(template, template, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return &signer{cert: cert, key: key}, nil
}

// sign makes a serving certificate that doesn't outlive its authority.
func (s *signer) sign(now time.Time, duration time.Duration, names []string, ips []net.IP) (*x509.Certificate, crypto.Signer, error) {
	key, err := pki.GenerateECPrivateKey(certificateBits)
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "berth-webhook"}, DNSNames: names, IPAddresses: ips, BasicConstraintsValid: true,
		PublicKeyAlgorithm: x509.ECDSA, KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore: now.Add(-backdate), NotAfter: now.Add(duration),
	}
	if template.NotAfter.After(s.cert.NotAfter) {
		template.NotAfter = s.cert.NotAfter
	}
	_, leaf, err := pki.SignCertificate(template, s.cert, key.Public(), s.key)
	if err != nil {
		return nil, nil, err
	}
	return leaf, key, nil
}
