package app

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/memkube"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func registration() *admissionregistrationv1.MutatingWebhookConfiguration {
	path, port := "/mutate", int32(443)
	none, fail := admissionregistrationv1.SideEffectClassNoneOnDryRun, admissionregistrationv1.Fail
	return &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "berth-webhook"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{Name: "pod.berth.dev", AdmissionReviewVersions: []string{"v1"}, SideEffects: &none, FailurePolicy: &fail,
			ClientConfig: admissionregistrationv1.WebhookClientConfig{Service: &admissionregistrationv1.ServiceReference{Namespace: "berth-system", Name: "berth-webhook", Path: &path, Port: &port}},
			Rules: []admissionregistrationv1.RuleWithOperations{{Operations: []admissionregistrationv1.OperationType{"CREATE"},
				Rule: admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}}}}}
}

// start runs the program against an API in memory until it is ready.
func start(t *testing.T) (kube kubernetes.Interface, ops string, stop func() error) {
	t.Helper()
	admissionListener, opsListener := listen(t), listen(t)
	api, err := memkube.Start(memkube.Options{Namespaces: []string{"berth-system"},
		ServiceURL: map[string]string{"berth-system/berth-webhook": "https://" + admissionListener.Addr().String()}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(api.Close)
	kube = kubernetes.NewForConfigOrDie(api.Config())
	if _, err := kube.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), registration(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	scheme := runtime.NewScheme()
	if err := kubeovnv1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(api.Config(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Create(t.Context(), &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "ovn-default"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/28"}}); err != nil {
		t.Fatal(err)
	}
	o := DefaultOptions()
	o.Config, o.Listener, o.OpsListener, o.Replica = api.Config(), admissionListener, opsListener, "a"
	o.Serve.DrainDelay = 0
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, o) }()
	ops = "http://" + opsListener.Addr().String()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		code, body := get(t, ops+"/readyz")
		if code == http.StatusOK {
			break
		}
		select {
		case err := <-ended:
			t.Fatalf("ended: %v", err)
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("not ready: %s", body)
		}
	}
	return kube, ops, func() error { cancel(); return <-ended }
}

func get(t *testing.T, url string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// The real program gives a pod of an API its address, refuses what can't be had, counts, and ends without an error.
func TestRun(t *testing.T) {
	kube, ops, stop := start(t)
	pod := func(name string, annotations map[string]string) (*corev1.Pod, error) {
		return kube.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "a"}}}}, metav1.CreateOptions{})
	}
	key := network.Key(network.DefaultProvider, network.SuffixAddress)
	asked, err := pod("asked", map[string]string{key: "10.16.0.9"})
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff([]string{network.Finalizer}, asked.Finalizers); d != "" || asked.Annotations[key] != "10.16.0.9" {
		t.Error(d, asked.Annotations)
	}
	if p, err := pod("free", nil); err != nil || p.Annotations[key] == "" || p.Annotations[key] == "10.16.0.9" {
		t.Errorf("%v %v", p.Annotations, err)
	}
	if _, err := pod("taken", map[string]string{key: "10.16.0.9"}); err == nil || !strings.Contains(err.Error(), "10.16.0.9") {
		t.Errorf("a held address was given: %v", err)
	}
	if _, err := pod("bad", map[string]string{key: "foo"}); err == nil || !strings.Contains(err.Error(), key) {
		t.Errorf("a bad annotation was let through: %v", err)
	}
	if _, body := get(t, ops+"/metrics"); !strings.Contains(body, `berth_admission_requests_total{outcome="allocated"} 2`) {
		t.Errorf("metrics: %s", body)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}
