package worker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// observe watches leases that no pod carries, on leader and standbys alike, until ctx ends.
func (w *Worker) observe(ctx context.Context) error {
	tick := w.Clock.NewTicker(min(w.SweepPeriod, max(w.PendingAge/4, time.Millisecond)))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if !w.LedgerSynced() {
			continue
		}
		pods, _, err := w.pods(ctx)
		if err != nil {
			w.Log.Error(err, "Pending leases were not watched")
			continue
		}
		leases := w.Ledger.Leases()
		w.see(lifecycle.Compare(lifecycle.State{Pods: pods, Leases: leases, Keeps: unasked}))
		w.forgetExits(leases)
	}
}

// unasked takes every sticky owner's lease for one to watch: only the leader asks the owners, before it frees.
func unasked(ipam.Held) lifecycle.Answer { return lifecycle.No }

// see tells the watchlist which leases no pod carries now.
func (w *Worker) see(findings []lifecycle.Finding) {
	var loose []ipam.Held
	for _, f := range findings {
		if f.Kind == lifecycle.LeasePending || f.Kind == lifecycle.LeaseOrphaned {
			loose = append(loose, f.Lease)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.ripe = map[ipam.Ref]bool{}
	for _, h := range w.watch.Observe(w.Clock.Now(), loose) {
		w.ripe[h.Ref()] = true
	}
	w.Metrics.watched.Set(float64(w.watch.Len()))
}

// sweepLoop sweeps at its period and when it is asked to, until ctx ends.
func (w *Worker) sweepLoop(ctx context.Context) error {
	if err := w.awaitLead(ctx); err != nil {
		return nil // it never led
	}
	tick := w.Clock.NewTicker(w.SweepPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C():
		}
		if err := w.sweep(ctx); err != nil {
			w.Metrics.sweeps.WithLabelValues("failed").Inc()
			w.Log.Error(err, "Sweep could not do everything")
			continue
		}
		w.Metrics.sweeps.WithLabelValues("done").Inc()
	}
}

// sweep compares everything, and repairs what was found twice and is confirmed by live reads.
func (w *Worker) sweep(ctx context.Context) error {
	if err := w.Northbound.Ready(); err != nil {
		return err
	}
	if !w.LedgerSynced() {
		return errors.New("the ledger is not complete yet")
	}
	pods, finalizing, err := w.pods(ctx)
	if err != nil {
		return err
	}
	records, byName, err := w.records(ctx)
	if err != nil {
		return err
	}
	findings := lifecycle.Compare(lifecycle.State{
		Pods: pods, Leases: w.Ledger.Leases(), Ports: w.Northbound.Ports(), Complete: true, Records: records, Keeps: unasked,
	})
	w.see(findings)
	if slices.ContainsFunc(findings, func(f lifecycle.Finding) bool {
		return f.Kind == lifecycle.LeaseMissing || f.Kind == lifecycle.PortUnleased
	}) {
		if err := w.findLosses(ctx, w.Northbound.Ports(), records); err != nil {
			return err
		}
	}
	w.Metrics.tellFinalizers(finalizing, w.Clock.Now())
	w.forgetBegun(pods)
	w.forgetRecords()
	r := &repair{Worker: w, keeper: facts.NewKeeper(w.Live, w.Client.RESTMapper()), records: byName, live: map[string][]lifecycle.Pod{}}
	var errs []error
	counts := map[lifecycle.Kind]int{}
	for _, f := range w.twice(findings) {
		if r.kept(ctx, f) {
			continue
		}
		counts[f.Kind]++
		if err := r.mend(ctx, f); err != nil {
			errs = append(errs, fmt.Errorf("%s %s: %w", f.Kind, f.Subject, err))
		}
	}
	for _, k := range lifecycle.Kinds() {
		w.Metrics.findings.WithLabelValues(string(k)).Set(float64(counts[k]))
	}
	if _, err := w.Ledger.Prune(ctx); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// twice gives the findings that the sweep before had too.
func (w *Worker) twice(findings []lifecycle.Finding) []lifecycle.Finding {
	w.mu.Lock()
	defer w.mu.Unlock()
	noted := map[string]bool{}
	var again []lifecycle.Finding
	for _, f := range findings {
		k := f.Key()
		if w.noted[k] {
			again = append(again, f)
		}
		noted[k] = true
	}
	w.noted = noted
	return again
}

// pods gives all pods with a claim or the finalizer from the cache, and by when those were to end that are being deleted
// with the finalizer on.
func (w *Worker) pods(ctx context.Context) ([]lifecycle.Pod, []time.Time, error) {
	var list corev1.PodList
	if err := w.Client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list pods: %w", err)
	}
	var finalizing []time.Time
	var out []lifecycle.Pod
	for i := range list.Items {
		p := facts.Pod(&list.Items[i])
		if p.Deleting && p.Finalized {
			finalizing = append(finalizing, list.Items[i].DeletionTimestamp.Time)
		}
		out = append(out, p)
	}
	return out, finalizing, nil
}

// forgetBegun drops when pods were first seen with a node that have gone since, and nobody gave anything back.
func (w *Worker) forgetBegun(pods []lifecycle.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.started) == 0 {
		return
	}
	there := make(map[string]bool, len(pods))
	for _, p := range pods {
		there[p.UID] = true
	}
	maps.DeleteFunc(w.started, func(uid string, _ time.Time) bool { return !there[uid] })
}

// records gives the IP records that this project made.
func (w *Worker) records(ctx context.Context) ([]lifecycle.Record, map[string]*kubeovnv1.IP, error) {
	var list kubeovnv1.IPList
	if err := w.Client.List(ctx, &list, client.HasLabels{labelClaim}); err != nil {
		return nil, nil, fmt.Errorf("list IP records: %w", err)
	}
	byName := make(map[string]*kubeovnv1.IP, len(list.Items))
	var out []lifecycle.Record
	for i := range list.Items {
		ip := &list.Items[i]
		byName[ip.Name] = ip
		out = append(out, facts.Record(ip))
	}
	return out, byName, nil
}

// repair is the second half of one sweep.
type repair struct {
	*Worker
	keeper  *facts.Keeper
	records map[string]*kubeovnv1.IP
	// live are the pods of each namespace, by a live list.
	live map[string][]lifecycle.Pod
}

// kept tells that a finding is none, for a sticky owner keeps the lease, or nobody knows.
func (r *repair) kept(ctx context.Context, f lifecycle.Finding) bool {
	loose := f.Kind == lifecycle.LeasePending || f.Kind == lifecycle.LeaseOrphaned
	return loose && f.Lease.Owner.Sticky() && !f.Surplus && r.keeper.Keeps(ctx, f.Lease) != lifecycle.No
}

func (r *repair) mend(ctx context.Context, f lifecycle.Finding) error {
	var done bool
	var err error
	switch f.Kind {
	case lifecycle.LeasePending, lifecycle.LeaseOrphaned:
		done, err = r.mendLease(ctx, f)
	case lifecycle.PortOrphaned:
		done, err = r.mendPort(ctx, f)
	case lifecycle.RecordOrphaned:
		done, err = r.mendRecord(ctx, f)
	case lifecycle.LeaseMissing, lifecycle.FinalizerMissing, lifecycle.PortUnleased, lifecycle.PortDuplicate, lifecycle.PortMissing:
		r.enqueue(client.ObjectKey{Namespace: f.Namespace, Name: f.Pod})
	}
	if done {
		r.Metrics.repairs.WithLabelValues(string(f.Kind)).Inc()
		r.Log.Info("Repaired", "kind", f.Kind, "subject", f.Subject, "pod", f.Namespace+"/"+f.Pod)
	}
	return err
}

// mendLease frees a lease that was watched long enough, or whose pod is gone, and that no pod carries in a live read.
func (r *repair) mendLease(ctx context.Context, f lifecycle.Finding) (bool, error) {
	l := f.Lease
	r.mu.Lock()
	ripe := r.ripe[l.Ref()]
	r.mu.Unlock()
	if l.PodUID == "" || l.Owner.Sticky() {
		if !ripe {
			return false, nil
		}
	} else if gone, err := r.podGone(ctx, l.Owner.Namespace, l.PodName, l.PodUID); err != nil || !gone {
		return false, err
	}
	carried, err := r.carriedLive(ctx, l)
	if err != nil || carried {
		return false, err
	}
	if used, err := r.inUse(ctx, l, ripe); err != nil || used {
		return false, err
	}
	ports, others := r.portsUnder(l)
	if others { // they go first, or their pod has come since and has the lease by now
		return false, nil
	}
	if len(ports) > 0 {
		if err := r.unwire(ctx, f, l.Claim, ports...); err != nil {
			return false, err
		}
	}
	err = r.free(ctx, []ipam.Held{l})
	return err == nil, err
}

// portsUnder gives the ports of the lease's pod that have its address under its claim, and tells whether other pods have
// such ports.
func (r *repair) portsUnder(l ipam.Held) (names []string, others bool) {
	r.Northbound.EachPort(func(p *nb.LogicalSwitchPort) {
		if p.ExternalIDs[nb.KeyClaim] != string(l.Claim) || !slices.Contains(lifecycle.PortAddresses(*p), l.Address) {
			return
		}
		if uid := p.ExternalIDs[nb.KeyPodUID]; uid != "" && uid != l.PodUID {
			others = true
			return
		}
		names = append(names, p.Name)
	})
	slices.Sort(names)
	return names, others
}

// unwire removes ports of a pod that is gone. A successor may have made its port of that name in the meantime: whoever has
// the name, or the claim, is looked at again.
func (r *repair) unwire(ctx context.Context, f lifecycle.Finding, claim ipam.Claim, ports ...string) error {
	if err := r.apply(ctx, ovn.Change{Key: "sweep of " + f.Subject, RemovePorts: ports}); err != nil {
		return err
	}
	r.enqueue(client.ObjectKey{Namespace: f.Namespace, Name: f.Pod})
	var pods corev1.PodList
	if err := r.Client.List(ctx, &pods, client.MatchingFields{indexClaim: string(claim)}); err != nil {
		return fmt.Errorf("list the pods of claim %s: %w", claim, err)
	}
	for i := range pods.Items {
		r.enqueue(client.ObjectKeyFromObject(&pods.Items[i]))
	}
	return nil
}

// carriedLive tells by a live list whether a pod carries the lease.
func (r *repair) carriedLive(ctx context.Context, l ipam.Held) (bool, error) {
	pods, err := r.podsLive(ctx, l.Owner.Namespace)
	return slices.ContainsFunc(pods, func(p lifecycle.Pod) bool { return p.Carries(l) }), err
}

// podsLive reads the pods of a namespace live, once a sweep.
func (r *repair) podsLive(ctx context.Context, namespace string) ([]lifecycle.Pod, error) {
	pods, ok := r.live[namespace]
	if !ok {
		var list corev1.PodList
		if err := r.Live.List(ctx, &list, client.InNamespace(namespace)); err != nil {
			return nil, fmt.Errorf("list the pods of namespace %s: %w", namespace, err)
		}
		for i := range list.Items {
			pods = append(pods, facts.Pod(&list.Items[i]))
		}
		r.live[namespace] = pods
	}
	return pods, nil
}

// over tells by live reads whether the pod of a port or of a record is gone, or has ended. Those of virtual machines are
// under the machine's name, and only a list finds their pods.
func (r *repair) over(ctx context.Context, f lifecycle.Finding) (bool, error) {
	gone, err := r.podGone(ctx, f.Namespace, f.Pod, f.PodUID)
	if err != nil || !gone {
		return false, err
	}
	pods, err := r.podsLive(ctx, f.Namespace)
	return err == nil && !slices.ContainsFunc(pods, func(p lifecycle.Pod) bool { return p.UID == f.PodUID && !p.Over }), err
}

func (r *repair) mendPort(ctx context.Context, f lifecycle.Finding) (bool, error) {
	over, err := r.over(ctx, f)
	if err != nil || !over {
		return false, err
	}
	// The name may be its successor's by now.
	p, ok := r.Northbound.Port(f.Subject)
	if !ok || p.ExternalIDs[nb.KeyPodUID] != f.PodUID {
		return false, nil
	}
	err = r.unwire(ctx, f, ipam.Claim(p.ExternalIDs[nb.KeyClaim]), f.Subject)
	return err == nil, err
}

func (r *repair) mendRecord(ctx context.Context, f lifecycle.Finding) (bool, error) {
	over, err := r.over(ctx, f)
	if err != nil || !over || r.needed(r.records[f.Subject]) {
		return false, err
	}
	err = r.dropRecord(ctx, r.records[f.Subject])
	return err == nil, err
}
