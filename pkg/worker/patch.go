package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// operation is one operation of a JSON patch.
type operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// podPatch is a JSON patch of one pod. It begins with tests, so that it changes nothing but the very pod that it was
// decided on.
type podPatch struct {
	pod *corev1.Pod
	ops []operation
	n   int // operations that change something
	// annotated tells that metadata.annotations exists at this point of the patch.
	annotated bool
}

func newPatch(pod *corev1.Pod) *podPatch {
	p := &podPatch{pod: pod, annotated: len(pod.Annotations) > 0}
	p.test("/metadata/uid", string(pod.UID))
	return p
}

func (p *podPatch) test(path string, value any) {
	p.ops = append(p.ops, operation{"test", path, value})
}

func (p *podPatch) change(op, path string, value any) {
	p.ops = append(p.ops, operation{op, path, value})
	p.n++
}

func annotationPath(key string) string { return "/metadata/annotations/" + escape(key) }

func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }

// testAnnotation makes the patch fail when the annotation has changed since the pod was read.
func (p *podPatch) testAnnotation(key string) {
	if v, ok := p.pod.Annotations[key]; ok {
		p.test(annotationPath(key), v)
	}
}

// testVersion makes the patch fail when anything has changed since the pod was read.
func (p *podPatch) testVersion() { p.test("/metadata/resourceVersion", p.pod.ResourceVersion) }

// annotate sets the annotations that differ.
func (p *podPatch) annotate(want map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if have, ok := p.pod.Annotations[k]; ok && have == want[k] {
			continue
		}
		if !p.annotated {
			p.change("add", "/metadata/annotations", map[string]string{})
			p.annotated = true
		}
		p.change("add", annotationPath(k), want[k])
	}
}

// unannotate removes the annotations that there are.
func (p *podPatch) unannotate(keys ...string) {
	for _, k := range keys {
		if _, ok := p.pod.Annotations[k]; ok {
			p.change("remove", annotationPath(k), nil)
		}
	}
}

// selectNodes adds what the pod's nodes must have; what the pod says itself stays.
func (p *podPatch) selectNodes(want map[string]string) {
	have := p.pod.Spec.NodeSelector
	if have == nil && len(want) > 0 {
		p.change("add", "/spec/nodeSelector", map[string]string{})
	}
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if _, ok := have[k]; !ok {
			p.change("add", "/spec/nodeSelector/"+escape(k), want[k])
		}
	}
}

// finalize adds a finalizer that is missing.
func (p *podPatch) finalize(name string) {
	switch {
	case slices.Contains(p.pod.Finalizers, name):
	case len(p.pod.Finalizers) == 0:
		p.change("add", "/metadata/finalizers", []string{name})
	default:
		p.change("add", "/metadata/finalizers/-", name)
	}
}

// unfinalize removes a finalizer, tested by its place and value.
func (p *podPatch) unfinalize(name string) {
	if i := slices.Index(p.pod.Finalizers, name); i >= 0 {
		at := fmt.Sprintf("/metadata/finalizers/%d", i)
		p.test(at, name)
		p.change("remove", at, nil)
	}
}

// ungate removes a scheduling gate, tested by its place and value.
func (p *podPatch) ungate(name string) {
	i := slices.IndexFunc(p.pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == name })
	if i >= 0 {
		at := fmt.Sprintf("/spec/schedulingGates/%d", i)
		p.test(at+"/name", name)
		p.change("remove", at, nil)
	}
}

// send sends the patch, unless it changes nothing, and returns the pod as it is then. stale tells that the pod isn't any
// more what it was decided on: its next event brings it back.
func (p *podPatch) send(ctx context.Context, c client.Client) (pod *corev1.Pod, stale bool, err error) {
	if p.n == 0 {
		return p.pod, false, nil
	}
	body, err := json.Marshal(p.ops)
	if err != nil {
		return nil, false, fmt.Errorf("patch of pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
	}
	out := &corev1.Pod{}
	out.Namespace, out.Name = p.pod.Namespace, p.pod.Name
	err = c.Patch(ctx, out, client.RawPatch(types.JSONPatchType, body))
	switch {
	case err == nil:
		return out, false, nil
	case apierrors.IsNotFound(err), apierrors.IsInvalid(err), apierrors.IsConflict(err):
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("patch pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
}
