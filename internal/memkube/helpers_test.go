package memkube_test

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-net/berth/internal/memkube"
)

func start(t *testing.T, o memkube.Options) (*memkube.Server, kubernetes.Interface) {
	t.Helper()
	s, err := memkube.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	cs, err := kubernetes.NewForConfig(s.Config())
	if err != nil {
		t.Fatal(err)
	}
	return s, cs
}

func within(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func pod(name string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
	for _, f := range change {
		f(p)
	}
	return p
}

func onNode(p *corev1.Pod)    { p.Spec.NodeName = "n1" }
func finalized(p *corev1.Pod) { p.Finalizers = []string{"berth.dev/network"} }
func gated(p *corev1.Pod) {
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "berth.dev/address"}}
}

func subnets(t *testing.T, s *memkube.Server) dynamic.ResourceInterface {
	t.Helper()
	return must[*dynamic.DynamicClient](t)(dynamic.NewForConfig(s.Config())).
		Resource(schema.GroupVersionResource{Group: "kubeovn.io", Version: "v1", Resource: "subnets"})
}

func subnet(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubeovn.io/v1", "kind": "Subnet",
		"metadata": map[string]any{"name": name}, "spec": map[string]any{"cidrBlock": "10.0.0.0/24", "unknown": map[string]any{"kept": int64(1)}}}}
}
