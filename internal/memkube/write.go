package memkube

import (
	"encoding/json"
	"fmt"
	"mime"
	"net/http"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/client-go/kubernetes/scheme"
)

// generateAttempts is how often a generated name that is taken is drawn again.
const generateAttempts = 8

func (s *Server) serveCreate(w http.ResponseWriter, req Request, t *table) error {
	if req.Name != "" || t.kind.Namespaced && req.Namespace == "" {
		return apierrors.NewMethodNotSupported(resourceOf(t.kind), "create")
	}
	obj, err := decodeObject(req.HTTP, t.kind.gvk())
	if err != nil {
		return err
	}
	normalize(obj)
	if err := checkNamespace(t.kind, metaOf(obj), req.Namespace); err != nil {
		return err
	}
	if err := s.checkNamespaceLives(t.kind, req.Namespace, stringAt(obj, "metadata", "name")); err != nil {
		return err
	}
	setDefaults(t.kind, obj)
	dry := isDryRun(req.HTTP)
	obj, warnings, err := s.admit(req, t.kind, obj, dry)
	for _, text := range warnings {
		addWarning(w, text)
	}
	if err != nil {
		return err
	}
	setDefaults(t.kind, obj)
	created, err := s.create(t, obj, req.Namespace, dry)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusCreated, created.raw)
	return nil
}

// create names and stores a new object.
func (s *Server) create(t *table, obj map[string]any, namespace string, dry bool) (*record, error) {
	if err := prepareCreate(t.kind, obj, namespace, s.opts.Clock.Now()); err != nil {
		return nil, err
	}
	m := metaOf(obj)
	name, _ := m["name"].(string)
	base, _ := m["generateName"].(string)
	if name == "" && base == "" {
		return nil, invalid(t.kind, "", field.Required(field.NewPath("metadata", "name"), "name or generateName is required"))
	}
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	if err := s.namespaceLives(t.kind, namespace, name); err != nil {
		return nil, err
	}
	generated := name == ""
	for attempt := 0; ; attempt++ {
		if generated {
			name = generateName(base)
			m["name"] = name
		}
		if t.items[objectKey(namespace, name)] == nil {
			break
		}
		if !generated || attempt+1 >= generateAttempts {
			return nil, apierrors.NewAlreadyExists(resourceOf(t.kind), name)
		}
	}
	if dry {
		return unversioned(obj)
	}
	return s.store.put(t, obj)
}

// unversioned is the answer about an object that isn't stored: after a dry run, or when an update ended it.
func unversioned(obj map[string]any) (*record, error) {
	raw, err := json.Marshal(obj)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	return &record{obj: obj, raw: raw}, nil
}

func (s *Server) checkNamespaceLives(k Kind, namespace, name string) error {
	s.store.mu.RLock()
	defer s.store.mu.RUnlock()
	return s.namespaceLives(k, namespace, name)
}

// namespaceLives refuses creation in a namespace that isn't there or is going; the caller holds the lock.
func (s *Server) namespaceLives(k Kind, namespace, name string) error {
	if !k.Namespaced {
		return nil
	}
	ns := s.tableOf("", "namespaces").items[objectKey("", namespace)]
	if ns == nil {
		return apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, namespace)
	}
	if ns.meta().GetDeletionTimestamp() == nil {
		return nil
	}
	err := apierrors.NewForbidden(resourceOf(k), name,
		fmt.Errorf("unable to create new content in namespace %s because it is being terminated", namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{Type: "NamespaceTerminating",
		Message: fmt.Sprintf("namespace %s is being terminated", namespace), Field: "metadata.namespace"})
	return err
}

func (s *Server) serveUpdate(w http.ResponseWriter, req Request, t *table) error {
	obj, err := decodeObject(req.HTTP, t.kind.gvk())
	if err != nil {
		return err
	}
	normalize(obj)
	m := metaOf(obj)
	if name, _ := m["name"].(string); name != req.Name {
		return apierrors.NewBadRequest(fmt.Sprintf("the name of the object (%s) does not match the name on the URL (%s)", name, req.Name))
	}
	if err := checkNamespace(t.kind, m, req.Namespace); err != nil {
		return err
	}
	dry := isDryRun(req.HTTP)
	stored, err := s.update(t, req, dry, func(old *record) (map[string]any, error) {
		if want, _ := m["uid"].(string); want != "" && want != string(old.meta().GetUID()) {
			return nil, apierrors.NewConflict(resourceOf(t.kind), req.Name, uidPrecondition(want, string(old.meta().GetUID())))
		}
		return obj, nil
	})
	code := http.StatusOK
	if apierrors.IsNotFound(err) && t.kind.Upsert && req.Subresource == "" {
		delete(m, "resourceVersion")
		code = http.StatusCreated
		stored, err = s.create(t, obj, req.Namespace, dry)
	}
	if err != nil {
		return err
	}
	writeJSON(w, code, stored.raw)
	return nil
}

func (s *Server) servePatch(w http.ResponseWriter, req Request, t *table) error {
	patch, err := readBody(req.HTTP)
	if err != nil {
		return err
	}
	media, _, err := mime.ParseMediaType(req.HTTP.Header.Get("Content-Type"))
	if err != nil {
		return unsupportedMediaType(req.HTTP.Header.Get("Content-Type"))
	}
	stored, err := s.update(t, req, isDryRun(req.HTTP), func(old *record) (map[string]any, error) {
		raw, err := applyPatch(t.kind, types.PatchType(media), old.raw, patch)
		if err != nil {
			return nil, err
		}
		return decodeJSON(raw)
	})
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, stored.raw)
	return nil
}

// applyPatch applies a JSON patch, a merge patch or, to built-in kinds, a strategic merge patch. Server-side apply is
// refused: there are no managed fields.
func applyPatch(k Kind, typ types.PatchType, doc, patch []byte) ([]byte, error) {
	switch {
	case typ == types.JSONPatchType:
		ops, err := jsonpatch.DecodePatch(patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		out, err := ops.Apply(doc)
		if err != nil {
			return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
		}
		return out, nil
	case typ == types.MergePatchType:
		out, err := jsonpatch.MergePatch(doc, patch)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return out, nil
	case typ == types.StrategicMergePatchType && !k.Custom:
		typed, err := scheme.Scheme.New(k.gvk())
		if err != nil {
			return nil, unsupportedMediaType(string(typ))
		}
		out, err := strategicpatch.StrategicMergePatch(doc, patch, typed)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		return out, nil
	}
	return nil, unsupportedMediaType(string(typ))
}

// update reads, changes and stores one object under the lock. An object whose last finalizer goes while it is being
// deleted goes too.
func (s *Server) update(t *table, req Request, dry bool, change func(*record) (map[string]any, error)) (*record, error) {
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	old := t.items[objectKey(req.Namespace, req.Name)]
	if old == nil {
		return nil, apierrors.NewNotFound(resourceOf(t.kind), req.Name)
	}
	obj, err := change(old)
	if err != nil {
		return nil, err
	}
	obj, err = settle(t.kind, req.Subresource, (&unstructured.Unstructured{Object: obj}).DeepCopy().Object, old)
	if err != nil {
		return nil, err
	}
	if dry {
		return unversioned(obj)
	}
	was, is := old.meta(), &unstructured.Unstructured{Object: obj}
	grace := was.GetDeletionGracePeriodSeconds()
	if was.GetDeletionTimestamp() != nil && (grace == nil || *grace == 0) && len(is.GetFinalizers()) == 0 {
		if _, err := s.removeStored(t, old); err != nil {
			return nil, err
		}
		return unversioned(obj)
	}
	return s.store.put(t, obj)
}
