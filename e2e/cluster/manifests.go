package cluster

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-net/berth/e2e/proc"
)

const (
	systemNamespace = "berth-system"
	webhookName     = "berth-webhook"
	workerName      = "berth-worker"
	leaderService   = "berth-worker-leader"
	readyLimit      = 2 * time.Minute
)

// applyKinds installs the kinds, and returns when they are served.
func (c *Cluster) applyKinds(ctx context.Context) error {
	if err := c.Apply(ctx, filepath.Join(c.Repo, "manifests", "crds")); err != nil {
		return err
	}
	return c.kubectl(ctx, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// apply installs the kinds, then the networks and, unless left out, Berth itself.
func (c *Cluster) apply(ctx context.Context) error {
	if err := c.applyKinds(ctx); err != nil {
		return err
	}
	overlay, err := c.overlay(filepath.Join(c.Repo, "manifests", "overlays", "local"))
	if err != nil {
		return err
	}
	return c.Apply(ctx, overlay)
}

// overlay writes the overlay that adds what only this cluster knows.
func (c *Cluster) overlay(local string) (string, error) {
	if c.WithoutBerth {
		local = filepath.Join(local, "network")
	}
	dir := filepath.Join(c.Dir, "manifests")
	from, err := filepath.EvalSymlinks(c.Dir)
	if err != nil {
		return "", fmt.Errorf("directory of the cluster: %w", err)
	}
	from = filepath.Join(from, "manifests")
	rel, err := filepath.Rel(from, local)
	if err != nil {
		return "", fmt.Errorf("way from the cluster's directory to the manifests: %w", err)
	}
	patches := c.networkPatches()
	if !c.WithoutBerth {
		patches += fmt.Sprintf("- target: {kind: Deployment, name: %s}\n  patch: |-\n", workerName)
		for _, arg := range slices.Concat([]string{"--ovn-nb-addr=" + c.NBAddress()}, c.familyArgs(), c.WorkerArgs) {
			patches += fmt.Sprintf("    - {op: add, path: /spec/template/spec/containers/0/args/-, value: %q}\n", arg)
		}
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources:\n- %q\n", rel)
	if c.asksBindings() {
		component, err := filepath.Rel(from, filepath.Join(c.Repo, "manifests", "components", "bind-hook"))
		if err != nil {
			return "", fmt.Errorf("way from the cluster's directory to the component: %w", err)
		}
		text += fmt.Sprintf("components:\n- %q\n", component)
	}
	if patches != "" {
		text += "patches:\n" + patches
	}
	return dir, write(filepath.Join(dir, "kustomization.yaml"), []byte(text))
}

// asksBindings tells whether the API server asks the worker about bindings.
func (c *Cluster) asksBindings() bool { return c.BindHook && !c.WithoutBerth }

// Apply applies a kustomization by its directory.
func (c *Cluster) Apply(ctx context.Context, dir string) error {
	return c.kubectl(ctx, "apply", "--server-side", "--force-conflicts", "--field-manager=berth-cluster", "-k", dir)
}

func (c *Cluster) kubectl(ctx context.Context, args ...string) error {
	_, err := proc.Run(ctx, "", c.Kubectl(), append([]string{"--kubeconfig=" + c.Kubeconfig()}, args...)...)
	return err
}

// waitReady returns when nodes are ready, tunnels can be built, Berth's pods are ready and the API server reaches them.
func (c *Cluster) waitReady(ctx context.Context) error {
	type check struct {
		what  string
		check func(context.Context) error
	}
	checks := []check{{"nodes", c.nodesReady}, {"chassis", c.chassisReady}}
	if !c.WithoutBerth {
		checks = append(checks, []check{
			{"deployment " + webhookName, func(ctx context.Context) error { return c.deploymentReady(ctx, webhookName) }},
			{"deployment " + workerName, func(ctx context.Context) error { return c.deploymentReady(ctx, workerName) }},
			{"a pod's address from the webhook", c.webhookAnswers},
		}...)
	}
	if c.asksBindings() {
		checks = append(checks, check{"the worker that leads, for bindings", c.leaderPublished})
	}
	for _, k := range checks {
		var last error
		err := wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, readyLimit, true, func(ctx context.Context) (bool, error) {
			last = k.check(ctx)
			return last == nil, nil
		})
		if err != nil {
			return fmt.Errorf("%s not ready in %v, look into the logs of the agents and pods: %w", k.what, readyLimit, errors.Join(last, err))
		}
	}
	return nil
}

func (c *Cluster) nodesReady(ctx context.Context) error {
	for _, name := range c.NodeNames() {
		node, err := c.client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		ready := slices.ContainsFunc(node.Status.Conditions, func(k corev1.NodeCondition) bool {
			return k.Type == corev1.NodeReady && k.Status == corev1.ConditionTrue
		})
		if !ready || len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s has taints %v", name, node.Spec.Taints)
		}
	}
	return nil
}

func (c *Cluster) chassisReady(ctx context.Context) error {
	for _, name := range c.NodeNames() {
		if _, err := proc.Run(ctx, "", "ovn-sbctl", "--db="+c.SBSocket(), "--timeout=10", "get", "chassis", name, "name"); err != nil {
			return err
		}
	}
	return nil
}

func (c *Cluster) deploymentReady(ctx context.Context, name string) error {
	d, err := c.client.AppsV1().Deployments(systemNamespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	s := d.Status
	if s.ObservedGeneration < d.Generation || s.AvailableReplicas != *d.Spec.Replicas || s.UpdatedReplicas != *d.Spec.Replicas {
		return fmt.Errorf("%d of %d replicas of %s are available", s.AvailableReplicas, *d.Spec.Replicas, name)
	}
	return nil
}

// leaderPublished tells whether the API server finds the worker to ask about bindings.
func (c *Cluster) leaderPublished(ctx context.Context) error {
	list, err := c.client.DiscoveryV1().EndpointSlices(systemNamespace).List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=" + leaderService})
	if err != nil {
		return err
	}
	for _, s := range list.Items {
		if len(s.Endpoints) > 0 {
			return nil
		}
	}
	return fmt.Errorf("nobody is behind the Service %s", leaderService)
}

// webhookAnswers tries a pod that is not kept.
func (c *Cluster) webhookAnswers(ctx context.Context) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "is-the-webhook-there-", Namespace: "demo"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "none", Image: "none"}}},
	}
	got, err := c.client.CoreV1().Pods("demo").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		return err
	}
	if got.Annotations["ovn.kubernetes.io/ip_address"] == "" {
		return errors.New("a trial pod in namespace demo came back without an address")
	}
	return nil
}
