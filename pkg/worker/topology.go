package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/topology"
)

// topologyPeriod is the time after which the topology is looked at without an event: somebody may have taken a row.
const topologyPeriod = 5 * time.Minute

// landscape is all that the topology follows from, as it was read.
type landscape struct {
	topology.Input
	catalog network.Catalog
	nodes   map[string]*corev1.Node
	// places are the leases of nodes on the join switch, by node, and of routers in underlay subnets, by subnet.
	places, links map[string][]ipam.Held
	// outer are the leases of the cluster router in the external subnet.
	outer []ipam.Held
	// status is that of Subnets, as it was read.
	status map[string]kubeovnv1.SubnetStatus
}

// reconcileTopology realises all Vpcs, Subnets and Nodes. What leases, it does before the rows; what tells others of
// rows, and what gives back, after them.
func (w *Worker) reconcileTopology(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	if err := w.Northbound.Ready(); err != nil {
		return reconcile.Result{}, err
	}
	l, err := w.survey(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	errs := []error{w.fill(ctx, l), w.placeNodes(ctx, l), w.placeLinks(ctx, l), w.placeExternal(ctx, l)}
	rows, findings := topology.Rows(l.Input)
	w.tell(findings)
	ch := ovn.Change{Key: "topology", Ensure: rows}
	kept, err := w.retire(ctx, l, &ch)
	if err != nil {
		return reconcile.Result{}, errors.Join(append(errs, err)...)
	}
	joined := w.Northbound.MissingGroups(rows.Groups)
	if err := w.applyTopology(ctx, ch); err != nil {
		return reconcile.Result{}, errors.Join(append(errs, err)...)
	}
	errs = append(errs, w.announceNodes(ctx, l), w.announceSubnets(ctx, l), w.giveBack(ctx, l), w.regroup(ctx, joined),
		w.announceTopology(ctx, l, findings))
	if kept {
		return reconcile.Result{RequeueAfter: retryHeld}, errors.Join(errs...)
	}
	return reconcile.Result{RequeueAfter: topologyPeriod}, errors.Join(errs...)
}

// survey reads everything from the cache. The Subnets are copies: their defaults are filled in.
func (w *Worker) survey(ctx context.Context) (*landscape, error) {
	var subnets kubeovnv1.SubnetList
	var vpcs kubeovnv1.VpcList
	var vlans kubeovnv1.VlanList
	var networks kubeovnv1.ProviderNetworkList
	var nodes corev1.NodeList
	for _, list := range []client.ObjectList{&subnets, &vpcs, &vlans, &networks, &nodes} {
		if err := w.Client.List(ctx, list); err != nil {
			return nil, fmt.Errorf("list topology: %w", err)
		}
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return nil, err
	}
	l := &landscape{catalog: cat, nodes: map[string]*corev1.Node{}, places: map[string][]ipam.Held{}, links: map[string][]ipam.Held{},
		status: map[string]kubeovnv1.SubnetStatus{}}
	l.Config = w.topologyConfig()
	if l.External, err = w.readExternal(ctx); err != nil {
		return nil, err
	}
	for i := range subnets.Items {
		l.Subnets = append(l.Subnets, &subnets.Items[i])
	}
	for i := range vpcs.Items {
		l.Vpcs = append(l.Vpcs, &vpcs.Items[i])
	}
	for i := range vlans.Items {
		l.Vlans = append(l.Vlans, &vlans.Items[i])
	}
	for i := range networks.Items {
		l.ProviderNetworks = append(l.ProviderNetworks, &networks.Items[i])
	}
	for i := range nodes.Items {
		n := &nodes.Items[i]
		l.nodes[n.Name] = n
		l.Nodes = append(l.Nodes, nodeInput(n))
	}
	return l, nil
}

// fill writes what Subnets lack.
func (w *Worker) fill(ctx context.Context, l *landscape) error {
	var errs []error
	for _, s := range l.Subnets {
		patch, err := topology.Defaults(s, l.Config)
		if err != nil || patch.Empty() {
			continue // Rows tells what is wrong
		}
		body, err := patch.MergePatch()
		if err != nil {
			return err
		}
		filled := s.DeepCopy()
		err = w.Client.Patch(ctx, filled, client.RawPatch(types.MergePatchType, body))
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("fill in the defaults of subnet %s: %w", s.Name, err))
			continue
		}
		patch.Apply(s)
		s.ResourceVersion = filled.ResourceVersion
	}
	return errors.Join(errs...)
}

// tell logs what can't be realised, when that has changed.
func (w *Worker) tell(findings []topology.Finding) {
	counts := map[string]int{topology.KindSubnet: 0, topology.KindVpc: 0, topology.KindNode: 0}
	now := map[string]bool{}
	w.mu.Lock()
	before := w.unrealised
	w.mu.Unlock()
	for _, f := range findings {
		counts[f.Kind]++
		text := f.Kind + "/" + f.Name + ": " + f.Err.Error()
		if now[text] = true; !before[text] {
			w.Log.Info("Topology can't be realised as written", "kind", f.Kind, "name", f.Name, "reason", f.Err.Error())
		}
	}
	w.mu.Lock()
	w.unrealised = now
	w.mu.Unlock()
	for kind, n := range counts {
		w.Metrics.unrealised.WithLabelValues(kind).Set(float64(n))
	}
}
