package worker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/berth-net/berth/internal/fault"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/berth-net/berth/pkg/topology"
)

// tellAfter is how long a pod's rows may take until its events tell of it.
const tellAfter = 5 * time.Second

// serve gives a living pod all that it lacks: bound leases and ports, and once it has a node, groups, records and the
// marks that its network is ready.
func (w *Worker) serve(ctx context.Context, s *subject) (reconcile.Result, error) {
	began := w.begin(s)
	wires, err := w.connect(ctx, s)
	if err != nil {
		return reconcile.Result{}, err
	}
	if s.sharedWith != "" {
		return w.share(ctx, s)
	}
	p := newPatch(s.Pod)
	p.testAnnotation(network.ClaimKey)
	if s.Spec.NodeName != "" {
		p.annotate(marks(wires))
		fault.Hit(fault.Recorded)
	}
	p.finalize()
	marked := p.n > 0 && s.Spec.NodeName != ""
	if _, stale, err := p.send(ctx, w.Client); err != nil || stale {
		return reconcile.Result{}, err
	}
	if s.Spec.NodeName != "" {
		fault.Hit(fault.Marked)
		w.done(s, began, marked)
	}
	return reconcile.Result{}, nil
}

// connect does all of serve but the marks: it binds the leases, writes the ports, and with a node their groups and the
// records. A pod whose leases another launcher has gets nothing, one behind a gate only its leases.
func (w *Worker) connect(ctx context.Context, s *subject) ([]wire, error) {
	if err := w.locate(ctx, s); err != nil {
		return nil, err
	}
	if err := w.bind(ctx, s); err != nil || s.sharedWith != "" || len(s.Spec.SchedulingGates) > 0 {
		return nil, err // behind a gate there may be no node for days, and portsOf relies on that there is no port
	}
	wires, err := w.wires(ctx, s)
	if err != nil {
		return nil, err
	}
	rows, err := w.rows(ctx, s, wires)
	if err != nil {
		return nil, err
	}
	rivals, err := w.rivals(ctx, rows)
	if err != nil {
		return nil, err
	}
	var records errgroup.Group // beside the rows: neither builds on the other, and the marks come after both
	if s.Spec.NodeName != "" {
		records.Go(func() error { return w.ensureRecords(ctx, s, wires) })
	}
	err = w.applyFor(ctx, s, actionWire, ovn.Change{Key: s.key().String(), Ensure: rows, RemovePorts: append(rivals, w.unplugged(s, rows)...)})
	if err == nil {
		fault.Hit(fault.Wired)
	}
	if recorded := records.Wait(); err == nil {
		err = recorded
	} else {
		err = w.unwired(s, err)
	}
	if err != nil || s.Spec.NodeName == "" {
		return wires, err
	}
	return wires, w.markVip(ctx, s, network.PortName(s.identity, s.Namespace, network.DefaultProvider))
}

// applyFor writes a pod's change, and tells on the pod when that takes long. It goes on to wait: a retry would come later
// than the database.
func (w *Worker) applyFor(ctx context.Context, s *subject, action string, ch ovn.Change) error {
	soon, cancel := context.WithTimeout(ctx, tellAfter)
	defer cancel()
	err := w.apply(soon, ch)
	if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	w.unanswered(s, action)
	return w.apply(ctx, ch)
}

// unanswered tells on the pod that the northbound database keeps it waiting.
func (w *Worker) unanswered(s *subject, action string) {
	why := "the northbound database is slow, see its log and its load"
	if err := w.Northbound.Ready(); err != nil {
		why = err.Error()
	}
	w.warn(s.Pod, reasonUnwired, action, fmt.Sprintf("its rows could not be changed for %s, and it waits until they are: %s", tellAfter, why))
}

// unwired tells of rows that can't be written, where that is for people to mend.
func (w *Worker) unwired(s *subject, err error) error {
	var missing *ovn.MissingRowError
	var foreign *ovn.ForeignRowError
	var clash *ovn.ClashError
	var invalid *ovn.InvalidRowError
	var twice *ovn.AmbiguousRowError
	if errors.As(err, &missing) || errors.As(err, &foreign) || errors.As(err, &clash) || errors.As(err, &invalid) || errors.As(err, &twice) {
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
	if w.Topology == Ensure { // the annotation may be on its way
		in.JoinIPs = append(in.JoinIPs, addressesOf(w.nodeLeases(name))...)
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
	name, sw, uid string
	claim         ipam.Claim
}

func (w *Worker) portsAt(a netip.Addr) []portAt {
	w.mu.Lock()
	defer w.mu.Unlock()
	if now := w.Clock.Now(); w.index.ports == nil || now.Sub(w.index.made) >= time.Second {
		w.index = addressIndex{made: now, ports: map[netip.Addr][]portAt{}}
		w.Northbound.EachPort(func(p *nb.LogicalSwitchPort) {
			if p.Type != "" || p.ExternalIDs[nb.KeyPod] == "" {
				return
			}
			for _, addr := range lifecycle.PortAddresses(*p) {
				w.index.ports[addr] = append(w.index.ports[addr], portAt{name: p.Name, sw: p.ExternalIDs[nb.KeySwitch],
					uid: p.ExternalIDs[nb.KeyPodUID], claim: ipam.Claim(p.ExternalIDs[nb.KeyClaim])})
			}
		})
	}
	return w.index.ports[a]
}

// rivals are ports of other pods with an address of these rows on the same switch, for which there is no lease: what the
// ledger doesn't know is no competitor. A port whose pod lives and carries its claim is none of them: its lease was lost,
// and nobody gets its address.
func (w *Worker) rivals(ctx context.Context, rows nb.Rows) ([]string, error) {
	var out []string
	for _, want := range rows.Ports {
		if have, ok := w.Northbound.Port(want.Row.Name); ok && slices.Equal(have.Addresses, want.Row.Addresses) {
			continue
		}
		for _, a := range lifecycle.PortAddresses(want.Row) {
			for _, p := range w.portsAt(a) {
				// A lease that is bound to somebody else by now is no lease of the port's.
				leased := p.claim != "" && slices.ContainsFunc(w.Ledger.ByClaim(p.claim), func(l ipam.Held) bool {
					return l.Address == a && (p.uid == "" || l.PodUID == "" || l.PodUID == p.uid)
				})
				if now, ok := w.Northbound.Port(p.name); p.sw != want.Switch || p.name == want.Row.Name || leased ||
					!ok || now.ExternalIDs[nb.KeyPodUID] != p.uid { // the index may be old
					continue
				}
				lives, err := w.carrierLives(ctx, p.claim, p.uid)
				if err != nil {
					return nil, err
				}
				if lives {
					why := fmt.Sprintf("port %s has %s, of which its pod has no lease", p.name, a)
					w.lose(want.Switch, why)
					return nil, &busyError{why}
				}
				out = append(out, p.name)
			}
		}
	}
	return out, nil
}

// carrierLives tells whether the very pod lives and carries the claim.
func (w *Worker) carrierLives(ctx context.Context, claim ipam.Claim, uid string) (bool, error) {
	if claim == "" || uid == "" {
		return false, nil
	}
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.MatchingFields{indexClaim: string(claim)}); err != nil {
		return false, fmt.Errorf("list the pods of claim %s: %w", claim, err)
	}
	return slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool {
		return string(p.UID) == uid && !lifecycle.Ended(&p)
	}), nil
}
