package v1alpha1

import (
	"bytes"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// LabelSubnet is on every AddressBlock: the name of the Subnet (or, on buckets of MACs, of the L2 domain).
	LabelSubnet = "berth.dev/subnet"
	// LabelKind is on every AddressBlock: KindAddresses or KindMACs.
	LabelKind = "berth.dev/block"

	// KindAddresses marks a block of 64 consecutive addresses.
	KindAddresses = "addresses"
	// KindMACs marks a bucket of MACs that were asked for or hashed.
	KindMACs = "macs"

	// FormatVersion is the version of the encoding that this code writes. A block of a higher version is read, never
	// written.
	FormatVersion = 1
)

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
	// Leases, sorted by address (or by MAC). Written as a whole.
	// +optional
	// +listType=atomic
	Leases []Lease `json:"leases,omitempty"`
	// Freed remembers when addresses of this block were freed and by whom, so that a restart keeps their rest.
	// +optional
	// +listType=atomic
	Freed []Freed `json:"freed,omitempty"`

	// Unknown holds fields written by a newer version.
	Unknown map[string]json.RawMessage `json:"-"`
}

// Lease records that an address belongs to an owner. Keys are short: there are 64 in a block.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Lease struct {
	// Address; empty in a bucket of MACs.
	// +optional
	Address string `json:"ip,omitempty"`
	// MAC, unless it is derived from an IPv4 address (0a:58 and its four bytes).
	// +optional
	MAC string `json:"mac,omitempty"`
	// Claim is the random id of one pod's set of leases: 32 hexadecimal digits.
	Claim string `json:"c"`
	// Generation is raised by every take, bind and reuse.
	Generation int64 `json:"g"`
	// Owner is who may come back to this lease: "[group/]Kind/namespace/name".
	Owner string `json:"o"`
	// Provider is the network of the pod that the lease is for, as in its annotations' prefix.
	// +optional
	Provider string `json:"n,omitempty"`
	// Requested tells that the address was asked for.
	// +optional
	Requested bool `json:"r,omitempty"`
	// Under is the owner of the reservation that the address is lent from and goes back to when it is freed.
	// +optional
	Under string `json:"v,omitempty"`
	// PodUID is the UID of the pod that the lease is bound to; empty while it is pending.
	// +optional
	PodUID string `json:"u,omitempty"`
	// PodName is the name of that pod, for people.
	// +optional
	PodName string `json:"p,omitempty"`

	// Unknown holds fields written by a newer version.
	Unknown map[string]json.RawMessage `json:"-"`
}

// Freed remembers the last use of a free address.
//
// +kubebuilder:pruning:PreserveUnknownFields
type Freed struct {
	// Address that was freed.
	Address string `json:"ip"`
	// At is when, in seconds of Unix time on the clock of whoever freed it. It orders reuse and nothing else.
	At int64 `json:"t"`
	// Owner who had it: the rest does not hold for them.
	// +optional
	Owner string `json:"o,omitempty"`

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

type (
	plainSpec  AddressBlockSpec
	plainLease Lease
	plainFreed Freed
)

// UnmarshalJSON keeps the fields that it does not know.
func (s *AddressBlockSpec) UnmarshalJSON(b []byte) (err error) {
	s.Unknown, err = unmarshalKeeping(b, (*plainSpec)(s), "version", "subnet", "subnetUID", "first", "revision", "leases", "freed")
	return err
}

// MarshalJSON writes back the fields that were not known when it was read.
func (s AddressBlockSpec) MarshalJSON() ([]byte, error) {
	return marshalWith(plainSpec(s), s.Unknown)
}

// UnmarshalJSON keeps the fields that it does not know.
func (l *Lease) UnmarshalJSON(b []byte) (err error) {
	l.Unknown, err = unmarshalKeeping(b, (*plainLease)(l), "ip", "mac", "c", "g", "o", "n", "r", "v", "u", "p")
	return err
}

// MarshalJSON writes back the fields that were not known when it was read.
func (l Lease) MarshalJSON() ([]byte, error) { return marshalWith(plainLease(l), l.Unknown) }

// UnmarshalJSON keeps the fields that it does not know.
func (f *Freed) UnmarshalJSON(b []byte) (err error) {
	f.Unknown, err = unmarshalKeeping(b, (*plainFreed)(f), "ip", "t", "o")
	return err
}

// MarshalJSON writes back the fields that were not known when it was read.
func (f Freed) MarshalJSON() ([]byte, error) { return marshalWith(plainFreed(f), f.Unknown) }

// unmarshalKeeping decodes b into v and returns the members of b that are not in known.
func unmarshalKeeping[T any](b []byte, v *T, known ...string) (map[string]json.RawMessage, error) {
	if err := json.Unmarshal(b, v); err != nil {
		return nil, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(b, &all); err != nil {
		return nil, err
	}
	for _, k := range known {
		delete(all, k)
	}
	if len(all) == 0 {
		return nil, nil
	}
	return all, nil
}

func marshalWith(v any, unknown map[string]json.RawMessage) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil || len(unknown) == 0 {
		return b, err
	}
	extra, err := json.Marshal(unknown)
	if err != nil {
		return nil, fmt.Errorf("fields of a newer version: %w", err)
	}
	if bytes.Equal(b, []byte("{}")) {
		return extra, nil
	}
	b[len(b)-1] = ','
	return append(b, extra[1:]...), nil
}
