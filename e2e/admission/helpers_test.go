//go:build e2e

package admission

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// space is a namespace with a subnet of its name, or a place in somebody else's.
type space struct {
	name, cidr string
	// beside are further namespaces of the subnet.
	beside []string
	labels map[string]string
}

// space makes it, and returns when every replica gives addresses of the subnet in every namespace.
func (w *world) space(ctx context.Context, s space) error {
	all := append([]string{s.name}, s.beside...)
	for _, n := range all {
		labels := map[string]string{network.LabelInject: network.InjectEnabled}
		for k, v := range s.labels {
			labels[k] = v
		}
		if err := w.objs.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n, Labels: labels}}); err != nil {
			return err
		}
	}
	err := w.objs.Create(ctx, &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: s.name},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: s.cidr, Namespaces: all}})
	if err != nil {
		return err
	}
	for _, n := range all {
		for _, r := range w.replicas {
			err := until(ctx, fmt.Sprintf("replica %s knows subnet %s", r.name, s.name), patience, func(ctx context.Context) (bool, error) {
				dry := true
				a, err := r.post(ctx, n, pod("probe", nil), &dry)
				return err == nil && bytes.Contains(a.Patch, []byte(`"`+s.name+`"`)), nil
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// enter makes a space for a test, which ends with the accounts.
func (w *world) enter(t *testing.T, s space) {
	t.Helper()
	if err := w.space(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

func pod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations}, Spec: podSpec()}
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "pause:3.10"}}}
}

func address(p *corev1.Pod) string {
	return p.Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)]
}

func gated(p *corev1.Pod) bool {
	return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == network.AddressGate })
}

// given tells that a pod has its address and may be scheduled.
func given(p *corev1.Pod) bool { return address(p) != "" && !gated(p) }

// create makes a pod that must be admitted with an address.
func (w *world) create(t *testing.T, namespace string, p *corev1.Pod) *corev1.Pod {
	t.Helper()
	got, err := w.Client().CoreV1().Pods(namespace).Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create pod %s%s: %v", p.Name, p.GenerateName, err)
	}
	if address(got) == "" || !slices.Contains(got.Finalizers, network.Finalizer) {
		t.Fatalf("pod %s was stored with annotations %v and finalizers %v", got.Name, got.Annotations, got.Finalizers)
	}
	return got
}

func (w *world) pod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	p, err := w.Client().CoreV1().Pods(namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func (w *world) pods(t *testing.T, namespace string) []corev1.Pod {
	t.Helper()
	l, err := w.Client().CoreV1().Pods(namespace).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return l.Items
}

// kill deletes a pod as `kubectl delete --now --force` does.
func (w *world) kill(t *testing.T, namespace, name string) {
	t.Helper()
	now := int64(0)
	if err := w.Client().CoreV1().Pods(namespace).Delete(t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		t.Fatal(err)
	}
}

func (w *world) await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	if err := until(t.Context(), what, patience, func(context.Context) (bool, error) { return ok(), nil }); err != nil {
		t.Fatal(err)
	}
}

// bound waits until the worker has bound what a pod carries, and made its port.
func (w *world) bound(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	var p *corev1.Pod
	w.await(t, "pod "+name+" is bound to its leases", func() bool {
		p = w.pod(t, namespace, name)
		have, err := w.stored(t.Context())
		want := carried([]corev1.Pod{*p})
		all := func(want, have []string) bool {
			return len(want) > 0 && !slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(have, s) })
		}
		return err == nil && all(want.Leases, have.Leases) && all(want.Ports, have.Ports)
	})
	return p
}

// parallel calls f for 0 to n-1 from so many goroutines.
func parallel(n, workers int, f func(i int)) {
	jobs := make(chan int)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for i := range jobs {
				f(i)
			}
		})
	}
	for i := range n {
		jobs <- i
	}
	close(jobs)
	wg.Wait()
}

// percentile gives the smallest duration that so many percent don't exceed.
func percentile(ds []time.Duration, percent int) time.Duration {
	if len(ds) == 0 {
		return 0
	}
	ds = slices.Sorted(slices.Values(ds))
	return ds[min(len(ds)-1, len(ds)*percent/100)].Round(100 * time.Microsecond)
}

func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// post sends a review of a pod's creation to a replica; nil leaves dryRun out.
func (r replica) post(ctx context.Context, namespace string, p *corev1.Pod, dryRun *bool) (*admissionv1.AdmissionResponse, error) {
	p = p.DeepCopy()
	p.TypeMeta = metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}
	raw, err := json.Marshal(p)
	if err != nil {
		return nil, err
	}
	pods := metav1.GroupVersionResource{Version: "v1", Resource: "pods"}
	body, err := json.Marshal(admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"},
		Request: &admissionv1.AdmissionRequest{UID: uuid.NewUUID(), Kind: metav1.GroupVersionKind{Version: "v1", Kind: "Pod"}, Resource: pods,
			RequestResource: &pods, Namespace: namespace, Name: p.Name, Operation: admissionv1.Create, DryRun: dryRun,
			Object: runtime.RawExtension{Raw: raw}}})
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.hook+"?timeout=5s", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	// The API server checks the certificate in every other test.
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = resp.Body.Close() }()
	var review admissionv1.AdmissionReview
	if err := json.NewDecoder(resp.Body).Decode(&review); err != nil {
		return nil, fmt.Errorf("%s: %w", resp.Status, err)
	}
	return review.Response, nil
}

func get(ctx context.Context, url string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body), err
}

// answered gives how many requests with an outcome each replica has answered.
func (w *world) answered(t *testing.T, outcome string) map[string]int {
	t.Helper()
	out := map[string]int{}
	for _, r := range w.replicas {
		_, body, err := get(t.Context(), r.ops+"/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(body) {
			if text, ok := strings.CutPrefix(line, `berth_admission_requests_total{outcome="`+outcome+`"} `); ok {
				n, err := strconv.ParseFloat(strings.TrimSpace(text), 64)
				if err != nil {
					t.Fatal(err)
				}
				out[r.name] = int(n)
			}
		}
	}
	return out
}

func total(counts map[string]int) int {
	n := 0
	for _, c := range counts {
		n += c
	}
	return n
}

// patch applies a merge patch to a pod's status.
func (w *world) patchStatus(ctx context.Context, p *corev1.Pod, status map[string]any) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID}, "status": status})
	if err != nil {
		return err
	}
	_, err = w.Client().CoreV1().Pods(p.Namespace).Patch(ctx, p.Name, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	return err
}
