package app

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/network"
)

// attempts is how often the change of a pod is tried that others change too.
const attempts = 5

func (e *env) uninstallCommand() *cobra.Command {
	var strip, sure bool
	cmd := &cobra.Command{
		Use: "uninstall --strip-finalizers --yes", Short: "Take Berth's finalizer off all pods, so that they can be deleted without it",
		Long: `Take Berth's finalizer off all pods, so that they can be deleted without it. It may be run again and again.

Before, delete the MutatingWebhookConfiguration and scale the worker to zero: the one puts the finalizer on new pods,
the other puts it back. Ports and leases of pods that end from then on are taken back by nobody.`,
		Args: exactly(), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case !strip:
				return usagef("say what to do: --strip-finalizers")
			case !sure:
				return usagef("this changes all pods that have the finalizer %s: add --yes if you mean it", network.Finalizer)
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
				return fmt.Errorf("%d pods still have the finalizer: run it again", len(u.Failed))
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&strip, "strip-finalizers", false, "take the finalizer off all pods")
	cmd.Flags().BoolVar(&sure, "yes", false, "mean it")
	return cmd
}

// strip takes the finalizer off all pods.
func (c *cluster) strip(ctx context.Context) (*report.Uninstall, error) {
	if err := c.installed(ctx); err != nil {
		return nil, err
	}
	var pods []client.ObjectKey
	err := c.eachPod(ctx, c.progress("pods read"), func(p *corev1.Pod) {
		if slices.Contains(p.Finalizers, network.Finalizer) {
			pods = append(pods, client.ObjectKeyFromObject(p))
		}
	})
	if err != nil {
		return nil, err
	}
	done := c.progress(fmt.Sprintf("of %d pods done", len(pods)))
	stripped := 0
	var failed []string
	for _, key := range pods {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("%d of %d pods done, run it again for the rest: %w", stripped, len(pods), err)
		}
		if err := c.stripPod(ctx, key); err != nil {
			failed = append(failed, err.Error())
		} else {
			stripped++
		}
		done.add(1)
	}
	return report.UninstallOf(len(pods), stripped, failed), nil
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

// stripPod takes the finalizer off one pod. Somebody else's change in between is no reason to give up.
func (c *cluster) stripPod(ctx context.Context, key client.ObjectKey) error {
	var err error
	for range attempts {
		var p corev1.Pod
		if err = c.client.Get(ctx, key, &p); err != nil {
			break
		}
		rest := slices.DeleteFunc(slices.Clone(p.Finalizers), func(f string) bool { return f == network.Finalizer })
		if len(rest) == len(p.Finalizers) {
			return nil
		}
		if err = c.patchFinalizers(ctx, &p, rest); !apierrors.IsConflict(err) {
			break
		}
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("pod %s: %w", key, err)
	}
	return nil
}
