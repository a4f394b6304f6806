package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"

	coordv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const (
	nodeCount      = 10
	leaseNamespace = "kube-node-lease"
	leaseSeconds   = 40
	renewEvery     = 10 * time.Second
	taint          = "bench.berth.dev/nobody-runs-it"
)

// makeNodes makes nodes that are ready and stay so, and run nothing. A taint keeps the scheduler's pods away.
func (w *World) makeNodes(ctx context.Context) error {
	for n := range nodeCount {
		name := fmt.Sprintf("bench-%d", n+1)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name, corev1.LabelOSStable: "linux"}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: taint, Effect: corev1.TaintEffectNoSchedule}}},
		}
		if _, err := w.client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("make node %s: %w", name, err)
		}
		// Controllers write to the node, too: this states what is so, whatever they have done by now.
		status := fmt.Appendf(nil, `{"status":{"capacity":%[1]s,"allocatable":%[1]s,"addresses":[{"type":"InternalIP","address":"192.0.2.%[2]d"}],`+
			`"conditions":[{"type":"Ready","status":"True","reason":"Bench"}]}}`, `{"cpu":"1000","memory":"4Ti","pods":"20000"}`, n+1)
		if _, err := w.client.CoreV1().Nodes().Patch(ctx, name, statusPatch, status, metav1.PatchOptions{}, "status"); err != nil {
			return fmt.Errorf("mark node %s ready: %w", name, err)
		}
		if err := w.renew(ctx, name); err != nil {
			return err
		}
		w.nodes = append(w.nodes, name)
	}
	beat, stop := context.WithCancel(context.WithoutCancel(ctx))
	w.stop = stop
	go w.heartbeat(beat)
	return nil
}

// heartbeat keeps the nodes' leases.
func (w *World) heartbeat(ctx context.Context) {
	tick := time.NewTicker(renewEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for _, n := range w.nodes {
			if err := w.renew(ctx, n); err != nil && ctx.Err() == nil {
				w.say("%v", err)
			}
		}
	}
}

// renew writes the present time into a node's lease.
func (w *World) renew(ctx context.Context, name string) error {
	leases := w.client.CoordinationV1().Leases(leaseNamespace)
	now, seconds := metav1.NowMicro(), int32(leaseSeconds)
	lease := &coordv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: leaseNamespace},
		Spec: coordv1.LeaseSpec{HolderIdentity: &name, LeaseDurationSeconds: &seconds, RenewTime: &now}}
	there, err := leases.Get(ctx, name, metav1.GetOptions{})
	if err == nil {
		lease.ResourceVersion = there.ResourceVersion
		_, err = leases.Update(ctx, lease, metav1.UpdateOptions{})
	} else {
		_, err = leases.Create(ctx, lease, metav1.CreateOptions{})
	}
	if err != nil {
		return fmt.Errorf("renew the lease of node %s: %w", name, err)
	}
	return nil
}

// awaitJoined returns when every node has its place on the pods' network: until then the worker is busy with them.
func (w *World) awaitJoined(ctx context.Context) error {
	return until(ctx, "the nodes' places", func(ctx context.Context) error {
		l, err := w.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, n := range l.Items {
			if n.Annotations[network.Key(network.DefaultProvider, network.SuffixAllocated)] != "true" {
				return fmt.Errorf("node %s has none", n.Name)
			}
		}
		return nil
	})
}

// subnetRange is what a subnet of a benchmark has.
type subnetRange struct {
	CIDR    string
	Exclude string
}

// tightSubnet has exactly so many addresses for pods: besides them there are the network's own, its gateway and its
// broadcast address, and the rest is excluded.
func tightSubnet(addresses int) (subnetRange, error) {
	base := netip.AddrFrom4([4]byte{10, 65, 0, 0})
	if addresses < 1 || addresses > 1<<16-3 {
		return subnetRange{}, fmt.Errorf("a subnet of %d addresses can't be made: take 1 to %d", addresses, 1<<16-3)
	}
	bits := 30
	for 1<<(32-bits) < addresses+3 {
		bits--
	}
	s := subnetRange{CIDR: netip.PrefixFrom(base, bits).String()}
	if size := 1 << (32 - bits); size > addresses+3 {
		s.Exclude = nth(base, addresses+2).String() + ".." + nth(base, size-2).String()
	}
	return s, nil
}

// nth is the address that many behind another.
func nth(a netip.Addr, n int) netip.Addr {
	b := a.As4()
	binary.BigEndian.PutUint32(b[:], binary.BigEndian.Uint32(b[:])+uint32(n))
	return netip.AddrFrom4(b)
}

func (s subnetRange) object(name string) *unstructured.Unstructured {
	spec := map[string]any{"vpc": "ovn-cluster", "protocol": "IPv4", "cidrBlock": s.CIDR, "gatewayType": "distributed", "namespaces": []any{name}}
	if s.Exclude != "" {
		spec["excludeIps"] = []any{s.Exclude}
	}
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kubeovn.io/v1", "kind": "Subnet",
		"metadata": map[string]any{"name": name}, "spec": spec}}
}

// leases counts the leases of pods in the ledger as it is stored; of all subnets when none is named.
func (w *World) leases(ctx context.Context, subnet string) (int, error) {
	l, err := w.objects.Resource(blocks()).List(ctx, metav1.ListOptions{})
	if err != nil {
		return 0, fmt.Errorf("read the ledger: %w", err)
	}
	n := 0
	for _, b := range l.Items {
		spec, _ := b.Object["spec"].(map[string]any)
		if subnet != "" && spec["subnet"] != subnet {
			continue
		}
		texts, _ := spec["leases"].([]any)
		for _, text := range texts {
			lease, err := v1alpha1.ParseLease(fmt.Sprint(text))
			if err != nil {
				return 0, fmt.Errorf("read block %s: %w", b.GetName(), err)
			}
			if owner, err := ipam.ParseOwner(lease.Owner); err != nil || !owner.Reserves() {
				n++
			}
		}
	}
	return n, nil
}

// pod is one that no scheduler but the benchmark's own looks at.
func pod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{SchedulerName: "bench", Containers: []corev1.Container{{Name: "main", Image: "none"}},
			AutomountServiceAccountToken: new(bool),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}}}}
}

// pods makes so many of them.
func pods(prefix string, n int, annotations map[string]string) (list []*corev1.Pod) {
	for i := range n {
		list = append(list, pod(fmt.Sprintf("%s-%d", prefix, i), annotations))
	}
	return list
}

func namesOf(list []*corev1.Pod) (names []string) {
	for _, p := range list {
		names = append(names, p.Name)
	}
	return names
}

// errNobody says that a program of ours doesn't run.
var errNobody = errors.New("no process of it runs: look into the cluster's logs")
