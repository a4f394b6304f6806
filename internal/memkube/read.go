package memkube

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"net/url"
	"strconv"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
)

func (s *Server) serveGet(w http.ResponseWriter, req Request, t *table) error {
	r := s.store.get(t, req.Namespace, req.Name)
	if r == nil {
		return apierrors.NewNotFound(resourceOf(t.kind), req.Name)
	}
	raw, err := render(r, metadataOnly(req.HTTP))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, raw)
	return nil
}

func (s *Server) serveList(w http.ResponseWriter, req Request, t *table) error {
	match, err := selectorOf(t.kind, req)
	if err != nil {
		return err
	}
	partial := metadataOnly(req.HTTP)
	records, rv := s.store.list(t, req.Namespace)
	apiVersion, kind := t.kind.apiVersion(), t.kind.Kind+"List"
	if partial {
		apiVersion, kind = "meta.k8s.io/v1", "PartialObjectMetadataList"
	}
	var body bytes.Buffer
	fmt.Fprintf(&body, `{"kind":%q,"apiVersion":%q,"metadata":{"resourceVersion":"%d"},"items":[`, kind, apiVersion, rv)
	sep := ""
	for _, r := range records {
		if !match(r) {
			continue
		}
		raw, err := render(r, partial)
		if err != nil {
			return err
		}
		body.WriteString(sep)
		body.Write(raw)
		sep = ","
	}
	body.WriteString("]}")
	writeJSON(w, http.StatusOK, body.Bytes())
	return nil
}

// metadataOnly says whether the client's first choice is PartialObjectMetadata.
func metadataOnly(r *http.Request) bool {
	first, _, _ := strings.Cut(r.Header.Get("Accept"), ",")
	_, params, err := mime.ParseMediaType(first)
	return err == nil && strings.HasPrefix(params["as"], "PartialObjectMetadata")
}

func render(r *record, partial bool) ([]byte, error) {
	if !partial {
		return r.raw, nil
	}
	return json.Marshal(map[string]any{"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": r.obj["metadata"]})
}

// matcher decides whether an object is selected.
type matcher func(*record) bool

// selectorOf builds the matcher of a request: namespace and name of the URL, labelSelector and fieldSelector.
func selectorOf(k Kind, req Request) (matcher, error) {
	q := req.HTTP.URL.Query()
	byLabel, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to parse labelSelector: %v", err))
	}
	byField, err := fieldSelector(k, q)
	if err != nil {
		return nil, err
	}
	return func(r *record) bool {
		u := r.meta()
		return (req.Namespace == "" || req.Namespace == u.GetNamespace()) &&
			(req.Name == "" || req.Name == u.GetName()) &&
			(byLabel.Empty() || byLabel.Matches(labels.Set(u.GetLabels()))) &&
			(byField.Empty() || byField.Matches(fieldsOf(byField, u)))
	}, nil
}

// fieldSelector knows metadata.name and metadata.namespace everywhere, any path of strings for built-in kinds.
func fieldSelector(k Kind, q url.Values) (fields.Selector, error) {
	sel, err := fields.ParseSelector(q.Get("fieldSelector"))
	if err != nil {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("unable to parse fieldSelector: %v", err))
	}
	for _, r := range sel.Requirements() {
		if k.Custom && r.Field != "metadata.name" && r.Field != "metadata.namespace" {
			return nil, apierrors.NewBadRequest(fmt.Sprintf("field label not supported: %s", r.Field))
		}
	}
	return sel, nil
}

func fieldsOf(sel fields.Selector, u *unstructured.Unstructured) fields.Set {
	set := fields.Set{}
	for _, r := range sel.Requirements() {
		value, _, err := unstructured.NestedFieldNoCopy(u.Object, strings.Split(r.Field, ".")...)
		if err != nil || value == nil {
			set[r.Field] = ""
			continue
		}
		set[r.Field] = fmt.Sprint(value)
	}
	return set
}

// versionParam reads resourceVersion; empty is 0.
func versionParam(q url.Values) (uint64, error) {
	v := q.Get("resourceVersion")
	if v == "" {
		return 0, nil
	}
	n, err := strconv.ParseUint(v, 10, 64)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("resourceVersion %q is not a number of this server", v))
	}
	return n, nil
}
