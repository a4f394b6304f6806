package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/report"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// attempts is how often the change of an object is tried that others change too.
const attempts = 5

func (e *env) uninstallCommand() *cobra.Command {
	var strip, sure bool
	cmd := &cobra.Command{
		Use: "uninstall --strip-finalizers --yes", Short: "Take Berth's finalizer off all pods, Subnets, IPPools and Vips, so that they can be deleted without it",
		Long: `Take Berth's finalizer off all pods, Subnets, IPPools and Vips, so that they can be deleted without it. It may be run again and again.

Before, delete the MutatingWebhookConfiguration and scale the worker to zero: the one puts the finalizer on new pods,
the other puts it back. Ports and leases of pods that end from then on are taken back by nobody.`,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !strip:
				return usagef("say what to do: --strip-finalizers")
			case !sure:
				return usagef("this changes all objects that have the finalizer %s: add --yes if you mean it", network.Finalizer)
			}
			c, err := e.connect()
			if err != nil {
				return err
			}
			u, err := c.strip(cmd.Context())
			if err != nil {
				return err
			}
			if err := e.write(u); err != nil {
				return err
			}
			if len(u.Failed) > 0 {
				return fmt.Errorf("%d objects still have the finalizer: run it again", len(u.Failed))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strip, "strip-finalizers", false, "take the finalizer off all objects")
	cmd.Flags().BoolVar(&sure, "yes", false, "mean it")
	return cmd
}

// strip takes the finalizer off all objects.
func (c *cluster) strip(ctx context.Context) (*report.Uninstall, error) {
	if err := c.installed(ctx); err != nil {
		return nil, err
	}
	all, err := c.finalized(ctx)
	if err != nil {
		return nil, err
	}
	done := c.progress(fmt.Sprintf("of %d objects done", len(all)))
	failed := each(ctx, done, all, c.stripOne)
	stripped := len(all) - len(failed)
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("%d of %d objects done, run it again for the rest: %w", stripped, len(all), err)
	}
	return report.UninstallOf(len(all), stripped, failed), nil
}

// finalized lists all objects that have the finalizer.
func (c *cluster) finalized(ctx context.Context) ([]client.Object, error) {
	var all []client.Object
	see := func(o client.Object) {
		if slices.Contains(o.GetFinalizers(), network.Finalizer) {
			all = append(all, o)
		}
	}
	if err := c.eachPod(ctx, c.progress("pods read"), func(p *corev1.Pod) { see(p.DeepCopy()) }); err != nil {
		return nil, err
	}
	for _, list := range []client.ObjectList{&kubeovnv1.SubnetList{}, &kubeovnv1.IPPoolList{}, &kubeovnv1.VipList{}} {
		err := c.client.List(ctx, list)
		if meta.IsNoMatchError(err) { // the CRD is gone, and so are its objects
			continue
		}
		if err == nil {
			err = meta.EachListItem(list, func(o runtime.Object) error {
				if o, ok := o.(client.Object); ok {
					see(o)
				}
				return nil
			})
		}
		if err != nil {
			return nil, fmt.Errorf("list %T: %w", list, err)
		}
	}
	return all, nil
}

// installed tells what would put the finalizer back.
func (c *cluster) installed(ctx context.Context) error {
	set, err := c.settings(ctx)
	if err != nil {
		return err
	}
	hook, err := c.hook(ctx, set.hook)
	if err != nil {
		return err
	}
	var first []string
	if hook.Found {
		first = append(first, "kubectl delete mutatingwebhookconfiguration "+set.hook)
	}
	if set.worker != nil && (set.worker.Status.Replicas > 0 || set.worker.Spec.Replicas == nil || *set.worker.Spec.Replicas > 0) {
		first = append(first, fmt.Sprintf("kubectl scale deployment %s --replicas=0 -n %s, and wait for its pods to end", workerName, c.namespace))
	}
	if len(first) > 0 {
		return fmt.Errorf("the finalizer would be put on again: first %s", strings.Join(first, "; "))
	}
	return nil
}

// stripOne takes the finalizer off one object. Somebody else's change in between is no reason to give up.
func (c *cluster) stripOne(ctx context.Context, o client.Object) error {
	var err error
	key := client.ObjectKeyFromObject(o)
	for range attempts {
		if err = c.client.Get(ctx, key, o); err != nil {
			break
		}
		rest := slices.DeleteFunc(slices.Clone(o.GetFinalizers()), func(f string) bool { return f == network.Finalizer })
		if len(rest) == len(o.GetFinalizers()) {
			return nil
		}
		if err = c.patchFinalizers(ctx, o, rest); !apierrors.IsConflict(err) {
			break
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
