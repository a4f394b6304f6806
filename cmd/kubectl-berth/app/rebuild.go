package app

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

func (e *env) rebuildCommand() *cobra.Command {
	var n northbound
	var dry bool
	cmd := &cobra.Command{
		Use: "rebuild [SUBNET...]", Short: "Restore leases that were lost, from pods, IP records and ports",
		Long: `Restore leases that were lost, from pods, IP records and, with --northbound, ports. The worker does that by itself; this
is for when there is none.

Without arguments, it is about the subnets that are closed, and those of which records or ports prove that leases are
missing; with arguments about the named ones, where a pod's word is enough. Each is closed to new pods meanwhile, and
opened after a look in which nothing was missing. A conflict is a pod whose address is another's: it is only told.`,
		Example: "  kubectl berth rebuild --dry-run -o wide\n  kubectl berth rebuild ovn-default --northbound tcp:10.0.0.1:6641",
		Args:    usageArgs(cobra.ArbitraryArgs), ValidArgsFunction: completeArgs(e.subnetNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := e.connect()
			if err != nil {
				return err
			}
			m, err := c.rebuild(cmd.Context(), &n, args, dry)
			return e.told(m, err)
		},
	}
	n.register(cmd)
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only tell what would be done")
	return cmd
}

// told writes the answer of a migration. Problems are an answer that scripts want to know of.
func (e *env) told(m *report.Migration, err error) error {
	if m == nil {
		return err
	}
	if err := errors.Join(err, e.write(m)); err != nil {
		return err
	}
	switch {
	case len(m.Failed) > 0:
		return fmt.Errorf("%d steps failed: run it again", len(m.Failed))
	case len(m.Problems) > 0:
		return foundError{}
	}
	return nil
}

// forWriting has the ledger write.
func (c *cluster) forWriting() {
	if r, ok := c.store.(readOnly); ok {
		c.store = r.Store
	}
}

// owner tells who may come back to a pod's leases.
func (s settings) owner(p *corev1.Pod) ipam.Owner {
	return network.OwnerOf(network.PodOf(p), s.network)
}

// rebuild restores what the subnets lack.
func (c *cluster) rebuild(ctx context.Context, n *northbound, subnets []string, dry bool) (*report.Migration, error) {
	set, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	cat, err := c.topology(ctx)
	if err != nil {
		return nil, err
	}
	if !dry {
		c.forWriting()
	}
	ledger, _, err := c.ledger(ctx, set)
	if err != nil {
		return nil, err
	}
	nbc, err := n.connect(ctx)
	if err != nil {
		return nil, err
	}
	source := rebuild.Source{Live: c.client, Owner: set.owner, Ledger: ledger}
	if nbc != nil {
		defer nbc.Close()
		source.Ports = nbc.Ports
	}
	plan, err := lacking(ctx, source)
	if err != nil {
		return nil, err
	}
	names, err := whichClosed(cat, plan, subnets)
	if err != nil {
		return nil, err
	}
	plan = plan.In(names)
	m := report.MigrationOf("rebuild")
	if !dry {
		if plan, err = c.restore(ctx, source, cat, plan, names); err != nil {
			return nil, err
		}
		m.Written = true
	}
	tellRebuilt(m, plan)
	return m, nil
}

// lacking plans what is missing. Pods come and go meanwhile: what was leased before or after is not missing.
func lacking(ctx context.Context, s rebuild.Source) (lifecycle.Rebuilt, error) {
	before := s.Ledger.Leases()
	loss, err := s.Read(ctx)
	if err != nil {
		return lifecycle.Rebuilt{}, err
	}
	if err := s.Ledger.Refresh(ctx); err != nil {
		return lifecycle.Rebuilt{}, fmt.Errorf("read the ledger: %w", err)
	}
	type key struct{ subnet, what string }
	loss.Leases = s.Ledger.Leases()
	there := map[key]bool{}
	for _, h := range loss.Leases {
		there[key{h.Subnet, h.Ref().String()}] = true
	}
	for _, h := range before {
		if !there[key{h.Subnet, h.Ref().String()}] {
			loss.Leases = append(loss.Leases, h)
		}
	}
	return lifecycle.Rebuild(loss), nil
}

// whichClosed gives the named subnets, or those that are closed or proved to lack leases.
func whichClosed(cat network.Catalog, plan lifecycle.Rebuilt, named []string) ([]string, error) {
	for _, name := range named {
		switch s, ok := cat.Subnets[name]; {
		case !ok:
			return nil, fmt.Errorf("there is no subnet %s: kubectl berth subnets lists them", name)
		case s.Err != nil:
			return nil, s.Err
		}
	}
	if len(named) > 0 {
		return named, nil
	}
	out := plan.Lost()
	for name, s := range cat.Subnets {
		if s.Object.Annotations[network.ClosedKey] != "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return slices.DeleteFunc(slices.Compact(out), func(name string) bool { return cat.Subnets[name].Set == nil }), nil
}

// restore closes the subnets that lack something, restores, and opens them again, by the steps of the worker.
func (c *cluster) restore(ctx context.Context, s rebuild.Source, cat network.Catalog, plan lifecycle.Rebuilt, names []string) (lifecycle.Rebuilt, error) {
	sets, marks := map[string]*ipam.Subnet{}, map[string]string{}
	for _, name := range names {
		in, subnet := plan.In([]string{name}), cat.Subnets[name]
		mark := subnet.Object.Annotations[network.ClosedKey]
		if len(in.Restore)+len(in.Replace) == 0 && mark == "" {
			continue
		}
		if mark == "" {
			var err error
			if mark, err = catalog.MarkClosed(ctx, c.client, rand.Reader, subnet.Object, "leases are being rebuilt"); err != nil {
				return lifecycle.Rebuilt{}, err
			}
		}
		sets[name], marks[name] = subnet.Set, mark
	}
	if len(sets) == 0 {
		return plan, nil
	}
	out, err := s.Restore(ctx, sets, func(lifecycle.Rebuilt) {})
	if err != nil {
		return lifecycle.Rebuilt{}, fmt.Errorf("the subnets stay closed, run it again: %w", err)
	}
	for name, mark := range marks {
		if err := catalog.UnmarkClosed(ctx, c.client, cat.Subnets[name].Object, mark); err != nil {
			return lifecycle.Rebuilt{}, fmt.Errorf("more was lost meanwhile, run it again: %w", err)
		}
	}
	return out.Done, nil
}

func tellRebuilt(m *report.Migration, plan lifecycle.Rebuilt) {
	for _, x := range plan.Restore {
		m.Step("lease", "Subnet", "", x.Subnet, leaseText(x.Lease))
	}
	for _, x := range plan.Replace {
		m.Step("replace", "Subnet", "", x.Old.Subnet, fmt.Sprintf("%s, which %s had", leaseText(x.New), x.Old.Owner))
	}
	for _, x := range plan.Conflicts {
		m.Skipped = append(m.Skipped, report.Trouble{Kind: "Pod", Namespace: x.Namespace, Name: x.Pod, Text: x.Detail + ": recreate the pod"})
	}
}

func leaseText(x ipam.Lease) string {
	what := ipam.Ref{Address: x.Address, MAC: x.MAC}.String()
	if x.PodName != "" {
		return fmt.Sprintf("%s for pod %s/%s", what, x.Owner.Namespace, x.PodName)
	}
	return fmt.Sprintf("%s for %s", what, x.Owner)
}
