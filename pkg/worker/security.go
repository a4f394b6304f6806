package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// setupSecurity watches SecurityGroups. Each is a piece of work; one more, under the name of what denies all, looks after
// groups that are left over.
func (w *Worker) setupSecurity(mgr manager.Manager) error {
	skip := true
	spec := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	rest := source.Func(func(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
		queue.Add(requestFor(nb.DenyAll))
		return nil
	})
	return builder.ControllerManagedBy(mgr).Named("security").
		For(&kubeovnv1.SecurityGroup{}, spec).
		Watches(&kubeovnv1.SecurityGroup{}, handler.EnqueueRequestsFromMapFunc(w.concerned), spec).
		WatchesRawSource(rest).
		WithOptions(controller.Options{SkipNameValidation: &skip, RateLimiter: backoff()}).
		Complete(reconcile.Func(w.reconcileSecurity))
}

func requestFor(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
}

// concerned gives the other SecurityGroups that look different when one comes or goes: those with a rule about it, and
// those that would have its port group. It is not among them itself: asked for twice, it would be realised a second time
// from a cache that may not show its status yet.
func (w *Worker) concerned(ctx context.Context, changed client.Object) []reconcile.Request {
	groups, err := w.securityGroups(ctx)
	if err != nil {
		w.Log.Error(err, "SecurityGroups could not be listed", "changed", changed.GetName())
		return nil
	}
	names := func(r kubeovnv1.SecurityGroupRule) bool { return r.RemoteSecurityGroup == changed.GetName() }
	var out []reconcile.Request
	for _, g := range groups {
		if g.Name == changed.GetName() {
			continue
		}
		same := nb.SecurityGroupName(g.Name) == nb.SecurityGroupName(changed.GetName())
		if same || slices.ContainsFunc(g.Spec.IngressRules, names) || slices.ContainsFunc(g.Spec.EgressRules, names) {
			out = append(out, requestFor(g.Name))
		}
	}
	return out
}

func (w *Worker) securityGroups(ctx context.Context) ([]*kubeovnv1.SecurityGroup, error) {
	var list kubeovnv1.SecurityGroupList
	if err := w.Client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list SecurityGroups: %w", err)
	}
	var out []*kubeovnv1.SecurityGroup
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out, nil
}

// reconcileSecurity realises one SecurityGroup. What denies all is there before any group has members.
func (w *Worker) reconcileSecurity(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if err := w.Northbound.Ready(); err != nil {
		return reconcile.Result{}, err
	}
	groups, err := w.securityGroups(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := w.apply(ctx, ovn.Change{Key: "what denies all", Ensure: topology.DenyAllRows()}); err != nil {
		return reconcile.Result{}, err
	}
	again := reconcile.Result{RequeueAfter: topologyPeriod}
	if r.Name == nb.DenyAll {
		return again, w.dropSecurity(ctx, groups)
	}
	i := slices.IndexFunc(groups, func(g *kubeovnv1.SecurityGroup) bool { return g.Name == r.Name })
	if i < 0 {
		return reconcile.Result{}, w.dropSecurity(ctx, groups)
	}
	return again, w.secure(ctx, groups[i], groups)
}

// secure writes a SecurityGroup's rows, and then its status. A row of somebody else that is in the way is told there.
func (w *Worker) secure(ctx context.Context, g *kubeovnv1.SecurityGroup, all []*kubeovnv1.SecurityGroup) error {
	rows, findings := topology.SecurityRows(g, all)
	var blocked error
	if len(rows.Groups) > 0 {
		err := w.apply(ctx, ovn.Change{Key: "SecurityGroup " + g.Name, Ensure: rows})
		var foreign *ovn.ForeignRowError
		var clash *ovn.ClashError
		switch {
		case errors.As(err, &foreign), errors.As(err, &clash):
			blocked = err
			findings = append(findings, topology.Finding{Kind: topology.KindSecurityGroup, Name: g.Name, Err: err})
		case err != nil:
			return err
		}
	}
	return errors.Join(blocked, w.patchSecurity(ctx, g, topology.SecurityStatus(g, findings)), w.announce(ctx, g, findings))
}

// patchSecurity writes what of a SecurityGroup's status differs, and nothing else.
func (w *Worker) patchSecurity(ctx context.Context, g *kubeovnv1.SecurityGroup, want kubeovnv1.SecurityGroupStatus) error {
	status := map[string]any{}
	differs := func(key string, have, want any) {
		if have != want {
			status[key] = want
		}
	}
	differs("portGroup", g.Status.PortGroup, want.PortGroup)
	differs("allowSameGroupTraffic", g.Status.AllowSameGroupTraffic, want.AllowSameGroupTraffic)
	differs("ingressMd5", g.Status.IngressMd5, want.IngressMd5)
	differs("egressMd5", g.Status.EgressMd5, want.EgressMd5)
	differs("ingressLastSyncSuccess", g.Status.IngressLastSyncSuccess, want.IngressLastSyncSuccess)
	differs("egressLastSyncSuccess", g.Status.EgressLastSyncSuccess, want.EgressLastSyncSuccess)
	if len(status) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": g.UID}, "status": status})
	if err != nil {
		return err
	}
	err = w.Client.Status().Patch(ctx, g, client.RawPatch(types.MergePatchType, body))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("write the status of SecurityGroup %s: %w", g.Name, err)
	}
	return nil
}

// dropSecurity takes away the groups of SecurityGroups that are gone, which is read live. It looks at those alone that
// carry the marks of one.
func (w *Worker) dropSecurity(ctx context.Context, groups []*kubeovnv1.SecurityGroup) error {
	var errs []error
	for _, name := range w.Northbound.SecurityGroups() {
		if name == nb.DenyAll || slices.ContainsFunc(groups, func(g *kubeovnv1.SecurityGroup) bool { return g.Name == name }) {
			continue
		}
		var g kubeovnv1.SecurityGroup
		err := w.Live.Get(ctx, client.ObjectKey{Name: name}, &g)
		switch {
		case apierrors.IsNotFound(err):
			errs = append(errs, w.apply(ctx, ovn.Change{Key: "SecurityGroup " + name, RemoveGroups: []string{nb.SecurityGroupName(name)}}))
		case err != nil:
			errs = append(errs, fmt.Errorf("read SecurityGroup %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}
