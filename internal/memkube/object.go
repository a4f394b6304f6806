package memkube

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	nameSuffix   = 5
	nameMax      = 63
	optimistic   = "the object has been modified; please apply your changes to the latest version and try again"
	immutable    = "field is immutable"
	defaultGrace = int64(30)
)

// metaOf returns the metadata of an object, made when missing.
func metaOf(obj map[string]any) map[string]any {
	m, ok := obj["metadata"].(map[string]any)
	if !ok {
		m = map[string]any{}
		obj["metadata"] = m
	}
	return m
}

// normalize drops what carries no meaning, so that equal objects have equal encodings.
func normalize(obj map[string]any) {
	m := metaOf(obj)
	delete(m, "managedFields")
	delete(m, "selfLink")
	for _, where := range []map[string]any{obj, m} {
		for k, v := range where {
			if v == nil {
				delete(where, k)
			}
		}
	}
	for _, k := range []string{"labels", "annotations", "finalizers", "ownerReferences"} {
		switch v := m[k].(type) {
		case map[string]any:
			if len(v) == 0 {
				delete(m, k)
			}
		case []any:
			if len(v) == 0 {
				delete(m, k)
			}
		}
	}
}

// prepareCreate fills what the server owns: UID, time, generation, name; and drops what a client may not set.
func prepareCreate(k Kind, obj map[string]any, namespace string, now time.Time) error {
	normalize(obj)
	m := metaOf(obj)
	if m["resourceVersion"] != nil && m["resourceVersion"] != "" {
		return apierrors.NewInternalError(fmt.Errorf("resourceVersion should not be set on objects to be created"))
	}
	for _, owned := range []string{"resourceVersion", "deletionTimestamp", "deletionGracePeriodSeconds", "generation"} {
		delete(m, owned)
	}
	if err := checkNamespace(k, m, namespace); err != nil {
		return err
	}
	m["uid"] = string(uuid.NewUUID())
	m["creationTimestamp"] = now.UTC().Format(time.RFC3339)
	if k.Generation {
		m["generation"] = int64(1)
	}
	if k.Status && !k.KeepStatus {
		delete(obj, "status")
	}
	switch {
	case k.isPod():
		return preparePod(obj, now)
	case k.isNamespace():
		obj["status"] = map[string]any{"phase": "Active"}
	}
	return nil
}

// checkNamespace makes the object live in the namespace of the URL.
func checkNamespace(k Kind, m map[string]any, namespace string) error {
	if !k.Namespaced {
		delete(m, "namespace")
		return nil
	}
	if got, _ := m["namespace"].(string); got != "" && got != namespace {
		return apierrors.NewBadRequest("the namespace of the provided object does not match the namespace sent on the request")
	}
	m["namespace"] = namespace
	return nil
}

func generateName(base string) string {
	if len(base) > nameMax-nameSuffix {
		base = base[:nameMax-nameSuffix]
	}
	return base + utilrand.String(nameSuffix)
}

// settle turns the object that an update or patch produced into what may be stored: the server's fields come from the
// old object, the other half (spec or status) too, and changes that the API forbids are errors.
func settle(k Kind, subresource string, obj map[string]any, old *record) (map[string]any, error) {
	normalize(obj)
	m, oldMeta := metaOf(obj), metaOf(old.obj)
	name, _ := oldMeta["name"].(string)
	switch rv, _ := m["resourceVersion"].(string); {
	case (rv == "" || rv == "0") && k.Conditional:
		return nil, invalid(k, name, field.Invalid(field.NewPath("metadata", "resourceVersion"), 0, "must be specified for an update"))
	case rv != "" && rv != "0" && rv != oldMeta["resourceVersion"]:
		return nil, apierrors.NewConflict(resourceOf(k), name, fmt.Errorf("%s", optimistic))
	}
	for _, fixed := range []string{"name", "namespace", "uid"} {
		if v, ok := m[fixed]; ok && v != "" && v != oldMeta[fixed] {
			return nil, invalid(k, name, field.Invalid(field.NewPath("metadata", fixed), v, immutable))
		}
	}
	owned := []string{"name", "namespace", "uid", "creationTimestamp", "generateName", "deletionTimestamp", "deletionGracePeriodSeconds",
		"generation", "resourceVersion"}
	restore(m, oldMeta, owned...)
	obj["apiVersion"], obj["kind"] = old.obj["apiVersion"], old.obj["kind"]
	obj = otherHalf(k, subresource, obj, old.obj)
	if err := noNewFinalizers(k, obj, old); err != nil {
		return nil, err
	}
	if k.isPod() && subresource == "" {
		if err := checkPodUpdate(k, obj, old); err != nil {
			return nil, err
		}
	}
	if k.Generation && changedBesides(k, obj, old.obj) {
		m := metaOf(obj)
		generation, _ := m["generation"].(int64)
		m["generation"] = generation + 1
	}
	return obj, nil
}

// restore copies fields from one map into another, those that are missing there are removed.
func restore(into, from map[string]any, names ...string) {
	for _, n := range names {
		if v, ok := from[n]; ok {
			into[n] = v
		} else {
			delete(into, n)
		}
	}
}

// otherHalf takes from the old object what this subresource doesn't write.
func otherHalf(k Kind, subresource string, obj, old map[string]any) map[string]any {
	if !k.Status {
		return obj
	}
	if subresource == "" {
		restore(obj, old, "status")
		return obj
	}
	if k.Custom {
		kept := (&unstructured.Unstructured{Object: old}).DeepCopy().Object
		restore(kept, obj, "status")
		return kept
	}
	for field := range obj {
		if field != "status" && field != "metadata" {
			delete(obj, field)
		}
	}
	for field, v := range old {
		if field != "status" && field != "metadata" {
			obj[field] = v
		}
	}
	restore(metaOf(obj), metaOf(old), "ownerReferences")
	return obj
}

func noNewFinalizers(k Kind, obj map[string]any, old *record) error {
	was := old.meta()
	if was.GetDeletionTimestamp() == nil {
		return nil
	}
	var extra []string
	for _, f := range (&unstructured.Unstructured{Object: obj}).GetFinalizers() {
		if !slices.Contains(was.GetFinalizers(), f) {
			extra = append(extra, f)
		}
	}
	if len(extra) == 0 {
		return nil
	}
	return invalid(k, was.GetName(), field.Forbidden(field.NewPath("metadata", "finalizers"),
		fmt.Sprintf("no new finalizers can be added if the object is being deleted, found new finalizers %#v", extra)))
}

// changedBesides says whether something outside of metadata, and of status where it is apart, differs.
func changedBesides(k Kind, a, b map[string]any) bool {
	skip := map[string]bool{"metadata": true, "status": k.Status}
	for _, pair := range [][2]map[string]any{{a, b}, {b, a}} {
		for name, v := range pair[0] {
			if !skip[name] && !equality.Semantic.DeepEqual(v, pair[1][name]) {
				return true
			}
		}
	}
	return false
}

func invalid(k Kind, name string, errs ...*field.Error) error {
	return apierrors.NewInvalid(groupKind(k), name, errs)
}
