package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/jsonpatch"
	"github.com/berth-net/berth/internal/rebuild"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Events on Subnets whose leases were lost.
const (
	reasonLost     = "LeasesLost"
	reasonRestored = "LeasesRestored"
	actionRebuild  = "Rebuild"
)

// Lost hears from the ledger that leases of a subnet have gone that nobody gave back.
func (w *Worker) Lost(string, string) {
	select {
	case w.losses <- struct{}{}:
	default:
	}
}

// lose closes a subnet here, and has it looked at.
func (w *Worker) lose(subnet, reason string) {
	w.Ledger.Close(subnet, reason)
	w.Lost(subnet, reason)
}

// rebuildLoop restores what ledgers have lost, until ctx ends.
func (w *Worker) rebuildLoop(ctx context.Context) error {
	if err := w.awaitLead(ctx); err != nil {
		return nil // it never led
	}
	tick := w.Clock.NewTicker(w.SweepPeriod)
	defer tick.Stop()
	for {
		if err := w.rebuild(ctx); err != nil && ctx.Err() == nil {
			w.Log.Error(err, "Leases are lost and could not all be restored: their subnets stay closed")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		case <-w.losses:
		}
	}
}

// closure is a subnet that is closed.
type closure struct {
	network.Subnet
	// reason is why, mark what stands on the object; empty: nothing yet.
	reason, mark string
	// here is why it is closed in this process, by its name and by its L2 domain's.
	here map[string]ipam.Loss
}

// rebuild restores the leases of all subnets that are closed, and opens them again. What closes a subnet is durable
// before anything is restored, and a subnet opens only after a live read in which nothing was missing: so whatever was
// taken before is in the ledger, and whoever takes afterwards meets it.
func (w *Worker) rebuild(ctx context.Context) error {
	closed, err := w.closed(ctx)
	if err != nil {
		return err
	}
	if closed, err = w.confirmed(ctx, closed); err != nil {
		return err
	}
	w.Metrics.closed.Set(float64(len(closed)))
	w.forgetRestored(closed)
	if len(closed) == 0 {
		return nil
	}
	if err := w.Northbound.Ready(); err != nil {
		return err
	}
	var errs []error
	closed = slices.DeleteFunc(closed, func(c *closure) bool { // what can't be restored keeps no other subnet closed
		err := w.mark(ctx, c)
		if err == nil && c.Set == nil {
			err = fmt.Errorf("leases of subnet %s can't be restored: %w", c.Object.Name, c.Err)
		}
		errs = append(errs, err)
		return err != nil
	})
	if len(closed) == 0 {
		return errors.Join(errs...)
	}
	out, err := w.restore(ctx, closed)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	for _, c := range closed {
		errs = append(errs, w.reopen(ctx, c))
	}
	names := namesOf(closed)
	for _, p := range out.Pods {
		if slices.ContainsFunc(p.Holdings, func(h lifecycle.Holding) bool { return slices.Contains(names, h.Subnet) }) {
			w.enqueue(client.ObjectKey{Namespace: p.Namespace, Name: p.Name})
		}
	}
	return errors.Join(errs...)
}

func namesOf(closed []*closure) []string {
	var out []string
	for _, c := range closed {
		out = append(out, c.Object.Name)
	}
	return out
}

// closed gives the subnets that are closed, here or by their mark.
func (w *Worker) closed(ctx context.Context) ([]*closure, error) {
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return nil, err
	}
	here := w.Ledger.ClosedHere()
	known := map[string]bool{}
	var out []*closure
	for _, name := range slices.Sorted(maps.Keys(cat.Subnets)) {
		s := cat.Subnets[name]
		c := &closure{Subnet: s, mark: s.Object.Annotations[network.ClosedKey], here: map[string]ipam.Loss{}}
		c.reason = c.mark
		places := []string{name}
		if s.Set != nil {
			places = append(places, s.Set.Domain())
		}
		for _, place := range places {
			if known[place] = true; here[place].Times > 0 {
				c.here[place], c.reason = here[place], here[place].Reason
			}
		}
		if c.reason != "" {
			out = append(out, c)
		}
	}
	for place, loss := range here {
		if !known[place] { // of a subnet that is gone
			w.Ledger.Reopen(place, loss)
		}
	}
	return out, nil
}

// confirmed gives those that are closed by what the API server says now. A cache may yet show a mark that was taken off: to
// close a subnet for that would be a loss of its own.
func (w *Worker) confirmed(ctx context.Context, closed []*closure) ([]*closure, error) {
	var out []*closure
	for _, c := range closed {
		var s kubeovnv1.Subnet
		err := w.Live.Get(ctx, client.ObjectKeyFromObject(c.Object), &s)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read subnet %s: %w", c.Object.Name, err)
		}
		if err != nil || s.UID != c.Object.UID { // the cache tells soon
			continue
		}
		if c.mark = s.Annotations[network.ClosedKey]; c.mark == "" && len(c.here) == 0 {
			continue
		}
		out = append(out, c)
	}
	return out, nil
}

// mark makes durable that a subnet is closed, and tells of it, once until it is open again.
func (w *Worker) mark(ctx context.Context, c *closure) error {
	if c.mark == "" {
		mark, err := catalog.MarkClosed(ctx, w.Client, w.Random, c.Object, c.reason)
		if err != nil {
			return err
		}
		c.mark = mark
	}
	if w.beginRestoring(c.Object.Name) { // a webhook that was quicker has told nobody
		w.Log.Info("Leases are lost: the subnet is closed until they are restored", "subnet", c.Object.Name, "reason", c.reason)
		w.Recorder.Eventf(c.Object, nil, corev1.EventTypeWarning, reasonLost, actionRebuild, "%s: no address is given until all leases are restored", c.reason)
	}
	w.Ledger.Close(c.Object.Name, c.reason)
	c.here[c.Object.Name] = w.Ledger.ClosedHere()[c.Object.Name]
	return nil
}

func (w *Worker) reopen(ctx context.Context, c *closure) error {
	if err := catalog.UnmarkClosed(ctx, w.Client, c.Object, c.mark); jsonpatch.Outdated(err) { // it was marked again meanwhile: once more
		w.Lost(c.Object.Name, c.reason)
		return nil
	} else if client.IgnoreNotFound(err) != nil {
		return err
	}
	for place, seen := range c.here {
		w.Ledger.Reopen(place, seen)
	}
	restored := w.endRestoring(c.Object.Name)
	w.Metrics.rebuilds.Inc()
	w.Log.Info("All leases are there again: the subnet is open", "subnet", c.Object.Name, "restored", restored)
	w.Recorder.Eventf(c.Object, nil, corev1.EventTypeNormal, reasonRestored, actionRebuild, "%d leases were restored: addresses are given again", restored)
	return nil
}

// source is what leases are rebuilt from.
func (w *Worker) source() rebuild.Source {
	return rebuild.Source{Live: w.Live, Ports: w.Northbound.Ports, Owner: w.ownerOf, Ledger: w.Ledger}
}

// restore brings back what is missing, until a live read shows that nothing is.
func (w *Worker) restore(ctx context.Context, closed []*closure) (rebuild.Outcome, error) {
	sets := map[string]*ipam.Subnet{}
	for _, c := range closed {
		sets[c.Object.Name] = c.Set
	}
	out, err := w.source().Restore(ctx, sets, w.tellRestored)
	if err != nil {
		return out, err
	}
	for _, c := range out.Done.Conflicts {
		w.tellOnce("conflict "+c.Key(), "Two pods carry one address, and one of them has its lease", "pod", c.Namespace+"/"+c.Pod,
			"address", c.Subject, "detail", c.Detail)
	}
	return out, nil
}

// tellRestored counts what a plan restores, each lease once in all rounds until its subnet is open, and tells what it takes
// from others.
func (w *Worker) tellRestored(plan lifecycle.Rebuilt) {
	for _, x := range plan.Replace {
		w.Log.Info("An address was given again while its lease was lost: it goes back", "subnet", x.Old.Subnet, "address", x.Old.Address,
			"pod", x.New.PodName, "given", x.Old.Claim)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	count := func(subnet string, l ipam.Lease) {
		r := ipam.Ref{Address: l.Address, MAC: l.MAC, Claim: l.Claim}
		if known := w.restored[subnet]; known != nil && !known[r] {
			known[r] = true
			w.Metrics.restored.Inc()
		}
	}
	for _, x := range plan.Restore {
		count(x.Subnet, x.Lease)
	}
	for _, x := range plan.Replace {
		count(x.Old.Subnet, x.New)
	}
}

// beginRestoring tells whether the subnet's leases were not being restored yet.
func (w *Worker) beginRestoring(subnet string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.restored[subnet] != nil {
		return false
	}
	w.restored[subnet] = map[ipam.Ref]bool{}
	return true
}

// endRestoring tells how many of the subnet's leases were restored since that began.
func (w *Worker) endRestoring(subnet string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := len(w.restored[subnet])
	delete(w.restored, subnet)
	return n
}

// forgetRestored drops what was counted for subnets that are gone, or that others have opened.
func (w *Worker) forgetRestored(closed []*closure) {
	names := namesOf(closed)
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.DeleteFunc(w.restored, func(subnet string, _ map[ipam.Ref]bool) bool { return !slices.Contains(names, subnet) })
}

// findLosses closes the subnets of which ports or records prove that leases are missing, by the cache and then by a live
// read of the ledger.
func (w *Worker) findLosses(ctx context.Context, ports []nb.LogicalSwitchPort, records []lifecycle.Record) error {
	var pods corev1.PodList
	if err := w.Client.List(ctx, &pods, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	loss := lifecycle.Loss{Pods: w.source().Claimants(pods.Items), Ports: ports, Records: records, Leases: w.Ledger.Leases()}
	names := lifecycle.Rebuild(loss).Lost()
	if len(names) == 0 {
		return nil
	}
	if err := w.Ledger.Refresh(ctx, names...); err != nil {
		return fmt.Errorf("read the ledger: %w", err)
	}
	loss.Leases = w.Ledger.Leases()
	for _, name := range lifecycle.Rebuild(loss).Lost() {
		w.lose(name, "ports or records of living pods have no lease")
	}
	return nil
}

// open tells that the ledger of the pod's subnets is complete: a *busyError otherwise.
func (w *Worker) open(ctx context.Context, s *subject) error {
	cat, err := w.topology.Topology(ctx)
	if err != nil {
		return err
	}
	for _, name := range s.subnets() {
		if set := cat.Subnets[name].Set; set != nil {
			if err := w.Ledger.Open(set); err != nil {
				return &busyError{err.Error()}
			}
		}
	}
	return nil
}

// robbed closes the subnet of a wired pod whose lease is missing: what a port of this very pod shows was in the ledger.
func (w *Worker) robbed(s *subject) bool {
	missing := s.missing()
	for _, p := range w.Northbound.PodPorts(s.Namespace, s.identity) {
		if p.ExternalIDs[nb.KeyPodUID] != s.uid() || p.ExternalIDs[nb.KeyClaim] != string(s.claim) {
			continue
		}
		for _, a := range lifecycle.PortAddresses(p) {
			if slices.Contains(missing, a) {
				w.lose(p.ExternalIDs[nb.KeySwitch], fmt.Sprintf("pod %s is wired with %s, of which there is no lease", s.key(), a))
				return true
			}
		}
	}
	return false
}
