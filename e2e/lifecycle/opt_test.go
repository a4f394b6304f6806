//go:build e2e

package lifecycle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

// optName is the namespace that opts in and out, and its subnet.
const optName = "opting"

// TestOptedInAndOut moves a namespace between all that its label may say while pods run in it. What others gave to running
// pods is taken over where the ledger can lease it, and told where it can't; no running pod's address ever changes; and
// what was given goes back when its pod ends, whatever the label says then.
func TestOptedInAndOut(t *testing.T) {
	h := start(t)
	h.hand(t)
	h.subnet(t, optName, "10.88.0.0/24", "10.88.0.1")
	h.namespace(t, optName, "")
	h.witness(t, optName)
	stock := h.stock(t)
	stranger := h.foreign(t, "stranger", "192.0.2.77", nil)

	h.label(t, network.InjectLate)
	h.has(t, stock)
	h.reported(t, stranger)
	slow := pod(optName, "slow", onHand)
	h.create(t, slow)
	h.ready(t, optName, 3)

	h.label(t, network.InjectEnabled)
	h.meets(t, true)
	prompt := pod(optName, "prompt", onHand)
	h.create(t, prompt)
	if !network.Given(prompt.Annotations, network.DefaultProvider) {
		t.Errorf("the webhook gave no address: %v", prompt.Annotations)
	}
	before := h.ready(t, optName, 4)

	h.label(t, "")
	h.meets(t, false)
	outside := pod(optName, "outside", onHand)
	h.create(t, outside)
	h.remove(t, slow)
	h.hasNothing(t, slow)
	h.label(t, network.InjectDisabled)
	h.swept(t, 2)
	if err := h.api.Get(t.Context(), client.ObjectKeyFromObject(outside), outside); err != nil {
		t.Fatal(err)
	}
	if network.Given(outside.Annotations, network.DefaultProvider) || slices.Contains(outside.Finalizers, network.Finalizer) {
		t.Errorf("a pod of a namespace that opted out was served: %v", outside.Annotations)
	}
	h.has(t, stock)

	h.label(t, network.InjectLate)
	h.has(t, outside)
	h.label(t, network.InjectEnabled)
	h.label(t, "")
	h.swept(t, 2)
	now := h.ready(t, optName, 4)
	delete(before, slow.Name)
	before[stock.Name], before[stranger.Name] = *stock, *stranger // as they were before all that
	unchanged(t, before, now)
	for _, p := range now {
		h.remove(t, &p)
		h.hasNothing(t, &p)
	}
}

// unchanged holds that pods carry what they carried, and stock also what it was given beside.
func unchanged(t *testing.T, before, now map[string]corev1.Pod) {
	t.Helper()
	for name, p := range before {
		have := maps.Clone(now[name].Annotations)
		if name == "stock" {
			maps.DeleteFunc(have, func(k, _ string) bool { return p.Annotations[k] == "" })
		}
		if d := cmp.Diff(p.Annotations, have, cmpopts.EquateEmpty()); d != "" || now[name].UID != p.UID {
			t.Errorf("pod %s, annotations (-before +after):\n%s", name, d)
		}
	}
}

// stock makes a pod as kube-ovn-controller leaves it: with its values, its marks and its record, and no claim.
func (h *harness) stock(t *testing.T) *corev1.Pod {
	t.Helper()
	const name, address, mac = "stock", "10.88.0.77", "00:00:00:12:34:56"
	h.create(t, &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name + "." + optName,
		Labels: map[string]string{facts.LabelReserved: "false", facts.LabelSubnet: optName, optName: ""}},
		Spec: kubeovnv1.IPSpec{PodName: name, Namespace: optName, Subnet: optName, NodeName: handName, IPAddress: address, V4IPAddress: address,
			MacAddress: mac, AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}})
	return h.foreign(t, name, address, map[string]string{addressKey: address, "ovn.kubernetes.io/mac_address": mac,
		"ovn.kubernetes.io/cidr": "10.88.0.0/24", "ovn.kubernetes.io/gateway": "10.88.0.1", "ovn.kubernetes.io/logical_switch": optName,
		"ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/pod_nic_type": "veth-pair",
		"ovn.kubernetes.io/allocated": "true", "ovn.kubernetes.io/routed": "true"})
}

// foreign makes a pod that runs on an address that is not ours.
func (h *harness) foreign(t *testing.T, name, address string, annotations map[string]string) *corev1.Pod {
	t.Helper()
	p := pod(optName, name, onHand)
	p.Annotations, p.Spec.NodeName = annotations, handName
	h.create(t, p)
	body := fmt.Appendf(nil, `{"status":{"phase":"Running","podIP":%[1]q,"podIPs":[{"ip":%[1]q}],"conditions":[{"type":"Ready","status":"True"}],`+
		`"containerStatuses":[{"name":"main","ready":true,"image":"none","imageID":"none","restartCount":0,"state":{"running":{"startedAt":"2026-01-01T00:00:00Z"}}}]}}`, address)
	if err := h.api.Status().Patch(t.Context(), p, client.RawPatch(types.StrategicMergePatchType, body)); err != nil {
		t.Fatal(err)
	}
	return p.DeepCopy()
}

// label has the namespace say something else; empty: nothing.
func (h *harness) label(t *testing.T, inject string) {
	t.Helper()
	change(t, h, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: optName}}, func(ns *corev1.Namespace) {
		ns.Labels[network.LabelInject] = inject
		if inject == "" {
			delete(ns.Labels, network.LabelInject)
		}
	})
}

// meets waits until the API server asks the webhook for pods of the namespace, or doesn't any more.
func (h *harness) meets(t *testing.T, yes bool) {
	t.Helper()
	until(t.Context(), t, fmt.Sprintf("pods meet the webhook: %t", yes), func(ctx context.Context) error {
		p := pod(optName, "trial")
		if err := h.api.Create(ctx, p, client.DryRunAll); err != nil {
			return err
		}
		if asked := p.Annotations[network.ClaimKey] != ""; asked != yes {
			return fmt.Errorf("asked: %t", asked)
		}
		return nil
	})
}

// has waits until what a pod carries is leased to it, and it has our finalizer and a port.
func (h *harness) has(t *testing.T, p *corev1.Pod) {
	t.Helper()
	until(t.Context(), t, p.Name+" has its lease", func(ctx context.Context) error {
		var now corev1.Pod
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(p), &now); err != nil {
			return err
		}
		leases, err := h.leases(ctx)
		if err != nil {
			return err
		}
		for _, l := range leases {
			_, wired := h.nb.Port(now.Name + "." + now.Namespace)
			if l.PodUID == string(now.UID) && l.Address.String() == now.Annotations[addressKey] && wired && slices.Contains(now.Finalizers, network.Finalizer) {
				return nil
			}
		}
		return fmt.Errorf("it carries %v, with finalizers %v", now.Annotations, now.Finalizers)
	})
}

// hasNothing holds that nothing is leased to a pod that is gone.
func (h *harness) hasNothing(t *testing.T, p *corev1.Pod) {
	t.Helper()
	leases, err := h.leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range leases {
		if l.PodUID == string(p.UID) {
			t.Errorf("lease %s of pod %s, which is gone", l.Ref(), p.Name)
		}
	}
}

// reported waits for the event that a running pod can't be taken over.
func (h *harness) reported(t *testing.T, p *corev1.Pod) {
	t.Helper()
	until(t.Context(), t, p.Name+" is told", func(ctx context.Context) error {
		list, err := h.Client().EventsV1().Events(optName).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.Regarding.UID == p.UID && e.Reason == "RunningWithoutLease" {
				return nil
			}
		}
		return errors.New("no event says so")
	})
}
