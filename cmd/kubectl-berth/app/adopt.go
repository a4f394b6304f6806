package app

import (
	"context"
	"crypto/rand"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/adopt"
	"github.com/berth-net/berth/internal/facts"
	"github.com/berth-net/berth/internal/rebuild"
	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// adoption is what adopt is asked for.
type adoption struct {
	subnet                      string
	all, dry, skipBroken, fence bool
}

func (e *env) adoptCommand() *cobra.Command {
	var a adoption
	cmd := &cobra.Command{
		Use: "adopt --namespace NAMESPACE|--subnet SUBNET|--all", Short: "Take over the addresses that pods have from Kube-OVN",
		Long: `Take over the addresses that pods, IP records, reservations and Vips have from Kube-OVN. Pods keep running, and nothing
that they say of their network changes: they only get a claim, what their user asked for, and the finalizer.

All is checked first, and where anything is wrong, nothing is written: the problems are told by object, and the exit code
is 3. It may be run again and again, and goes on where it was interrupted. Do it before the namespace is labelled: until
then nobody else gives addresses by the ledger.

With --fence, namespaces are labelled and subnets fenced afterwards, so that kube-ovn-controller gives no address of them
any more; that needs all pods of the subnets to be taken over.`,
		Example: "  kubectl berth adopt --subnet shop --dry-run\n  kubectl berth adopt --subnet shop --fence",
		Args:    exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			scope := adopt.Scope{Namespace: *e.flags.Namespace, Subnet: a.subnet}
			if (scope == adopt.Scope{}) != a.all {
				return usagef("say what to take over: --namespace and --subnet, or --all")
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			m, err := c.adopt(cmd.Context(), a, scope)
			return e.told(m, resumable(cmd.Context(), err))
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&a.subnet, "subnet", "", "only what is in this subnet")
	fs.BoolVar(&a.all, "all", false, "everything")
	fs.BoolVar(&a.dry, "dry-run", false, "only tell what would be done")
	fs.BoolVar(&a.skipBroken, "skip-broken", false, "take over the rest, where something is wrong with some objects")
	fs.BoolVar(&a.fence, "fence", false, "label the namespaces and fence the subnets afterwards")
	e.complete(cmd, "subnet", e.subnetNames)
	return cmd
}

// cast is all objects that a migration is about.
type cast struct {
	set        settings
	topology   network.Catalog
	ledger     *ipam.Ledger
	pods       []corev1.Pod
	records    []kubeovnv1.IP
	namespaces map[string]map[string]string
}

// cast reads all of them. The ledger is read last: what was taken meanwhile is known.
func (c *cluster) cast(ctx context.Context, subnet string) (*cast, error) {
	var a cast
	var err error
	if a.set, err = c.settings(ctx); err != nil {
		return nil, err
	}
	if a.topology, err = c.topology(ctx); err != nil {
		return nil, err
	}
	if _, ok := a.topology.Subnets[subnet]; subnet != "" && !ok {
		return nil, fmt.Errorf("there is no subnet %s: kubectl berth subnets lists them", subnet)
	}
	if err = c.eachPod(ctx, c.progress("pods read"), func(p *corev1.Pod) { a.pods = append(a.pods, *p.DeepCopy()) }); err != nil {
		return nil, err
	}
	var ips kubeovnv1.IPList
	if err := c.client.List(ctx, &ips); err != nil {
		return nil, fmt.Errorf("list IP records: %w", err)
	}
	a.records = ips.Items
	var list corev1.NamespaceList
	if err := c.client.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	a.namespaces = map[string]map[string]string{}
	for i := range list.Items {
		a.namespaces[list.Items[i].Name] = list.Items[i].Labels
	}
	a.ledger, _, err = c.ledger(ctx, a.set)
	return &a, err
}

// adopt plans, and does what was planned.
func (c *cluster) adopt(ctx context.Context, a adoption, scope adopt.Scope) (*report.Migration, error) {
	if !a.dry {
		c.forWriting()
	}
	all, err := c.cast(ctx, a.subnet)
	if err != nil {
		return nil, err
	}
	keeper := facts.NewKeeper(c.client, c.client.RESTMapper())
	plan, err := adopt.Adopt(adopt.Input{Catalog: all.topology, Config: all.set.network, Pods: all.pods, Records: all.records, Leases: all.ledger.Leases(),
		Keeps: keeping(ctx, keeper), Draw: func() (ipam.Claim, error) { return ipam.NewClaim(rand.Reader) }, Scope: scope})
	if err != nil {
		return nil, err
	}
	if a.fence {
		plan.Problems = append(plan.Problems, plan.FenceProblems(all.topology)...)
	}
	m := report.MigrationOf("adopt")
	tellTroubles(m, plan.Problems, plan.Skipped)
	tellAdoption(m, plan)
	labels, fences := fencing(plan, all)
	if a.fence {
		tellFences(m, labels, fences)
	} else {
		m.Next = nextOf(labels, fences)
	}
	for _, s := range plan.OrdinalSets {
		m.Next = append(m.Next, fmt.Sprintf("StatefulSet %s has a list of addresses: unless its ordinals start at 0, set %s: %s in its template", s,
			network.OrdinalRuleKey, network.OrdinalRuleKubeOVN))
	}
	if slices.ContainsFunc(fences, func(f adopt.FenceStep) bool { return f.Subnet.Name == all.set.network.DefaultSubnet }) {
		m.Next = append(m.Next, fmt.Sprintf("once the default subnet %s is fenced, new pods of namespaces without label %s get no address: label all that use it",
			all.set.network.DefaultSubnet, network.LabelInject))
	}
	blocked := len(plan.Problems) > 0 && (!a.skipBroken || a.fence)
	if a.dry || blocked {
		return m, nil
	}
	m.Written = true
	if a.skipBroken { // they were told as left out
		m.Skipped, m.Problems = append(m.Problems, m.Skipped...), nil
	}
	if err := c.takeOver(ctx, all, plan, m); err != nil {
		return nil, err
	}
	if a.fence && len(m.Failed) == 0 {
		c.fence(ctx, labels, fences, all.topology, m)
	}
	return m, nil
}

// takeOver makes the leases, and then marks pods and records. What has no lease of its own afterwards is not marked.
func (c *cluster) takeOver(ctx context.Context, all *cast, plan adopt.Plan, m *report.Migration) error {
	sets := map[string]*ipam.Subnet{}
	for name, s := range all.topology.Subnets {
		sets[name] = s.Set
	}
	if err := rebuild.Apply(ctx, all.ledger, sets, plan.Leases); err != nil {
		return fmt.Errorf("the leases could not all be made, run it again: %w", err)
	}
	lost := map[ipam.Claim]bool{}
	check := func(subnet string, x ipam.Lease) {
		if h, ok := all.ledger.Lookup(subnet, x.Address); x.Address.IsValid() && (!ok || h.Claim != x.Claim) {
			lost[x.Claim] = true
			m.Failed = append(m.Failed, fmt.Sprintf("%s of subnet %s is another's by now", x.Address, subnet))
		}
	}
	for _, x := range plan.Leases.Restore {
		check(x.Subnet, x.Lease)
	}
	for _, x := range plan.Leases.Replace {
		check(x.Old.Subnet, x.New)
	}
	done := c.progress(fmt.Sprintf("of %d objects done", len(plan.Pods)+len(plan.Records)))
	m.Failed = append(m.Failed, each(ctx, done, plan.Pods, func(ctx context.Context, s adopt.PodStep) error {
		if lost[ipam.Claim(s.Annotations[network.ClaimKey])] {
			return nil
		}
		return c.markPod(ctx, s)
	})...)
	m.Failed = append(m.Failed, each(ctx, done, plan.Records, func(ctx context.Context, s adopt.RecordStep) error {
		if lost[s.Claim] {
			return nil
		}
		return c.markRecord(ctx, s)
	})...)
	return ctx.Err()
}

// attempt notes a step that failed.
func (c *cluster) attempt(m *report.Migration, err error) {
	if err != nil {
		m.Failed = append(m.Failed, err.Error())
	}
}

// fencing gives the namespaces to label, with the label's value, and the fences to put up.
func fencing(plan adopt.Plan, all *cast) (labels map[string]string, fences []adopt.FenceStep) {
	labels = map[string]string{}
	for _, name := range plan.Namespaces {
		if _, has := all.namespaces[name][network.LabelInject]; !has {
			labels[name] = network.InjectEnabled
			if name == "kube-system" {
				labels[name] = network.InjectLate
			}
		}
	}
	if all.set.topology == "ensure" { // nobody is to be kept out
		return labels, nil
	}
	for _, name := range plan.Subnets {
		if step := adopt.Fence(all.topology.Subnets[name]); step != nil {
			fences = append(fences, *step)
		}
	}
	return labels, fences
}

// fence labels namespaces, and then fences subnets: a namespace is served before nobody else serves it.
func (c *cluster) fence(ctx context.Context, labels map[string]string, fences []adopt.FenceStep, cat network.Catalog, m *report.Migration) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		ns := &corev1.Namespace{}
		ns.Name = name
		body := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, network.LabelInject, labels[name])
		if err := c.client.Patch(ctx, ns, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			m.Failed = append(m.Failed, fmt.Sprintf("label namespace %s: %v", name, err))
			return
		}
	}
	for _, f := range fences {
		c.attempt(m, c.setFence(ctx, cat.Subnets[f.Subnet.Name], adopt.Fence))
	}
}

func tellTroubles(m *report.Migration, problems, skipped []adopt.Problem) {
	for _, p := range problems {
		m.Problems = append(m.Problems, report.Trouble(p))
	}
	for _, p := range skipped {
		m.Skipped = append(m.Skipped, report.Trouble(p))
	}
}

func tellAdoption(m *report.Migration, plan adopt.Plan) {
	tellRebuilt(m, plan.Leases)
	for _, s := range plan.Pods {
		what := slices.Sorted(maps.Keys(s.Annotations))
		if s.Finalize {
			what = append(what, "finalizer")
		}
		m.Step("mark", "Pod", s.Pod.Namespace, s.Pod.Name, strings.Join(what, ", "))
	}
	for _, s := range plan.Records {
		m.Step("mark", "IP", s.Record.Spec.Namespace, s.Record.Name, network.ClaimKey)
	}
}

func tellFences(m *report.Migration, labels map[string]string, fences []adopt.FenceStep) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		m.Step("label", "Namespace", "", name, network.LabelInject+"="+labels[name])
	}
	for _, f := range fences {
		action := "unfence"
		if f.Managed {
			action = "fence"
		}
		m.Step(action, "Subnet", "", f.Subnet.Name, "excludeIps: "+strings.Join(f.Exclude, ","))
	}
}

// nextOf says by hand what --fence does.
func nextOf(labels map[string]string, fences []adopt.FenceStep) (out []string) {
	for _, name := range slices.Sorted(maps.Keys(labels)) {
		out = append(out, fmt.Sprintf("kubectl label namespace %s %s=%s", name, network.LabelInject, labels[name]))
	}
	for _, f := range fences {
		out = append(out, fmt.Sprintf("fence subnet %s: label %s=true, annotation %s: %q, spec.excludeIps: [%s]; --fence does that", f.Subnet.Name, network.LabelManaged,
			network.ExcludeKey, f.Own, strings.Join(f.Exclude, ", ")))
	}
	return out
}
