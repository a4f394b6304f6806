package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/catalog"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// reconcileReservations leases what is somebody's who is no pod: addresses of Vips, foreign IP objects, nodes and
// interconnections, and the MACs of router ports. So nobody who knows less can give them away.
func (w *Worker) reconcileReservations(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	if err := w.awaitLead(ctx); err != nil {
		return reconcile.Result{}, err
	}
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return reconcile.Result{}, err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(cat.Subnets)) {
		s := cat.Subnets[name]
		if !w.reserves(s) {
			continue
		}
		owners := map[ipam.Owner][]netip.Addr{}
		for a, o := range cat.Reserved[name] {
			owners[o] = append(owners[o], a)
		}
		for o, as := range owners {
			slices.SortFunc(as, netip.Addr.Compare)
			errs = append(errs, w.reserve(ctx, s.Set, o, as))
		}
		errs = append(errs, w.reserveGateway(ctx, s))
	}
	errs = append(errs, w.unreserve(ctx, cat))
	return reconcile.Result{RequeueAfter: w.SweepPeriod}, errors.Join(errs...)
}

// reserves tells whether the subnet's ledger is ours to write reservations in.
func (w *Worker) reserves(s network.Subnet) bool {
	return s.Set != nil && s.Object.Name != w.Network.NodeSwitch && s.Object.DeletionTimestamp == nil &&
		(w.Topology == Ensure || s.Object.Labels[network.LabelManaged] == "true")
}

// reserve leases the owner's addresses that are not yet. What a pod has is told once, and stays the pod's.
func (w *Worker) reserve(ctx context.Context, s *ipam.Subnet, o ipam.Owner, as []netip.Addr) error {
	ir := ipam.InterfaceRequest{Candidates: []ipam.Source{{Subnet: s}}, Reservation: o, NoMAC: true}
	var lack []netip.Addr
	for _, a := range as {
		h, leased := w.Ledger.Lookup(s.Name(), a)
		switch {
		case !leased && s.Check(a, o) == nil:
			lack = append(lack, a)
			ir.Families = append(ir.Families, ipam.FamilyOf(a))
		case leased && h.Owner != o && !h.LentFrom(o):
			w.tellOnce("reservation "+a.String()+" "+o.String(), "An address is reserved for somebody, and a pod has it", "subnet", s.Name(), "address", a, "for", o, "holder", h.Owner)
		}
	}
	if len(lack) == 0 {
		return nil
	}
	ir.Choices = [][]netip.Addr{lack}
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return err
	}
	_, err = w.Ledger.Take(ctx, ipam.Request{Claim: claim, Owner: o, Interfaces: []ipam.InterfaceRequest{ir}})
	if refusal, ok := ipam.AsRefusal(err); ok {
		w.tellOnce("reservation "+o.String(), "An address can't be reserved", "subnet", s.Name(), "for", o, "reason", refusal.Error())
		return nil
	}
	if err != nil {
		return fmt.Errorf("reserve addresses of subnet %s for %s: %w", s.Name(), o, err)
	}
	return nil
}

// tellAgain is how long something that is still true isn't told again.
const tellAgain = time.Hour

// tellOnce logs something that stays true for long, and not each time that it is found.
func (w *Worker) tellOnce(key, message string, pairs ...any) {
	if w.untold(key) {
		w.Log.Info(message, pairs...)
	}
}

// untold tells whether something was not told lately, and takes it for told from now on.
func (w *Worker) untold(key string) bool {
	now := w.Clock.Now()
	old := func(_ string, at time.Time) bool { return now.Sub(at) >= tellAgain }
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.told, old)
	_, told := w.told[key]
	if !told {
		w.told[key] = now
	}
	return !told
}

// gatewayOf names who holds the MAC of the router's port in a subnet.
func gatewayOf(s network.Subnet) ipam.Owner {
	return ipam.Owner{Group: kubeovnv1.GroupVersion().Group, Kind: ipam.KindSubnet, Name: s.Object.Name}
}

// gatewayMAC is that of the router's port; none where there is no port.
func (w *Worker) gatewayMAC(s network.Subnet) ipam.MAC {
	router := s.Object.Spec.Vpc
	if router == "" {
		router = w.Network.ClusterRouter
	}
	p, ok := w.Northbound.RouterPort(router + "-" + s.Object.Name)
	if !ok {
		return ipam.MAC{}
	}
	m, err := ipam.ParseMAC(p.MAC)
	if err != nil {
		return ipam.MAC{}
	}
	return m
}

// reserveGateway leases the MAC of the router's port: a pod with that MAC would break the whole subnet.
func (w *Worker) reserveGateway(ctx context.Context, s network.Subnet) error {
	m, o := w.gatewayMAC(s), gatewayOf(s)
	if m == (ipam.MAC{}) || slices.ContainsFunc(w.Ledger.ByOwner(o), func(h ipam.Held) bool { return !h.Address.IsValid() && h.MAC == m }) {
		return nil
	}
	claim, err := ipam.NewClaim(w.Random)
	if err != nil {
		return err
	}
	err = w.Ledger.Restore(ctx, s.Set, ipam.Lease{MAC: m, Claim: claim, Owner: o, Requested: true})
	if refusal, ok := ipam.AsRefusal(err); ok {
		w.tellOnce("gateway "+s.Object.Name, "The MAC of a router port is a pod's", "subnet", s.Object.Name, "mac", m, "reason", refusal.Error())
		return nil
	}
	return err
}

// unreserve frees what is reserved no more: only where the owner itself, read live, has another address, or is gone.
func (w *Worker) unreserve(ctx context.Context, cat network.Catalog) error {
	var errs []error
	for _, h := range w.Ledger.Leases() {
		if !h.Owner.Reserves() || w.Topology == Ensure && (w.place(h) || w.link(h)) { // these follow their rows
			continue
		}
		if h.Address.IsValid() {
			if cat.Reserved[h.Subnet][h.Address] == h.Owner {
				continue
			}
		} else if s, ok := cat.Subnets[h.Owner.Name]; ok && w.gatewayMAC(s) == h.MAC || w.Northbound.Ready() != nil {
			continue
		}
		wants, err := w.wantsReserved(ctx, h)
		if err == nil && !wants && h.Owner.Kind == ipam.KindVip && w.Topology == Ensure {
			err = w.dropVip(ctx, h.Owner.Name)
		}
		if err == nil && !wants {
			err = w.free(ctx, []ipam.Held{h})
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// wantsReserved reads the owner of a reservation live.
func (w *Worker) wantsReserved(ctx context.Context, h ipam.Held) (bool, error) {
	key := client.ObjectKey{Name: h.Owner.Name}
	var have []string
	var obj client.Object
	switch h.Owner.Kind {
	case ipam.KindVip:
		obj = &kubeovnv1.Vip{}
	case ipam.KindIP:
		obj = &kubeovnv1.IP{}
	case ipam.KindNode:
		obj = &corev1.Node{}
	case ipam.KindOvnEip, ipam.KindIptablesEIP:
		u := &unstructured.Unstructured{}
		u.SetGroupVersionKind(kubeovnv1.GroupVersion().WithKind(h.Owner.Kind))
		obj = u
	default:
		obj = &kubeovnv1.Subnet{}
	}
	if err := w.Live.Get(ctx, key, obj); err != nil {
		if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
			return false, nil
		}
		return true, fmt.Errorf("read %s: %w", h.Owner, err)
	}
	switch o := obj.(type) {
	case *kubeovnv1.Vip:
		have = []string{o.Status.V4IP, o.Status.V6IP}
	case *kubeovnv1.IP:
		have = []string{o.Spec.V4IPAddress, o.Spec.V6IPAddress, o.Spec.IPAddress}
	case *corev1.Node:
		for _, a := range o.Status.Addresses {
			have = append(have, a.Address)
		}
	case *unstructured.Unstructured:
		have = catalog.EIPAddresses(o)
	case *kubeovnv1.Subnet:
		if !h.Address.IsValid() { // the router's port has another MAC by now
			return false, nil
		}
		have = []string{o.Status.U2OInterconnectionIP}
	}
	for _, text := range have {
		as, err := network.ParseAddresses(text)
		if err != nil || slices.Contains(as, h.Address) {
			return true, nil //nolint:nilerr // what can't be read is no reason to free
		}
	}
	return false, nil
}
