package memkube

import (
	"errors"
	"log/slog"
	"net/http"
	"time"

	"k8s.io/utils/clock"
)

// ErrAbort in Fault.Err cuts the connection before the request is handled: nothing is committed and the
// client sees a transport error.
var ErrAbort = errors.New("connection cut by the test's fault hook; return another fault to let the request through")

// Options configures a Server. The zero value serves plain HTTP on a free port of the loopback interface.
type Options struct {
	// Addr is the address to listen on; empty means a free port on 127.0.0.1.
	Addr string
	// TLS serves HTTPS under a certificate made at start; Config and Kubeconfig carry its authority.
	TLS bool
	// Kinds are served in addition to DefaultKinds. A kind of the same group, version and resource replaces it.
	Kinds []Kind
	// Namespaces are created at start beside default, kube-system, kube-public and kube-node-lease.
	Namespaces []string
	// Clock gives creation and deletion times; nil means the real one.
	Clock clock.PassiveClock
	// ServiceURL says where the Service of a webhook really listens: "namespace/name" to "https://127.0.0.1:9443".
	ServiceURL map[string]string
	// MatchCondition evaluates one CEL expression of a webhook's matchConditions over the object. Nil treats every
	// condition as true: this server has no CEL.
	MatchCondition func(expression string, object map[string]any) (bool, error)
	// Intercept is asked about every request for a resource before it is handled. Nil lets all through.
	Intercept func(Request) Fault
	// History is the number of events kept for each resource; a watch that starts before them, or falls behind them,
	// ends with 410 Expired. Zero means 100,000.
	History int
	// BookmarkEvery is the time between bookmarks of a quiet watch. Zero means a minute.
	BookmarkEvery time.Duration
	// Log gets one debug line for each request and warnings about webhooks that failed open. Nil discards.
	Log *slog.Logger
}

// Request is one parsed call for a resource.
type Request struct {
	// Verb is the API verb: get, list, watch, create, update, patch, delete or deletecollection.
	Verb string
	// Group and Version are those of the URL; the core group is empty.
	Group, Version string
	// Resource is the plural; Subresource is empty for the object itself.
	Resource, Subresource string
	// Namespace and Name are empty where the URL has none.
	Namespace, Name string
	// HTTP is the request itself. The body must not be read.
	HTTP *http.Request
}

// Fault is what Options.Intercept wants to happen to a request. The zero value is no fault.
type Fault struct {
	// Delay is waited before anything else happens.
	Delay time.Duration
	// Hold is waited for (a receive, or its close) before anything else happens. Nil holds nothing.
	Hold <-chan struct{}
	// Err fails the request before it is handled: the status of an apierrors.StatusError, 500 for other errors, a
	// cut connection for ErrAbort.
	Err error
	// DropAnswer handles and commits the request, then cuts the connection instead of answering.
	DropAnswer bool
	// WatchDelay, on a watch, is waited before each batch of events after the initial ones.
	WatchDelay time.Duration
}
