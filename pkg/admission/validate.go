package admission

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// outcomeAllowed is a validation's good end; the others are those of pods.
const outcomeAllowed = "allowed"

// LeaseReader is what validation needs of the ledger; *ipam.Ledger has it.
type LeaseReader interface {
	Leases() []ipam.Held
	Refresh(ctx context.Context, subnets ...string) error
}

// Surroundings tell what a change of the topology is judged against.
type Surroundings interface {
	// World may be late by what a cache lags behind.
	World(ctx context.Context) (network.World, error)
	// WorldLive is as things are now.
	WorldLive(ctx context.Context) (network.World, error)
}

// ValidateOptions of a ValidateHandler.
type ValidateOptions struct {
	Ledger       LeaseReader
	Surroundings Surroundings
	Config       network.Config
	// APIServer is the address that pods reach the API server at; the zero value: not known.
	APIServer netip.Addr
	// Clock is nil for the real one.
	Clock clock.PassiveClock
	// Margin is kept of the caller's time for the way back; zero means the default.
	Margin time.Duration
	// Metrics may be nil.
	Metrics prometheus.Registerer
	// Log gets one line for each request. The zero value discards.
	Log logr.Logger
}

// ValidateHandler serves admission reviews of Subnets, IPPools, Vips and namespaces. It changes nothing. Where it names
// holders of addresses, it has read the ledger live.
type ValidateHandler struct {
	ValidateOptions
	requests *prometheus.CounterVec
	duration prometheus.Histogram
}

// NewValidateHandler makes a handler.
func NewValidateHandler(o ValidateOptions) (*ValidateHandler, error) {
	if o.Ledger == nil || o.Surroundings == nil {
		return nil, errors.New("a validation handler needs a ledger and its surroundings")
	}
	if o.Clock == nil {
		o.Clock = clock.RealClock{}
	}
	if o.Margin <= 0 {
		o.Margin = DefaultMargin
	}
	h := &ValidateHandler{ValidateOptions: o,
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "berth_validation_requests_total",
			Help: "Validated changes of the topology by kind and outcome."}, []string{"kind", "outcome"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "berth_validation_duration_seconds",
			Help: "Time to answer a validation request.", Buckets: prometheus.ExponentialBuckets(0.0005, 2, 14)})}
	for _, kind := range validatedKinds() {
		for _, outcome := range []string{outcomeAllowed, outcomeRefused, outcomeError} {
			h.requests.WithLabelValues(kind, outcome)
		}
	}
	if o.Metrics == nil {
		return h, nil
	}
	for _, c := range []prometheus.Collector{h.requests, h.duration} {
		if err := o.Metrics.Register(c); err != nil {
			return nil, fmt.Errorf("the metrics of validation are registered twice, make one handler for each registry: %w", err)
		}
	}
	return h, nil
}

// ServeHTTP answers one review.
func (h *ValidateHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := h.Clock.Now()
	kind, outcome := kindOther, outcomePanic
	defer func() {
		if p := recover(); p != nil {
			h.Log.Error(fmt.Errorf("panic: %v", p), "validation request panicked: report this", "stack", string(debug.Stack()))
			http.Error(w, "internal error: the webhook's log says more", http.StatusInternalServerError)
		}
		h.duration.Observe(h.Clock.Since(start).Seconds())
		h.requests.WithLabelValues(kind, outcome).Inc()
	}()
	body, code, err := readBody(w, r)
	if err != nil {
		outcome = outcomeBadRequest
		http.Error(w, err.Error(), code)
		return
	}
	req, err := decodeChange(body)
	if err != nil {
		outcome = outcomeBadRequest
		h.Log.Info("validation request not understood", "error", err.Error())
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	kind = req.kind()
	ctx, cancel := context.WithTimeout(r.Context(), timeLeft(r, h.Margin))
	defer cancel()
	outcome = h.answer(ctx, w, req, start)
}

// answer judges the change, answers and gives the outcome.
func (h *ValidateHandler) answer(ctx context.Context, w http.ResponseWriter, req *change, start time.Time) string {
	d, err := h.judge(ctx, req)
	if err == nil {
		var out []byte
		if out, err = d.encode(req.UID); err == nil {
			values := []any{"outcome", d.outcome, "kind", req.kind(), "name", req.Name, "operation", req.Operation, "duration", h.Clock.Since(start).String()}
			if d.status != nil {
				values = append(values, "message", d.status.Message)
			}
			h.Log.Info("validation", append(values, "warnings", len(d.warnings))...)
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write(out) // a caller that has left is told nothing
			return d.outcome
		}
	}
	h.Log.Error(err, "validation request failed", "kind", req.kind(), "name", req.Name, "uid", req.UID)
	http.Error(w, err.Error(), http.StatusInternalServerError)
	return outcomeError
}

// judge decides. An error is our fault and not the change's.
func (h *ValidateHandler) judge(ctx context.Context, req *change) (*decision, error) {
	if req.kind() == kindOther {
		return allowed(outcomeAllowed), nil
	}
	s, err := req.subject()
	if err != nil {
		return nil, err
	}
	if !s.matters() {
		return allowed(outcomeAllowed), nil
	}
	if subnets := s.subnets(); len(subnets) > 0 {
		if err := h.Ledger.Refresh(ctx, subnets...); err != nil {
			return nil, fmt.Errorf("reading the leases of %s: %w", strings.Join(subnets, ", "), err)
		}
	}
	var warnings []string
	var errs field.ErrorList
	// What is refused by what the cache knows is judged again by what is there.
	for _, read := range []func(context.Context) (network.World, error){h.Surroundings.World, h.Surroundings.WorldLive} {
		world, err := read(ctx)
		if err != nil {
			return nil, fmt.Errorf("reading the topology: %w", err)
		}
		world.Config, world.APIServer, world.Leases = h.Config, h.APIServer, h.Ledger.Leases()
		if warnings, errs = s.validate(world); len(errs) == 0 {
			return allowed(outcomeAllowed, warnings...), nil
		}
	}
	return unfit(req, errs, warnings), nil
}

// unfit refuses a change with all reasons.
func unfit(req *change, errs field.ErrorList, warnings []string) *decision {
	d := allowed(outcomeRefused, warnings...)
	details := &metav1.StatusDetails{Name: req.Name, Group: req.Resource.Group, Kind: req.kind()}
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
		details.Causes = append(details.Causes, metav1.StatusCause{Type: metav1.CauseType(e.Type), Message: e.ErrorBody(), Field: e.Field})
	}
	d.status = &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusUnprocessableEntity, Reason: metav1.StatusReasonInvalid,
		Message: fmt.Sprintf("%s %s: %s", req.kind(), req.Name, strings.Join(texts, "; ")), Details: details}
	if req.deletes() {
		d.status.Code, d.status.Reason = http.StatusConflict, metav1.StatusReasonConflict
	}
	return d
}
