package app

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }

func (e *env) auditCommand() *cobra.Command {
	var n northbound
	var fix bool
	var settle time.Duration
	cmd := &cobra.Command{
		Use: "audit", Short: "Compare pods, leases, IP records and ports, and tell what doesn't fit",
		Long: `Compare pods, leases and IP records, and with --northbound ports, as the worker's sweep does, and tell what doesn't fit.
All is read twice, and only what was found both times is told, for a cluster at work is never quite still.

With --fix, missing finalizers are put back, and IP records of pods that are gone are deleted. Leases and ports are left
to the worker, which is fenced and hands a freed address to the pod that waits for it. Exits with 3 when a finding is
left.`,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if settle < 0 {
				return usagef("--settle=%s is negative: give 0s or more", settle)
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			a, err := c.audit(cmd.Context(), &n, settle, fix)
			if err != nil {
				return err
			}
			if err := e.write(a); err != nil {
				return err
			}
			if a.Unfixed() > 0 {
				return foundError{}
			}
			return nil
		},
	}
	n.register(cmd)
	cmd.Flags().BoolVar(&fix, "fix", false, "put right what can be put right from here")
	cmd.Flags().DurationVar(&settle, "settle", 5*time.Second, "time between the two looks")
	return cmd
}

// audit looks twice, and puts right what it may.
func (c *cluster) audit(ctx context.Context, n *northbound, settle time.Duration, fix bool) (*report.Audit, error) {
	set, err := c.settings(ctx)
	if err != nil {
		return nil, err
	}
	state, records, err := c.state(ctx, n, set)
	if err != nil {
		return nil, err
	}
	findings := lifecycle.Compare(state)
	if len(findings) > 0 {
		if settle > 0 {
			select {
			case <-c.clock.After(settle):
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		first := map[string]bool{}
		for _, f := range findings {
			first[f.Key()] = true
		}
		if state, records, err = c.state(ctx, n, set); err != nil {
			return nil, err
		}
		findings = slices.DeleteFunc(lifecycle.Compare(state), func(f lifecycle.Finding) bool { return !first[f.Key()] })
	}
	a := report.AuditOf(state, findings, n.addr != "")
	if fix {
		for i := range findings {
			fixed, err := c.fix(ctx, findings[i], records)
			if a.Items[i].Fixed = fixed; err != nil {
				a.Items[i].Error = err.Error()
			}
		}
	}
	return a, nil
}

// state reads all that is compared. The ledger is read first: a pod that comes meanwhile lacks nothing.
func (c *cluster) state(ctx context.Context, n *northbound, set settings) (lifecycle.State, map[string]*kubeovnv1.IP, error) {
	s := lifecycle.State{}
	ledger, _, err := c.ledger(ctx, set)
	if err != nil {
		return s, nil, err
	}
	keeper := facts.NewKeeper(c.client, c.client.RESTMapper())
	s.Leases = ledger.Leases()
	s.Keeps = func(h ipam.Held) lifecycle.Answer { return keeper.Keeps(ctx, h) }
	records := map[string]*kubeovnv1.IP{}
	var list kubeovnv1.IPList
	if err := c.client.List(ctx, &list, client.HasLabels{facts.LabelClaim}); err != nil {
		return s, nil, fmt.Errorf("list IP records: %w", err)
	}
	for i := range list.Items {
		records[list.Items[i].Name] = &list.Items[i]
		s.Records = append(s.Records, facts.Record(&list.Items[i]))
	}
	nbc, err := n.connect(ctx)
	if err != nil {
		return s, nil, err
	}
	if nbc != nil {
		s.Ports = nbc.Ports()
		nbc.Close()
	}
	err = c.eachPod(ctx, c.progress("pods read"), func(p *corev1.Pod) { s.Pods = append(s.Pods, facts.Pod(p)) })
	return s, records, err
}

// fix puts a finding right, where that is anybody's to do.
func (c *cluster) fix(ctx context.Context, f lifecycle.Finding, records map[string]*kubeovnv1.IP) (bool, error) {
	switch f.Kind {
	case lifecycle.FinalizerMissing:
		return c.putFinalizer(ctx, f)
	case lifecycle.RecordOrphaned:
		return c.dropRecord(ctx, f, records[f.Subject])
	}
	return false, nil
}

// putFinalizer puts the finalizer back on exactly this pod.
func (c *cluster) putFinalizer(ctx context.Context, f lifecycle.Finding) (bool, error) {
	var p corev1.Pod
	err := c.client.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: f.Pod}, &p)
	if apierrors.IsNotFound(err) || err == nil && (string(p.UID) != f.PodUID || p.DeletionTimestamp != nil) {
		return false, nil // it is gone, or going
	}
	if err != nil {
		return false, fmt.Errorf("read pod %s/%s: %w", f.Namespace, f.Pod, err)
	}
	if slices.Contains(p.Finalizers, network.Finalizer) {
		return true, nil
	}
	if err := c.patchFinalizers(ctx, &p, append(slices.Clone(p.Finalizers), network.Finalizer)); err != nil {
		return false, err
	}
	return true, nil
}

// patchFinalizers replaces the finalizers of exactly this pod, as it was read.
func (c *cluster) patchFinalizers(ctx context.Context, o client.Object, finalizers []string) error {
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "resourceVersion": o.GetResourceVersion(), "finalizers": finalizers}})
	if err != nil {
		return err
	}
	if err := c.client.Patch(ctx, o, client.RawPatch(types.MergePatchType, body)); err != nil {
		return fmt.Errorf("patch %T %s: %w", o, client.ObjectKeyFromObject(o), err)
	}
	return nil
}

// dropRecord deletes exactly this record, when the pod that it was made for is surely gone.
func (c *cluster) dropRecord(ctx context.Context, f lifecycle.Finding, ip *kubeovnv1.IP) (bool, error) {
	var p corev1.Pod
	err := c.client.Get(ctx, client.ObjectKey{Namespace: f.Namespace, Name: f.Pod}, &p)
	switch {
	case err == nil && string(p.UID) == f.PodUID:
		return false, nil // it has ended, and the worker takes all of it back at once
	case err != nil && !apierrors.IsNotFound(err):
		return false, fmt.Errorf("read pod %s/%s: %w", f.Namespace, f.Pod, err)
	}
	err = c.client.Delete(ctx, ip, client.Preconditions{UID: &ip.UID, ResourceVersion: &ip.ResourceVersion})
	if client.IgnoreNotFound(err) != nil {
		return false, fmt.Errorf("delete IP %s: %w", ip.Name, err)
	}
	return true, nil
}
