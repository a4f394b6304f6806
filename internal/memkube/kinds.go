package memkube

import (
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is one line of the registration table.
type Kind struct {
	// Group, Version, Kind, Resource (plural) and Short name it.
	Group, Version, Kind, Resource string
	Short                          []string
	// Namespaced kinds live in namespaces.
	Namespaced bool
	// Status has a status subresource, apart from the main one.
	Status bool
	// Custom marks kinds of CustomResourceDefinitions, whose rules differ in places: no strategic merge patch, an
	// update must carry a resourceVersion, metadata is untouched by the status subresource.
	Custom bool
	// Conditional makes an update without resourceVersion invalid, as it is for all custom kinds.
	Conditional bool
	// Upsert lets an update create what does not exist.
	Upsert bool
	// Generation is counted: 1 at creation, one more for every change outside of metadata and status.
	Generation bool
	// KeepStatus stores the status that a create carries, although there is a status subresource.
	KeepStatus bool
}

func (k Kind) gvr() schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: k.Group, Version: k.Version, Resource: k.Resource}
}

func (k Kind) gvk() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: k.Group, Version: k.Version, Kind: k.Kind}
}

func (k Kind) apiVersion() string { return k.gvk().GroupVersion().String() }

func (k Kind) isPod() bool       { return k.Group == "" && k.Resource == "pods" }
func (k Kind) isNamespace() bool { return k.Group == "" && k.Resource == "namespaces" }

// DefaultKinds are the kinds that every Server knows. One more kind is one more line, here or in Options.Kinds.
func DefaultKinds() []Kind {
	return []Kind{
		{Version: "v1", Kind: "Pod", Resource: "pods", Short: []string{"po"}, Namespaced: true, Status: true, Generation: true},
		{Version: "v1", Kind: "Namespace", Resource: "namespaces", Short: []string{"ns"}, Status: true},
		{Version: "v1", Kind: "Node", Resource: "nodes", Short: []string{"no"}, Status: true, KeepStatus: true},
		{Version: "v1", Kind: "Secret", Resource: "secrets", Namespaced: true},
		{Version: "v1", Kind: "ConfigMap", Resource: "configmaps", Short: []string{"cm"}, Namespaced: true},
		{Version: "v1", Kind: "Event", Resource: "events", Short: []string{"ev"}, Namespaced: true, Upsert: true},
		{Version: "v1", Kind: "Service", Resource: "services", Short: []string{"svc"}, Namespaced: true, Status: true, Upsert: true},
		{Version: "v1", Kind: "ServiceAccount", Resource: "serviceaccounts", Short: []string{"sa"}, Namespaced: true},
		{Group: "apps", Version: "v1", Kind: "StatefulSet", Resource: "statefulsets", Short: []string{"sts"},
			Namespaced: true, Status: true, Generation: true},
		{Group: "apps", Version: "v1", Kind: "ReplicaSet", Resource: "replicasets", Short: []string{"rs"},
			Namespaced: true, Status: true, Generation: true},
		{Group: "apps", Version: "v1", Kind: "Deployment", Resource: "deployments", Short: []string{"deploy"},
			Namespaced: true, Status: true, Generation: true},
		{Group: "coordination.k8s.io", Version: "v1", Kind: "Lease", Resource: "leases", Namespaced: true,
			Conditional: true, Upsert: true},
		{Group: "events.k8s.io", Version: "v1", Kind: "Event", Resource: "events", Namespaced: true, Upsert: true},
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "MutatingWebhookConfiguration",
			Resource: "mutatingwebhookconfigurations", Conditional: true, Generation: true},
		{Group: "admissionregistration.k8s.io", Version: "v1", Kind: "ValidatingWebhookConfiguration",
			Resource: "validatingwebhookconfigurations", Conditional: true, Generation: true},
		{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition",
			Resource: "customresourcedefinitions", Short: []string{"crd"}, Status: true, Conditional: true, Generation: true},
		custom("berth.dev", "v1alpha1", "AddressBlock", "addressblocks", "ab", false),
		custom("kubeovn.io", "v1", "Subnet", "subnets", "subnet", true),
		custom("kubeovn.io", "v1", "Vpc", "vpcs", "vpc", true),
		custom("kubeovn.io", "v1", "IP", "ips", "ip", false),
		custom("kubeovn.io", "v1", "IPPool", "ippools", "ippool", true),
		custom("kubeovn.io", "v1", "Vip", "vips", "vip", false),
		custom("kubeovn.io", "v1", "Vlan", "vlans", "vlan", true),
		custom("kubeovn.io", "v1", "ProviderNetwork", "provider-networks", "pn", true),
		custom("kubeovn.io", "v1", "SecurityGroup", "security-groups", "sg", true),
	}
}

// custom is a cluster-scoped kind of a CustomResourceDefinition.
func custom(group, version, kind, resource, short string, status bool) Kind {
	return Kind{Group: group, Version: version, Kind: kind, Resource: resource, Short: []string{short},
		Status: status, Custom: true, Conditional: true, Generation: true}
}

// mergeKinds lays more over the defaults.
func mergeKinds(more []Kind) []Kind {
	kinds := DefaultKinds()
	at := map[schema.GroupVersionResource]int{}
	for i, k := range kinds {
		at[k.gvr()] = i
	}
	for _, k := range more {
		k.Conditional = k.Conditional || k.Custom
		if i, ok := at[k.gvr()]; ok {
			kinds[i] = k
			continue
		}
		at[k.gvr()] = len(kinds)
		kinds = append(kinds, k)
	}
	return kinds
}
