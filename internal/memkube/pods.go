package memkube

import (
	"fmt"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// setDefaults fills the few defaults that Berth's programs depend on, before admission sees the object.
func setDefaults(k Kind, obj map[string]any) {
	switch {
	case k.isPod():
		spec := specOf(obj)
		for name, v := range map[string]any{"restartPolicy": "Always", "dnsPolicy": "ClusterFirst",
			"schedulerName": "default-scheduler", "terminationGracePeriodSeconds": defaultGrace, "enableServiceLinks": true} {
			if spec[name] == nil {
				spec[name] = v
			}
		}
	case k.isNamespace():
		m := metaOf(obj)
		labels, ok := m["labels"].(map[string]any)
		if !ok {
			labels = map[string]any{}
			m["labels"] = labels
		}
		if name, _ := m["name"].(string); name != "" {
			labels["kubernetes.io/metadata.name"] = name
		}
	}
}

func specOf(obj map[string]any) map[string]any {
	spec, ok := obj["spec"].(map[string]any)
	if !ok {
		spec = map[string]any{}
		obj["spec"] = spec
	}
	return spec
}

func stringAt(obj map[string]any, path ...string) string {
	v, _, _ := unstructured.NestedString(obj, path...) // another type counts as absent
	return v
}

func gatesOf(obj map[string]any) map[string]bool {
	gates := map[string]bool{}
	list, _, _ := unstructured.NestedSlice(obj, "spec", "schedulingGates") // another type counts as none
	for _, g := range list {
		if m, ok := g.(map[string]any); ok {
			gates[stringAt(m, "name")] = true
		}
	}
	return gates
}

// preparePod gives a new pod its first status and refuses gates beside a node.
func preparePod(obj map[string]any, now time.Time) error {
	status := map[string]any{"phase": "Pending", "qosClass": "BestEffort"}
	if len(gatesOf(obj)) > 0 {
		if stringAt(obj, "spec", "nodeName") != "" {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, stringAt(obj, "metadata", "name"), field.ErrorList{
				field.Forbidden(field.NewPath("spec", "nodeName"), "cannot be set until all schedulingGates have been cleared")})
		}
		status["conditions"] = []any{condition("False", now, "SchedulingGated", "Scheduling is blocked due to non-empty scheduling gates")}
	}
	obj["status"] = status
	return nil
}

func condition(status string, now time.Time, reason, message string) map[string]any {
	c := map[string]any{"type": "PodScheduled", "status": status, "lastProbeTime": nil,
		"lastTransitionTime": now.UTC().Format(time.RFC3339)}
	if reason != "" {
		c["reason"], c["message"] = reason, message
	}
	return c
}

// checkPodUpdate refuses the changes of a pod that matter here: another node, new gates, other containers' names.
func checkPodUpdate(k Kind, obj map[string]any, old *record) error {
	name := old.meta().GetName()
	if stringAt(obj, "spec", "nodeName") != stringAt(old.obj, "spec", "nodeName") {
		return invalid(k, name, field.Forbidden(field.NewPath("spec"),
			"pod updates may not change fields other than `spec.containers[*].image`, `spec.initContainers[*].image`, "+
				"`spec.activeDeadlineSeconds`, `spec.tolerations` (only additions to existing tolerations)"))
	}
	was := gatesOf(old.obj)
	for gate := range gatesOf(obj) {
		if !was[gate] {
			return invalid(k, name, field.Forbidden(field.NewPath("spec", "schedulingGates"),
				"only deletion is allowed, but found new scheduling gate '"+gate+"'"))
		}
	}
	return nil
}

// serveBinding binds a pod to a node: spec.nodeName, the Binding's annotations and labels, the PodScheduled condition.
func (s *Server) serveBinding(w http.ResponseWriter, req Request, t *table) error {
	if req.Verb != "create" {
		return apierrors.NewMethodNotSupported(resourceOf(t.kind), req.Verb)
	}
	binding, err := decodeObject(req.HTTP, schema.GroupVersionKind{Version: "v1", Kind: "Binding"})
	if err != nil {
		return err
	}
	if name := stringAt(binding, "metadata", "name"); name != "" && name != req.Name {
		return apierrors.NewBadRequest("name in URL does not match name in Binding object")
	}
	binding, warnings, err := s.admit(req, t.kind, binding, isDryRun(req.HTTP))
	for _, text := range warnings {
		addWarning(w, text)
	}
	if err != nil {
		return err
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	old := t.items[objectKey(req.Namespace, req.Name)]
	if old == nil {
		return apierrors.NewNotFound(resourceOf(t.kind), req.Name)
	}
	pod, err := bind(old, binding, s.opts.Clock.Now())
	if err != nil {
		return apierrors.NewConflict(schema.GroupResource{Resource: "pods/binding"}, req.Name, err)
	}
	if !isDryRun(req.HTTP) {
		if _, err := s.store.put(t, pod); err != nil {
			return err
		}
	}
	writeJSON(w, http.StatusCreated, success(nil, http.StatusCreated))
	return nil
}

func bind(old *record, binding map[string]any, now time.Time) (map[string]any, error) {
	pod := old.meta().DeepCopy()
	want := &unstructured.Unstructured{Object: binding}
	node := stringAt(binding, "target", "name")
	switch {
	case want.GetUID() != "" && want.GetUID() != pod.GetUID():
		return nil, uidPrecondition(string(want.GetUID()), string(pod.GetUID()))
	case want.GetResourceVersion() != "" && want.GetResourceVersion() != pod.GetResourceVersion():
		//nolint:staticcheck // the API server's own words
		return nil, fmt.Errorf("Precondition failed: ResourceVersion in precondition: %s, ResourceVersion in object meta: %s",
			want.GetResourceVersion(), pod.GetResourceVersion())
	case node == "":
		return nil, fmt.Errorf("target.name: Required value")
	case pod.GetDeletionTimestamp() != nil:
		return nil, fmt.Errorf("pod %s is being deleted, cannot be assigned to a host", pod.GetName())
	case stringAt(pod.Object, "spec", "nodeName") != "":
		return nil, fmt.Errorf("pod %v is already assigned to node %q", pod.GetName(), stringAt(pod.Object, "spec", "nodeName"))
	case len(gatesOf(pod.Object)) > 0:
		return nil, fmt.Errorf("pod %v has non-empty .spec.schedulingGates", pod.GetName())
	}
	specOf(pod.Object)["nodeName"] = node
	pod.SetAnnotations(mergeStrings(pod.GetAnnotations(), want.GetAnnotations()))
	pod.SetLabels(mergeStrings(pod.GetLabels(), want.GetLabels()))
	setScheduled(pod.Object, now)
	normalize(pod.Object)
	return pod.Object, nil
}

func setScheduled(pod map[string]any, now time.Time) {
	status, ok := pod["status"].(map[string]any)
	if !ok {
		status = map[string]any{}
		pod["status"] = status
	}
	kept := []any{condition("True", now, "", "")}
	conditions, _ := status["conditions"].([]any)
	for _, c := range conditions {
		if m, ok := c.(map[string]any); !ok || m["type"] != "PodScheduled" {
			kept = append(kept, c)
		}
	}
	status["conditions"] = kept
}

func mergeStrings(base, over map[string]string) map[string]string {
	if base == nil {
		base = map[string]string{}
	}
	for k, v := range over {
		base[k] = v
	}
	return base
}

func uidPrecondition(want, got string) error {
	//nolint:staticcheck // the API server's own words
	return fmt.Errorf("Precondition failed: UID in precondition: %s, UID in object meta: %s", want, got)
}

// gracefulDeletion marks a pod for deletion as the API server does. done: nothing is to be changed, a deletion that is
// under way goes on; graceful: the pod was changed.
func gracefulDeletion(pod *unstructured.Unstructured, opts *metav1.DeleteOptions, now time.Time) (graceful, done bool) {
	period := int64(0)
	if v, found, err := unstructured.NestedInt64(pod.Object, "spec", "terminationGracePeriodSeconds"); found && err == nil {
		period = v
	}
	if opts.GracePeriodSeconds != nil {
		period = *opts.GracePeriodSeconds
	}
	if period < 0 {
		period = 1
	}
	if began := pod.GetDeletionTimestamp(); began != nil {
		return shorten(pod, began.Time, opts.GracePeriodSeconds, period, now)
	}
	phase := stringAt(pod.Object, "status", "phase")
	if stringAt(pod.Object, "spec", "nodeName") == "" || phase == "Succeeded" || phase == "Failed" {
		period = 0
	}
	setDeletion(pod, now.Add(time.Duration(period)*time.Second), period)
	if generation := pod.GetGeneration(); generation > 0 {
		pod.SetGeneration(generation + 1)
	}
	return true, false
}

// shorten brings the end of a deletion under way forward; it is never put off.
func shorten(pod *unstructured.Unstructured, end time.Time, asked *int64, period int64, now time.Time) (graceful, done bool) {
	have := pod.GetDeletionGracePeriodSeconds()
	if have == nil || *have == 0 {
		return false, false
	}
	if asked == nil || period >= *have {
		return false, true
	}
	end = end.Add(time.Duration(period-*have) * time.Second)
	if end.Before(now) {
		end = now
		if period != 0 {
			period = 1
		}
	}
	setDeletion(pod, end, period)
	return true, false
}

func setDeletion(u *unstructured.Unstructured, end time.Time, grace int64) {
	at := metav1.NewTime(end.Truncate(time.Second))
	u.SetDeletionTimestamp(&at)
	u.SetDeletionGracePeriodSeconds(&grace)
}
