package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/await"
	"github.com/berth-net/berth/e2e/proc"
	berthv1alpha1 "github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Accounts is what the pods of the churn have in the cluster. Nodes and gateways have theirs beside it.
type Accounts struct {
	Pods       int `json:"pods"`
	Finalizers int `json:"finalizers"`
	Leases     int `json:"leases"`
	Ports      int `json:"ports"`
	Members    int `json:"members"`
	Records    int `json:"records"`
}

// Empty tells that nothing is left.
func (a Accounts) Empty() bool { return a == Accounts{} }

// accounts reads them, and names the leases.
func (w *World) accounts(ctx context.Context) (a Accounts, leases []string, err error) {
	pods, err := w.pods(ctx)
	if err != nil {
		return a, nil, err
	}
	a.Pods = len(pods)
	for _, p := range pods {
		if slices.Contains(p.Finalizers, network.Finalizer) {
			a.Finalizers++
		}
	}
	if leases, err = w.leases(ctx); err != nil {
		return a, nil, err
	}
	a.Leases = len(leases)
	var records kubeovnv1.IPList
	if err := w.objs.List(ctx, &records); err != nil {
		return a, nil, fmt.Errorf("list IP records: %w", err)
	}
	for _, r := range records.Items {
		if !strings.HasPrefix(r.Name, "node-") { // nodes have theirs on the join switch
			a.Records++
		}
	}
	a.Ports, a.Members, err = w.rows(ctx)
	return a, leases, err
}

func (w *World) pods(ctx context.Context) ([]corev1.Pod, error) {
	var out []corev1.Pod
	for _, ns := range namespaces() {
		var list corev1.PodList
		if err := w.objs.List(ctx, &list, client.InNamespace(ns)); err != nil {
			return nil, fmt.Errorf("list the pods of %s: %w", ns, err)
		}
		out = append(out, list.Items...)
	}
	return out, nil
}

// leases names the leases that are stored, but those that are reserved for others than pods.
func (w *World) leases(ctx context.Context) ([]string, error) {
	var list berthv1alpha1.AddressBlockList
	if err := w.objs.List(ctx, &list); err != nil {
		return nil, fmt.Errorf("list the blocks: %w", err)
	}
	var out []string
	for _, b := range list.Items {
		for _, text := range b.Spec.Leases {
			l, err := berthv1alpha1.ParseLease(text)
			if err != nil {
				return nil, err
			}
			if o, err := ipam.ParseOwner(l.Owner); err == nil && o.Reserves() {
				continue
			}
			out = append(out, b.Name+" "+text)
		}
	}
	return out, nil
}

// rows counts the pods' ports, and the members of port groups that are no nodes' ports.
func (w *World) rows(ctx context.Context) (ports, members int, err error) {
	nbctl := func(args ...string) ([]string, error) {
		out, err := proc.Run(ctx, "", "ovn-nbctl", append([]string{"--db=" + w.NBSocket(), "--timeout=10", "--bare"}, args...)...)
		return strings.Fields(out), err
	}
	all, err := nbctl("--columns=_uuid,name", "list", "Logical_Switch_Port") // every port has a name
	if err != nil {
		return 0, 0, err
	}
	nodes := map[string]bool{}
	for i := 1; i < len(all); i += 2 {
		nodes[all[i-1]] = strings.HasPrefix(all[i], "node-")
	}
	grouped, err := nbctl("--columns=ports", "list", "Port_Group")
	if err != nil {
		return 0, 0, err
	}
	for _, m := range grouped {
		if !nodes[m] { // also what names no port any more
			members++
		}
	}
	names, err := nbctl("--columns=name", "find", "Logical_Switch_Port", `external_ids:pod!=""`)
	return len(names), members, err
}

// settle waits until every pod has come up and nothing contradicts anything else.
func (w *World) settle(ctx context.Context, limit time.Duration) error {
	return await.Until(ctx, "every pod is up and everything agrees", lookEvery, limit, func(ctx context.Context) error {
		return errors.Join(w.up(ctx), w.agree(ctx))
	})
}

// up tells which pods are not up. Those of the small subnet and of the pool may wait for an address while there is none.
func (w *World) up(ctx context.Context) error {
	pods, err := w.pods(ctx)
	if err != nil {
		return err
	}
	var missing []string
	served, waiting := map[string]int{}, map[string]int{}
	for i := range pods {
		p := &pods[i]
		gated := slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == network.AddressGate })
		switch {
		case lifecycle.Ended(p) && p.DeletionTimestamp == nil:
		case ready(p) && p.DeletionTimestamp == nil:
			served[p.Namespace]++
		case gated && p.DeletionTimestamp == nil:
			waiting[p.Namespace]++
		default:
			missing = append(missing, p.Namespace+"/"+p.Name)
		}
	}
	for ns, n := range waiting {
		if room := map[string]int{nsSmall: smallRoom, nsPooled: 8}[ns]; served[ns] < room {
			missing = append(missing, fmt.Sprintf("%d of %s that wait for an address, though %d of %d are up", n, ns, served[ns], room))
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("not up: %s", strings.Join(missing, ", "))
	}
	return nil
}

// agree tells what contradicts itself between pods, leases, ports and records.
func (w *World) agree(ctx context.Context) error {
	findings, err := w.sampling.Findings(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range findings {
		if f.Kind != lifecycle.LeasePending { // creations whose answer was lost leave some, for a while
			errs = append(errs, fmt.Errorf("%s: %s %s/%s: %s", f.Kind, f.Subject, f.Namespace, f.Pod, f.Detail))
		}
	}
	return errors.Join(errs...)
}

// deleteAll deletes every workload, and every pod.
func (w *World) deleteAll(ctx context.Context) error {
	background := client.PropagationPolicy(metav1.DeletePropagationBackground)
	var errs []error
	for _, ns := range namespaces() {
		for _, o := range []client.Object{&appsv1.Deployment{}, &appsv1.StatefulSet{}, &batchv1.Job{}, &corev1.Pod{}} {
			if err := w.objs.DeleteAllOf(ctx, o, client.InNamespace(ns), background); err != nil {
				errs = append(errs, fmt.Errorf("delete every %T of %s: %w", o, ns, err))
			}
		}
	}
	return errors.Join(errs...)
}

// drain waits until the accounts are empty, and gives what is left.
func (w *World) drain(ctx context.Context, limit time.Duration) (Accounts, error) {
	var left Accounts
	err := await.Until(ctx, "the accounts are empty", lookEvery, limit, func(ctx context.Context) error {
		a, leases, err := w.accounts(ctx)
		if err != nil {
			return err
		}
		if left = a; !a.Empty() {
			return fmt.Errorf("%+v %v", a, leases)
		}
		return nil
	})
	return left, err
}
