package ipam

import (
	"fmt"
	"strings"
)

// KindPod is the kind of owner of a pod that nobody comes back for.
const KindPod = "Pod"

// Kinds of owners that are no pods: what they have is reserved. Their group is Kube-OVN's, but for nodes, whose is the
// core group.
const (
	KindVip    = "Vip"
	KindIP     = "IP"
	KindNode   = "Node"
	KindSubnet = "Subnet"

	KindOvnEip      = "OvnEip"
	KindIptablesEIP = "IptablesEIP"
)

// Owner is who may come back to the same leases. Owners are compared whole, never by a part of them.
type Owner struct {
	// Group is the API group of Kind; empty for the core group.
	Group string
	// Kind is KindPod, StatefulSet, VirtualMachine, or another that the configuration names.
	Kind string
	// Namespace of the owner.
	Namespace string
	// Name of the pod that comes back under its own name (a StatefulSet's), or of the VM. Empty for KindPod: at
	// admission a pod made from generateName has none.
	Name string
}

// PodOwner is the owner of the leases of a pod that nobody comes back for.
func PodOwner(namespace string) Owner { return Owner{Kind: KindPod, Namespace: namespace} }

// Sticky tells whether the owner's leases outlive its pods.
func (o Owner) Sticky() bool { return o.Kind != KindPod }

// Reserves tells whether the owner is no pod, and what it has is kept from pods.
func (o Owner) Reserves() bool {
	switch o.Kind {
	case KindVip, KindIP, KindNode, KindSubnet, KindOvnEip, KindIptablesEIP:
		return true
	}
	return false
}

// people names the owner as people do.
func (o Owner) people() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return fmt.Sprintf("%s %s/%s", o.Kind, o.Namespace, o.Name)
}

// String gives "[group/]kind/namespace/name", which ParseOwner reads.
func (o Owner) String() string {
	s := o.Kind + "/" + o.Namespace + "/" + o.Name
	if o.Group != "" {
		s = o.Group + "/" + s
	}
	return s
}

// ParseOwner reads what String wrote.
func ParseOwner(s string) (Owner, error) {
	switch f := strings.Split(s, "/"); {
	case len(f) == 3 && f[0] != "":
		return Owner{Kind: f[0], Namespace: f[1], Name: f[2]}, nil
	case len(f) == 4 && f[0] != "" && f[1] != "":
		return Owner{Group: f[0], Kind: f[1], Namespace: f[2], Name: f[3]}, nil
	}
	return Owner{}, fmt.Errorf("owner %q is not of the form [group/]kind/namespace/name", s)
}
