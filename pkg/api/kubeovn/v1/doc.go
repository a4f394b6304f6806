// Package v1 holds the kinds of Kube-OVN's API (group kubeovn.io) that Berth reads or writes, with only the fields
// that it needs.
//
// Invariant: objects of these types are never sent back whole. Updates are patches of single fields, so that fields
// which this package doesn't know survive.
//
// +kubebuilder:object:generate=true
// +groupName=kubeovn.io
package v1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is Kube-OVN's API group.
const GroupName = "kubeovn.io"

// GroupVersion returns the group and version of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1"}
}

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(),
		&Subnet{}, &SubnetList{}, &Vpc{}, &VpcList{}, &IP{}, &IPList{}, &IPPool{}, &IPPoolList{}, &Vip{}, &VipList{},
		&Vlan{}, &VlanList{}, &ProviderNetwork{}, &ProviderNetworkList{}, &SecurityGroup{}, &SecurityGroupList{})
	metav1.AddToGroupVersion(s, GroupVersion())
	return nil
}
