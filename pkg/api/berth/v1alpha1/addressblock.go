package v1alpha1

import (
	"encoding/json"
	"fmt"
	"hash/fnv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LabelSubnet is on every AddressBlock: the name of the Subnet (or, on buckets of MACs, of the L2 domain).
	LabelSubnet = "berth.dev/subnet"
	// LabelKind is on every AddressBlock: KindAddresses or KindMACs.
	LabelKind = "berth.dev/block"
	// LabelOwner is the prefix of the labels of the buckets that a block's sticky owners are in: see OwnerLabel.
	LabelOwner = "berth.dev/owner-"

	// KindAddresses marks a block of 64 consecutive addresses.
	KindAddresses = "addresses"
	// KindMACs marks a bucket of MACs that were asked for or hashed.
	KindMACs = "macs"

	// FormatVersion is the version of the encoding that this code writes. A block of a higher version is read, never
	// written.
	FormatVersion = 1
)

// OwnerLabel is on every AddressBlock that has a lease of the sticky owner, and of some others: owners are in 256 buckets
// by their hash (FNV-1a, folded to a byte). Whoever looks for the leases of one owner needs not read all blocks.
func OwnerLabel(owner string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(owner))
	sum := h.Sum32()
	return fmt.Sprintf("%s%02x", LabelOwner, byte(sum>>24)^byte(sum>>16)^byte(sum>>8)^byte(sum))
}

// AddressBlock holds the leases of 64 consecutive addresses of one subnet (v4 /26, v6 /122, aligned in the address
// space), or one bucket of MACs of an L2 domain. It is the unit of compare-and-swap.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ab
// +kubebuilder:printcolumn:name="Subnet",type=string,JSONPath=`.spec.subnet`
// +kubebuilder:printcolumn:name="First",type=string,JSONPath=`.spec.first`
// +kubebuilder:printcolumn:name="Revision",type=integer,JSONPath=`.spec.revision`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type AddressBlock struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +kubebuilder:pruning:PreserveUnknownFields
	Spec AddressBlockSpec `json:"spec"`
}

// AddressBlockSpec is the content of a block.
type AddressBlockSpec struct {
	// Version is the version of the encoding.
	Version int `json:"version"`
	// Subnet is the name of the Subnet, or of the L2 domain for a bucket of MACs.
	Subnet string `json:"subnet"`
	// SubnetUID is the UID of the Subnet. A block of another UID is never reused.
	// +optional
	SubnetUID string `json:"subnetUID,omitempty"`
	// First is the first address of the block; empty for a bucket of MACs.
	// +optional
	First string `json:"first,omitempty"`
	// Revision counts every take, bind and free in this block. A lease's generation is the revision that it was
	// last changed at.
	Revision int64 `json:"revision"`
	// Leases, one text each (see Lease), sorted by address (or by MAC). Written as a whole. Texts, because the API server
	// walks and tracks every field of an object that it is given: a full block of objects costs it three times as much.
	// +optional
	// +listType=atomic
	Leases []string `json:"leases,omitempty"`
	// Freed remembers when addresses of this block were freed and by whom, so that a restart keeps their rest: one text
	// each (see Freed).
	// +optional
	// +listType=atomic
	Freed []string `json:"freed,omitempty"`

	// Unknown holds fields written by a newer version.
	Unknown map[string]json.RawMessage `json:"-"`
}

// AddressBlockList is a list of blocks.
//
// +kubebuilder:object:root=true
type AddressBlockList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []AddressBlock `json:"items"`
}

type plainSpec AddressBlockSpec

// UnmarshalJSON keeps the fields that it does not know.
func (s *AddressBlockSpec) UnmarshalJSON(b []byte) error {
	if err := json.Unmarshal(b, (*plainSpec)(s)); err != nil {
		return err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return err
	}
	for _, k := range []string{"version", "subnet", "subnetUID", "first", "revision", "leases", "freed"} {
		delete(all, k)
	}
	s.Unknown = nil
	if len(all) > 0 {
		s.Unknown = all
	}
	return nil
}

// MarshalJSON writes back the fields that were not known when it was read.
func (s AddressBlockSpec) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(plainSpec(s))
	if err != nil || len(s.Unknown) == 0 {
		return b, err
	}
	extra, err := json.Marshal(s.Unknown)
	if err != nil {
		return nil, fmt.Errorf("fields of a newer version: %w", err)
	}
	b[len(b)-1] = ','
	return append(b, extra[1:]...), nil
}
