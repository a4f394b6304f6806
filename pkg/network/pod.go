package network

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-net/berth/pkg/ipam"
)

// Pod is what the contract needs to know of a pod.
type Pod struct {
	Namespace, Name, GenerateName, UID string
	Labels, Annotations                map[string]string
	OwnerReferences                    []metav1.OwnerReference
	Finalizers                         []string
	HostNetwork                        bool
	NodeName                           string
	NodeSelector                       map[string]string
	SchedulingGates                    []string
	// Networks are the attachments that the pod names, DefaultNetwork what replaces its default network. They are read by
	// whoever makes the Pod; NetworksErr says why that failed.
	Networks       []Selection
	DefaultNetwork *Selection
	NetworksErr    error
	// Plugged are the attachments that the pod's networks were made from.
	Plugged []Selection
	// OrdinalStart is the first ordinal of the pod's StatefulSet.
	OrdinalStart int
}

// PodOf reduces a pod to what the contract needs. Maps and slices are shared with p.
func PodOf(p *corev1.Pod) Pod {
	out := Pod{Namespace: p.Namespace, Name: p.Name, GenerateName: p.GenerateName, UID: string(p.UID), Labels: p.Labels,
		Annotations: p.Annotations, OwnerReferences: p.OwnerReferences, Finalizers: p.Finalizers,
		HostNetwork: p.Spec.HostNetwork, NodeName: p.Spec.NodeName, NodeSelector: p.Spec.NodeSelector}
	for _, g := range p.Spec.SchedulingGates {
		out.SchedulingGates = append(out.SchedulingGates, g.Name)
	}
	return out
}

// String names the pod for people, by generateName when it has no name yet.
func (p Pod) String() string {
	if p.Name == "" && p.GenerateName != "" {
		return p.Namespace + "/" + p.GenerateName + "*"
	}
	return p.Namespace + "/" + p.Name
}

// Controller gives the reference to the pod's controller.
func (p Pod) Controller() (metav1.OwnerReference, bool) {
	for _, r := range p.OwnerReferences {
		if r.Controller != nil && *r.Controller {
			return r, true
		}
	}
	return metav1.OwnerReference{}, false
}

// Kinds of owners that pods come back to, and their groups.
const (
	kindStatefulSet = "StatefulSet"
	// KindVM is a KubeVirt virtual machine, or an instance without one.
	KindVM        = "VirtualMachine"
	kindVMI       = "VirtualMachineInstance"
	kubeVirtGroup = "kubevirt.io"
	kubeOVNGroup  = "kubeovn.io"
)

// OwnerOf tells who may come back to the pod's leases: a StatefulSet's pod under its own name, a virtual machine, a
// pod of a kind that the configuration names; else nobody.
func OwnerOf(p Pod, cfg Config) ipam.Owner {
	ref, ok := p.Controller()
	if !ok {
		return ipam.PodOwner(p.Namespace)
	}
	gv, err := schema.ParseGroupVersion(ref.APIVersion)
	if err != nil {
		return ipam.PodOwner(p.Namespace)
	}
	owner := ipam.Owner{Group: gv.Group, Kind: ref.Kind, Namespace: p.Namespace, Name: p.Name}
	switch {
	case ref.Kind == kindStatefulSet && (gv.Group == "apps" || gv.Group == "apps.kruise.io"):
		if _, ok := Ordinal(ref.Name, p.Name); ok {
			return owner
		}
	case gv.Group == kubeVirtGroup && ref.Kind == kindVMI && !cfg.ForgetVMs:
		// An instance has its machine's name.
		return ipam.Owner{Group: gv.Group, Kind: KindVM, Namespace: p.Namespace, Name: ref.Name}
	case slices.Contains(cfg.Owners, OwnerKind{Group: gv.Group, Kind: ref.Kind}) && p.Name != "":
		owner.Name = ref.Name + ":" + p.Name // who must exist, and whose address it is
		return owner
	}
	return ipam.PodOwner(p.Namespace)
}

// Ordinal reads the ordinal of a StatefulSet's pod from its name, <set>-<ordinal>.
func Ordinal(set, pod string) (int, bool) {
	digits, ok := strings.CutPrefix(pod, set+"-")
	if !ok || set == "" {
		return 0, false
	}
	n, err := strconv.ParseUint(digits, 10, 31)
	if err != nil || strconv.FormatUint(n, 10) != digits {
		return 0, false
	}
	return int(n), true
}

// Skip tells whether the pod gets no address from us, and why. Whether its namespace has opted in is for the caller:
// the webhook's selector, or the worker.
func Skip(p Pod) (reason string, skip bool) {
	switch {
	case p.HostNetwork:
		return "it uses the host's network", true
	case p.Labels[LabelInject] == InjectDisabled:
		return "it is labelled " + LabelInject + "=" + InjectDisabled, true
	}
	if _, ok := p.Annotations[mirrorKey]; ok {
		return "it is a mirror of a static pod", true
	}
	if what, ok := Gateway(p); ok {
		return "it is " + what, true
	}
	return "", false
}

// Gateway tells whether the pod is one of Kube-OVN's own gateways, and which: its controller plugs it into networks in
// ways of its own.
func Gateway(p Pod) (what string, ok bool) {
	_, nat := p.Labels[natGatewayLabel]
	_, egress := p.Labels[egressGatewayLabel]
	service := p.Labels["service"]
	switch {
	case p.Annotations[natGatewayKey] != "" || nat:
		return "a NAT gateway of Kube-OVN", true
	case egress:
		return "an egress gateway of Kube-OVN", true
	case service != "" && p.Labels["app"] == "lb-svc-"+service && p.Labels["namespace"] == p.Namespace:
		return "the load balancer of Service " + service + " by Kube-OVN", true
	}
	return "", false
}

// Asks tells which annotations of the pod ask for something that a pod without a network of its own can't have.
func Asks(p Pod) []string {
	if _, ok := p.Annotations[ClaimKey]; ok {
		return nil
	}
	var keys []string
	for k, v := range p.Annotations {
		_, suffix, ok := SplitKey(k)
		if ok && strings.TrimSpace(v) != "" && slices.Contains([]string{SuffixSubnet, SuffixAddress, SuffixMAC, SuffixFamily, SuffixPool, SuffixVip}, suffix) {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

// NeedsOrdinalStart tells whether the plan of the pod depends on the first ordinal of its StatefulSet: a list of
// addresses is counted from there.
func NeedsOrdinalStart(p Pod) bool {
	if p.Annotations[OrdinalRuleKey] == OrdinalRuleKubeOVN || OwnerOf(p, Config{}).Kind != kindStatefulSet {
		return false
	}
	for k, v := range p.Annotations {
		if _, suffix, ok := SplitKey(k); ok && suffix == SuffixPool && strings.ContainsAny(v, ",;.:") {
			return true
		}
	}
	return false
}
