package worker

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/topology"
)

// exit is how a pod went: on which node, and whether its containers had stopped by then.
type exit struct {
	node    string
	stopped bool
}

// watchExits remembers how pods go that have addresses on networks of other CNIs. Their finalizer holds them until it is
// known that no container runs; of one that went without it nothing but this is left to tell.
func (w *Worker) watchExits(ctx context.Context, from cache.Cache) error {
	i, err := from.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	_, err = i.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: func(obj any) {
		if p, ok := obj.(*corev1.Pod); ok { // else its last state was missed
			w.noteExit(p)
		}
	}})
	return err
}

func (w *Worker) noteExit(p *corev1.Pod) {
	s := w.subjectOf(p)
	if !facts.Unfenced(p, s.leases) {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.exits[s.uid()] = exit{node: p.Spec.NodeName, stopped: lifecycle.Stopped(p)}
}

// forgetExits drops what is known of pods to which nothing is bound any more.
func (w *Worker) forgetExits(leases []ipam.Held) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.exits)+len(w.unseen) == 0 {
		return
	}
	bound := map[string]bool{}
	for _, l := range leases {
		bound[l.PodUID] = true
	}
	maps.DeleteFunc(w.exits, func(uid string, _ exit) bool { return !bound[uid] })
	maps.DeleteFunc(w.unseen, func(uid string, _ time.Time) bool { return !bound[uid] })
}

// unseenFor tells for how long it has been known here that a pod is gone.
func (w *Worker) unseenFor(uid string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := w.Clock.Now()
	since, known := w.unseen[uid]
	if !known {
		since = now
		w.unseen[uid] = now
	}
	return now.Sub(since)
}

// unfenced tells that a lease is of a network that another CNI plugs in.
func unfenced(l ipam.Held) bool { return l.PodUID != "" && !topology.HasPort(l.Provider) }

// ifNodeGone says what ends the wait for containers that nobody reports on.
const ifNodeGone = "; if the node is gone for good, delete its Node object, or taint it " + corev1.TaintNodeOutOfService

// vacated tells that no container of a lease's former pod can use its address any more: a *busyError otherwise. A pod that
// comes back under the name of one whose finalizer was taken off by hand waits for that.
func (w *Worker) vacated(ctx context.Context, s *subject, l ipam.Held) error {
	if !unfenced(l) {
		return nil
	}
	d, err := w.departed(ctx, l)
	if err != nil {
		return err
	}
	if d.Heir, d.Watched = true, w.unseenFor(l.PodUID) >= w.PendingAge; !d.InUse() {
		return nil
	}
	why := fmt.Sprintf("a container of the former pod %s may still use %s on node %s", l.PodName, l.Ref(), d.NodeName)
	w.warn(s.Pod, reasonInUse, actionWire, "not wired until it has stopped: "+why+ifNodeGone)
	return &busyError{why}
}

// inUse tells that a container may still use an address that no port's removal takes from it, though its pod is gone or
// has ended. ripe tells that the lease was watched for its time.
func (w *Worker) inUse(ctx context.Context, l ipam.Held, ripe bool) (bool, error) {
	if !unfenced(l) {
		return false, nil
	}
	d, err := w.departed(ctx, l)
	if err != nil {
		return true, err
	}
	if d.Watched = ripe; !d.InUse() {
		return false, nil
	}
	w.tellOnce("in use "+l.Ref().String()+" "+l.PodUID, "An address on another CNI's network is kept: its pod went without its finalizer, and a container may still run"+
		ifNodeGone, "subnet", l.Subnet, "address", l.Address, "pod", l.Owner.Namespace+"/"+l.PodName, "node", d.NodeName)
	return true, nil
}

// departed tells how the lease's pod went, and how its node is.
func (w *Worker) departed(ctx context.Context, l ipam.Held) (lifecycle.Departed, error) {
	d, err := w.leaving(ctx, l)
	if err != nil || d.NodeName == "" {
		return d, err
	}
	var node corev1.Node
	err = w.Live.Get(ctx, client.ObjectKey{Name: d.NodeName}, &node)
	switch {
	case err == nil:
		d.Node = &node
	case apierrors.IsNotFound(err):
		d.NodeGone = true
	default:
		return d, fmt.Errorf("read node %s: %w", d.NodeName, err)
	}
	return d, nil
}

// leaving tells how the lease's pod went: by the pod itself if it is still there, else by how it was seen to go, else by
// its record, which names its node. Who gave everything back has taken that away.
func (w *Worker) leaving(ctx context.Context, l ipam.Held) (lifecycle.Departed, error) {
	var p corev1.Pod
	err := w.Live.Get(ctx, client.ObjectKey{Namespace: l.Owner.Namespace, Name: l.PodName}, &p)
	switch {
	case err == nil && string(p.UID) == l.PodUID:
		return lifecycle.Departed{Seen: true, Stopped: lifecycle.Stopped(&p), NodeName: p.Spec.NodeName}, nil
	case client.IgnoreNotFound(err) != nil:
		return lifecycle.Departed{}, fmt.Errorf("read pod %s/%s: %w", l.Owner.Namespace, l.PodName, err)
	}
	w.mu.Lock()
	x, seen := w.exits[l.PodUID]
	w.mu.Unlock()
	if seen {
		return lifecycle.Departed{Seen: true, Stopped: x.stopped, NodeName: x.node}, nil
	}
	var list kubeovnv1.IPList
	if err := w.Client.List(ctx, &list, client.MatchingLabels{labelClaim: string(l.Claim)}, client.UnsafeDisableDeepCopy); err != nil {
		return lifecycle.Departed{}, fmt.Errorf("list the IP records of claim %s: %w", l.Claim, err)
	}
	for i := range list.Items {
		if !recordHas(&list.Items[i], l) {
			continue
		}
		var ip kubeovnv1.IP
		err := w.Live.Get(ctx, client.ObjectKeyFromObject(&list.Items[i]), &ip)
		if client.IgnoreNotFound(err) != nil {
			return lifecycle.Departed{}, fmt.Errorf("read IP record %s: %w", list.Items[i].Name, err)
		}
		if err == nil && recordHas(&ip, l) {
			return lifecycle.Departed{NodeName: ip.Spec.NodeName}, nil
		}
	}
	return lifecycle.Departed{}, nil
}

// recordHas tells that a record is of the very pod that a lease is bound to, and of its address.
func recordHas(ip *kubeovnv1.IP, l ipam.Held) bool {
	rec := facts.Record(ip)
	return rec.PodUID == l.PodUID && slices.Contains(rec.Addresses, l.Address)
}

// needed tells that a record still tells the node of an address on another CNI's network, which may be in use there.
func (r *repair) needed(ip *kubeovnv1.IP) bool {
	return slices.ContainsFunc(r.Ledger.ByClaim(facts.Record(ip).Claim), func(l ipam.Held) bool { return unfenced(l) && recordHas(ip, l) })
}
