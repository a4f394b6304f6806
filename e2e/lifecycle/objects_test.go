//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

const addressKey = "ovn.kubernetes.io/ip_address"

// namespace makes a namespace that Berth serves, and that goes with the test.
func (h *harness) namespace(t *testing.T, name, inject string) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{network.LabelInject: inject}}}
	h.create(t, ns)
	t.Cleanup(func() {
		if err := client.IgnoreNotFound(h.api.Delete(context.WithoutCancel(t.Context()), ns)); err != nil {
			t.Error(err)
		}
	})
	return name
}

func (h *harness) create(t *testing.T, obj client.Object) {
	t.Helper()
	if err := h.api.Create(t.Context(), obj); err != nil {
		t.Fatal(err)
	}
}

// subnet makes a subnet for the pods of one namespace, of both families when they are joined by commas. Made before the
// namespace it goes after it.
func (h *harness) subnet(t *testing.T, namespace, cidr, gateway string) {
	t.Helper()
	protocol := "IPv4"
	if strings.Contains(cidr, ",") {
		protocol = "Dual"
	}
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: namespace}, Spec: kubeovnv1.SubnetSpec{Vpc: "ovn-cluster", Protocol: protocol,
		CIDRBlock: cidr, Gateway: gateway, GatewayType: "distributed", Namespaces: []string{namespace}}}
	h.create(t, s)
	t.Cleanup(func() { // it is refused while pods hold addresses
		until(context.WithoutCancel(t.Context()), t, "subnet "+namespace+" may go", func(ctx context.Context) error {
			return client.IgnoreNotFound(h.api.Delete(ctx, s))
		})
	})
	until(t.Context(), t, "subnet "+namespace+" has its switch", func(context.Context) error {
		if _, ok := h.nb.Switch(namespace); !ok {
			return fmt.Errorf("no switch")
		}
		return nil
	})
}

func podSpec(change ...func(*corev1.PodSpec)) corev1.PodSpec {
	s := corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(5)), Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}}
	for _, c := range change {
		c(&s)
	}
	return s
}

func pod(namespace, name string, change ...func(*corev1.PodSpec)) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Spec: podSpec(change...)}
}

// template is that of a workload's pods.
func template(name string, spec corev1.PodSpec) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
	labels := map[string]string{"app": name}
	return &metav1.LabelSelector{MatchLabels: labels}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: spec}
}

func deployment(namespace, name string, replicas int32, spec corev1.PodSpec) *appsv1.Deployment {
	selector, tmpl := template(name, spec)
	return &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: tmpl}}
}

// set is a StatefulSet that does not wait for one pod before the next.
func set(namespace, name string, replicas int32) *appsv1.StatefulSet {
	selector, tmpl := template(name, podSpec())
	several := intstr.FromInt32(4)
	return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: tmpl, ServiceName: name,
			PodManagementPolicy: appsv1.ParallelPodManagement,
			UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.RollingUpdateStatefulSetStrategyType,
				RollingUpdate: &appsv1.RollingUpdateStatefulSetStrategy{MaxUnavailable: &several}}}}
}

// change edits an object as it is now.
func change[T client.Object](t *testing.T, h *harness, obj T, edit func(T)) {
	t.Helper()
	until(t.Context(), t, "the change is stored", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(obj), obj); err != nil {
			return err
		}
		edit(obj)
		return h.api.Update(ctx, obj)
	})
}

// pods lists those of a namespace.
func (h *harness) pods(ctx context.Context, namespace string) ([]corev1.Pod, error) {
	var list corev1.PodList
	err := h.api.List(ctx, &list, client.InNamespace(namespace))
	return list.Items, err
}

func isReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ready waits until exactly n pods of a namespace are there that aren't being deleted, and all are Ready. It gives them by
// name.
func (h *harness) ready(t *testing.T, namespace string, n int) map[string]corev1.Pod {
	t.Helper()
	found := map[string]corev1.Pod{}
	until(t.Context(), t, fmt.Sprintf("%d pods of %s are ready", n, namespace), func(ctx context.Context) error {
		pods, err := h.pods(ctx, namespace)
		if err != nil {
			return err
		}
		clear(found)
		pods = slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil })
		for _, p := range pods {
			if isReady(p) {
				found[p.Name] = p
			}
		}
		if len(found) != n || len(pods) != n {
			return fmt.Errorf("%d of %d pods", len(found), len(pods))
		}
		return nil
	})
	return found
}

func addresses(pods map[string]corev1.Pod) map[string]string {
	out := map[string]string{}
	for name, p := range pods {
		out[name] = p.Annotations[addressKey]
	}
	return out
}

// remove deletes an object and waits until it is gone.
func (h *harness) remove(t *testing.T, obj client.Object, opts ...client.DeleteOption) {
	t.Helper()
	if err := h.api.Delete(t.Context(), obj, opts...); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, obj.GetName()+" is gone", func(ctx context.Context) error {
		err := h.api.Get(ctx, client.ObjectKeyFromObject(obj), obj)
		switch {
		case apierrors.IsNotFound(err):
			return nil
		case err == nil:
			return fmt.Errorf("it is there, with finalizers %v", obj.GetFinalizers())
		}
		return err
	})
}
