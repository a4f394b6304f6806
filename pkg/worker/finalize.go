package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"go4.org/netipx"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/jsonpatch"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// retryEnding is how often an object that is being deleted is looked at while leases hold it.
const retryEnding = 2 * time.Second

// Prefixes of requests, by kind.
const (
	ofSubnet = "Subnet/"
	ofPool   = "IPPool/"
	ofVip    = "Vip/"
)

// setupFinalizers watches what must not go before its last lease. With a Subnet come its pools and Vips, for whether they
// are ours is said by it.
func (w *Worker) setupFinalizers(mgr manager.Manager) error {
	skip := true
	by := func(prefix string) handler.EventHandler {
		return handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: prefix + o.GetName()}}}
		})
	}
	return builder.ControllerManagedBy(mgr).Named("finalizers").
		Watches(&kubeovnv1.Subnet{}, handler.EnqueueRequestsFromMapFunc(w.within)).
		Watches(&kubeovnv1.IPPool{}, by(ofPool)).Watches(&kubeovnv1.Vip{}, by(ofVip)).
		WithOptions(controller.Options{SkipNameValidation: &skip, RateLimiter: backoff()}).
		Complete(reconcile.Func(w.reconcileFinalizer))
}

// within gives requests for a Subnet and for its pools and Vips.
func (w *Worker) within(ctx context.Context, s client.Object) []reconcile.Request {
	request := func(name string) reconcile.Request {
		return reconcile.Request{NamespacedName: client.ObjectKey{Name: name}}
	}
	out := []reconcile.Request{request(ofSubnet + s.GetName())}
	var pools kubeovnv1.IPPoolList
	var vips kubeovnv1.VipList
	for _, list := range []client.ObjectList{&pools, &vips} {
		if err := w.Client.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			w.Log.Error(err, "Pools and Vips of a subnet could not be listed", "subnet", s.GetName())
		}
	}
	for i := range pools.Items {
		if pools.Items[i].Spec.Subnet == s.GetName() {
			out = append(out, request(ofPool+pools.Items[i].Name))
		}
	}
	for i := range vips.Items {
		if vips.Items[i].Spec.Subnet == s.GetName() {
			out = append(out, request(ofVip+vips.Items[i].Name))
		}
	}
	return out
}

// kept is an object that ends after its last lease.
type kept struct {
	client.Object
	subnet string
	// holds tells whether a lease holds it.
	holds func(ipam.Held) bool
}

// reconcileFinalizer has a Subnet, an IPPool or a Vip end after its last lease. Others' finalizers are left alone.
func (w *Worker) reconcileFinalizer(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	k, err := w.kept(ctx, r.Name)
	if err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	ours, closed, err := w.oursIn(ctx, k.subnet)
	if err != nil {
		return reconcile.Result{}, err
	}
	dying, has := k.GetDeletionTimestamp() != nil, slices.Contains(k.GetFinalizers(), network.Finalizer)
	switch {
	case ours && !has && !dying:
		return reconcile.Result{}, w.patchFinalizer(ctx, k.Object, true)
	case !has || ours && !dying:
		return reconcile.Result{}, nil
	}
	if err := w.Ledger.Refresh(ctx, k.subnet); err != nil {
		return reconcile.Result{}, fmt.Errorf("read the ledger: %w", err)
	}
	if n := w.count(k.holds); n > 0 {
		w.tellOnce(fmt.Sprintf("ending %s %s", r.Name, k.GetUID()), "It ends when its last lease does", "object", r.Name, "leases", n)
		return reconcile.Result{RequeueAfter: retryEnding}, nil
	}
	if closed || w.Ledger.ClosedHere()[k.subnet].Times > 0 { // leases may be missing
		return reconcile.Result{RequeueAfter: retryEnding}, nil
	}
	return reconcile.Result{}, w.patchFinalizer(ctx, k.Object, false)
}

// oursIn tells whether the leases of a subnet are ours, and whether it is marked as closed. One that is gone has none.
func (w *Worker) oursIn(ctx context.Context, name string) (ours, closed bool, err error) {
	var s kubeovnv1.Subnet
	if err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &s); err != nil {
		return false, false, client.IgnoreNotFound(err)
	}
	return name != w.Network.NodeSwitch && (w.Topology == Ensure || s.Labels[network.LabelManaged] == "true"), s.Annotations[network.ClosedKey] != "", nil
}

// kept reads the object that a request is for.
func (w *Worker) kept(ctx context.Context, request string) (kept, error) {
	kind, name, _ := strings.Cut(request, "/")
	key := client.ObjectKey{Name: name}
	switch kind + "/" {
	case ofPool:
		var p kubeovnv1.IPPool
		if err := w.Client.Get(ctx, key, &p); err != nil {
			return kept{}, err
		}
		set, err := network.ParseRanges(p.Spec.IPs)
		if err != nil {
			set = &netipx.IPSet{} // it gives nothing
		}
		return kept{&p, p.Spec.Subnet, func(h ipam.Held) bool {
			return h.Subnet == p.Spec.Subnet && h.Address.IsValid() && set.Contains(h.Address) && !h.Owner.Reserves()
		}}, nil
	case ofVip:
		var v kubeovnv1.Vip
		if err := w.Client.Get(ctx, key, &v); err != nil {
			return kept{}, err
		}
		owner := ipam.Owner{Group: kubeovnv1.GroupVersion().Group, Kind: ipam.KindVip, Name: name}
		return kept{&v, v.Spec.Subnet, func(h ipam.Held) bool { return h.LentFrom(owner) }}, nil
	}
	var s kubeovnv1.Subnet
	err := w.Client.Get(ctx, key, &s)
	// What nodes and the subnet itself have in it goes with it.
	return kept{&s, name, func(h ipam.Held) bool {
		return h.Subnet == name && h.Owner.Kind != ipam.KindNode && h.Owner.Kind != ipam.KindSubnet
	}}, err
}

func (w *Worker) count(holds func(ipam.Held) bool) int {
	n := 0
	for _, h := range w.Ledger.Leases() {
		if holds(h) {
			n++
		}
	}
	return n
}

// patchFinalizer adds our finalizer to exactly this object, or removes it by its place and value: what others change at
// the same time stays.
func (w *Worker) patchFinalizer(ctx context.Context, obj client.Object, add bool) error {
	list := obj.GetFinalizers()
	ops := []jsonpatch.Operation{jsonpatch.Test(jsonpatch.UID, obj.GetUID())}
	if add {
		ops = append(ops, jsonpatch.Append(jsonpatch.Finalizers, len(list) > 0, network.Finalizer))
	} else {
		at := fmt.Sprintf("%s/%d", jsonpatch.Finalizers, slices.Index(list, network.Finalizer))
		ops = append(ops, jsonpatch.Test(at, network.Finalizer), jsonpatch.Remove(at))
	}
	body, err := json.Marshal(ops)
	if err != nil {
		return err
	}
	err = w.Client.Patch(ctx, obj, client.RawPatch(types.JSONPatchType, body))
	dying := add && (apierrors.IsForbidden(err) || apierrors.IsInvalid(err))
	if apierrors.IsNotFound(err) || jsonpatch.Outdated(err) || dying {
		return nil // it is another by now, and its next event brings it back
	}
	if err != nil {
		return fmt.Errorf("finalizer of %s: %w", obj.GetName(), err)
	}
	return nil
}
