package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

// serve gives a living pod all that it lacks: bound leases and ports, and once it has a node, groups, records and the
// marks that its network is ready.
func (w *Worker) serve(ctx context.Context, s *subject) (reconcile.Result, error) {
	began := w.begin(s)
	if err := w.bind(ctx, s); err != nil {
		return reconcile.Result{}, err
	}
	wires, err := w.wires(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	rows, err := w.rows(ctx, s, wires)
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := w.apply(ctx, ovn.Change{Key: s.key().String(), Ensure: rows,
		RemovePorts: append(w.rivals(rows), w.unplugged(s, rows)...)}); err != nil {
		return reconcile.Result{}, w.unwired(s, err)
	}
	p := newPatch(s.Pod)
	p.testAnnotation(network.ClaimKey)
	if s.Spec.NodeName != "" {
		if err := w.ensureRecords(ctx, s, wires); err != nil {
			return reconcile.Result{}, err
		}
		if err := w.markVip(ctx, s, network.PortName(s.identity, s.Namespace, network.DefaultProvider)); err != nil {
			return reconcile.Result{}, err
		}
		p.annotate(marks(wires))
	}
	p.finalize(network.Finalizer)
	marked := p.n > 0 && s.Spec.NodeName != ""
	if _, stale, err := p.send(ctx, w.Client); err != nil || stale {
		return reconcile.Result{}, err
	}
	if s.Spec.NodeName != "" {
		w.done(s, began, marked)
	}
	return reconcile.Result{}, nil
}

// unwired tells of rows that can't be written, where that is for people to mend.
func (w *Worker) unwired(s *subject, err error) error {
	var missing *ovn.MissingRowError
	var foreign *ovn.ForeignRowError
	var clash *ovn.ClashError
	var invalid *ovn.InvalidRowError
	if errors.As(err, &missing) || errors.As(err, &foreign) || errors.As(err, &clash) || errors.As(err, &invalid) {
		w.warn(s.Pod, reasonUnwired, actionWire, err.Error())
	}
	return err
}

// begin remembers when the pod was first seen with a node.
func (w *Worker) begin(s *subject) time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	if t, ok := w.started[s.uid()]; ok {
		return t
	}
	now := w.Clock.Now()
	if s.Spec.NodeName != "" {
		w.started[s.uid()] = now
	}
	return now
}

func (w *Worker) done(s *subject, began time.Time, marked bool) {
	w.mu.Lock()
	delete(w.started, s.uid())
	w.mu.Unlock()
	if marked {
		w.Metrics.wire.Observe(w.Clock.Since(began).Seconds())
	}
}

// wire is one network of a pod, and the subnet that it is in.
type wire struct {
	network.CarriedInterface
	subnet *kubeovnv1.Subnet
	// port tells that the network is a port of OVN, and not addresses alone.
	port bool
}

// wires gives the pod's networks. What a pod merely asked for, without an address, is none.
func (w *Worker) wires(ctx context.Context, s *subject) ([]wire, error) {
	var out []wire
	for _, c := range s.carried {
		if len(c.Addresses) == 0 && c.MAC == (ipam.MAC{}) || c.Subnet == "" {
			continue
		}
		var subnet kubeovnv1.Subnet
		if err := w.Client.Get(ctx, client.ObjectKey{Name: c.Subnet}, &subnet); err != nil {
			if apierrors.IsNotFound(err) {
				w.warn(s.Pod, reasonUnwired, actionWire, fmt.Sprintf("subnet %s does not exist: create it again, or delete the pod", c.Subnet))
				return nil, &busyError{"no subnet"}
			}
			return nil, fmt.Errorf("read subnet %s: %w", c.Subnet, err)
		}
		if len(c.Addresses) == 0 && subnet.Spec.CIDRBlock != "" {
			continue
		}
		out = append(out, wire{CarriedInterface: c, subnet: &subnet, port: topology.IsOVN(subnet.Spec.Provider)})
	}
	return out, nil
}

// node gives the node and its addresses on the join switch. One that isn't known yet has none.
func (w *Worker) node(ctx context.Context, name string) (*ovn.NodeInput, error) {
	in := &ovn.NodeInput{Name: name}
	var node corev1.Node
	if err := w.Client.Get(ctx, client.ObjectKey{Name: name}, &node); err != nil {
		if apierrors.IsNotFound(err) {
			return in, nil
		}
		return nil, fmt.Errorf("read node %s: %w", name, err)
	}
	for text := range strings.SplitSeq(node.Annotations[network.Key(network.DefaultProvider, network.SuffixAddress)], ",") {
		if a, err := netip.ParseAddr(strings.TrimSpace(text)); err == nil {
			in.JoinIPs = append(in.JoinIPs, a)
		}
	}
	return in, nil
}

// marks are the annotations that say that the networks are ready.
func marks(wires []wire) map[string]string {
	out := map[string]string{}
	for _, c := range wires {
		out[network.Key(c.Provider, network.SuffixAllocated)] = "true"
		if c.port {
			out[network.Key(c.Provider, network.SuffixRouted)] = "true"
		}
	}
	return out
}

// addressIndex finds the ports that have an address. It is made anew at most once a second: it serves to find leftovers,
// which are older than that.
type addressIndex struct {
	made  time.Time
	ports map[netip.Addr][]portAt
}

type portAt struct {
	name, sw string
	claim    ipam.Claim
}

func (w *Worker) portsAt(a netip.Addr) []portAt {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.Clock.Now(); w.index.ports == nil || now.Sub(w.index.made) >= time.Second {
		w.index = addressIndex{made: now, ports: map[netip.Addr][]portAt{}}
		for _, p := range w.Northbound.Ports() {
			if p.Type != "" || p.ExternalIDs[nb.KeyPod] == "" {
				continue
			}
			for _, addr := range lifecycle.PortAddresses(p) {
				w.index.ports[addr] = append(w.index.ports[addr], portAt{p.Name, p.ExternalIDs[nb.KeySwitch], ipam.Claim(p.ExternalIDs[nb.KeyClaim])})
			}
		}
	}
	return w.index.ports[a]
}

// rivals are ports of other pods with an address of these rows on the same switch, for which there is no lease: what the
// ledger doesn't know is no competitor.
func (w *Worker) rivals(rows nb.Rows) []string {
	var out []string
	for _, want := range rows.Ports {
		if have, ok := w.Northbound.Port(want.Row.Name); ok && slices.Equal(have.Addresses, want.Row.Addresses) {
			continue
		}
		for _, a := range lifecycle.PortAddresses(want.Row) {
			for _, p := range w.portsAt(a) {
				leased := p.claim != "" && slices.ContainsFunc(w.Ledger.ByClaim(p.claim), func(l ipam.Held) bool { return l.Address == a })
				if p.sw == want.Switch && p.name != want.Row.Name && !leased {
					out = append(out, p.name)
				}
			}
		}
	}
	return out
}
