//go:build e2e

package packets

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/cluster"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// families tells for each family of the cluster's pods whether it is IPv4.
func (h *harness) families() []bool {
	if h.Family == cluster.IPv6 {
		return []bool{false}
	}
	return []bool{true, false}
}

// ofFamilies keeps those of addresses, networks and so on that are of the cluster's families.
func (h *harness) ofFamilies(all ...string) []string {
	return slices.DeleteFunc(all, func(s string) bool { return !slices.Contains(h.families(), !strings.Contains(s, ":")) })
}

// subnet is a subnet 10.<n>.0.0/24 and fd00:10:<n>::/120 of the default router, in the cluster's families.
func (h *harness) subnet(name string, n int) *kubeovnv1.Subnet {
	s := subnet(name, n)
	if h.Family == cluster.IPv6 {
		s.Spec.Protocol = "IPv6"
	}
	for _, text := range []*string{&s.Spec.CIDRBlock, &s.Spec.Gateway} {
		*text = strings.Join(h.ofFamilies(strings.Split(*text, ",")...), ",")
	}
	return s
}

// subnet is a dual-stack subnet 10.<n>.0.0/24 of the default router.
func subnet(name string, n int) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.SubnetSpec{
		Protocol: "Dual", CIDRBlock: fmt.Sprintf("10.%d.0.0/24,fd00:10:%d::/120", n, n), Gateway: fmt.Sprintf("10.%d.0.1,fd00:10:%d::1", n, n),
	}}
}

// podOption changes a pod before it is made.
type podOption func(*corev1.Pod)

func on(node string) podOption {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: node} }
}

func in(subnet string) podOption { return with("logical_switch", subnet) }

// with annotates a pod.
func with(key, value string) podOption {
	return func(p *corev1.Pod) { p.Annotations["ovn.kubernetes.io/"+key] = value }
}

// place is somewhere that packets are sent from and arrive at: a pod, or a machine outside.
type place struct {
	name, netns string
	addresses   []netip.Addr
	mac         net.HardwareAddr
	// object is the pod; nil outside.
	object *corev1.Pod
}

// of picks the address of a family.
func (p *place) of(v4 bool) netip.Addr {
	for _, a := range p.addresses {
		if a.Is4() == v4 {
			return a
		}
	}
	return netip.Addr{}
}

// pod makes one pod.
func (h *harness) pod(t *testing.T, namespace, name string, options ...podOption) *place {
	t.Helper()
	return h.pods(t, namespace, map[string][]podOption{name: options})[name]
}

// pods makes pods and waits until all of them are Ready.
func (h *harness) pods(t *testing.T, namespace string, wanted map[string][]podOption) map[string]*place {
	t.Helper()
	made := map[string]*place{}
	for name, options := range wanted {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Annotations: map[string]string{}},
			Spec: corev1.PodSpec{TerminationGracePeriodSeconds: new(int64(1)),
				Containers: []corev1.Container{{Name: "main", Image: "e2e.berth.dev/pause"}}},
		}
		for _, o := range options {
			o(p)
		}
		h.admitted(t, p)
		made[name] = &place{name: name, object: p}
	}
	for _, p := range made {
		h.awaitReady(t, p)
	}
	return made
}

// admitted makes a pod as soon as each replica of the webhook knows the pod's subnet, which is new.
func (h *harness) admitted(t *testing.T, p *corev1.Pod) {
	t.Helper()
	until(t.Context(), t, "pod "+p.Name+" is admitted", func(ctx context.Context) error {
		made := p.DeepCopy()
		err := h.api.Create(ctx, made)
		if err == nil {
			made.DeepCopyInto(p)
			t.Cleanup(func() { h.unmake(t, p) })
		} else if !strings.Contains(err.Error(), "does not exist") {
			t.Fatal(err)
		} else {
			t.Logf("a moment after its subnet: %v", err)
		}
		return err
	})
}

// awaitReady waits until a pod is Ready, and notes where it is.
func (h *harness) awaitReady(t *testing.T, p *place) {
	t.Helper()
	until(t.Context(), t, "pod "+p.name+" is Ready", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(p.object), p.object); err != nil {
			return err
		}
		for _, c := range p.object.Status.Conditions {
			if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("annotations %v, status %+v", p.object.Annotations, p.object.Status)
	})
	for text := range strings.SplitSeq(p.object.Annotations["ovn.kubernetes.io/ip_address"], ",") {
		a, err := netip.ParseAddr(text)
		if err != nil {
			t.Fatalf("pod %s: %v", p.name, err)
		}
		p.addresses = append(p.addresses, a)
	}
	var err error
	if p.mac, err = net.ParseMAC(p.object.Annotations["ovn.kubernetes.io/mac_address"]); err != nil {
		t.Fatalf("pod %s: %v", p.name, err)
	}
	if p.netns, err = h.PodNetns(t.Context(), p.object.Namespace, p.name); err != nil {
		t.Fatal(err)
	}
}

// annotate changes an annotation of a pod that runs.
func (h *harness) annotate(t *testing.T, p *place, key, value string) {
	t.Helper()
	change(t.Context(), t, h, p.object, func(o *corev1.Pod) { o.Annotations["ovn.kubernetes.io/"+key] = value })
}
