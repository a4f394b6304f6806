//go:build e2e

package admission

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// leases gives the leases of pods, as the blocks store them; of one subnet, or of all when it is empty.
func (w *world) leases(ctx context.Context, subnet string) ([]v1alpha1.Lease, error) {
	var blocks v1alpha1.AddressBlockList
	if err := w.objs.List(ctx, &blocks); err != nil {
		return nil, err
	}
	var out []v1alpha1.Lease
	for _, b := range blocks.Items {
		for _, text := range b.Spec.Leases {
			l, err := v1alpha1.ParseLease(text)
			if err != nil {
				return nil, err
			}
			o, err := ipam.ParseOwner(l.Owner)
			if err != nil {
				return nil, err
			}
			if !o.Reserves() && (subnet == "" || b.Spec.Subnet == subnet) {
				out = append(out, l)
			}
		}
	}
	return out, nil
}

func (w *world) mustLeases(t *testing.T, subnet string) []v1alpha1.Lease {
	t.Helper()
	ls, err := w.leases(t.Context(), subnet)
	if err != nil {
		t.Fatal(err)
	}
	return ls
}

// settled are the accounts in words, sorted: what the pods carry, and what ledger and northbound have for them.
type settled struct{ Leases, Ports []string }

// carried is what there should be.
func carried(pods []corev1.Pod) settled {
	var s settled
	for _, p := range pods {
		claim, ok := network.ClaimOf(p.Annotations)
		if !ok || lifecycle.Ended(&p) {
			continue
		}
		for _, c := range network.Carried(p.Annotations) {
			if !network.Given(p.Annotations, c.Provider) {
				continue
			}
			for _, a := range c.Addresses {
				s.Leases = append(s.Leases, fmt.Sprintf("%s of %s/%s for claim %s, pod %s", a, p.Namespace, c.Provider, claim, p.UID))
			}
			s.Ports = append(s.Ports, network.PortName(p.Name, p.Namespace, c.Provider))
		}
	}
	slices.Sort(s.Leases)
	slices.Sort(s.Ports)
	return s
}

// stored is what there is.
func (w *world) stored(ctx context.Context) (settled, error) {
	var s settled
	leases, err := w.leases(ctx, "")
	if err != nil {
		return s, err
	}
	for _, l := range leases {
		o, err := ipam.ParseOwner(l.Owner)
		if err != nil {
			return s, err
		}
		s.Leases = append(s.Leases, fmt.Sprintf("%s of %s/%s for claim %s, pod %s", l.Address, o.Namespace, l.Provider, l.Claim, l.PodUID))
	}
	for _, p := range w.nb.Ports() {
		if p.ExternalIDs["pod"] != "" {
			s.Ports = append(s.Ports, p.Name)
		}
	}
	slices.Sort(s.Leases)
	slices.Sort(s.Ports)
	return s, nil
}

// accounts waits until leases and ports are those of the pods that exist.
func (w *world) accounts(t *testing.T) {
	t.Helper()
	began := time.Now()
	diff := ""
	err := until(t.Context(), "the accounts are settled", 2*patience, func(ctx context.Context) (bool, error) {
		pods, err := w.Client().CoreV1().Pods("").List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		have, err := w.stored(ctx)
		if err != nil {
			return false, err
		}
		diff = cmp.Diff(carried(pods.Items), have)
		return diff == "", nil
	})
	if err != nil {
		t.Fatalf("%v (-pods +ledger and northbound):\n%s", err, diff)
	}
	t.Logf("accounts settled after %s", time.Since(began).Round(time.Millisecond))
}

// clear deletes all workloads and pods of namespaces, and settles the accounts without them.
func (w *world) clear(t *testing.T, namespaces ...string) {
	t.Helper()
	policy, now := metav1.DeletePropagationBackground, int64(0)
	kube := w.Client()
	for _, n := range namespaces {
		o := metav1.DeleteOptions{PropagationPolicy: &policy}
		for what, err := range map[string]error{
			"Deployments":  kube.AppsV1().Deployments(n).DeleteCollection(t.Context(), o, metav1.ListOptions{}),
			"ReplicaSets":  kube.AppsV1().ReplicaSets(n).DeleteCollection(t.Context(), o, metav1.ListOptions{}),
			"StatefulSets": kube.AppsV1().StatefulSets(n).DeleteCollection(t.Context(), o, metav1.ListOptions{}),
		} {
			if err != nil {
				t.Fatalf("delete %s of %s: %v", what, n, err)
			}
		}
		left := ""
		err := until(t.Context(), "the pods of "+n+" are gone", patience, func(ctx context.Context) (bool, error) {
			l, err := kube.CoreV1().Pods(n).List(ctx, metav1.ListOptions{})
			if err != nil || len(l.Items) == 0 {
				return err == nil, err
			}
			left = names(l.Items)
			return false, kube.CoreV1().Pods(n).DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{})
		})
		if err != nil {
			t.Fatalf("%v: %s", err, left)
		}
	}
	w.accounts(t)
}

func names(pods []corev1.Pod) string {
	var out []string
	for _, p := range pods {
		out = append(out, p.Namespace+"/"+p.Name)
	}
	return strings.Join(out, " ")
}

// distinct fails when two pods have one address or one claim.
func distinct(t *testing.T, pods []*corev1.Pod) {
	t.Helper()
	addresses, claims := map[string]string{}, map[string]string{}
	for _, p := range pods {
		claim, ok := network.ClaimOf(p.Annotations)
		if !ok || address(p) == "" {
			t.Errorf("pod %s has address %q and claim %q", p.Name, address(p), claim)
			continue
		}
		if other := addresses[address(p)]; other != "" {
			t.Errorf("pods %s and %s both have %s", other, p.Name, address(p))
		}
		if other := claims[string(claim)]; other != "" {
			t.Errorf("pods %s and %s both have claim %s", other, p.Name, claim)
		}
		addresses[address(p)], claims[string(claim)] = p.Name, p.Name
	}
}
