package memkube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
)

// maxAnswer bounds what is read of a webhook's answer.
const maxAnswer = 7 << 20

// hookClients calls webhooks over HTTPS and HTTP/1.1, with pooled connections, as the API server does for Services.
type hookClients struct {
	services map[string]string

	mu      sync.Mutex
	clients map[string]*http.Client
}

func newHookClients(services map[string]string) *hookClients {
	return &hookClients{services: services, clients: map[string]*http.Client{}}
}

func (c *hookClients) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, client := range c.clients {
		client.CloseIdleConnections()
	}
}

// target returns the URL to call and the name to verify the certificate against (empty: the URL's host).
func (c *hookClients) target(cfg registration.WebhookClientConfig) (*url.URL, string, error) {
	if cfg.URL != nil {
		u, err := url.Parse(*cfg.URL)
		if err == nil && u.Scheme != "https" {
			err = errors.New("clientConfig.url must be https")
		}
		return u, "", err
	}
	if cfg.Service == nil {
		return nil, "", errors.New("clientConfig has neither url nor service")
	}
	key := cfg.Service.Namespace + "/" + cfg.Service.Name
	base, ok := c.services[key]
	if !ok {
		return nil, "", fmt.Errorf("service %q not found: name it in Options.ServiceURL", key)
	}
	u, err := url.Parse(base)
	if err != nil {
		return nil, "", err
	}
	if cfg.Service.Path != nil {
		u.Path = "/" + strings.TrimPrefix(*cfg.Service.Path, "/")
	}
	return u, cfg.Service.Name + "." + cfg.Service.Namespace + ".svc", nil
}

// client returns the client of one authority and server name; it is kept, and with it its connections.
func (c *hookClients) client(bundle []byte, serverName string) (*http.Client, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	key := serverName + "\n" + string(bundle)
	if client := c.clients[key]; client != nil {
		return client, nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: serverName}
	if len(bundle) > 0 {
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(bundle) {
			return nil, errors.New("caBundle holds no certificate: unable to load root certificates")
		}
	}
	client := &http.Client{
		Transport: &http.Transport{TLSClientConfig: cfg, MaxIdleConnsPerHost: 64, IdleConnTimeout: 90 * time.Second},
		CheckRedirect: func(*http.Request, []*http.Request) error {
			return http.ErrUseLastResponse
		},
	}
	c.clients[key] = client
	return client, nil
}

// post sends one review and reads the answer. Anything but a 2xx with a review in it is an error.
func (c *hookClients) post(ctx context.Context, cfg registration.WebhookClientConfig, timeout time.Duration,
	review *admissionv1.AdmissionReview) (*admissionv1.AdmissionReview, error) {
	target, serverName, err := c.target(cfg)
	if err != nil {
		return nil, err
	}
	client, err := c.client(cfg.CABundle, serverName)
	if err != nil {
		return nil, err
	}
	body, err := json.Marshal(review)
	if err != nil {
		return nil, err
	}
	q := target.Query()
	q.Set("timeout", timeoutParam(timeout))
	target.RawQuery = q.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, target.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", "kube-apiserver-admission")
	if serverName != "" {
		req.Host = serverName
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }() // read to the end or given up
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 200 || resp.StatusCode > 299 {
		return nil, fmt.Errorf("an error on the server (%q) has prevented the request from succeeding: %s", strings.TrimSpace(string(raw)), resp.Status)
	}
	var answer admissionv1.AdmissionReview
	if err := json.Unmarshal(raw, &answer); err != nil {
		return nil, fmt.Errorf("answer is no AdmissionReview: %w", err)
	}
	return &answer, nil
}
