package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/topology"
)

// conditionRealised tells whether all that an object's spec says is realised. Its reasons are below.
const (
	conditionRealised = "Realised"
	reasonRealised    = "EverythingRealised"
	reasonNobody      = "NotRealised"
	actionRealise     = "Realise"
)

// unrealisedText says what of an object isn't realised, and what to do; empty: nothing.
func unrealisedText(obj client.Object, m topology.Mode, findings []topology.Finding) string {
	var fields, wrong []string
	kind := ""
	switch o := obj.(type) {
	case *kubeovnv1.Subnet:
		kind, fields = topology.KindSubnet, topology.UnrealisedSubnet(o, m)
	case *kubeovnv1.Vpc:
		kind, fields = topology.KindVpc, topology.UnrealisedVpc(o, m)
	case *kubeovnv1.SecurityGroup:
		kind, fields = topology.KindSecurityGroup, topology.UnrealisedSecurityGroup(o, m)
	}
	for _, f := range findings {
		if f.Kind == kind && f.Name == obj.GetName() {
			wrong = append(wrong, f.Err.Error())
		}
	}
	return joinFaults(strings.Join(wrong, "; "), fields)
}

// joinFaults adds to what is wrong with an object the fields that nobody realises.
func joinFaults(wrong string, fields []string) string {
	var all []string
	if wrong != "" {
		all = append(all, wrong)
	}
	if len(fields) > 0 {
		all = append(all, fmt.Sprintf("nobody realises %s here: remove it, or use a controller that does", strings.Join(fields, ", ")))
	}
	return strings.Join(all, "; ")
}

// announceTopology writes the conditions of Vpcs and Subnets.
func (w *Worker) announceTopology(ctx context.Context, l *landscape, findings []topology.Finding) error {
	var errs []error
	for _, s := range l.Subnets {
		errs = append(errs, w.announce(ctx, s, findings))
	}
	for _, v := range l.Vpcs {
		errs = append(errs, w.announce(ctx, v, findings))
	}
	return errors.Join(errs...)
}

// conditionsOf returns an object's conditions.
func conditionsOf(obj client.Object) []kubeovnv1.Condition {
	switch o := obj.(type) {
	case *kubeovnv1.Subnet:
		return o.Status.Conditions
	case *kubeovnv1.Vpc:
		return o.Status.Conditions
	case *kubeovnv1.SecurityGroup:
		return o.Status.Conditions
	}
	return nil
}

// announce writes the condition of an object when it says something new. One of which everything was always realised
// gets none.
func (w *Worker) announce(ctx context.Context, obj client.Object, findings []topology.Finding) error {
	want := kubeovnv1.Condition{Type: conditionRealised, Status: string(corev1.ConditionTrue), Reason: reasonRealised}
	if want.Message = unrealisedText(obj, topology.Alone, findings); want.Message != "" {
		want.Status, want.Reason = string(corev1.ConditionFalse), reasonNobody
	}
	now := metav1.NewTime(w.Clock.Now())
	if _, changed := withCondition(conditionsOf(obj), want, now); !changed {
		return nil
	}
	err := w.writeCondition(ctx, obj, want, now)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the condition of %T %s: %w", obj, obj.GetName(), err)
	}
	return nil
}

// writeCondition writes it into the list as it is now. The list is written as a whole, so nobody may write in between.
func (w *Worker) writeCondition(ctx context.Context, obj client.Object, want kubeovnv1.Condition, now metav1.Time) error {
	live, ok := obj.DeepCopyObject().(client.Object)
	if !ok {
		return fmt.Errorf("%T is no object", obj)
	}
	if err := w.Live.Get(ctx, client.ObjectKeyFromObject(obj), live); err != nil {
		return err
	}
	conditions, changed := withCondition(conditionsOf(live), want, now)
	if !changed || live.GetUID() != obj.GetUID() {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": live.GetUID(), "resourceVersion": live.GetResourceVersion()},
		"status": map[string]any{"conditions": conditions}})
	if err != nil {
		return err
	}
	return w.Client.Status().Patch(ctx, live, client.RawPatch(types.MergePatchType, body))
}

// withCondition puts a condition into a list, and tells whether that changes what the list says.
func withCondition(have []kubeovnv1.Condition, want kubeovnv1.Condition, now metav1.Time) ([]kubeovnv1.Condition, bool) {
	want.LastUpdateTime, want.LastTransitionTime = now, now
	i := slices.IndexFunc(have, func(c kubeovnv1.Condition) bool { return c.Type == want.Type })
	if i < 0 {
		return append(slices.Clone(have), want), want.Status != string(corev1.ConditionTrue)
	}
	old := have[i]
	if old.Status == want.Status && old.Reason == want.Reason && old.Message == want.Message {
		return have, false
	}
	if old.Status == want.Status {
		want.LastTransitionTime = old.LastTransitionTime
	}
	out := slices.Clone(have)
	out[i] = want
	return out, true
}

// setupUnrealised watches Subnets where their status isn't ours to write.
func (w *Worker) setupUnrealised(mgr manager.Manager) error {
	skip := true
	return builder.ControllerManagedBy(mgr).Named("unrealised").
		For(&kubeovnv1.Subnet{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{SkipNameValidation: &skip, RateLimiter: backoff()}).
		Complete(reconcile.Func(w.tellUnrealised))
}

// tellUnrealised tells of a Subnet, by an event and in the log, what nobody realises.
func (w *Worker) tellUnrealised(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var s kubeovnv1.Subnet
	if err := w.Client.Get(ctx, r.NamespacedName, &s); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if text := unrealisedText(&s, topology.Beside, nil); text != "" {
		w.tellOnce("unrealised "+s.Name+" "+text, "A Subnet isn't realised as written", "subnet", s.Name, "reason", text)
		w.Recorder.Eventf(&s, nil, corev1.EventTypeWarning, reasonNobody, actionRealise, "%s", text)
	}
	return reconcile.Result{}, nil
}
