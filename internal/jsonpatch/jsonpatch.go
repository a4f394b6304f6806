// Package jsonpatch builds JSON patches (RFC 6902) of Kubernetes objects.
//
// Invariant: every change is of one value by itself, so that what others add at the same time stays. A parent is made
// only where it is absent or null.
package jsonpatch

import (
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// Paths of lists and maps that are patched key by key.
const (
	Annotations     = "/metadata/annotations"
	Finalizers      = "/metadata/finalizers"
	NodeSelector    = "/spec/nodeSelector"
	SchedulingGates = "/spec/schedulingGates"
	// UID and ResourceVersion are tested, never changed.
	UID             = "/metadata/uid"
	ResourceVersion = "/metadata/resourceVersion"
)

// Operation is one operation of a patch.
type Operation struct {
	Op    string `json:"op"`
	Path  string `json:"path"`
	Value any    `json:"value,omitempty"`
}

// Add sets a member, or inserts into a list.
func Add(path string, value any) Operation { return Operation{Op: "add", Path: path, Value: value} }

// Replace changes what there is.
func Replace(path string, value any) Operation {
	return Operation{Op: "replace", Path: path, Value: value}
}

// Remove removes what there is.
func Remove(path string) Operation { return Operation{Op: "remove", Path: path} }

// Test makes the patch fail unless the value is this one.
func Test(path string, value any) Operation { return Operation{Op: "test", Path: path, Value: value} }

// At is the path of a key below parent.
func At(parent, key string) string {
	return parent + "/" + strings.ReplaceAll(strings.ReplaceAll(key, "~", "~0"), "/", "~1")
}

// Set adds, changes and removes keys of the map at path until what there is is what is wanted.
func Set(path string, have, want map[string]string) []Operation {
	ops := parent(path, have, want)
	for _, k := range slices.Sorted(maps.Keys(want)) {
		old, ok := have[k]
		switch {
		case !ok:
			ops = append(ops, Add(At(path, k), want[k]))
		case old != want[k]:
			ops = append(ops, Replace(At(path, k), want[k]))
		}
	}
	for _, k := range slices.Sorted(maps.Keys(have)) {
		if _, ok := want[k]; !ok {
			ops = append(ops, Remove(At(path, k)))
		}
	}
	return ops
}

// Fill adds to the map at path the keys that it lacks.
func Fill(path string, have, want map[string]string) []Operation {
	ops := parent(path, have, want)
	for _, k := range slices.Sorted(maps.Keys(want)) {
		if _, ok := have[k]; !ok {
			ops = append(ops, Add(At(path, k), want[k]))
		}
	}
	return ops
}

func parent(path string, have, want map[string]string) []Operation {
	if have == nil && len(want) > 0 {
		return []Operation{Add(path, map[string]string{})}
	}
	return nil
}

// Append adds a value behind those of a list. exists tells that there is a list, be it an empty one.
func Append(path string, exists bool, value any) Operation {
	if !exists {
		return Add(path, []any{value})
	}
	return Add(path+"/-", value)
}

// Outdated tells that the API server could not apply a patch: a test of it failed, or what it changes is not there. The
// object has changed, and the patch is to be decided anew. An object that would be invalid, or that a policy refuses, has
// the same status code, and is none of that.
func Outdated(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Code != http.StatusUnprocessableEntity {
		return false
	}
	d := status.Status().Details
	return d == nil || d.Kind == "" && len(d.Causes) == 0
}
