package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// reconcileVip gives a Vip its address, where nobody else does, and a port where it needs one.
func (w *Worker) reconcileVip(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var v kubeovnv1.Vip
	if err := w.Client.Get(ctx, r.NamespacedName, &v); err != nil {
		if apierrors.IsNotFound(err) {
			v.Name = r.Name
			return w.wakeUsers(ctx, &v)
		}
		return reconcile.Result{}, err
	}
	if v.DeletionTimestamp != nil || v.Spec.Subnet == "" {
		return reconcile.Result{}, nil
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	s, ok := cat.Subnets[v.Spec.Subnet]
	if !ok || !w.reserves(s) {
		return reconcile.Result{RequeueAfter: retryHeld}, nil
	}
	if v.Status.V4IP != "" || v.Status.V6IP != "" {
		if err := w.serveVip(ctx, &v, s); err != nil {
			return reconcile.Result{}, err
		}
		return w.wakeUsers(ctx, &v)
	}
	if v.Spec.Type == topology.VipOfBalancer && w.gatewayMAC(s) == (ipam.MAC{}) {
		w.tellOnce("vip "+v.Name, "A Vip of a load balancer waits for the router's port in its subnet", "vip", v.Name, "subnet", v.Spec.Subnet)
		return reconcile.Result{RequeueAfter: retryHeld}, nil
	}
	err = w.giveVip(ctx, &v, s)
	if refusal, ok := ipam.AsRefusal(err); ok {
		w.tellOnce("vip "+v.Name+" "+refusal.Error(), "A Vip gets no address", "vip", v.Name, "reason", refusal.Error())
		return reconcile.Result{RequeueAfter: retryWaiting}, w.announceVip(ctx, &v, "it gets no address: "+refusal.Error())
	}
	return reconcile.Result{}, err
}

// serveVip writes the port of a Vip that has its addresses, or takes away one that it needs no more.
func (w *Worker) serveVip(ctx context.Context, v *kubeovnv1.Vip, s network.Subnet) error {
	name := network.PortName(v.Name, v.Spec.Namespace, s.Object.Spec.Provider)
	have, there := w.Northbound.Port(name)
	ours := there && have.Type == "" && have.ExternalIDs[nb.KeyVip] == v.Name
	others := there && !ours && !madeForVip(have, v)
	ch, fault := ovn.Change{Key: "vip " + v.Name}, ""
	switch {
	case topology.VipNeedsPort(v) && topology.IsOVN(s.Object.Spec.Provider):
		if others {
			fault = "its port would be " + name + ", and that is somebody else's: give the Vip another name"
			break
		}
		ch.Ensure.Ports = []nb.Port{topology.VipPort(v, name)}
	case ours:
		ch.RemovePorts = []string{name}
	}
	if len(ch.Ensure.Ports)+len(ch.RemovePorts) > 0 {
		if err := w.apply(ctx, ch); err != nil {
			return err
		}
	}
	return w.announceVip(ctx, v, fault)
}

// madeForVip tells a port that another controller made for the Vip: it has the Vip's address, and no pod of ours is bound
// to it.
func madeForVip(p nb.LogicalSwitchPort, v *kubeovnv1.Vip) bool {
	addrs := addressesIn(v.Status.V4IP + "," + v.Status.V6IP)
	return p.ExternalIDs[nb.KeyClaim] == "" && slices.ContainsFunc(lifecycle.PortAddresses(p), func(a netip.Addr) bool { return slices.Contains(addrs, a) })
}

// announceVip keeps what a Vip's status says of its type and of what isn't realised, as its label says the subnet.
func (w *Worker) announceVip(ctx context.Context, v *kubeovnv1.Vip, fault string) error {
	want := kubeovnv1.Condition{Type: conditionRealised, Status: string(corev1.ConditionTrue), Reason: reasonRealised}
	if want.Message = joinFaults(fault, topology.UnrealisedVip(v, topology.Alone)); want.Message != "" {
		want.Status, want.Reason = string(corev1.ConditionFalse), reasonNobody
	}
	status, change := map[string]any{}, map[string]any{}
	if conditions, changed := withCondition(v.Status.Conditions, want, metav1.NewTime(w.Clock.Now())); changed {
		status["conditions"] = conditions
	}
	if v.Status.Type != v.Spec.Type && v.Status.Mac != "" {
		status["type"] = v.Spec.Type
	}
	if !slices.Equal(v.Status.Selector, v.Spec.Selector) {
		status["selector"] = v.Spec.Selector
	}
	if len(status) > 0 {
		change["status"] = status
	}
	if v.Labels[labelSubnet] != v.Spec.Subnet && len(validation.IsValidLabelValue(v.Spec.Subnet)) == 0 {
		change["metadata"] = map[string]any{"labels": map[string]string{labelSubnet: v.Spec.Subnet}}
	}
	if len(change) == 0 {
		return nil
	}
	return w.patchVip(ctx, v, change)
}

// dropVip takes away the port of a Vip that is gone, before its address is free.
func (w *Worker) dropVip(ctx context.Context, vip string) error {
	var ports []string
	w.Northbound.EachPort(func(p *nb.LogicalSwitchPort) {
		if p.Type == "" && p.ExternalIDs[nb.KeyVip] == vip {
			ports = append(ports, p.Name)
		}
	})
	if len(ports) == 0 {
		return nil
	}
	return w.apply(ctx, ovn.Change{Key: "vip " + vip, RemovePorts: ports})
}

// giveVip leases the address that the Vip asks for, or any, and writes it into the Vip's status, which is a plain
// field.
func (w *Worker) giveVip(ctx context.Context, v *kubeovnv1.Vip, s network.Subnet) error {
	o := ipam.Owner{Group: kubeovnv1.GroupVersion().Group, Kind: ipam.KindVip, Name: v.Name}
	ir := ipam.InterfaceRequest{Candidates: []ipam.Source{{Subnet: s.Set}}, Reservation: o}
	asked, err := network.ParseAddresses(v.Spec.V4IP + "," + v.Spec.V6IP)
	if err != nil {
		return fmt.Errorf("vip %s: %w", v.Name, err)
	}
	if len(asked) > 0 {
		ir.Choices = [][]netip.Addr{asked}
	}
	if v.Spec.MacAddress != "" {
		if ir.MAC, err = ipam.ParseMAC(v.Spec.MacAddress); err != nil {
			return fmt.Errorf("vip %s: %w", v.Name, err)
		}
	}
	ir.NoMAC = v.Spec.Type == topology.VipOfBalancer
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return err
	}
	a, err := w.Ledger.Take(ctx, ipam.Request{Claim: claim, Owner: o, Interfaces: []ipam.InterfaceRequest{ir}})
	if err != nil {
		return fmt.Errorf("lease the address of vip %s: %w", v.Name, err)
	}
	mac := a.Interfaces[0].MAC
	if ir.NoMAC {
		mac = w.gatewayMAC(s)
	}
	status := map[string]any{"mac": mac.String(), "type": v.Spec.Type}
	for _, addr := range a.Interfaces[0].Addresses() {
		if addr.Is4() {
			status["v4ip"] = addr.String()
		} else {
			status["v6ip"] = addr.String()
		}
	}
	return w.patchVip(ctx, v, map[string]any{"status": status})
}

func (w *Worker) patchVip(ctx context.Context, v *kubeovnv1.Vip, change map[string]any) error {
	meta, _ := change["metadata"].(map[string]any)
	if meta == nil {
		meta = map[string]any{}
	}
	meta["uid"], meta["resourceVersion"] = v.UID, v.ResourceVersion
	change["metadata"] = meta
	body, err := json.Marshal(change)
	if err != nil {
		return err
	}
	if err := w.Client.Patch(ctx, v, client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("patch vip %s: %w", v.Name, err)
	}
	return nil
}

// markVip tells by the Vip's label which port uses its address; an empty port: none does, unless it is another's.
func (w *Worker) markVip(ctx context.Context, s *subject, port string) error {
	name := s.Annotations[network.Key(network.DefaultProvider, network.SuffixVip)]
	if name == "" || !s.claimed {
		return nil
	}
	var v kubeovnv1.Vip
	if err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &v); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("read vip %s: %w", name, err)
	}
	have := v.Labels[labelReserved]
	own := network.PortName(s.identity, s.Namespace, network.DefaultProvider)
	if have == port || port == "" && have != own {
		return nil
	}
	err := w.patchVip(ctx, &v, map[string]any{"metadata": map[string]any{"labels": map[string]string{labelReserved: port}}})
	if apierrors.IsNotFound(errors.Unwrap(err)) {
		return nil
	}
	return err
}
