//go:build e2e

package ship

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/proc"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

func lines(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }

// deployment reads one of ours.
func (h *harness) deployment(ctx context.Context, t *testing.T, name string) *appsv1.Deployment {
	t.Helper()
	var d appsv1.Deployment
	if err := h.api.Get(ctx, client.ObjectKey{Namespace: system, Name: name}, &d); err != nil {
		t.Fatal(err)
	}
	return &d
}

// pod is one that runs, with nothing in it.
func pod(namespace, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"app": name}},
		Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}},
	}
}

// workload is a Deployment or a StatefulSet of such pods.
func workload(namespace, name string, replicas int32, sticky bool) client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, Name: name}
	labels := map[string]string{"app": name}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: pod("", "").Spec}
	if sticky {
		return &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Replicas: &replicas, Selector: selector, Template: template,
			ServiceName: name, PodManagementPolicy: appsv1.ParallelPodManagement}}
	}
	return &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Replicas: &replicas, Selector: selector, Template: template}}
}

// make creates objects.
func (h *harness) make(ctx context.Context, t *testing.T, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := h.api.Create(ctx, o); err != nil {
			t.Fatalf("make %T %s: %v", o, o.GetName(), err)
		}
	}
}

// remove deletes objects; what is gone already is fine.
func (h *harness) remove(ctx context.Context, t *testing.T, all ...client.Object) {
	t.Helper()
	for _, o := range all {
		if err := client.IgnoreNotFound(h.api.Delete(ctx, o, client.PropagationPolicy(metav1.DeletePropagationBackground))); err != nil {
			t.Errorf("delete %T %s: %v", o, o.GetName(), err)
		}
	}
}

func isReady(p corev1.Pod) bool {
	return slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// ready waits until a workload has so many pods, and all of them are Ready, and gives them.
func (h *harness) ready(ctx context.Context, t *testing.T, namespace, app string, n int) []corev1.Pod {
	t.Helper()
	var all corev1.PodList
	until(ctx, t, fmt.Sprintf("%d pods of %s/%s are Ready", n, namespace, app), func(ctx context.Context) error {
		if err := h.api.List(ctx, &all, client.InNamespace(namespace), client.MatchingLabels{"app": app}); err != nil {
			return err
		}
		got := 0
		for _, p := range all.Items {
			if isReady(p) && p.DeletionTimestamp == nil {
				got++
			}
		}
		if got != n || len(all.Items) != n {
			return fmt.Errorf("%d of %d pods are", got, len(all.Items))
		}
		return nil
	})
	return all.Items
}

// empty waits for empty accounts: no pod of a namespace that is served, and no lease, port or IP record of one.
func (h *harness) empty(ctx context.Context, t *testing.T) {
	t.Helper()
	began := time.Now()
	until(ctx, t, "the accounts are empty", func(ctx context.Context) error {
		left, err := h.left(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are left, such as %v", len(left), left[:min(len(left), 6)])
		}
		return err
	})
	t.Logf("accounts empty after %s", time.Since(began).Round(time.Millisecond))
}

func (h *harness) left(ctx context.Context) (out []string, err error) {
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods); err != nil {
		return nil, err
	}
	for _, p := range pods.Items {
		if p.Namespace != system {
			out = append(out, "pod "+p.Namespace+"/"+p.Name)
		}
	}
	leases, err := h.leases(ctx)
	if err != nil {
		return nil, err
	}
	for _, l := range leases {
		if !l.Owner.Reserves() {
			out = append(out, fmt.Sprintf("lease of %s%s to %s", l.Address, l.MAC, l.Owner))
		}
	}
	ports, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+h.NBSocket(), "--timeout=10", "--bare", "--columns=name", "find",
		"Logical_Switch_Port", "external_ids:pod!=\"\"")
	if err != nil {
		return nil, err
	}
	for p := range strings.FieldsSeq(ports) {
		out = append(out, "port "+p)
	}
	var records kubeovnv1.IPList
	if err := h.api.List(ctx, &records); err != nil {
		return nil, err
	}
	for _, r := range records.Items {
		if !strings.HasPrefix(r.Name, "node-") { // nodes have theirs on the join switch
			out = append(out, "record "+r.Name)
		}
	}
	return out, nil
}

// leases reads the ledger.
func (h *harness) leases(ctx context.Context) ([]ipam.Held, error) {
	store, err := blockstore.New(h.Config())
	if err != nil {
		return nil, err
	}
	ledger, err := ipam.New(ipam.Options{Store: store, Replica: "reader", Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		return nil, err
	}
	if err := ledger.Refresh(ctx); err != nil {
		return nil, err
	}
	return ledger.Leases(), nil
}

// overlay writes a kustomization of the local overlay of a work tree, with what only this cluster knows, and gives its
// directory. Components are named as in that tree, images by what they replace.
func (h *harness) overlay(t *testing.T, name, tree string, components []string, images map[string]string) string {
	t.Helper()
	at, err := filepath.EvalSymlinks(h.Dir)
	if err != nil {
		t.Fatal(err)
	}
	at = filepath.Join(at, "overlay-"+name)
	way := func(to ...string) string {
		rel, err := filepath.Rel(at, filepath.Join(append([]string{tree, "manifests"}, to...)...))
		if err != nil {
			t.Fatal(err)
		}
		return rel
	}
	var text strings.Builder
	fmt.Fprintf(&text, "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%q]\n", way("overlays", "local"))
	if len(components) > 0 {
		text.WriteString("components:\n")
		for _, c := range components {
			fmt.Fprintf(&text, "- %q\n", way("components", c))
		}
	}
	if len(images) > 0 {
		text.WriteString("images:\n")
		for old, now := range images {
			fmt.Fprintf(&text, "- {name: %q, newName: %q}\n", old, now)
		}
	}
	fmt.Fprintf(&text, "patches:\n- target: {kind: Deployment, name: %s}\n  patch: |-\n    - op: add\n      path: /spec/template/spec/containers/0/args/-\n"+
		"      value: --ovn-nb-addr=%s\n", worker, h.NBAddress())
	if err := os.MkdirAll(at, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(at, "kustomization.yaml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return at
}

// install applies an overlay, and waits until the programs run from it and pods get their addresses.
func (h *harness) install(ctx context.Context, t *testing.T, overlay string) {
	t.Helper()
	if err := h.Apply(ctx, overlay); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{webhook, worker} {
		h.rolledOut(ctx, t, d)
	}
	h.answers(ctx, t)
}

// answers waits until a pod that is not kept gets an address.
func (h *harness) answers(ctx context.Context, t *testing.T) {
	t.Helper()
	until(ctx, t, "the webhook answers", func(ctx context.Context) error {
		p := pod("demo", "trial")
		if err := h.api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if p.Annotations["ovn.kubernetes.io/ip_address"] == "" {
			return fmt.Errorf("a trial pod has annotations %v", p.Annotations)
		}
		return nil
	})
}
