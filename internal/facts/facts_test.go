package facts

import (
	"context"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
)

const claim = "0123456789abcdef0123456789abcdef"

func TestPod(t *testing.T) {
	given := map[string]string{"berth.dev/claim": claim, "ovn.kubernetes.io/ip_address": "10.0.0.2,fd00::2", "ovn.kubernetes.io/cidr": "10.0.0.0/24,fd00::/64"}
	asked := map[string]string{"berth.dev/claim": claim, "ovn.kubernetes.io/ip_address": "10.0.0.2"}
	both := []netip.Addr{netip.MustParseAddr("10.0.0.2"), netip.MustParseAddr("fd00::2")}
	ours := []string{"example.com/other", "berth.dev/network"}
	deleted := metav1.Now()
	for name, c := range map[string]struct {
		pod  corev1.Pod
		want lifecycle.Pod
	}{
		"nothing of ours": {corev1.Pod{}, lifecycle.Pod{}},
		"lives":           {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: given, Finalizers: ours}}, lifecycle.Pod{Claim: claim, Addresses: both, Finalized: true}},
		"is ready": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"berth.dev/claim": claim, "ovn.kubernetes.io/ip_address": "10.0.0.2,fd00::2",
			"ovn.kubernetes.io/cidr": "10.0.0.0/24,fd00::/64", "ovn.kubernetes.io/routed": "true"}}}, lifecycle.Pod{Claim: claim, Addresses: both, Routed: []string{"ovn"}}},
		"only asks":     {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: asked}}, lifecycle.Pod{Claim: claim}},
		"no claim":      {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{"ovn.kubernetes.io/ip_address": "10.0.0.2", "ovn.kubernetes.io/cidr": "10.0.0.0/24"}}}, lifecycle.Pod{}},
		"ended":         {corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodFailed}}, lifecycle.Pod{Over: true}},
		"ended, held":   {corev1.Pod{ObjectMeta: metav1.ObjectMeta{Finalizers: ours}, Status: corev1.PodStatus{Phase: corev1.PodFailed}}, lifecycle.Pod{Finalized: true}},
		"being deleted": {corev1.Pod{ObjectMeta: metav1.ObjectMeta{DeletionTimestamp: &deleted}}, lifecycle.Pod{Deleting: true}},
	} {
		t.Run(name, func(t *testing.T) {
			c.pod.Namespace, c.pod.Name, c.pod.UID = "app", "p", "u"
			c.want.Namespace, c.want.Name, c.want.UID = "app", "p", "u"
			if d := cmp.Diff(c.want, Pod(&c.pod), cmpopts.EquateComparable(netip.Addr{})); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestReservation(t *testing.T) {
	for name, c := range map[string]struct {
		labels map[string]string
		want   bool
	}{
		"by hand":             {nil, true},
		"of kube-ovn, marked": {map[string]string{LabelReserved: "true"}, true},
		"of a pod":            {map[string]string{LabelReserved: "false"}, false},
		"ours":                {map[string]string{LabelClaim: claim}, false},
	} {
		if got := Reservation(&kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Labels: c.labels}}); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

func TestKeeper(t *testing.T) {
	set := func(name string, start int32, replicas *int32, finalizers ...string) *appsv1.StatefulSet {
		return &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: name, Finalizers: finalizers},
			Spec: appsv1.StatefulSetSpec{Replicas: replicas, Ordinals: &appsv1.StatefulSetOrdinals{Start: start}}}
	}
	two, broken := int32(2), errors.New("broken")
	reads := 0
	c := fake.NewClientBuilder().WithScheme(scheme.Scheme).WithObjects(set("web", 0, &two), set("late", 3, &two), set("one", 0, nil), set("going", 0, &two, "x"),
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "app", Name: "there"}}).
		WithInterceptorFuncs(interceptor.Funcs{Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if reads++; key.Name == "broken" {
				return broken
			}
			return c.Get(ctx, key, o, opts...)
		}}).Build()
	if err := c.Delete(t.Context(), set("going", 0, nil)); err != nil {
		t.Fatal(err)
	}
	mapper := meta.NewDefaultRESTMapper([]schema.GroupVersion{appsv1.SchemeGroupVersion, corev1.SchemeGroupVersion})
	mapper.Add(appsv1.SchemeGroupVersion.WithKind("StatefulSet"), meta.RESTScopeNamespace)
	mapper.Add(corev1.SchemeGroupVersion.WithKind("ConfigMap"), meta.RESTScopeNamespace)
	k := NewKeeper(c, mapper)
	owner := func(group, kind, name string) ipam.Owner {
		return ipam.Owner{Group: group, Kind: kind, Namespace: "app", Name: name}
	}
	for name, x := range map[string]struct {
		owner ipam.Owner
		want  lifecycle.Answer
	}{
		"a pod":                   {ipam.PodOwner("app"), lifecycle.No},
		"wanted":                  {owner("apps", "StatefulSet", "web-1"), lifecycle.Yes},
		"scaled away":             {owner("apps", "StatefulSet", "web-2"), lifecycle.No},
		"before the start":        {owner("apps", "StatefulSet", "late-2"), lifecycle.No},
		"after the start":         {owner("apps", "StatefulSet", "late-4"), lifecycle.Yes},
		"one by default":          {owner("apps", "StatefulSet", "one-0"), lifecycle.Yes},
		"beyond the default":      {owner("apps", "StatefulSet", "one-1"), lifecycle.No},
		"being deleted":           {owner("apps", "StatefulSet", "going-0"), lifecycle.No},
		"gone":                    {owner("apps", "StatefulSet", "gone-0"), lifecycle.No},
		"no ordinal":              {owner("apps", "StatefulSet", "web"), lifecycle.Unknown},
		"read fails":              {owner("apps", "StatefulSet", "broken-0"), lifecycle.Unknown},
		"kind is not served":      {owner("kubevirt.io", "VirtualMachine", "vm"), lifecycle.Unknown},
		"of a configured kind":    {owner("", "ConfigMap", "there:pod-1"), lifecycle.Yes},
		"of a gone one of a kind": {owner("", "ConfigMap", "gone:pod-1"), lifecycle.No},
	} {
		if got := k.Keeps(t.Context(), ipam.Held{Lease: ipam.Lease{Owner: x.owner}}); got != x.want {
			t.Errorf("%s: %d, want %d", name, got, x.want)
		}
	}
	before := reads
	if k.Keeps(t.Context(), ipam.Held{Lease: ipam.Lease{Owner: owner("apps", "StatefulSet", "web-1")}}); reads != before {
		t.Error("an owner was asked twice")
	}
}
