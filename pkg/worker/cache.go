package worker

import (
	"errors"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
)

// Scheme returns the types that the worker reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(scheme.AddToScheme(s), catalog.AddToScheme(s))
}

// CacheOptions keeps only what the worker looks at, so that a large cluster fits into little memory. Of all ConfigMaps it
// is allowed to read one.
func CacheOptions(r Routing) cache.Options {
	external := r.externalKey()
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:  {Transform: slimPod},
			&corev1.Node{}: {Transform: catalog.SlimNode},
			&corev1.ConfigMap{}: {
				Namespaces: map[string]cache.Config{external.Namespace: {}},
				Field:      fields.OneTermEqualSelector(metav1.ObjectNameField, external.Name),
			},
		},
	}
}

// slimPod drops what neither plan, verdict, rows nor our condition depend on. Containers stay by name, for their number counts.
func slimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil
	}
	p.ManagedFields = nil
	spec := corev1.PodSpec{
		NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, SchedulingGates: p.Spec.SchedulingGates,
		NodeSelector: p.Spec.NodeSelector, Affinity: p.Spec.Affinity, RestartPolicy: p.Spec.RestartPolicy,
	}
	for _, c := range p.Spec.Containers {
		spec.Containers = append(spec.Containers, corev1.Container{Name: c.Name})
	}
	p.Spec = spec
	status := corev1.PodStatus{Phase: p.Status.Phase, PodIP: p.Status.PodIP, PodIPs: p.Status.PodIPs}
	for _, c := range p.Status.Conditions {
		if c.Type == conditionAddress { // or it would be written anew at each look
			status.Conditions = append(status.Conditions, c)
		}
	}
	status.InitContainerStatuses = slimStatuses(p.Status.InitContainerStatuses)
	status.ContainerStatuses = slimStatuses(p.Status.ContainerStatuses)
	status.EphemeralContainerStatuses = slimStatuses(p.Status.EphemeralContainerStatuses)
	p.Status = status
	return p, nil
}

func slimStatuses(in []corev1.ContainerStatus) []corev1.ContainerStatus {
	var out []corev1.ContainerStatus
	for _, c := range in {
		out = append(out, corev1.ContainerStatus{
			Name: c.Name, State: c.State, LastTerminationState: c.LastTerminationState, RestartCount: c.RestartCount, Started: c.Started,
		})
	}
	return out
}
