package worker

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// retryStale is after what time another look is worth it at what the catalog doesn't know yet.
const retryStale = 20 * time.Millisecond

// wakeUsers has those pods looked at whose ports say otherwise than the Vip does by now: that name it, and may not yet take
// its address, or may no more. A Vip that is gone has a name alone. The catalog, by which the pods are worked on, hears of a
// change by itself: until it has, nobody is woken.
func (w *Worker) wakeUsers(ctx context.Context, v *kubeovnv1.Vip) (reconcile.Result, error) {
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	known := ""
	if o := cat.Vips[v.Name]; o != nil {
		known = o.ResourceVersion
	}
	if known != v.ResourceVersion {
		return reconcile.Result{RequeueAfter: retryStale}, nil
	}
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.InNamespace(v.Spec.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, fmt.Errorf("list the pods of vip %s: %w", v.Name, err)
	}
	addrs := addressesIn(v.Status.V4IP + "," + v.Status.V6IP)
	for i := range pods.Items {
		p := &pods.Items[i]
		if !namesVip(p, v.Name) || p.Spec.HostNetwork {
			continue
		}
		may := len(addrs) > 0 && topology.VipChooses(v, p.Labels)
		if len(addrs) == 0 || may != w.mayTake(p, v.Spec.Subnet, addrs[0]) {
			w.enqueue(client.ObjectKeyFromObject(p))
		}
	}
	if len(addrs) == 0 {
		return reconcile.Result{}, nil
	}
	return reconcile.Result{RequeueAfter: topologyPeriod}, nil
}

// namesVip tells whether the pod names the Vip among the further addresses that it uses.
func namesVip(p *corev1.Pod, name string) bool {
	for text := range strings.SplitSeq(p.Annotations[network.Key(network.DefaultProvider, network.SuffixAaps)], ",") {
		if strings.TrimSpace(text) == name {
			return true
		}
	}
	return false
}

// mayTake tells whether a port of the pod on the switch may take the address.
func (w *Worker) mayTake(p *corev1.Pod, sw string, a netip.Addr) bool {
	identity := network.Identity(network.PodOf(p), w.ownerOf(p))
	return slices.ContainsFunc(w.Northbound.PodPorts(p.Namespace, identity), func(port nb.LogicalSwitchPort) bool {
		return port.ExternalIDs[nb.KeySwitch] == sw && slices.Contains(addressesIn(port.ExternalIDs[nb.KeyVips]), a)
	})
}
