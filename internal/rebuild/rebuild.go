// Package rebuild restores leases that a ledger has lost, from pods, ports and IP records, for the worker and the
// operator's command alike.
//
// Invariant: a lease that is there is never overwritten, only freed as it was read; and all is restored only when a live
// read of pods, records and ledger shows that nothing is missing. Whoever calls has closed the subnets before.
package rebuild

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// rounds bounds how often one look restores what is missing before it gives up.
const rounds = 8

// podPage is how many pods one live read of all pods asks for at once.
const podPage = 500

// Source is what leases are rebuilt from.
type Source struct {
	// Live reads pods and IP records.
	Live client.Reader
	// Ports gives the ports of the northbound database; nil: nobody looks there.
	Ports func() []nb.LogicalSwitchPort
	// Owner tells who may come back to a pod's leases.
	Owner func(*corev1.Pod) ipam.Owner
	// Ledger that lost them.
	Ledger *ipam.Ledger
}

// Read reads live all that leases can be rebuilt from. Leases are as the ledger's cache has them afterwards.
func (s Source) Read(ctx context.Context) (lifecycle.Loss, error) {
	var loss lifecycle.Loss
	if s.Ports != nil {
		loss.Ports = s.Ports()
	}
	var ips kubeovnv1.IPList
	if err := s.Live.List(ctx, &ips, client.HasLabels{facts.LabelClaim}); err != nil {
		return loss, fmt.Errorf("list IP records: %w", err)
	}
	for i := range ips.Items {
		loss.Records = append(loss.Records, facts.Record(&ips.Items[i]))
	}
	for next := ""; ; {
		var pods corev1.PodList
		if err := s.Live.List(ctx, &pods, client.Limit(podPage), client.Continue(next)); err != nil {
			return loss, fmt.Errorf("list pods: %w", err)
		}
		loss.Pods = append(loss.Pods, s.Claimants(pods.Items)...)
		if next = pods.Continue; next == "" {
			break
		}
	}
	loss.Leases = s.Ledger.Leases()
	return loss, nil
}

// Claimants reads what pods say of their leases.
func (s Source) Claimants(pods []corev1.Pod) []lifecycle.Claimant {
	var out []lifecycle.Claimant
	for i := range pods {
		if c, ok := facts.Claimant(&pods[i], s.Owner(&pods[i])); ok {
			out = append(out, c)
		}
	}
	return out
}

// Outcome is what was done.
type Outcome struct {
	// Done is all that was missing, and Conflicts of it what stays so.
	Done lifecycle.Rebuilt
	// Pods as they were read last.
	Pods []lifecycle.Claimant
}

// Restore brings back what the subnets lack, by name, until a live read shows that nothing does. tell hears of each plan
// before it is carried out.
func (s Source) Restore(ctx context.Context, sets map[string]*ipam.Subnet, tell func(lifecycle.Rebuilt)) (Outcome, error) {
	var out Outcome
	names := slices.Sorted(maps.Keys(sets))
	places := slices.Clone(names)
	for _, name := range names {
		places = append(places, sets[name].Domain())
	}
	for range rounds {
		if err := s.Ledger.Refresh(ctx, places...); err != nil {
			return out, fmt.Errorf("read the ledger: %w", err)
		}
		loss, err := s.Read(ctx)
		if err != nil {
			return out, err
		}
		plan := lifecycle.Rebuild(loss).In(names)
		out.Pods, out.Done.Conflicts = loss.Pods, plan.Conflicts
		if len(plan.Restore)+len(plan.Replace) == 0 {
			return out, nil
		}
		tell(plan)
		if err := Apply(ctx, s.Ledger, sets, plan); err != nil {
			return out, err
		}
		out.Done.Restore = append(out.Done.Restore, plan.Restore...)
		out.Done.Replace = append(out.Done.Replace, plan.Replace...)
	}
	return out, fmt.Errorf("leases of subnets %v go missing as fast as they are restored", names)
}

// Apply carries out what a plan says. What somebody else has by now is left alone: the next look tells.
func Apply(ctx context.Context, l *ipam.Ledger, sets map[string]*ipam.Subnet, plan lifecycle.Rebuilt) error {
	lost := map[string][]ipam.Lease{}
	var refs []ipam.Ref
	for _, x := range plan.Restore {
		lost[x.Subnet] = append(lost[x.Subnet], x.Lease)
	}
	for _, x := range plan.Replace {
		refs = append(refs, x.Old.Ref())
		lost[x.Old.Subnet] = append(lost[x.Old.Subnet], x.New)
	}
	if err := l.Free(ctx, refs...); err != nil {
		return fmt.Errorf("free what was given again: %w", err)
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(lost)) {
		errs = append(errs, ignoreHeld(l.Restore(ctx, sets[name], lost[name]...)))
	}
	return errors.Join(errs...)
}

// ignoreHeld drops the errors that say that somebody else has a lease.
func ignoreHeld(err error) error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var rest []error
		for _, e := range joined.Unwrap() {
			rest = append(rest, ignoreHeld(e))
		}
		return errors.Join(rest...)
	}
	if _, held := ipam.AsRefusal(err); held {
		return nil
	}
	return err
}
