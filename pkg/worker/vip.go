package worker

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// reconcileVip gives a Vip its address, where nobody else does.
func (w *Worker) reconcileVip(ctx context.Context, r reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	var v kubeovnv1.Vip
	if err := w.Client.Get(ctx, r.NamespacedName, &v); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if v.DeletionTimestamp != nil || v.Status.V4IP != "" || v.Status.V6IP != "" || v.Spec.Subnet == "" {
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
	err = w.giveVip(ctx, &v, s)
	if refusal, ok := ipam.AsRefusal(err); ok {
		w.Log.Info("A Vip gets no address", "vip", v.Name, "reason", refusal.Error())
		return reconcile.Result{RequeueAfter: retryWaiting}, nil
	}
	return reconcile.Result{}, err
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
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return err
	}
	a, err := w.Ledger.Take(ctx, ipam.Request{Claim: claim, Owner: o, Interfaces: []ipam.InterfaceRequest{ir}})
	if err != nil {
		return fmt.Errorf("lease the address of vip %s: %w", v.Name, err)
	}
	status := map[string]any{"mac": a.Interfaces[0].MAC.String(), "type": v.Spec.Type}
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
