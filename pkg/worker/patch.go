package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/pkg/network"
)

// podPatch is a JSON patch of one pod. It begins with tests, so that it changes nothing but the very pod that it was
// decided on.
type podPatch struct {
	pod *corev1.Pod
	ops []jsonpatch.Operation
	n   int // operations that change something
	// annotated tells that metadata.annotations exists at this point of the patch.
	annotated bool
}

func newPatch(pod *corev1.Pod) *podPatch {
	p := &podPatch{pod: pod, annotated: len(pod.Annotations) > 0}
	p.test(jsonpatch.UID, string(pod.UID))
	return p
}

func (p *podPatch) test(path string, value any) { p.ops = append(p.ops, jsonpatch.Test(path, value)) }

func (p *podPatch) change(ops ...jsonpatch.Operation) {
	p.ops = append(p.ops, ops...)
	p.n += len(ops)
}

func annotationPath(key string) string { return jsonpatch.At(jsonpatch.Annotations, key) }

// testAnnotation makes the patch fail when the annotation has changed since the pod was read.
func (p *podPatch) testAnnotation(key string) {
	if v, ok := p.pod.Annotations[key]; ok {
		p.test(annotationPath(key), v)
	}
}

// testVersion makes the patch fail when anything has changed since the pod was read.
func (p *podPatch) testVersion() { p.test(jsonpatch.ResourceVersion, p.pod.ResourceVersion) }

// annotate sets the annotations that differ.
func (p *podPatch) annotate(want map[string]string) {
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if have, ok := p.pod.Annotations[k]; ok && have == want[k] {
			continue
		}
		if !p.annotated {
			p.change(jsonpatch.Add(jsonpatch.Annotations, map[string]string{}))
			p.annotated = true
		}
		p.change(jsonpatch.Add(annotationPath(k), want[k]))
	}
}

// unannotate removes the annotations that there are.
func (p *podPatch) unannotate(keys ...string) {
	for _, k := range keys {
		if _, ok := p.pod.Annotations[k]; ok {
			p.change(jsonpatch.Remove(annotationPath(k)))
		}
	}
}

// selectNodes adds what the pod's nodes must have; what the pod says itself stays.
func (p *podPatch) selectNodes(want map[string]string) {
	p.change(jsonpatch.Fill(jsonpatch.NodeSelector, p.pod.Spec.NodeSelector, want)...)
}

// finalize adds our finalizer where it is missing.
func (p *podPatch) finalize() {
	if !slices.Contains(p.pod.Finalizers, network.Finalizer) {
		p.change(jsonpatch.Append(jsonpatch.Finalizers, len(p.pod.Finalizers) > 0, network.Finalizer))
	}
}

// unfinalize removes our finalizer, tested by its place and value.
func (p *podPatch) unfinalize() {
	if i := slices.Index(p.pod.Finalizers, network.Finalizer); i >= 0 {
		at := fmt.Sprintf("%s/%d", jsonpatch.Finalizers, i)
		p.test(at, network.Finalizer)
		p.change(jsonpatch.Remove(at))
	}
}

// ungate removes a scheduling gate, tested by its place and value.
func (p *podPatch) ungate(name string) {
	i := slices.IndexFunc(p.pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == name })
	if i >= 0 {
		at := fmt.Sprintf("%s/%d", jsonpatch.SchedulingGates, i)
		p.test(at+"/name", name)
		p.change(jsonpatch.Remove(at))
	}
}

// send sends the patch, unless it changes nothing, and returns the pod as it is then. stale tells that the pod isn't any
// more what it was decided on: its next event brings it back. A conflict is none of that: our tests are answered
// otherwise, so the server only could not write, and no event need follow.
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
	case apierrors.IsNotFound(err), jsonpatch.Outdated(err):
		return nil, true, nil
	}
	return nil, false, fmt.Errorf("patch pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
}
