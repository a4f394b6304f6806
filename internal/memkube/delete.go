package memkube

import (
	"fmt"
	"net/http"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

func (s *Server) serveDelete(w http.ResponseWriter, req Request, t *table) error {
	opts, err := decodeDeleteOptions(req.HTTP)
	if err != nil {
		return err
	}
	s.store.mu.Lock()
	left, err := s.deleteLocked(t, req.Namespace, req.Name, opts, isDryRun(req.HTTP))
	s.store.mu.Unlock()
	if err != nil {
		return err
	}
	if left != nil {
		writeJSON(w, http.StatusOK, left.raw)
		return nil
	}
	writeJSON(w, http.StatusOK, success(&metav1.StatusDetails{Name: req.Name, Group: t.kind.Group, Kind: t.kind.Resource}, 0))
	return nil
}

func (s *Server) serveDeleteCollection(w http.ResponseWriter, req Request, t *table) error {
	match, err := selectorOf(t.kind, req)
	if err != nil {
		return err
	}
	opts, err := decodeDeleteOptions(req.HTTP)
	if err != nil {
		return err
	}
	dry := isDryRun(req.HTTP)
	s.store.mu.Lock()
	defer s.store.mu.Unlock()
	for _, r := range t.list(req.Namespace) {
		if !match(r) {
			continue
		}
		u := r.meta()
		if _, err := s.deleteLocked(t, u.GetNamespace(), u.GetName(), opts.DeepCopy(), dry); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	writeJSON(w, http.StatusOK, success(&metav1.StatusDetails{Group: t.kind.Group, Kind: t.kind.Resource}, 0))
	return nil
}

// deleteLocked begins or ends the deletion of one object. It returns what is left of it, or for a pod what it was; nil
// for another kind that is gone. Propagation policies are ignored: nothing collects garbage here.
func (s *Server) deleteLocked(t *table, namespace, name string, opts *metav1.DeleteOptions, dry bool) (*record, error) {
	old := t.items[objectKey(namespace, name)]
	if old == nil {
		return nil, apierrors.NewNotFound(resourceOf(t.kind), name)
	}
	if err := checkPreconditions(t.kind, old, opts.Preconditions); err != nil {
		return nil, err
	}
	if dry || slices.Contains(opts.DryRun, metav1.DryRunAll) {
		return old, nil
	}
	if t.kind.isNamespace() {
		return s.deleteNamespace(t, old)
	}
	u := old.meta().DeepCopy()
	var graceful, done bool
	now := s.opts.Clock.Now()
	if t.kind.isPod() {
		graceful, done = gracefulDeletion(u, opts, now)
	}
	held := len(u.GetFinalizers()) > 0
	switch {
	case done:
		return old, nil
	case !graceful && held:
		if at := u.GetDeletionTimestamp(); at == nil || at.After(now) {
			if at == nil && u.GetGeneration() > 0 {
				u.SetGeneration(u.GetGeneration() + 1)
			}
			setDeletion(u, now, 0)
		}
		return s.store.put(t, u.Object)
	case graceful:
		left, err := s.store.put(t, u.Object)
		if err != nil || held || *u.GetDeletionGracePeriodSeconds() > 0 {
			return left, err
		}
		return s.removeStored(t, left)
	}
	_, err := s.removeStored(t, old)
	return nil, err
}

func checkPreconditions(k Kind, old *record, want *metav1.Preconditions) error {
	if want == nil {
		return nil
	}
	u := old.meta()
	if want.UID != nil && *want.UID != u.GetUID() {
		return apierrors.NewConflict(resourceOf(k), u.GetName(), preconditionError("UID", *want.UID, u.GetUID(),
			"deleted and then recreated"))
	}
	if want.ResourceVersion != nil && *want.ResourceVersion != u.GetResourceVersion() {
		return apierrors.NewConflict(resourceOf(k), u.GetName(), preconditionError("ResourceVersion",
			types.UID(*want.ResourceVersion), types.UID(u.GetResourceVersion()), "modified"))
	}
	return nil
}

func preconditionError(what string, want, got types.UID, happened string) error {
	return fmt.Errorf("the %s in the precondition (%s) does not match the %s in record (%s). The object might have been %s",
		what, want, what, got, happened)
}

// removeStored takes an object out of the store and ends a namespace that waited for it. It returns the last stored state
// under the version of the deletion, which is also what watches get.
func (s *Server) removeStored(t *table, old *record) (*record, error) {
	gone, err := s.store.remove(t, old)
	if err != nil {
		return nil, err
	}
	if t.kind.Namespaced {
		namespaces := s.tableOf("", "namespaces")
		ns := namespaces.items[objectKey("", gone.meta().GetNamespace())]
		if ns != nil && ns.meta().GetDeletionTimestamp() != nil && s.isEmpty(ns.meta().GetName()) {
			if _, err := s.store.remove(namespaces, ns); err != nil {
				return nil, err
			}
		}
	}
	return gone, nil
}

func (s *Server) isEmpty(namespace string) bool {
	for _, t := range s.store.tables {
		if t.kind.Namespaced && len(t.list(namespace)) > 0 {
			return false
		}
	}
	return true
}

// deleteNamespace does the namespace controller's work: the content is deleted, with its grace and finalizers, and the
// namespace goes with the last of it.
func (s *Server) deleteNamespace(t *table, old *record) (*record, error) {
	u := old.meta().DeepCopy()
	if u.GetDeletionTimestamp() != nil {
		return old, nil
	}
	setDeletion(u, s.opts.Clock.Now(), 0)
	if err := unstructured.SetNestedField(u.Object, "Terminating", "status", "phase"); err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	left, err := s.store.put(t, u.Object)
	if err != nil {
		return nil, err
	}
	name := u.GetName()
	for _, k := range s.kinds {
		content := s.store.tables[k.gvr()]
		if !k.Namespaced {
			continue
		}
		for _, r := range content.list(name) {
			if _, err := s.deleteLocked(content, name, r.meta().GetName(), &metav1.DeleteOptions{}, false); err != nil {
				return nil, err
			}
		}
	}
	if now := t.items[objectKey("", name)]; now != nil && s.isEmpty(name) {
		if _, err := s.store.remove(t, now); err != nil {
			return nil, err
		}
	}
	return left, nil
}
