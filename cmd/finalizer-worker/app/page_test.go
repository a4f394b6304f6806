package app

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/memkube"
	"github.com/berth-net/berth/internal/memnb"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// reviews answers reviews as an API server does: "viewer" may look, "known" is known, others aren't. The rest goes on.
type reviews struct{ http.RoundTripper }

// RoundTrip answers a request.
func (r reviews) RoundTrip(req *http.Request) (*http.Response, error) {
	var answer any
	switch {
	case strings.HasSuffix(req.URL.Path, "/tokenreviews"):
		var x authenticationv1.TokenReview
		if err := json.NewDecoder(req.Body).Decode(&x); err != nil {
			return nil, err
		}
		x.Status.User.Username, x.Status.Authenticated = x.Spec.Token, x.Spec.Token == "viewer" || x.Spec.Token == "known"
		answer = x
	case strings.HasSuffix(req.URL.Path, "/subjectaccessreviews"):
		var x authorizationv1.SubjectAccessReview
		if err := json.NewDecoder(req.Body).Decode(&x); err != nil {
			return nil, err
		}
		x.Status.Allowed = x.Spec.User == "viewer" && x.Spec.NonResourceAttributes.Path == "/berth"
		answer = x
	default:
		return r.RoundTripper.RoundTrip(req)
	}
	raw, err := json.Marshal(answer)
	return &http.Response{StatusCode: http.StatusCreated, Request: req, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(raw))}, err
}

// listen gives a port of the loopback.
func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// runWithPage runs the program over an API server and a database in memory, and gives the page's address.
func runWithPage(t *testing.T, objects ...client.Object) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "page") // a socket's path must be short
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(dir)) })
	nb, err := memnb.Start(t.Context(), memnb.Options{Socket: filepath.Join(dir, "nb.sock")})
	must(t, err)
	t.Cleanup(func() { must(t, nb.Close()) })
	kube, err := memkube.Start(memkube.Options{Namespaces: []string{"berth-system", "shop"}})
	must(t, err)
	t.Cleanup(kube.Close)
	must(t, catalog.AddToScheme(scheme.Scheme))
	c, err := client.New(kube.Config(), client.Options{Scheme: scheme.Scheme})
	must(t, err)
	for _, o := range objects {
		must(t, c.Create(t.Context(), o))
	}
	o := DefaultOptions()
	o.Config, o.Namespace, o.OVN.Addr, o.LeaderElect = kube.Config(), "berth-system", nb.Endpoint(), false
	o.Config.WrapTransport = func(rt http.RoundTripper) http.RoundTripper { return reviews{rt} }
	o.Serve.MetricsAddr, o.Serve.LogLevel, o.Page.Addr = "0", "error", "127.0.0.1:0"
	o.OpsListener, o.PageListener = listen(t), listen(t)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	t.Cleanup(func() {
		stop()
		must(t, <-ended)
	})
	return fmt.Sprintf("http://%s/berth/", o.PageListener.Addr())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// ask gives an answer of the page.
func ask(t *testing.T, url, token string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	must(t, err)
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	must(t, err)
	defer func() { _ = answer.Body.Close() }()
	raw, err := io.ReadAll(answer.Body)
	must(t, err)
	return answer.StatusCode, string(raw)
}

// The program serves the page from its own caches: who may look sees the subnets and who waits, nobody else does.
func TestPageOfWorker(t *testing.T) {
	served := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "served", Labels: map[string]string{network.LabelInject: network.InjectEnabled}}}
	subnet := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "tiny"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.17.0.0/29", Vpc: "ovn-cluster"}}
	quota := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "served", Name: "quota"}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Name: "main", Image: "x"}}, SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/quota"}}}}
	url := runWithPage(t, served, subnet, quota)
	code, body := 0, ""
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(20 * time.Millisecond) { // until the caches are filled
		if code, body = ask(t, url+"api/subnets", "viewer"); code == http.StatusOK {
			break
		}
		if code != http.StatusServiceUnavailable {
			t.Fatalf("%d %s", code, body)
		}
	}
	if code != http.StatusOK || !strings.Contains(body, `"cidr": "10.17.0.0/29"`) || !strings.Contains(body, `"size": 5`) {
		t.Errorf("%d %s", code, body)
	}
	if code, body = ask(t, url+"api/waiting", "viewer"); code != http.StatusOK || !strings.Contains(body, "whoever set its scheduling gate example.com/quota") {
		t.Errorf("%d %s", code, body)
	}
	if code, body = ask(t, url+"api/state", "viewer"); code != http.StatusOK || !strings.Contains(body, `"alive":true`) {
		t.Errorf("%d %s", code, body)
	}
	for token, want := range map[string]int{"known": http.StatusForbidden, "stranger": http.StatusUnauthorized, "": http.StatusUnauthorized} {
		if code, body = ask(t, url+"api/subnets", token); code != want || strings.Contains(body, "10.17") {
			t.Errorf("%q: %d %s", token, code, body)
		}
	}
	if code, body = ask(t, url, ""); code != http.StatusOK || !strings.Contains(body, "<title>Berth") {
		t.Errorf("%d %s", code, body)
	}
}
