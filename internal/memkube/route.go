package memkube

import (
	"context"
	"errors"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// ServeHTTP answers one request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	req, ok := parseRequest(r)
	if !ok {
		s.serveMeta(w, r)
		return
	}
	s.count(req)
	t := s.store.tables[schema.GroupVersionResource{Group: req.Group, Version: req.Version, Resource: req.Resource}]
	if t == nil || t.kind.Namespaced && req.Namespace == "" && req.Name != "" {
		http.NotFound(w, r)
		return
	}
	fault := s.opts.Intercept(req)
	if !s.pause(r.Context(), fault.Delay) || !s.hold(r.Context(), fault.Hold) {
		return
	}
	switch {
	case errors.Is(fault.Err, ErrAbort):
		panic(http.ErrAbortHandler)
	case fault.Err != nil:
		writeError(w, fault.Err)
	case fault.DropAnswer:
		s.handle(r.Context(), &discard{}, req, t, fault)
		panic(http.ErrAbortHandler)
	default:
		s.handle(r.Context(), w, req, t, fault)
	}
}

func (s *Server) count(req Request) {
	key := req.Verb + " " + req.Resource
	if req.Subresource != "" {
		key += "/" + req.Subresource
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests[key]++
}

func (s *Server) handle(ctx context.Context, w http.ResponseWriter, req Request, t *table, fault Fault) {
	s.log.Debug("request", "verb", req.Verb, "resource", req.Resource, "subresource", req.Subresource,
		"namespace", req.Namespace, "name", req.Name)
	var err error
	switch {
	case !known(t.kind, req.Subresource):
		err = apierrors.NewGenericServerResponse(http.StatusNotFound, req.Verb, resourceOf(t.kind), req.Name,
			"the server could not find the requested resource", 0, true)
	case req.Subresource == "binding":
		err = s.serveBinding(w, req, t) //nolint:contextcheck // webhooks are called in the context of req.HTTP
	case req.Verb == "get":
		err = s.serveGet(w, req, t)
	case req.Verb == "list":
		err = s.serveList(w, req, t)
	case req.Verb == "watch":
		err = s.serveWatch(ctx, w, req, t, fault)
	case req.Verb == "create" && req.Subresource == "":
		err = s.serveCreate(w, req, t) //nolint:contextcheck // webhooks are called in the context of req.HTTP
	case req.Verb == "update":
		err = s.serveUpdate(w, req, t)
	case req.Verb == "patch":
		err = s.servePatch(w, req, t)
	case req.Verb == "delete" && req.Subresource == "":
		err = s.serveDelete(w, req, t)
	case req.Verb == "deletecollection" && req.Subresource == "":
		err = s.serveDeleteCollection(w, req, t)
	default:
		err = apierrors.NewMethodNotSupported(resourceOf(t.kind), req.Verb)
	}
	if err != nil {
		writeError(w, err)
	}
}

func known(k Kind, subresource string) bool {
	return subresource == "" || subresource == "status" && k.Status || subresource == "binding" && k.isPod()
}

func resourceOf(k Kind) schema.GroupResource {
	return schema.GroupResource{Group: k.Group, Resource: k.Resource}
}

// parseRequest takes the URL of a resource apart; false for everything else (discovery, health, version).
func parseRequest(r *http.Request) (Request, bool) {
	parts := strings.Split(strings.Trim(r.URL.Path, "/"), "/")
	req := Request{HTTP: r}
	switch {
	case len(parts) >= 3 && parts[0] == "api":
		req.Version, parts = parts[1], parts[2:]
	case len(parts) >= 4 && parts[0] == "apis":
		req.Group, req.Version, parts = parts[1], parts[2], parts[3:]
	default:
		return req, false
	}
	// namespaces/NAME and namespaces/NAME/status are the namespace itself, everything longer is in it.
	if parts[0] == "namespaces" && len(parts) >= 3 && !(len(parts) == 3 && req.Group == "" && parts[2] == "status") {
		req.Namespace, parts = parts[1], parts[2:]
	}
	if len(parts) > 3 {
		return req, false
	}
	req.Resource = parts[0]
	if len(parts) > 1 {
		req.Name = parts[1]
	}
	if len(parts) > 2 {
		req.Subresource = parts[2]
	}
	if req.Group == "" && req.Resource == "namespaces" {
		req.Namespace = ""
	}
	req.Verb = verb(r, req.Name)
	return req, true
}

func verb(r *http.Request, name string) string {
	switch r.Method {
	case http.MethodPost:
		return "create"
	case http.MethodPut:
		return "update"
	case http.MethodPatch:
		return "patch"
	case http.MethodDelete:
		if name == "" {
			return "deletecollection"
		}
		return "delete"
	}
	if w := r.URL.Query().Get("watch"); w == "true" || w == "1" {
		return "watch"
	}
	if name == "" {
		return "list"
	}
	return "get"
}

// discard swallows an answer that shall not arrive.
type discard struct{ header http.Header }

// Header implements http.ResponseWriter.
func (d *discard) Header() http.Header {
	if d.header == nil {
		d.header = http.Header{}
	}
	return d.header
}

// Write implements http.ResponseWriter.
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// WriteHeader implements http.ResponseWriter.
func (d *discard) WriteHeader(int) {}
