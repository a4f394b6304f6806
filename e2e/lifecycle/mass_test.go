//go:build e2e

package lifecycle

import (
	"context"
	"fmt"
	"slices"
	"syscall"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/network"
)

// TestNamespaceDeletedWhileTheWorkerRestarts deletes a namespace with 50 pods, and kills the worker meanwhile.
func TestNamespaceDeletedWhileTheWorkerRestarts(t *testing.T) {
	h := start(t)
	h.hand(t)
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "bulk", Labels: map[string]string{network.LabelInject: "enabled"}}}
	h.create(t, ns)
	h.create(t, deployment(ns.Name, "app", 50, podSpec(onHand)))
	h.ready(t, ns.Name, 50)
	began := time.Now()
	if err := h.api.Delete(t.Context(), ns); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "some pods are gone", func(ctx context.Context) error {
		pods, err := h.pods(ctx, ns.Name)
		if err == nil && len(pods) == 50 {
			err = fmt.Errorf("all are there")
		}
		return err
	})
	if err := h.KillWorker(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "the namespace is gone", func(ctx context.Context) error {
		err := h.api.Get(ctx, client.ObjectKeyFromObject(ns), ns)
		if err == nil {
			return fmt.Errorf("it is %s", ns.Status.Phase)
		}
		return client.IgnoreNotFound(err)
	})
	t.Logf("namespace with 50 pods gone in %s", time.Since(began).Round(time.Millisecond))
}

// TestJobsGiveTheirAddressesBack runs 200 Jobs in a subnet that has room for few more. When they have finished, their
// pods are listed still, and their addresses are others'.
func TestJobsGiveTheirAddressesBack(t *testing.T) {
	h := start(t)
	h.hand(t)
	const ns = "jobs"
	h.subnet(t, ns, "10.98.0.0/24", "10.98.0.1")
	h.namespace(t, ns, "enabled")
	const n = 200
	began := time.Now()
	for i := range n {
		_, tmpl := template("job", podSpec(onHand, func(s *corev1.PodSpec) { s.RestartPolicy = corev1.RestartPolicyNever }))
		h.create(t, &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: fmt.Sprintf("job-%d", i)}, Spec: batchv1.JobSpec{Template: tmpl}})
	}
	until(t.Context(), t, "all Jobs have finished and hold nothing", func(ctx context.Context) error {
		var jobs batchv1.JobList
		if err := h.api.List(ctx, &jobs, client.InNamespace(ns)); err != nil {
			return err
		}
		jobs.Items = slices.DeleteFunc(jobs.Items, func(j batchv1.Job) bool { return j.Status.Succeeded == 0 })
		leases, err := h.leases(ctx)
		if err == nil && (len(jobs.Items) < n || len(leases) > 0) {
			err = fmt.Errorf("%d have finished, %d leases", len(jobs.Items), len(leases))
		}
		return err
	})
	t.Logf("%d Jobs finished and gave back in %s", n, time.Since(began).Round(time.Millisecond))
	pods, err := h.pods(t.Context(), ns)
	if err != nil || len(pods) != n {
		t.Fatalf("%d pods are listed, %v", len(pods), err)
	}
	had := map[string]bool{}
	for _, p := range pods {
		had[p.Annotations[addressKey]] = true
	}
	// Bare pods are refused when no address is free.
	again := 0
	for i := range n {
		p := pod(ns, fmt.Sprintf("next-%d", i), func(s *corev1.PodSpec) { s.NodeSelector = map[string]string{"e2e.berth.dev/nowhere": "true"} })
		h.create(t, p)
		if had[p.Annotations[addressKey]] {
			again++
		}
	}
	t.Logf("%d of %d new pods have an address of a finished one", again, n)
	if again < n/2 {
		t.Errorf("only %d of %d new pods have an address of a finished one", again, n)
	}
}
