//go:build e2e

package ship

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/proc"
	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

const (
	stockPods     = 200
	stockNode     = "stock"
	dualCIDR      = "10.40.0.0/22,fd00:40::/64"
	dualGateway   = "10.40.0.1,fd00:40::1"
	kubeOVN       = "kubeovn.io/kube-ovn-controller"
	absentAddress = "10.40.2.3"
)

// stockSpaces are the namespaces of the pods that Kube-OVN serves.
func stockSpaces() []string { return []string{"shop", "bank"} }

// stock is a cluster's state in Kube-OVN's form: objects and ports of the northbound database.
type stock struct {
	pods    []*corev1.Pod
	records []*kubeovnv1.IP
	ports   [][]string
}

// nic is one network of a pod.
type nic struct{ provider, subnet, cidr, gateway, mac, addresses string }

// give gives a pod a network as kube-ovn-controller does: annotations, a port and an IP record.
func (s *stock) give(p *corev1.Pod, n nic, podType string) {
	for suffix, v := range map[string]string{"ip_address": n.addresses, "mac_address": n.mac, "cidr": n.cidr, "gateway": n.gateway, "logical_switch": n.subnet,
		"pod_nic_type": "veth-pair", "allocated": "true", "routed": "true"} {
		if v != "" {
			p.Annotations[network.Key(n.provider, suffix)] = v
		}
	}
	s.records = append(s.records, recordOf(p.Name, p.Namespace, n, podType))
	if strings.HasSuffix(n.provider, network.DefaultProvider) {
		port := network.PortName(p.Name, p.Namespace, n.provider)
		s.ports = append(s.ports, []string{"--", "lsp-add", n.subnet, port, "--", "set", "Logical_Switch_Port", port,
			fmt.Sprintf("addresses=%q", n.mac+" "+strings.ReplaceAll(n.addresses, ",", " ")),
			"external_ids:vendor=kube-ovn", "external_ids:ls=" + n.subnet, "external_ids:pod=" + p.Namespace + "/" + p.Name})
	}
}

// recordOf is an IP record as kube-ovn-controller makes it.
func recordOf(pod, namespace string, n nic, podType string) *kubeovnv1.IP {
	v4, v6, _ := strings.Cut(n.addresses, ",")
	return &kubeovnv1.IP{
		ObjectMeta: metav1.ObjectMeta{Name: network.PortName(pod, namespace, n.provider), Finalizers: []string{kubeOVN},
			Labels: map[string]string{facts.LabelSubnet: n.subnet, "ovn.kubernetes.io/node-name": stockNode, n.subnet: "", facts.LabelReserved: "false"}},
		Spec: kubeovnv1.IPSpec{PodName: pod, Namespace: namespace, Subnet: n.subnet, NodeName: stockNode, MacAddress: n.mac, PodType: podType,
			V4IPAddress: v4, V6IPAddress: v6, IPAddress: n.addresses, AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}},
	}
}

func stockMAC(network, n int) string {
	return fmt.Sprintf("02:00:00:%02x:%02x:%02x", network, n/256, n%256)
}

// newStock is 200 pods in two families: three of a StatefulSet, of which the last is not ready, some with an attachment
// of OVN, some with one of another plugin, and one that has the address of a Vip.
func newStock() *stock {
	s := &stock{}
	for i := range stockPods {
		namespace, name, podType := "shop", fmt.Sprintf("web-%d", i), ""
		switch {
		case i < 3:
			name, podType = fmt.Sprintf("db-%d", i), "StatefulSet"
		case i >= 150:
			namespace = "bank"
		}
		p := stockPod(namespace, name)
		if i < 3 {
			p.Labels = map[string]string{"app": "db", "statefulset.kubernetes.io/pod-name": name, "apps.kubernetes.io/pod-index": fmt.Sprint(i)}
		}
		s.give(p, nic{"ovn", "dual", dualCIDR, dualGateway, stockMAC(1, i), fmt.Sprintf("10.40.1.%d,fd00:40::%x", i+1, i+0x100)}, podType)
		switch {
		case i < 60:
			p.Annotations[network.NetworksKey] = "shop/net1"
			s.give(p, nic{"net1.shop.ovn", "net1", "10.41.0.0/24", "10.41.0.1", stockMAC(2, i), fmt.Sprintf("10.41.0.%d", i+2)}, podType)
		case i < 80:
			p.Annotations[network.NetworksKey] = "shop/mv"
			s.give(p, nic{"mv.shop", "mv", "10.42.0.0/24", "10.42.0.1", "", fmt.Sprintf("10.42.0.%d", i)}, podType)
		}
		s.pods = append(s.pods, p)
	}
	front := stockPod("shop", "front")
	front.Annotations["ovn.kubernetes.io/vip"] = "front"
	s.give(front, nic{"ovn", "dual", "10.40.0.0/22", "10.40.0.1", stockMAC(1, 210), "10.40.2.10"}, "")
	s.pods = append(s.pods, front)
	s.records = append(s.records, recordOf("db-3", "shop", nic{"ovn", "dual", "", "", stockMAC(1, 203), absentAddress + ",fd00:40::1:3"}, "StatefulSet"),
		&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: "printer"}, Spec: kubeovnv1.IPSpec{Subnet: "dual", V4IPAddress: "10.40.2.250", IPAddress: "10.40.2.250",
			AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}})
	return s
}

func stockPod(namespace, name string) *corev1.Pod {
	p := pod(namespace, name)
	p.Annotations = map[string]string{}
	p.Spec.NodeName = stockNode
	p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}} // nobody reports for that node, and pods would be evicted
	return p
}

// stockTopology is what the pods stand on.
func stockTopology() []client.Object {
	subnet := func(name, cidr, gateway, provider string, exclude ...string) *kubeovnv1.Subnet {
		s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Gateway: gateway, Provider: provider, ExcludeIps: exclude}}
		if strings.HasSuffix(provider, network.DefaultProvider) {
			s.Spec.Vpc = "ovn-cluster"
		}
		return s
	}
	attachment := func(name, config string) *unstructured.Unstructured {
		u := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"config": config}}}
		u.SetAPIVersion("k8s.cni.cncf.io/v1")
		u.SetKind("NetworkAttachmentDefinition")
		u.SetNamespace("shop")
		u.SetName(name)
		return u
	}
	out := []client.Object{
		subnet("dual", dualCIDR, dualGateway, "ovn", "10.40.0.1", "fd00:40::1", "10.40.3.0..10.40.3.100"),
		subnet("net1", "10.41.0.0/24", "10.41.0.1", "net1.shop.ovn", "10.41.0.1"),
		subnet("mv", "10.42.0.0/24", "10.42.0.1", "mv.shop", "10.42.0.1"),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: stockNode, Labels: map[string]string{"kubernetes.io/hostname": stockNode}}, Spec: corev1.NodeSpec{Unschedulable: true}},
	}
	for _, n := range stockSpaces() {
		out = append(out, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
	return append(out, attachment("net1", `{"cniVersion":"0.3.1","type":"kube-ovn","provider":"net1.shop.ovn"}`),
		attachment("mv", `{"cniVersion":"0.3.1","type":"macvlan","ipam":{"type":"kube-ovn","provider":"mv.shop"}}`))
}

// stocked brings the state into the cluster, and waits until the StatefulSet has taken its pods. It goes with the test.
func (h *harness) stocked(ctx context.Context, t *testing.T) *stock {
	t.Helper()
	if err := h.Apply(ctx, filepath.Join(h.Repo, "e2e", "admission", "testdata")); err != nil {
		t.Fatal(err)
	}
	h.kubectl(ctx, t, "wait", "--for=condition=Established", "--timeout=60s", "crd", "network-attachment-definitions.k8s.cni.cncf.io")
	s := newStock()
	t.Cleanup(func() { h.unstock(context.WithoutCancel(ctx), t, s) })
	h.make(ctx, t, stockTopology()...)
	for name, address := range map[string]string{"front": "10.40.2.10", "spare": "10.40.2.11"} {
		v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VipSpec{Namespace: "shop", Subnet: "dual"}}
		v.Status.V4IP = address
		if name == "front" { // a pod has it
			v.Labels = map[string]string{facts.LabelReserved: network.PortName("front", "shop", "ovn")}
		}
		h.make(ctx, t, v)
	}
	command := []string{"--db=" + h.NBSocket(), "--timeout=20", "ls-add", "dual", "--", "ls-add", "net1"}
	for _, p := range s.ports {
		command = append(command, p...)
	}
	if _, err := proc.Run(ctx, "", "ovn-nbctl", command...); err != nil {
		t.Fatal(err)
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(8)
	for _, p := range s.pods {
		group.Go(func() error { return h.running(ctx, p) })
	}
	for _, r := range s.records {
		group.Go(func() error { return h.api.Create(ctx, r) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
	return s
}

// running makes a pod and says that it runs on its addresses. The third of the StatefulSet isn't ready, so that the
// controller waits for it and the fourth stays absent.
func (h *harness) running(ctx context.Context, p *corev1.Pod) error {
	if err := h.api.Create(ctx, p); err != nil {
		return err
	}
	was := p.DeepCopy()
	ready := corev1.ConditionTrue
	if p.Name == "db-2" {
		ready = corev1.ConditionFalse
	}
	now := metav1.NewTime(time.Now())
	p.Status.Phase, p.Status.StartTime = corev1.PodRunning, &now
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
		{Type: corev1.PodReady, Status: ready, LastTransitionTime: now}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "main", Ready: ready == corev1.ConditionTrue,
		State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: now}}}}
	for a := range strings.SplitSeq(p.Annotations["ovn.kubernetes.io/ip_address"], ",") {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	p.Status.PodIP = p.Status.PodIPs[0].IP
	return h.api.Status().Patch(ctx, p, client.MergeFrom(was))
}

// setOver makes the StatefulSet over the pods that are there: its controller takes them.
func (h *harness) setOver(ctx context.Context, t *testing.T) {
	t.Helper()
	w, ok := workload("shop", "db", 5, true).(*appsv1.StatefulSet)
	if !ok {
		t.Fatal("no StatefulSet")
	}
	w.Spec.PodManagementPolicy = appsv1.OrderedReadyPodManagement
	w.Spec.UpdateStrategy.Type = appsv1.OnDeleteStatefulSetStrategyType
	h.make(ctx, t, w)
	until(ctx, t, "the StatefulSet has its pods", func(ctx context.Context) error {
		for i := range 3 {
			var p corev1.Pod
			if err := h.api.Get(ctx, client.ObjectKey{Namespace: "shop", Name: fmt.Sprintf("db-%d", i)}, &p); err != nil {
				return err
			}
			if metav1.GetControllerOf(&p) == nil {
				return fmt.Errorf("%s has no controller", p.Name)
			}
		}
		return nil
	})
}

// unstock removes the state again. Nobody else serves it: finalizers of kube-ovn-controller come off by hand.
func (h *harness) unstock(ctx context.Context, t *testing.T, s *stock) {
	t.Helper()
	h.remove(ctx, t, workload("shop", "db", 5, true))
	bare := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	drop := func(o client.Object) {
		if err := h.api.Patch(ctx, o, bare); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
		if err := h.api.Delete(ctx, o, client.GracePeriodSeconds(0)); client.IgnoreNotFound(err) != nil {
			t.Error(err)
		}
	}
	for _, p := range s.pods {
		drop(p)
	}
	for _, r := range s.records {
		drop(r)
	}
	for _, v := range []string{"front", "spare"} {
		h.remove(ctx, t, &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: v}})
	}
	h.remove(ctx, t, stockTopology()...)
	if _, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+h.NBSocket(), "--timeout=20", "--if-exists", "ls-del", "dual", "--", "--if-exists", "ls-del", "net1"); err != nil {
		t.Error(err)
	}
}
