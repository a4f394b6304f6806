package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// Names of requests for other things than a Subnet.
const vpcPrefix = "vpc/"

// reconcileTopology realises all Vpcs and Subnets. The request names what has changed; only what is gone matters.
func (w *Worker) reconcileTopology(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	in := topology.Input{Config: topology.Config{ClusterRouter: w.Network.ClusterRouter, DefaultSubnet: w.Network.DefaultSubnet,
		NodeSwitch: w.Network.NodeSwitch}}
	var subnets kubeovnv1.SubnetList
	var vpcs kubeovnv1.VpcList
	if err := errors.Join(w.Client.List(ctx, &subnets), w.Client.List(ctx, &vpcs)); err != nil {
		return reconcile.Result{}, fmt.Errorf("list topology: %w", err)
	}
	var errs []error
	there := map[string]bool{}
	for i := range subnets.Items {
		s := &subnets.Items[i]
		there[s.Name] = true
		if s.Name == r.Name {
			errs = append(errs, w.fill(ctx, s, in.Config))
		}
		in.Subnets = append(in.Subnets, s)
	}
	for i := range vpcs.Items {
		in.Vpcs = append(in.Vpcs, &vpcs.Items[i])
	}
	rows, findings := topology.Rows(in)
	w.tell(findings)
	ch := ovn.Change{Key: "topology", Ensure: rows}
	var result reconcile.Result
	if gone := r.Name; !strings.HasPrefix(gone, vpcPrefix) && !there[gone] && !w.remove(&ch, gone) {
		result.RequeueAfter = retryHeld
	}
	errs = append(errs, w.apply(ctx, ch))
	return result, errors.Join(errs...)
}

// fill writes what the Subnet lacks.
func (w *Worker) fill(ctx context.Context, s *kubeovnv1.Subnet, cfg topology.Config) error {
	patch, err := topology.Defaults(s, cfg)
	if err != nil || patch.Empty() {
		return nil //nolint:nilerr // Rows tells it as a finding
	}
	body, err := patch.MergePatch()
	if err != nil {
		return err
	}
	err = w.Client.Patch(ctx, s.DeepCopy(), client.RawPatch(types.MergePatchType, body))
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("fill in the defaults of subnet %s: %w", s.Name, err)
	}
	patch.Apply(s)
	return nil
}

func (w *Worker) tell(findings []topology.Finding) {
	counts := map[string]int{topology.KindSubnet: 0, topology.KindVpc: 0}
	for _, f := range findings {
		counts[f.Kind]++
		w.Log.Info("Topology can't be realised as written", "kind", f.Kind, "name", f.Name, "reason", f.Err.Error())
	}
	for kind, n := range counts {
		w.Metrics.unrealised.WithLabelValues(kind).Set(float64(n))
	}
}

// remove takes away the switch of a Subnet that is gone and the router ports that lead to it. It returns false for a
// switch that must stay for now, for pods are on it.
func (w *Worker) remove(ch *ovn.Change, subnet string) bool {
	sw, ok := w.Northbound.Switch(subnet)
	if !ok || sw.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN {
		return true
	}
	var links []string
	for _, p := range w.Northbound.Ports() {
		if p.ExternalIDs[nb.KeySwitch] != subnet {
			continue
		}
		if p.ExternalIDs[nb.KeyPod] != "" {
			w.Log.Info("The switch of a deleted subnet stays until its pods are gone", "subnet", subnet, "port", p.Name)
			return false
		}
		if to := p.Options["router-port"]; p.Type == "router" && to != "" {
			links = append(links, to)
		}
	}
	ch.RemoveRouterPorts = links
	ch.RemoveSwitches = []string{subnet}
	return true
}
