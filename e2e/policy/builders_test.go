//go:build e2e

package policy

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/pkg/network"
)

// Namespaces: one served at admission, one served later, one that has not opted in.
const (
	served     = "served"
	lateServed = "late-served"
	foreign    = "foreign"
)

// Users. All but program may do by RBAC what the tests do; rescuer holds the break-glass verb besides.
const (
	stranger = "mallory"
	rescuer  = "rescuer"
	member   = "member" // of a group that one test puts into the parameters
	webhook  = "system:serviceaccount:berth-system:berth-webhook"
	worker   = "system:serviceaccount:berth-system:berth-worker"
	ovn      = "system:serviceaccount:kube-system:ovn"
	ovnCNI   = "system:serviceaccount:kube-system:kube-ovn-cni"
	kubelet  = "system:node:n1"
	manager  = "system:kube-controller-manager"
	program  = "webhook-under-test" // has the webhook's shipped rights, and no others
	podGC    = "system:serviceaccount:kube-system:pod-garbage-collector"
)

func everybody() []string {
	return []string{stranger, rescuer, member, webhook, worker, ovn, ovnCNI, kubelet, manager, podGC,
		"system:serviceaccount:other:berth-worker", "system:serviceaccount:default:default"}
}

// keepers may change what a pod's addresses hang on.
func keepers() []string { return []string{webhook, worker, ovn, ovnCNI, rescuer} }

// strangers may not, whatever RBAC says.
func strangers() []string {
	return []string{stranger, kubelet, manager, "system:serviceaccount:other:berth-worker", "system:serviceaccount:default:default"}
}

const (
	claimKey   = network.ClaimKey
	routedKey  = "ovn.kubernetes.io/routed"
	removed    = "\x00" // as the value of an annotation in a patch
	oldClaim   = "0123456789abcdef0123456789abcdef"
	otherClaim = "ffffffffffffffffffffffffffffffff"
)

// protected are the annotations that a pod's addresses hang on, and another value of each. Those with the value removed
// are not on the pod, and set.
func protected() map[string]string {
	return map[string]string{
		claimKey: otherClaim, network.RequestedKey: "{}",
		"ovn.kubernetes.io/ip_address": "10.16.0.99", "ovn.kubernetes.io/mac_address": "0a:58:0a:10:00:63",
		"ovn.kubernetes.io/allocated": "false", routedKey: "false",
		"net1.default.ovn.kubernetes.io/ip_address":     "10.17.0.99",
		"net1.default.ovn.kubernetes.io/mac_address":    "0a:58:0a:11:00:63",
		"net1.default.ovn.kubernetes.io/allocated":      "false",
		"net1.default.ovn.kubernetes.io/routed":         "false",
		"mv.default.kubernetes.io/ip_address":           "10.18.0.99",
		"net1.default.kubernetes.io/ip_address.eth7":    "10.17.0.98",
		"net1.default.kubernetes.io/mac_address.eth7":   "0a:58:0a:11:00:62",
		"net1.default.ovn.net2.kubernetes.io/allocated": "false",
	}
}

// free are annotations that stay anybody's: what can be asked for at any time, and what is none of our business.
func free() map[string]string {
	return map[string]string{
		"ovn.kubernetes.io/security_groups": "a,b", "ovn.kubernetes.io/port_security": "true", "ovn.kubernetes.io/port_vips": "10.16.0.50",
		"ovn.kubernetes.io/aaps": "v1", "ovn.kubernetes.io/ingress_rate": "3", "ovn.kubernetes.io/egress_rate": "4",
		"ovn.kubernetes.io/ingress_burst": "5", "ovn.kubernetes.io/latency": "6", "ovn.kubernetes.io/eip": "192.0.2.1",
		"ovn.kubernetes.io/snat": "192.0.2.2", "ovn.kubernetes.io/north_gateway": "10.16.0.60", "ovn.kubernetes.io/mirror": "true",
		"net1.default.ovn.kubernetes.io/security_groups": "c", "k8s.v1.cni.cncf.io/network-status": "[]", "team": "blue",
		"berth.dev/when-unavailable": "wait", "example.org/ip_address": "not ours", "kubernetes.io/routed": "not ours",
		"ovn.kubernetes.io/ip_address_note": "not ours", "ovn.kubernetes.io/vf": "1",
	}
}

// pod that its namespace's webhook has not seen; it carries the annotations.
func pod(name string, annotations map[string]string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}}
}

// wired is a pod with everything that is protected, our finalizer and another's.
func wired(name string) *corev1.Pod {
	p := pod(name, map[string]string{"team": "red"})
	for k := range protected() {
		p.Annotations[k] = "old"
	}
	p.Annotations[claimKey] = oldClaim
	p.Finalizers = []string{"example.org/other", network.Finalizer}
	return p
}

func binding(name string, annotations ...string) *corev1.Binding {
	b := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}, Target: corev1.ObjectReference{Kind: "Node", Name: "n1"}}
	for _, a := range annotations {
		b.Annotations[a] = "x"
	}
	return b
}

func blocks() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: "berth.dev", Version: "v1alpha1", Resource: "addressblocks"}
}

func block(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "berth.dev/v1alpha1", "kind": "AddressBlock",
		"metadata": map[string]any{"name": name, "labels": map[string]any{"berth.dev/subnet": "s"}},
		"spec":     map[string]any{"version": int64(1), "subnet": "s", "first": "10.16.0.0", "revision": int64(1)}}}
}
