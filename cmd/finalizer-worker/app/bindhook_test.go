package app

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
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/pkg/worker"
)

func TestBindHookFlags(t *testing.T) {
	for name, c := range map[string]struct {
		env  string
		args []string
		want string
	}{
		"off":                {"", []string{"--bind-hook-port=0"}, ""},
		"on":                 {"10.0.0.1", []string{"--bind-hook"}, ""},
		"IPv6":               {"", []string{"--bind-hook", "--bind-hook-address=fd00::1"}, ""},
		"no address":         {"", []string{"--bind-hook"}, "POD_IP"},
		"a name":             {"", []string{"--bind-hook", "--bind-hook-address=host"}, "host"},
		"no port":            {"10.0.0.1", []string{"--bind-hook", "--bind-hook-port=0"}, "--bind-hook-port 0"},
		"no time":            {"10.0.0.1", []string{"--bind-hook", "--bind-hook-limit=0s"}, "--bind-hook-limit=0s"},
		"too much time":      {"10.0.0.1", []string{"--bind-hook", "--bind-hook-limit=1s"}, "900ms"},
		"names of nobody":    {"10.0.0.1", []string{"--bind-hook", "--client-name=x"}, "--client-ca-file"},
		"bundle, not by us":  {"10.0.0.1", []string{"--webhook-configuration=x"}, "unknown flag"},
		"certificate by us":  {"10.0.0.1", []string{"--bind-hook", "--cert-secret=x", "--service-name=y"}, ""},
		"certificate's file": {"10.0.0.1", []string{"--bind-hook", "--cert-source=files", "--cert-dir=/x"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("POD_IP", c.env)
			o := DefaultOptions()
			fs := pflag.NewFlagSet("w", pflag.ContinueOnError)
			o.AddFlags(fs)
			err := errors.Join(fs.Parse(c.args), o.BindHook.validate(), o.Clients.Validate())
			if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}

// The program is found by the Service's EndpointSlice, under a certificate of the Service's name by the authority in the
// Secret, and answers.
func TestBindHookIsServed(t *testing.T) {
	dir, err := os.MkdirTemp("", "bind") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	nb, err := memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(dir, "nb.sock")})
	must(t, err)
	t.Cleanup(func() { must(t, nb.Close()) })
	kube, err := memkube.Start(memkube.Options{Namespaces: []string{"berth-system"}, Kinds: []memkube.Kind{
		{Group: "discovery.k8s.io", Version: "v1", Kind: "EndpointSlice", Resource: "endpointslices", Namespaced: true},
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingAdmissionPolicy", Resource: "validatingadmissionpolicies"},
	}})
	must(t, err)
	t.Cleanup(kube.Close)
	must(t, catalog.AddToScheme(scheme.Scheme))
	c, err := client.New(kube.Config(), client.Options{Scheme: scheme.Scheme})
	must(t, err)
	o := DefaultOptions()
	must(t, c.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: o.Certs.Namespace, Name: o.Certs.Service},
		Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "bind", Port: 443}}}}))
	free := listen(t) // its port will do: nobody else takes it at once
	must(t, free.Close())
	o.Config, o.Namespace, o.OVN.Addr, o.LeaderElect = kube.Config(), "berth-system", nb.Endpoint(), false
	o.Serve.MetricsAddr, o.Serve.LogLevel, o.OpsListener = "0", "error", listen(t)
	_, err = fmt.Sscanf(free.Addr().String(), "127.0.0.1:%d", &o.BindHook.Port)
	must(t, err)
	o.BindHook.On, o.BindHook.Address = true, "127.0.0.1"
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	var slice discoveryv1.EndpointSlice
	waitFor(t, "the EndpointSlice", func() error {
		if err := c.Get(t.Context(), client.ObjectKey{Namespace: o.Certs.Namespace, Name: o.Certs.Service + "-ipv4"}, &slice); err != nil {
			return err
		}
		if len(slice.Endpoints) != 1 {
			return errors.New("nobody is in it")
		}
		return nil
	})
	url := fmt.Sprintf("https://%s:%d", slice.Endpoints[0].Addresses[0], *slice.Ports[0].Port)
	waitFor(t, "an answer", func() error { return askAsAPIServer(t, c, o, url) })
	stop()
	must(t, <-ended)
	must(t, c.Get(t.Context(), client.ObjectKeyFromObject(&slice), &slice))
	if len(slice.Endpoints) != 0 {
		t.Errorf("it stays in the EndpointSlice: %v", slice.Endpoints)
	}
}

func waitFor(t *testing.T, what string, ok func() error) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: %v", what, err)
		}
	}
}

// askAsAPIServer asks about a Binding, and trusts whom the authority in the Secret vouches for as the Service.
func askAsAPIServer(t *testing.T, c client.Client, o Options, url string) error {
	var secret corev1.Secret
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: o.Certs.Namespace, Name: o.Certs.Secret}, &secret); err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(secret.Data["ca.crt"]) {
		return errors.New("the Secret has no authority")
	}
	caller := &http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: o.Certs.Service + "." + o.Certs.Namespace + ".svc"}}}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: "u"}})
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+worker.PathBind, bytes.NewReader(body))
	if err != nil {
		return err
	}
	answer, err := caller.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(string(raw), `"allowed":true`) {
		return fmt.Errorf("%s %s %w", answer.Status, raw, err)
	}
	return nil
}
