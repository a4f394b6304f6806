// Package v1alpha1 holds Berth's own API, group berth.dev.
//
// Invariant: an AddressBlock is the only record of who holds an address. It is written by PUT or DELETE with a
// resourceVersion, never by patch or apply, so every change is a compare-and-swap. Fields that this version of the
// code does not know survive a read and a write.
//
// +kubebuilder:object:generate=true
// +groupName=berth.dev
package v1alpha1

import (
	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName is the API group of Berth's own objects.
const GroupName = "berth.dev"

// GroupVersion returns the group and version of this package.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
}

// AddToScheme registers the types of this package.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion(), &AddressBlock{}, &AddressBlockList{})
	v1.AddToGroupVersion(s, GroupVersion())
	return nil
}
