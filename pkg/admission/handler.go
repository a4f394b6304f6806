package admission

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"runtime/debug"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const (
	// bodyLimit is above the largest review that an API server sends.
	bodyLimit = 7 << 20
	// bodyGrow is how much room is made by what a caller says that it will send.
	bodyGrow = 256 << 10
	// DefaultTimeout is what a call without ?timeout= has.
	DefaultTimeout = 10 * time.Second
	// MaxTimeout is what no call exceeds.
	MaxTimeout = 30 * time.Second
	// DefaultMargin is kept of the caller's time for the way back.
	DefaultMargin = 500 * time.Millisecond
	// DefaultConcurrency is how many requests are answered at once.
	DefaultConcurrency = 256
)

// Ledger is what admission needs of the ledger; *ipam.Ledger has it.
type Ledger interface {
	Take(ctx context.Context, r ipam.Request) (*ipam.Allocation, error)
	Preview(ctx context.Context, r ipam.Request) (*ipam.Allocation, error)
	ByClaim(c ipam.Claim) []ipam.Held
	Pending(subnet, namespace string, age time.Duration, enough int) []ipam.Claim
	Young(h ipam.Held, age time.Duration) bool
	Refresh(ctx context.Context, subnets ...string) error
}

// Options of a Handler.
type Options struct {
	Ledger   Ledger
	Topology catalog.Reader
	Config   network.Config
	// Pods lets the handler hold back namespaces whose creations keep failing; nil: it does not.
	Pods Pods
	// Random is a cryptographically strong source of claims.
	Random io.Reader
	// Clock is nil for the real one.
	Clock clock.PassiveClock
	// Margin, Concurrency: zero means the defaults.
	Margin      time.Duration
	Concurrency int
	// Metrics may be nil.
	Metrics prometheus.Registerer
	// Log gets one line for each request. The zero value discards.
	Log logr.Logger
}

// Handler serves admission reviews of pods. It is a plain http.Handler, because controller-runtime's admission.Handler
// turns every failure into a denial.
type Handler struct {
	Options
	metrics *metrics
	slots   chan struct{}
	guard   *guard
}

// NewHandler makes a handler.
func NewHandler(o Options) (*Handler, error) {
	if o.Ledger == nil || o.Topology == nil || o.Random == nil {
		return nil, errors.New("an admission handler needs a ledger, a topology and a source of randomness")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Margin <= 0 {
		o.Margin = DefaultMargin
	}
	if o.Concurrency <= 0 {
		o.Concurrency = DefaultConcurrency
	}
	m, err := newMetrics(o.Metrics)
	if err != nil {
		return nil, err
	}
	return &Handler{Options: o, metrics: m, slots: make(chan struct{}, o.Concurrency), guard: newGuard(o)}, nil
}

// ServeHTTP answers one review.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.Clock.Now()
	h.metrics.inFlight.Inc()
	outcome := outcomePanic
	defer func() {
		if p := recover(); p != nil {
			h.metrics.panics.Inc()
			h.Log.Error(fmt.Errorf("panic: %v", p), "admission request panicked: report this", "stack", string(debug.Stack()))
			http.Error(w, "internal error: the webhook's log says more", http.StatusInternalServerError)
		}
		h.metrics.inFlight.Dec()
		h.metrics.duration.Observe(h.Clock.Since(start).Seconds())
		h.metrics.requests.WithLabelValues(outcome).Inc()
	}()
	outcome = h.serve(w, r, start)
}

// serve answers and gives the outcome.
func (h *Handler) serve(w http.ResponseWriter, r *http.Request, start time.Time) string {
	body, code, err := readBody(w, r)
	if err != nil {
		http.Error(w, err.Error(), code)
		return outcomeBadRequest
	}
	req, err := decode(body)
	if err != nil {
		h.Log.Info("admission request not understood", "error", err.Error())
		http.Error(w, err.Error(), http.StatusBadRequest)
		return outcomeBadRequest
	}
	var d *decision
	select {
	case h.slots <- struct{}{}:
		d, err = h.limited(r, req)
	default:
		d = overloaded()
	}
	if err == nil {
		var out []byte
		if out, err = d.encode(req.UID); err == nil {
			h.report(req, d, start)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(out) // a caller that has left is told nothing
			return d.outcome
		}
	}
	h.Log.Error(err, "admission request failed", "namespace", req.Namespace, "uid", req.UID, "duration", h.Clock.Since(start).String())
	http.Error(w, err.Error(), http.StatusInternalServerError)
	return outcomeError
}

// limited decides within the caller's time; a slot was taken for it.
func (h *Handler) limited(r *http.Request, req *request) (*decision, error) {
	defer func() { <-h.slots }()
	ctx, cancel := context.WithTimeout(r.Context(), h.timeout(r))
	defer cancel()
	return h.decide(ctx, req)
}

// timeout is the caller's, less the margin.
func (h *Handler) timeout(r *http.Request) time.Duration { return timeLeft(r, h.Margin) }

// timeLeft is the caller's time less a margin; of a very short one half.
func timeLeft(r *http.Request, margin time.Duration) time.Duration {
	d, err := time.ParseDuration(r.URL.Query().Get("timeout"))
	if err != nil || d <= 0 {
		d = DefaultTimeout
	}
	d = min(d, MaxTimeout)
	return max(d-margin, d/2)
}

func (h *Handler) report(req *request, d *decision, start time.Time) {
	if d.reason != "" {
		h.metrics.refusals.WithLabelValues(d.reason).Inc()
	}
	values := []any{"outcome", d.outcome, "namespace", req.Namespace, "uid", req.UID, "dryRun", req.DryRun, "duration", h.Clock.Since(start).String()}
	if req.creates() {
		values = append(values, "pod", req.pod().String())
	}
	for _, k := range []string{auditClaim, auditSubnet, auditAddresses} {
		if v := d.audit[k]; v != "" {
			values = append(values, k, v)
		}
	}
	if d.status != nil {
		values = append(values, "code", d.status.Code, "reason", d.reason, "message", d.status.Message)
	}
	if len(d.warnings) > 0 {
		values = append(values, "warnings", d.warnings)
	}
	h.Log.Info("admission", values...)
}

func readBody(w http.ResponseWriter, r *http.Request) ([]byte, int, error) {
	if r.Method != http.MethodPost {
		return nil, http.StatusMethodNotAllowed, errors.New("send a POST")
	}
	if t, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || t != "application/json" {
		return nil, http.StatusUnsupportedMediaType, errors.New("send Content-Type: application/json")
	}
	var body bytes.Buffer
	body.Grow(int(min(max(r.ContentLength, 0), bodyGrow)) + bytes.MinRead)
	if _, err := body.ReadFrom(http.MaxBytesReader(w, r.Body, bodyLimit)); err != nil {
		var big *http.MaxBytesError
		if errors.As(err, &big) {
			return nil, http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", bodyLimit)
		}
		return nil, http.StatusBadRequest, fmt.Errorf("reading the body: %w", err)
	}
	return body.Bytes(), 0, nil
}
