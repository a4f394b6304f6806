package app

import (
	"context"
	"fmt"
	"slices"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/adopt"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

func (e *env) handbackCommand() *cobra.Command {
	var subnet string
	var all, dry bool
	cmd := &cobra.Command{
		Use: "handback --subnet SUBNET|--all", Short: "Give addresses back to kube-ovn-controller",
		Long: `Give addresses back to kube-ovn-controller. Pods keep running, and nothing that they say of their network changes: claim,
what was asked for and finalizer come off, IP records get Kube-OVN's form, pods that are to come back get one, subnets
lose their fence, and the leases are freed last.

All is checked first, and where anything is wrong, nothing is written: the problems are told by object, and the exit code
is 3. Before, take the label off the namespaces and scale the worker to zero: it would put the marks back. It may be run
again and again, and goes on where it was interrupted.`,
		Example: "  kubectl berth handback --subnet shop --dry-run\n  kubectl berth handback --all",
		Args:    exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if (subnet == "") != all {
				return usagef("say what to give back: --subnet, or --all")
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			m, err := c.handback(cmd.Context(), subnet, dry)
			return e.told(m, resumable(cmd.Context(), err))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&subnet, "subnet", "", "only what is in this subnet")
	fs.BoolVar(&all, "all", false, "everything")
	fs.BoolVar(&dry, "dry-run", false, "only tell what would be done")
	e.complete(cmd, "subnet", e.subnetNames)
	return cmd
}

// handback plans, and does what was planned.
func (c *cluster) handback(ctx context.Context, subnet string, dry bool) (*report.Migration, error) {
	if !dry {
		c.forWriting()
	}
	all, err := c.cast(ctx, subnet)
	if err != nil {
		return nil, err
	}
	plan := adopt.Handback(adopt.BackInput{Catalog: all.topology, Config: all.set.network, Pods: all.pods, Records: all.records, Leases: all.ledger.Leases(),
		Namespaces: all.namespaces, Subnet: subnet})
	if w := all.set.worker; w != nil && (w.Status.Replicas > 0 || w.Spec.Replicas == nil || *w.Spec.Replicas > 0) {
		plan.Problems = append(plan.Problems, adopt.Problem{Kind: "Deployment", Namespace: c.namespace, Name: workerName,
			Text: fmt.Sprintf("it would put the marks back: first kubectl scale deployment %s --replicas=0 -n %s, and wait for its pods to end", workerName, c.namespace)})
	}
	marked, err := c.markedIn(ctx, plan.Subnets)
	if err != nil {
		return nil, err
	}
	m := report.MigrationOf("handback")
	tellTroubles(m, plan.Problems, nil)
	tellHandback(m, plan, marked)
	if dry || len(plan.Problems) > 0 {
		return m, nil
	}
	m.Written = true
	if err := c.giveBack(ctx, all, plan, marked, m); err != nil {
		return nil, err
	}
	return m, nil
}

// giveBack takes the steps in their order. When one fails, the leases stay: they are the only mark of what is left.
func (c *cluster) giveBack(ctx context.Context, all *cast, plan adopt.Back, marked []client.Object, m *report.Migration) error {
	done := c.progress(fmt.Sprintf("of %d objects done", len(plan.Pods)+len(plan.Records)+len(plan.Fences)+len(marked)))
	m.Failed = slices.Concat(m.Failed, each(ctx, done, plan.Pods, c.unmarkPod), each(ctx, done, plan.Records, c.returnRecord), each(ctx, done, marked, c.stripOne))
	if err := ctx.Err(); err != nil || len(m.Failed) > 0 {
		return err
	}
	for _, f := range plan.Fences {
		s := all.topology.Subnets[f.Subnet.Name]
		fresh := &kubeovnv1.Subnet{} // its finalizer went
		if err := c.client.Get(ctx, client.ObjectKeyFromObject(f.Subnet), fresh); err != nil {
			c.attempt(m, client.IgnoreNotFound(err))
			continue
		}
		s.Object = fresh
		c.attempt(m, c.setFence(ctx, s, adopt.Unfence))
		done.add(1)
	}
	if err := ctx.Err(); err != nil || len(m.Failed) > 0 {
		return err
	}
	return freeAll(ctx, all.ledger, plan.Leases, m)
}

// markedIn lists the Subnets, IPPools and Vips with our finalizer that belong to the subnets.
func (c *cluster) markedIn(ctx context.Context, subnets []string) (out []client.Object, err error) {
	for _, list := range []client.ObjectList{&kubeovnv1.SubnetList{}, &kubeovnv1.IPPoolList{}, &kubeovnv1.VipList{}} {
		err := c.client.List(ctx, list)
		if meta.IsNoMatchError(err) { // the CRD is gone, and so are its objects
			continue
		}
		if err == nil {
			err = meta.EachListItem(list, func(o runtime.Object) error {
				in := ""
				switch o := o.(type) {
				case *kubeovnv1.Subnet:
					in = o.Name
				case *kubeovnv1.IPPool:
					in = o.Spec.Subnet
				case *kubeovnv1.Vip:
					in = o.Spec.Subnet
				}
				if o, ok := o.(client.Object); ok && slices.Contains(subnets, in) && slices.Contains(o.GetFinalizers(), network.Finalizer) {
					out = append(out, o)
				}
				return nil
			})
		}
		if err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return out, nil
}

func tellHandback(m *report.Migration, plan adopt.Back, marked []client.Object) {
	for _, s := range plan.Pods {
		m.Step("unmark", "Pod", s.Pod.Namespace, s.Pod.Name, "")
	}
	for _, r := range plan.Records {
		action := "return"
		if r.Have == nil {
			action = "create"
		}
		m.Step(action, "IP", r.Want.Spec.Namespace, r.Want.Name, r.Want.Spec.IPAddress)
	}
	for _, o := range marked {
		kind := "Subnet"
		switch o.(type) {
		case *kubeovnv1.IPPool:
			kind = "IPPool"
		case *kubeovnv1.Vip:
			kind = "Vip"
		}
		m.Step("unmark", kind, "", o.GetName(), "finalizer")
	}
	tellFences(m, nil, plan.Fences)
	for _, h := range plan.Leases {
		m.Step("free", "Subnet", "", h.Subnet, leaseText(h.Lease))
	}
}
