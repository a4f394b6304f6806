package worker

import (
	"context"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// setupTopology watches what the topology follows from; all of it is one piece of work.
func (w *Worker) setupTopology(mgr manager.Manager) error {
	skip := true
	one := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: client.ObjectKey{Name: "topology"}}}
	})
	// Status is nobody's wish. When a subnet is open again, nodes and routers take again what they had in it.
	spec := builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.LabelChangedPredicate{},
		predicate.Funcs{UpdateFunc: closedMoved}))
	nodes := builder.WithPredicates(predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok1 := e.ObjectOld.(*corev1.Node)
		after, ok2 := e.ObjectNew.(*corev1.Node)
		return ok1 && ok2 && nodeMoved(before, after)
	}})
	return builder.ControllerManagedBy(mgr).Named("topology").
		Watches(&kubeovnv1.Subnet{}, one, spec).Watches(&kubeovnv1.Vpc{}, one, spec).
		Watches(&kubeovnv1.Vlan{}, one, spec).Watches(&kubeovnv1.ProviderNetwork{}, one, spec).
		Watches(&corev1.Node{}, one, nodes).
		Watches(&corev1.ConfigMap{}, one). // the cache has that of the external network alone
		WithOptions(controller.Options{SkipNameValidation: &skip, RateLimiter: backoff()}).
		Complete(reconcile.Func(w.reconcileTopology))
}

// closedMoved tells whether a subnet was closed or opened.
func closedMoved(e event.UpdateEvent) bool {
	return e.ObjectOld.GetAnnotations()[network.ClosedKey] != e.ObjectNew.GetAnnotations()[network.ClosedKey]
}

// nodeMoved tells whether rows, or what the node carries of them, may differ now. Nodes report to be alive all the time.
func nodeMoved(before, after *corev1.Node) bool {
	a, b := nodeInput(before), nodeInput(after)
	return before.UID != after.UID || a.Ready != b.Ready || !maps.Equal(a.Labels, b.Labels) || !slices.Equal(a.Internal, b.Internal) ||
		!maps.Equal(placeAnnotations(before), placeAnnotations(after))
}

func placeAnnotations(n *corev1.Node) map[string]string {
	out := map[string]string{}
	for k, v := range n.Annotations {
		if strings.HasPrefix(k, network.Key(network.DefaultProvider, "")) {
			out[k] = v
		}
	}
	return out
}
