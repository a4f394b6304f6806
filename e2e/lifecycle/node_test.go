//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// ofNode are the processes that end with a node's power.
func ofNode(name string) []string {
	return []string{name + "-agent", name + "-ovn-controller", name + "-vswitchd"}
}

// cordon says whether a node takes new pods.
func (h *harness) cordon(t *testing.T, name string, yes bool) {
	t.Helper()
	change(t, h, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, func(n *corev1.Node) { n.Spec.Unschedulable = yes })
}

// outOfService taints a node, or takes the taint off. It evicts nobody, for our own pods are on all nodes.
func (h *harness) outOfService(t *testing.T, name string, yes bool) {
	t.Helper()
	change(t, h, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, func(n *corev1.Node) {
		n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == corev1.TaintNodeOutOfService })
		if yes {
			n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoSchedule})
		}
	})
}

// reaches waits until one pod reaches the first address of another.
func (h *harness) reaches(t *testing.T, from, to corev1.Pod) {
	t.Helper()
	address, _, _ := strings.Cut(to.Annotations[addressKey], ",")
	until(t.Context(), t, from.Name+" reaches "+to.Name, func(ctx context.Context) error {
		_, err := h.Exec(ctx, from.Namespace, from.Name, "ping", "-n", "-c", "2", "-i", "0.2", "-W", "1", address)
		return err
	})
}

// TestB80NodeLostAndReturned takes a node's power away: a pod of a StatefulSet, deleted by force, comes back elsewhere to
// its address, and one whose end nobody confirms is released by the taint. The node's return changes nothing.
func TestB80NodeLostAndReturned(t *testing.T) {
	h := start(t)
	ns := h.namespace(t, "lost", "enabled")
	victim, survivor := h.NodeNames()[1], h.NodeNames()[0]
	h.cordon(t, survivor, true)
	s := set(ns, "db", 1)
	h.create(t, s)
	h.create(t, pod(ns, "lone"))
	before := h.ready(t, ns, 2)
	h.cordon(t, survivor, false)
	h.cordon(t, victim, true)
	h.create(t, pod(ns, "peer"))
	peer := h.ready(t, ns, 3)["peer"]
	old := before["db-0"]
	h.reaches(t, peer, old)

	t.Cleanup(func() {
		if err := h.power(victim, true); err != nil {
			t.Error(err)
		}
	})
	if err := h.power(victim, false); err != nil {
		t.Fatal(err)
	}
	h.outOfService(t, victim, true)
	lone := before["lone"]
	if err := h.api.Delete(t.Context(), &lone); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "what a pod had whose end nobody confirms is taken back", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(&lone), &lone); err != nil {
			return client.IgnoreNotFound(err)
		}
		if slices.Contains(lone.Finalizers, network.Finalizer) {
			return errors.New("it has the finalizer")
		}
		return nil
	})
	if err := h.api.Delete(t.Context(), &old, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	now := h.ready(t, ns, 2)["db-0"]
	if now.UID == before["db-0"].UID || now.Spec.NodeName != survivor || now.Annotations[addressKey] != before["db-0"].Annotations[addressKey] {
		t.Errorf("db-0 is %s on %s with %s, and was %s with %s", now.UID, now.Spec.NodeName, now.Annotations[addressKey],
			before["db-0"].UID, before["db-0"].Annotations[addressKey])
	}
	h.reaches(t, peer, now)

	if err := h.power(victim, true); err != nil {
		t.Fatal(err)
	}
	until(t.Context(), t, "the node has cleared up", func(context.Context) error {
		for _, p := range before {
			if _, err := os.Stat("/run/netns/" + node.PodNetns(h.Name, p.UID)); !errors.Is(err, os.ErrNotExist) {
				return fmt.Errorf("the network of pod %s is there: %w", p.Name, err)
			}
		}
		return nil
	})
	h.outOfService(t, victim, false)
	h.cordon(t, victim, false)
	if still := h.ready(t, ns, 2)["db-0"]; still.UID != now.UID {
		t.Errorf("db-0 was %s and is %s", now.UID, still.UID)
	}
	h.reaches(t, peer, now)
	leases, err := h.leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if l.PodUID != string(now.UID) && l.PodUID != string(peer.UID) {
			t.Errorf("lease %s of pod %s %s", l.Ref(), l.PodName, l.PodUID)
		}
	}
	if p, ok := h.nb.Port("db-0." + ns); !ok || p.ExternalIDs[nb.KeyPodUID] != string(now.UID) {
		t.Errorf("port %v of pod %s", p.ExternalIDs, now.UID)
	}
	h.remove(t, s, client.PropagationPolicy(metav1.DeletePropagationForeground))
}

// power takes a node's power away, or gives it back, which may have happened already.
func (h *harness) power(name string, on bool) error {
	for _, process := range slices.Backward(ofNode(name)) {
		p, err := h.Process(process)
		switch {
		case err != nil:
		case on:
			err = p.Start()
		default:
			err = p.Signal(syscall.SIGKILL)
		}
		if err != nil {
			return err
		}
	}
	return nil
}
