//go:build e2e

package ship

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// TestUninstall removes Berth as docs/install.md says while pods run: they keep running, they can be deleted, and nothing
// of ours is left that holds anything up. Then it is installed again, and takes back what nobody took back meanwhile.
func TestUninstall(t *testing.T) {
	h := start(t)
	ctx := t.Context()
	h.make(ctx, t, workload("demo", "app", 4, false), workload("web", "db", 2, true))
	pods := append(h.ready(ctx, t, "demo", "app", 4), h.ready(ctx, t, "web", "db", 2)...)

	h.kubectl(ctx, t, "label", "namespaces", "--all", network.LabelInject+"-")
	h.kubectl(ctx, t, "delete", "mutatingwebhookconfiguration,validatingwebhookconfiguration", webhook)
	h.scale(ctx, t, worker, 0)
	h.berth(ctx, t, "uninstall", "--strip-finalizers", "--yes")
	h.stillRun(ctx, t, pods)

	// One goes alone, before the rest goes with its namespace.
	h.remove(ctx, t, &pods[0])
	until(ctx, t, "a pod that was left behind is gone", func(ctx context.Context) error {
		var p corev1.Pod
		err := h.api.Get(ctx, client.ObjectKeyFromObject(&pods[0]), &p)
		if err == nil && p.UID == pods[0].UID {
			return fmt.Errorf("it has finalizers %v", p.Finalizers)
		}
		return client.IgnoreNotFound(err)
	})
	began := time.Now()
	local := h.overlay(t, "local", h.Repo, nil, nil)
	h.kubectl(ctx, t, "delete", "-k", local, "--ignore-not-found", "--timeout="+limit.String())
	t.Logf("everything is deleted after %s", time.Since(began).Round(time.Millisecond))
	h.nothingLeft(ctx, t)

	h.kinds(ctx, t)
	h.install(ctx, t, local)
	h.empty(ctx, t)
}

// kinds installs the kinds, and waits until they are served: objects of theirs can't be applied together with them.
func (h *harness) kinds(ctx context.Context, t *testing.T) {
	t.Helper()
	if err := h.Apply(ctx, filepath.Join(h.Repo, "manifests", "crds")); err != nil {
		t.Fatal(err)
	}
	h.kubectl(ctx, t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "--all")
}

// stillRun checks that pods are Running with the addresses that they had, without our finalizer.
func (h *harness) stillRun(ctx context.Context, t *testing.T, pods []corev1.Pod) {
	t.Helper()
	for i := range pods {
		var p corev1.Pod
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(&pods[i]), &p); err != nil {
			t.Fatal(err)
		}
		if p.UID != pods[i].UID || p.Status.Phase != corev1.PodRunning || p.Status.PodIP != pods[i].Status.PodIP || slices.Contains(p.Finalizers, network.Finalizer) {
			t.Errorf("pod %s is %s on %s with finalizers %v", p.Name, p.Status.Phase, p.Status.PodIP, p.Finalizers)
		}
	}
	from, to := pods[0], pods[len(pods)-1]
	if out, err := h.Exec(ctx, from.Namespace, from.Name, "ping", "-n", "-c", "3", "-i", "0.3", "-W", "3", to.Status.PodIP); err != nil {
		t.Errorf("ping %s -> %s: %v %s", from.Name, to.Name, err, out)
	}
}

// nothingLeft checks that no kind, namespace, webhook or policy of ours is left.
func (h *harness) nothingLeft(ctx context.Context, t *testing.T) {
	t.Helper()
	left := h.kubectl(ctx, t, "get", "-o", "name", "customresourcedefinitions,mutatingwebhookconfigurations,validatingwebhookconfigurations,"+
		"validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,clusterrolebindings,flowschemas,prioritylevelconfigurations,namespaces")
	ours := func(name string) bool {
		return strings.Contains(name, "berth") || strings.Contains(name, "kubeovn.io") || slices.Contains([]string{"namespace/demo", "namespace/web", "namespace/late"}, name)
	}
	for _, name := range lines(left) {
		if ours(name) {
			t.Errorf("%s is left", name)
		}
	}
	var pods corev1.PodList
	if err := h.api.List(ctx, &pods); err != nil || len(pods.Items) > 0 {
		t.Errorf("%d pods are left, %v", len(pods.Items), err)
	}
}
