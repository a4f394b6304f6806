package memkube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"time"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	admissionv1 "k8s.io/api/admission/v1"
	registration "k8s.io/api/admissionregistration/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// registrationGroup holds the webhooks themselves; they are never sent to webhooks.
const registrationGroup = "admissionregistration.k8s.io"

// callError is a webhook that could not be asked: its failurePolicy decides. Every other error refuses the request.
type callError struct {
	hook string
	err  error
}

// Error implements error.
func (e *callError) Error() string {
	return fmt.Sprintf("failed calling webhook %q: %v", e.hook, e.err)
}

// Unwrap implements errors.
func (e *callError) Unwrap() error { return e.err }

// admission is the way of one object through the mutating webhooks.
type admission struct {
	server   *Server
	req      Request
	kind     Kind
	dry      bool
	object   map[string]any
	warnings []string
	// called were asked before and want to be asked again; again are those that somebody changed the object after.
	called, again map[string]bool
}

// admit sends an object that is being created, or a pod's Binding, to the registered mutating webhooks.
func (s *Server) admit(req Request, k Kind, obj map[string]any, dry bool) (map[string]any, []string, error) {
	if k.Group == registrationGroup {
		return obj, nil, nil
	}
	hooks, err := s.mutatingHooks()
	if err != nil {
		return nil, nil, err
	}
	a := &admission{server: s, req: req, kind: k, dry: dry, object: obj, called: map[string]bool{}, again: map[string]bool{}}
	for _, again := range []bool{false, true} {
		for _, h := range hooks {
			if again && !a.again[h.id] {
				continue
			}
			if err := a.ask(h); err != nil {
				return nil, a.warnings, err
			}
		}
	}
	return a.object, a.warnings, nil
}

// hook is one registered webhook.
type hook struct {
	registration.MutatingWebhook
	id string
}

// mutatingHooks are all webhooks in the order in which the API server calls them: by the names of their configurations.
func (s *Server) mutatingHooks() ([]hook, error) {
	t := s.tableOf(registrationGroup, "mutatingwebhookconfigurations")
	if t == nil {
		return nil, nil
	}
	records, _ := s.store.list(t, "")
	var hooks []hook
	for _, r := range records {
		var cfg registration.MutatingWebhookConfiguration
		if err := json.Unmarshal(r.raw, &cfg); err != nil {
			return nil, apierrors.NewInternalError(fmt.Errorf("webhook configuration %s: %w", r.meta().GetName(), err))
		}
		for i, w := range cfg.Webhooks {
			hooks = append(hooks, hook{MutatingWebhook: w, id: fmt.Sprintf("%s/%s/%d", cfg.Name, w.Name, i)})
		}
	}
	return hooks, nil
}

// ask calls one webhook, when it is concerned, and applies its answer.
func (a *admission) ask(h hook) error {
	concerned, err := a.concerns(h)
	if err != nil || !concerned {
		return err
	}
	changed, err := a.call(h)
	if changed {
		for id := range a.called {
			a.again[id] = true
			delete(a.called, id)
		}
	}
	if h.ReinvocationPolicy != nil && *h.ReinvocationPolicy == registration.IfNeededReinvocationPolicy {
		a.called[h.id] = true
	}
	var failed *callError
	if !errors.As(err, &failed) {
		return err
	}
	if h.FailurePolicy != nil && *h.FailurePolicy == registration.Ignore {
		a.server.log.Warn("webhook failed open", "webhook", h.Name, "error", err)
		return nil
	}
	return apierrors.NewInternalError(err)
}

func (a *admission) concerns(h hook) (bool, error) {
	if !slices.ContainsFunc(h.Rules, a.matchesRule) {
		return false, nil
	}
	ok, err := matchesLabels(h.ObjectSelector, (&unstructured.Unstructured{Object: a.object}).GetLabels())
	if err != nil || !ok {
		return false, err
	}
	if a.kind.Namespaced {
		ns := a.server.store.get(a.server.tableOf("", "namespaces"), "", a.req.Namespace)
		if ns == nil {
			return false, nil
		}
		if ok, err := matchesLabels(h.NamespaceSelector, ns.meta().GetLabels()); err != nil || !ok {
			return false, err
		}
	}
	if a.server.opts.MatchCondition == nil {
		return true, nil
	}
	for _, c := range h.MatchConditions {
		if ok, err := a.server.opts.MatchCondition(c.Expression, a.object); err != nil || !ok {
			return false, err
		}
	}
	return true, nil
}

func (a *admission) matchesRule(r registration.RuleWithOperations) bool {
	has := func(list []string, v string) bool { return slices.Contains(list, "*") || slices.Contains(list, v) }
	scope := registration.ClusterScope
	if a.kind.Namespaced {
		scope = registration.NamespacedScope
	}
	resource := a.kind.Resource
	if a.req.Subresource != "" {
		resource += "/" + a.req.Subresource
	}
	named := slices.Contains(r.Resources, resource) || slices.Contains(r.Resources, "*/*") ||
		a.req.Subresource == "" && slices.Contains(r.Resources, "*")
	return (slices.Contains(r.Operations, registration.Create) || slices.Contains(r.Operations, registration.OperationAll)) &&
		has(r.APIGroups, a.kind.Group) && has(r.APIVersions, a.kind.Version) && named &&
		(r.Scope == nil || *r.Scope == registration.AllScopes || *r.Scope == scope)
}

func matchesLabels(sel *metav1.LabelSelector, have map[string]string) (bool, error) {
	if sel == nil {
		return true, nil
	}
	s, err := metav1.LabelSelectorAsSelector(sel)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return s.Matches(labels.Set(have)), nil
}

// call asks a webhook and applies its patch; changed says whether the object differs.
func (a *admission) call(h hook) (changed bool, err error) {
	if a.dry && (h.SideEffects == nil || *h.SideEffects != registration.SideEffectClassNone && *h.SideEffects != registration.SideEffectClassNoneOnDryRun) {
		return false, apierrors.NewBadRequest(fmt.Sprintf("admission webhook %q does not support dry run", h.Name))
	}
	review, err := a.review()
	if err != nil {
		return false, err
	}
	timeout := 10 * time.Second
	if h.TimeoutSeconds != nil {
		timeout = time.Duration(*h.TimeoutSeconds) * time.Second
	}
	ctx, cancel := context.WithTimeout(a.req.HTTP.Context(), timeout)
	defer cancel()
	answer, err := a.server.hooks.post(ctx, h.ClientConfig, timeout, review)
	if err != nil {
		return false, &callError{hook: h.Name, err: fmt.Errorf("failed to call webhook: %w", err)}
	}
	if err := checkAnswer(answer, review.Request.UID); err != nil {
		return false, &callError{hook: h.Name, err: fmt.Errorf("received invalid webhook response: %w", err)}
	}
	a.warnings = append(a.warnings, answer.Response.Warnings...)
	if !answer.Response.Allowed {
		return false, denial(h.Name, answer.Response.Result)
	}
	return a.apply(h, answer.Response.Patch)
}

func (a *admission) apply(h hook, patch []byte) (changed bool, err error) {
	if len(patch) == 0 {
		return false, nil
	}
	ops, err := jsonpatch.DecodePatch(patch)
	if err != nil {
		return false, &callError{hook: h.Name, err: fmt.Errorf("received undecodable patch in webhook response: %w", err)}
	}
	raw, err := json.Marshal(a.object)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	if raw, err = ops.Apply(raw); err != nil {
		return false, apierrors.NewInternalError(err)
	}
	patched, err := decodeJSON(raw)
	if err != nil {
		return false, err
	}
	changed = !reflect.DeepEqual(patched, a.object)
	a.object = patched
	return changed, nil
}

// review is the question: an object without UID, and without name where one is to be generated.
func (a *admission) review() (*admissionv1.AdmissionReview, error) {
	raw, err := json.Marshal(a.object)
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	options, err := json.Marshal(metav1.CreateOptions{TypeMeta: metav1.TypeMeta{Kind: "CreateOptions", APIVersion: "meta.k8s.io/v1"},
		FieldManager: a.req.HTTP.URL.Query().Get("fieldManager"), DryRun: a.req.HTTP.URL.Query()["dryRun"]})
	if err != nil {
		return nil, apierrors.NewInternalError(err)
	}
	kind := metav1.GroupVersionKind{Group: a.kind.Group, Version: a.kind.Version, Kind: a.kind.Kind}
	name := stringAt(a.object, "metadata", "name")
	if a.req.Subresource != "" {
		kind.Kind, name = stringAt(a.object, "kind"), a.req.Name
	}
	resource := metav1.GroupVersionResource{Group: a.kind.Group, Version: a.kind.Version, Resource: a.kind.Resource}
	dry := a.dry
	return &admissionv1.AdmissionReview{
		TypeMeta: metav1.TypeMeta{Kind: "AdmissionReview", APIVersion: "admission.k8s.io/v1"},
		Request: &admissionv1.AdmissionRequest{
			UID: uuid.NewUUID(), Kind: kind, Resource: resource, RequestKind: &kind, RequestResource: &resource,
			SubResource: a.req.Subresource, RequestSubResource: a.req.Subresource, Name: name, Namespace: a.req.Namespace, Operation: admissionv1.Create,
			UserInfo: authenticationv1.UserInfo{Username: "admin", Groups: []string{"system:masters", "system:authenticated"}},
			Object:   runtime.RawExtension{Raw: raw}, DryRun: &dry, Options: runtime.RawExtension{Raw: options},
		},
	}, nil
}

func checkAnswer(review *admissionv1.AdmissionReview, uid types.UID) error {
	switch {
	case review.Kind != "AdmissionReview" || review.APIVersion != "admission.k8s.io/v1":
		return fmt.Errorf("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got %s, Kind=%s", review.APIVersion, review.Kind)
	case review.Response == nil:
		return errors.New("webhook response was absent")
	case review.Response.UID != uid:
		return fmt.Errorf("expected response.uid=%q, got %q", uid, review.Response.UID)
	case len(review.Response.Patch) > 0 && (review.Response.PatchType == nil || *review.Response.PatchType != admissionv1.PatchTypeJSONPatch):
		return errors.New("webhook returned a patch without response.patchType JSONPatch")
	case len(review.Response.Patch) == 0 && review.Response.PatchType != nil:
		return errors.New("webhook returned response.patchType without a patch")
	}
	return nil
}

// denial is what the client gets when a webhook says no.
func denial(hook string, result *metav1.Status) error {
	status := metav1.Status{}
	if result != nil {
		status = *result
	}
	if status.Code < http.StatusBadRequest {
		status.Code = http.StatusBadRequest
	}
	status.Status = metav1.StatusFailure
	prefix := fmt.Sprintf("admission webhook %q denied the request", hook)
	switch {
	case status.Message != "":
		status.Message = prefix + ": " + status.Message
	case status.Reason != "":
		status.Message = prefix + ": " + string(status.Reason)
	default:
		status.Message = prefix + " without explanation"
	}
	return &apierrors.StatusError{ErrStatus: status}
}

func addWarning(w http.ResponseWriter, text string) {
	if header, err := utilnet.NewWarningHeader(299, "-", text); err == nil {
		w.Header().Add("Warning", header)
	}
}

// timeoutParam is the time limit as the API server writes it into the URL: whole seconds, rounded up.
func timeoutParam(d time.Duration) string {
	return strconv.Itoa(int((d+time.Second-1)/time.Second)) + "s"
}
