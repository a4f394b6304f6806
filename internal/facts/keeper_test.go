package facts

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	netv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
)

func object(apiVersion, kind, name string, spec map[string]any) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": apiVersion, "kind": kind,
		"metadata": map[string]any{"namespace": "app", "name": name, "uid": "uid-" + name}, "spec": spec}}
}

// machine has NICs n1, n2 (to be unplugged) and one whose attachment says another provider, and one that can't be read.
func machine(kind, name string, at ...string) *unstructured.Unstructured {
	nic := func(name, nad string) any {
		return map[string]any{"name": name, "multus": map[string]any{"networkName": nad}}
	}
	spec := map[string]any{
		"networks": []any{map[string]any{"name": "default", "pod": map[string]any{}}, nic("a", "n1"), nic("b", "app/n2"), nic("c", "other/n3")},
		"domain": map[string]any{"devices": map[string]any{"interfaces": []any{
			map[string]any{"name": "default"}, map[string]any{"name": "b", "state": "absent"}}}},
	}
	for i := len(at) - 1; i >= 0; i-- {
		spec = map[string]any{at[i]: spec}
	}
	return object("kubevirt.io/v1", kind, name, spec)
}

func TestKeeperOfMachinesAndTemplates(t *testing.T) {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, netv1.AddToScheme} {
		if err := add(kinds); err != nil {
			t.Fatal(err)
		}
	}
	template := func(name string, annotations map[string]string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name, UID: "uid"},
			Spec: appsv1.StatefulSetSpec{Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}}}
	}
	c := fake.NewClientBuilder().WithScheme(kinds).WithObjects(
		machine("VirtualMachine", "vm", "template", "spec"), machine("VirtualMachineInstance", "alone"),
		object("kubevirt.io/v1", "VirtualMachine", "odd", map[string]any{"template": "x"}),
		object("apps.kruise.io/v1beta1", "StatefulSet", "skips", map[string]any{"replicas": int64(2), "reserveOrdinals": []any{int64(1), "2", "3-4"}}),
		object("apps.kruise.io/v1beta1", "StatefulSet", "odd", map[string]any{"reserveOrdinals": []any{"x"}}),
		&netv1.NetworkAttachmentDefinition{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "n3"},
			Spec: netv1.NetworkAttachmentDefinitionSpec{Config: `{"type":"kube-ovn","provider":"special.ovn"}`}},
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "app", Annotations: map[string]string{"ovn.kubernetes.io/logical_switch": "s, t"}}},
		template("plain", nil), template("names", map[string]string{"ovn.kubernetes.io/logical_switch": "u"}),
		template("pooled", map[string]string{"ovn.kubernetes.io/ip_pool": "p"}),
	).WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
		if key.Name == "unreadable" {
			return errors.New("broken")
		}
		return c.Get(ctx, key, o, opts...)
	}}).Build()
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion, {Group: "apps.kruise.io", Version: "v1beta1"}, {Group: "kubevirt.io", Version: "v1"}})
	for _, gvk := range []schema.GroupVersionKind{appsv1.SchemeGroupVersion.WithKind("StatefulSet"),
		{Group: "apps.kruise.io", Version: "v1beta1", Kind: "StatefulSet"},
		{Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachine"}, {Group: "kubevirt.io", Version: "v1", Kind: "VirtualMachineInstance"}} {
		mapper.Add(gvk, meta.RESTScopeNamespace)
	}
	lease := func(group, kind, name, provider, subnet string) ipam.Held {
		return ipam.Held{Subnet: subnet, Lease: ipam.Lease{Address: addressOf("10.0.0.5"), Provider: provider, OwnerUID: "uid",
			Owner: ipam.Owner{Group: group, Kind: kind, Namespace: "app", Name: name}}}
	}
	vm := func(name, provider string) ipam.Held {
		return lease("kubevirt.io", "VirtualMachine", name, provider, "s")
	}
	set := func(name, subnet string) ipam.Held { return lease("apps", "StatefulSet", name, "ovn", subnet) }
	kruise := func(name string) ipam.Held {
		h := lease("apps.kruise.io", "StatefulSet", name, "ovn", "s")
		h.OwnerUID = ""
		return h
	}
	for name, x := range map[string]struct {
		lease ipam.Held
		want  lifecycle.Answer
	}{
		"machine's default network":        {vm("vm", "ovn"), lifecycle.Yes},
		"machine's NIC, by convention":     {vm("vm", "n1.app.ovn"), lifecycle.Yes},
		"machine's NIC, to be unplugged":   {vm("vm", "n2.app.ovn"), lifecycle.No},
		"machine's NIC, by its attachment": {vm("vm", "special.ovn"), lifecycle.Yes},
		"machine's NIC, taken out":         {vm("vm", "n9.app.ovn"), lifecycle.No},
		"machine that isn't understood":    {vm("odd", "n9.app.ovn"), lifecycle.Yes},
		"machine that is gone":             {vm("gone", "ovn"), lifecycle.No},
		"instance without a machine":       {vm("alone", "n1.app.ovn"), lifecycle.Yes},
		"its NIC, taken out":               {vm("alone", "n9.app.ovn"), lifecycle.No},
		"read fails":                       {vm("unreadable", "ovn"), lifecycle.Unknown},
		"in the namespace's subnets":       {set("plain-0", "t"), lifecycle.Yes},
		"in none of them":                  {set("plain-0", "u"), lifecycle.No},
		"in the template's subnet":         {set("names-0", "u"), lifecycle.Yes},
		"in another than the template's":   {set("names-0", "s"), lifecycle.No},
		"in a pool's subnet":               {set("pooled-0", "u"), lifecycle.Yes},
		"before a reserved ordinal":        {kruise("skips-0"), lifecycle.Yes},
		"a reserved ordinal":               {kruise("skips-3"), lifecycle.No},
		"after the reserved ones":          {kruise("skips-5"), lifecycle.Yes},
		"beyond all":                       {kruise("skips-6"), lifecycle.No},
		"reserved ones not understood":     {kruise("odd-0"), lifecycle.Unknown},
	} {
		if got := NewKeeper(c, mapper).Keeps(t.Context(), x.lease); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
}

func addressOf(text string) netip.Addr { return netip.MustParseAddr(text) }
