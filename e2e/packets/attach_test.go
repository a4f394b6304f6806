//go:build e2e

package packets

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/e2e/node"
	"github.com/berth-net/berth/e2e/proc"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/network"
)

const (
	plugged  = "plugged"
	provider = "second." + plugged + ".ovn"
)

func untyped(version, kind, namespace, name string, more map[string]any) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	for k, v := range more {
		u.Object[k] = v
	}
	u.SetAPIVersion(version)
	u.SetKind(kind)
	u.SetNamespace(namespace)
	u.SetName(name)
	return u
}

// definitions makes the kind of objects that describe further networks.
func (h *harness) definitions(t *testing.T) {
	t.Helper()
	h.make(t, untyped("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "network-attachment-definitions.k8s.cni.cncf.io", map[string]any{
		"spec": map[string]any{
			"group": "k8s.cni.cncf.io", "scope": "Namespaced",
			"names": map[string]any{"plural": "network-attachment-definitions", "singular": "network-attachment-definition", "kind": "NetworkAttachmentDefinition"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}},
		},
	}))
}

// names edits which networks a pod that runs names.
func (h *harness) names(t *testing.T, p *place, text string) {
	t.Helper()
	change(t.Context(), t, h, p.object, func(o *corev1.Pod) { o.Annotations[network.NetworksKey] = text })
}

// second is the interface that the pod's annotations tell of.
func (h *harness) second(t *testing.T, p *place) node.Interface {
	t.Helper()
	var found node.Interface
	until(t.Context(), t, "pod "+p.name+" has its second network", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(p.object), p.object); err != nil {
			return err
		}
		if p.object.Annotations[network.Key(provider, network.SuffixRouted)] != "true" {
			return fmt.Errorf("annotations %v", p.object.Annotations)
		}
		plan, err := node.Plan(p.object)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(plan, func(i node.Interface) bool { return i.Provider == provider })
		if i < 0 {
			return fmt.Errorf("plan %+v", plan)
		}
		found = plan[i]
		return nil
	})
	return found
}

// plug does on the pod's node what a CNI does that plugs an interface into a pod that runs.
func (h *harness) plug(t *testing.T, p *place, i node.Interface) {
	t.Helper()
	on := p.object.Spec.NodeName
	run := func(ctx context.Context, line string, args ...any) error {
		_, err := h.NodeExec(ctx, on, strings.Fields(fmt.Sprintf(line, args...))...)
		return err
	}
	vsctl := func(ctx context.Context, args ...string) error {
		_, err := proc.Run(ctx, "", "ovs-vsctl", append([]string{"--db=" + h.OVSDB(on), "--no-wait"}, args...)...)
		return err
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if err := vsctl(ctx, "--if-exists", "del-port", "br-int", i.HostName); err != nil {
			t.Error(err)
		}
		_ = run(ctx, "ip link del %s", i.HostName) // it goes with the pod
	})
	if err := run(t.Context(), "ip link add %s mtu 1400 type veth peer name %s address %s mtu 1400 netns %s", i.HostName, i.Name, i.MAC, p.netns); err != nil {
		t.Fatal(err)
	}
	if err := run(t.Context(), "ip link set %s up", i.HostName); err != nil {
		t.Fatal(err)
	}
	p.inside(t.Context(), t, "ethtool -K %s tx off", i.Name)
	p.inside(t.Context(), t, "ip link set %s up", i.Name)
	for _, a := range i.Addresses {
		nodad := ""
		if a.Addr().Is6() {
			nodad = "nodad"
		}
		p.inside(t.Context(), t, "ip addr add %s dev %s %s", a, i.Name, nodad)
	}
	if err := vsctl(t.Context(), "add-port", "br-int", i.HostName, "--", "set", "interface", i.HostName, "external_ids:iface-id="+i.Port); err != nil {
		t.Fatal(err)
	}
}

// unplugged waits until nothing of the pod's second network is left.
func (h *harness) unplugged(t *testing.T, p *place, i node.Interface) {
	t.Helper()
	until(t.Context(), t, "pod "+p.name+" has lost its second network", func(ctx context.Context) error {
		if err := h.api.Get(ctx, client.ObjectKeyFromObject(p.object), p.object); err != nil {
			return err
		}
		for key := range p.object.Annotations {
			if of, _, ok := network.SplitKey(key); ok && of == provider {
				return fmt.Errorf("annotation %s", key)
			}
		}
		var record kubeovnv1.IP
		if err := h.api.Get(ctx, client.ObjectKey{Name: i.Port}, &record); !apierrors.IsNotFound(err) {
			return fmt.Errorf("record %s: %w", record.Name, err)
		}
		out, err := proc.Run(ctx, "", "ovn-nbctl", "--db="+h.NBSocket(), "--bare", "--columns=name", "find", "logical_switch_port", "name="+i.Port)
		if err == nil && strings.TrimSpace(out) != "" {
			err = fmt.Errorf("port %s", out)
		}
		return err
	})
}

// TestAttach plugs a second network into pods that run: its packets arrive, and no more once it is unplugged; what the pods
// had stays as it is all the time.
func TestAttach(t *testing.T) {
	h, ctx := start(t), t.Context()
	h.definitions(t)
	ns := h.namespace(t, plugged)
	h.make(t, h.subnet(plugged, 66))
	far := h.subnet(plugged+"-second", 67)
	far.Spec.Provider = provider
	h.make(t, far)
	until(ctx, t, "a second network can be described", func(ctx context.Context) error {
		return h.api.Create(ctx, untyped("k8s.cni.cncf.io/v1", "NetworkAttachmentDefinition", ns, "second", map[string]any{
			"spec": map[string]any{"config": `{"cniVersion":"1.0.0","type":"kube-ovn","provider":"` + provider + `"}`}}))
	})
	pods := h.pods(t, ns, map[string][]podOption{"one": {in(plugged), on("node-1")}, "two": {in(plugged), on("node-2")}})
	one, two := pods["one"], pods["two"]
	one.reaches(ctx, t, two.addresses...)
	own := func(p *place) map[string]string {
		out := map[string]string{}
		for _, suffix := range []string{network.SuffixAddress, network.SuffixMAC, network.SuffixRouted} {
			out[suffix] = p.object.Annotations[network.Key(network.DefaultProvider, suffix)]
		}
		return out
	}
	before := own(one)

	var addresses []netip.Addr
	interfaces := map[*place]node.Interface{}
	for _, p := range []*place{one, two} {
		h.names(t, p, "second@net7")
		interfaces[p] = h.second(t, p)
		h.plug(t, p, interfaces[p])
	}
	for _, a := range interfaces[two].Addresses {
		addresses = append(addresses, a.Addr())
	}
	if i := interfaces[one]; i.Name != "net7" || len(addresses) != len(h.families()) {
		t.Fatalf("interface %+v, addresses %v", i, addresses)
	}
	one.reaches(ctx, t, addresses...)
	one.reaches(ctx, t, two.addresses...)

	h.names(t, two, "")
	h.unplugged(t, two, interfaces[two])
	for _, a := range addresses {
		one.loses(ctx, t, a.String(), func() error { return one.ping(ctx, a) })
	}
	one.reaches(ctx, t, two.addresses...)
	h.names(t, two, "second@net7")
	again := h.second(t, two)
	if again.Port != interfaces[two].Port {
		t.Errorf("port %s, want %s", again.Port, interfaces[two].Port)
	}
	if now := own(one); fmt.Sprint(now) != fmt.Sprint(before) {
		t.Errorf("the default network was %v and is %v", before, now)
	}
}
