package app

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

func (e *env) whyCommand() *cobra.Command {
	var n northbound
	cmd := &cobra.Command{
		Use: "why POD", Short: "Tell one pod's whole story",
		Long: `Tell one pod's whole story: what it waits for, what it is to get and what it has: plan, annotations, leases, IP records,
conditions and events, and with --northbound its ports and their groups.`,
		Example: "  kubectl berth why web-0 -n shop\n  kubectl berth why web-0 -n shop --northbound tcp:10.0.0.1:6641",
		Args:    exactly("POD"), ValidArgsFunction: completeArgs(e.podNames),
		RunE: func(cmd *cobra.Command, args []string) error {
			namespace, err := e.podNamespace()
			if err != nil {
				return err
			}
			name := args[0]
			if before, after, ok := strings.Cut(name, "/"); ok {
				namespace, name = before, after
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			told, err := c.told(cmd.Context(), client.ObjectKey{Namespace: namespace, Name: name}, &n)
			if err != nil {
				return err
			}
			return e.write(report.StoryOf(told))
		},
	}
	n.register(cmd)
	return cmd
}

// told gathers all that is known of a pod.
func (c *cluster) told(ctx context.Context, key client.ObjectKey, n *northbound) (report.Told, error) {
	t := report.Told{Pod: &corev1.Pod{}}
	set, err := c.settings(ctx)
	if err != nil {
		return t, err
	}
	err = c.client.Get(ctx, key, t.Pod)
	if apierrors.IsNotFound(err) {
		return t, fmt.Errorf("there is no pod %s: give its namespace by --namespace; was it refused, its controller's events tell why", key)
	}
	if err != nil {
		return t, fmt.Errorf("read pod %s: %w", key, err)
	}
	leader, err := c.leader(ctx)
	if err != nil {
		return t, err
	}
	if leader.Alive {
		t.Leader = leader.Holder
	}
	if t.Ledger, _, err = c.ledger(ctx, set); err != nil {
		return t, err
	}
	if claim, ok := network.ClaimOf(t.Pod.Annotations); ok {
		t.Leases = t.Ledger.ByClaim(claim)
	}
	c.plan(ctx, &t, set)
	if t.Verdict, err = c.verdict(ctx, &t); err != nil {
		return t, err
	}
	if err := c.records(ctx, &t, set); err != nil {
		return t, err
	}
	if err := c.events(ctx, &t); err != nil {
		return t, err
	}
	err = c.ports(ctx, &t, n)
	return t, err
}

// plan works out what the pod is to get.
func (c *cluster) plan(ctx context.Context, t *report.Told, set settings) {
	reader, err := c.catalog()
	if err != nil {
		t.PlanErr = err
		return
	}
	view, err := reader.For(ctx, report.Asking(t.Pod, t.Leases))
	if err != nil {
		t.PlanErr = err
		return
	}
	t.Namespace = view.Namespace
	t.Plan, t.Problems = network.Plan(view.Pod, view.Namespace, view.Catalog, set.network)
}

// verdict judges the pod as the worker does.
func (c *cluster) verdict(ctx context.Context, t *report.Told) (lifecycle.Verdict, error) {
	f := lifecycle.Facts{Pod: t.Pod, OwnerKeeps: lifecycle.No, Leased: len(t.Leases) > 0, Finalized: facts.Pod(t.Pod).Finalized,
		Unfenced: facts.Unfenced(t.Pod, t.Leases), Now: c.clock.Now()}
	for _, l := range t.Leases {
		if l.Owner.Sticky() {
			f.OwnerKeeps = lifecycle.Yes
		}
	}
	if (t.Pod.DeletionTimestamp != nil || lifecycle.Ended(t.Pod)) && t.Pod.Spec.NodeName != "" {
		var node corev1.Node
		err := c.client.Get(ctx, client.ObjectKey{Name: t.Pod.Spec.NodeName}, &node)
		switch {
		case err == nil:
			f.Node = &node
		case apierrors.IsNotFound(err):
			f.NodeGone = true
		default:
			return lifecycle.Verdict{}, fmt.Errorf("read node %s: %w", t.Pod.Spec.NodeName, err)
		}
	}
	return lifecycle.Decide(f), nil
}

// records reads the IP objects of the pod's networks.
func (c *cluster) records(ctx context.Context, t *report.Told, set settings) error {
	pod := network.PodOf(t.Pod)
	identity := network.Identity(pod, network.OwnerOf(pod, set.network))
	providers := map[string]bool{}
	for _, i := range t.Plan.Interfaces {
		providers[i.Provider] = true
	}
	for _, x := range network.Carried(t.Pod.Annotations) {
		providers[x.Provider] = true
	}
	for _, provider := range sorted(providers) {
		var ip kubeovnv1.IP
		err := c.client.Get(ctx, client.ObjectKey{Name: network.PortName(identity, t.Pod.Namespace, provider)}, &ip)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read IP records of pod %s: %w", pod, err)
		}
		t.Records = append(t.Records, ip)
	}
	return nil
}

// events reads those about the pod and its predecessors of the same name.
func (c *cluster) events(ctx context.Context, t *report.Told) error {
	var list corev1.EventList
	err := c.client.List(ctx, &list, client.InNamespace(t.Pod.Namespace),
		client.MatchingFields{"involvedObject.kind": "Pod", "involvedObject.name": t.Pod.Name})
	if err != nil {
		return fmt.Errorf("list events of pod %s/%s: %w", t.Pod.Namespace, t.Pod.Name, err)
	}
	t.Events = list.Items
	return nil
}

// ports reads the pod's ports, and compares the pod with all that it has.
func (c *cluster) ports(ctx context.Context, t *report.Told, n *northbound) error {
	state := lifecycle.State{Pods: []lifecycle.Pod{facts.Pod(t.Pod)}, Leases: t.Leases,
		Keeps: func(ipam.Held) lifecycle.Answer { return lifecycle.Yes }}
	nbc, err := n.connect(ctx)
	if err != nil {
		return err
	}
	if nbc != nil {
		defer nbc.Close()
		t.Ports = nbc.PodPorts(t.Pod.Namespace, t.Pod.Name)
		groups := map[string][]string{}
		for _, p := range t.Ports {
			groups[p.Name] = nbc.GroupsOf(p.Name)
		}
		t.Groups = func(port string) []string { return groups[port] }
		state.Ports = t.Ports
	}
	t.Findings = lifecycle.Compare(state)
	return nil
}
