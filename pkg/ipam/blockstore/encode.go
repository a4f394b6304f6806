package blockstore

import (
	"cmp"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/pkg/api/berth/v1alpha1"
	"github.com/berth-net/berth/pkg/ipam"
)

// MalformedError says that a stored block can't be read.
type MalformedError struct {
	// Block is the name of the AddressBlock, Field the path of what is wrong in it.
	Block, Field string
	// Err says what is wrong.
	Err error
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("AddressBlock %s: %s: %v: restore the object from a backup, or delete it to have it rebuilt", e.Block, e.Field, e.Err)
}

// Unwrap returns what is wrong.
func (e *MalformedError) Unwrap() error { return e.Err }

// encode writes b as an object.
func encode(b *ipam.Block) *v1alpha1.AddressBlock {
	o := &v1alpha1.AddressBlock{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.GroupVersion().String(), Kind: "AddressBlock"},
		ObjectMeta: metav1.ObjectMeta{Name: b.Name, ResourceVersion: b.ResourceVersion, UID: types.UID(b.UID), Labels: map[string]string{}},
		Spec: v1alpha1.AddressBlockSpec{Version: b.Version, Subnet: b.Subnet, SubnetUID: b.SubnetUID, Revision: b.Revision,
			Unknown: b.Unknown, Leases: make([]string, 0, len(b.Leases)), Freed: make([]string, 0, len(b.Freed))},
	}
	// An empty entry resets the fields' owners, which the API server then tracks no longer: comparing a full block field by
	// field is the greater part of what a write costs it, and nobody else writes blocks.
	o.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	if k, ok := b.Kept.(kept); ok {
		maps.Copy(o.Labels, k.labels)
		o.Annotations, o.Finalizers, o.OwnerReferences = k.annotations, k.finalizers, k.owners
	}
	o.Labels[v1alpha1.LabelSubnet], o.Labels[v1alpha1.LabelKind] = b.Subnet, v1alpha1.KindAddresses
	if b.MACs() {
		o.Labels[v1alpha1.LabelKind] = v1alpha1.KindMACs
	} else {
		o.Spec.First = b.First.String()
	}
	for _, l := range b.Leases {
		if l.Owner.Sticky() {
			o.Labels[v1alpha1.OwnerLabel(l.Owner.String())] = ""
		}
		o.Spec.Leases = append(o.Spec.Leases, encodeLease(l).String())
	}
	for _, f := range b.Freed {
		w := v1alpha1.Freed{Address: f.Address.String(), At: f.At, Unknown: f.Unknown}
		if f.Owner != (ipam.Owner{}) {
			w.Owner = f.Owner.String()
		}
		o.Spec.Freed = append(o.Spec.Freed, w.String())
	}
	return o
}

// kept is what others have put on a block's object. It is never changed.
type kept struct {
	labels, annotations map[string]string
	finalizers          []string
	owners              []metav1.OwnerReference
}

// keptOf gives what others have put on o, or nil.
func keptOf(o *metav1.ObjectMeta) any {
	labels := maps.Clone(o.Labels)
	delete(labels, v1alpha1.LabelSubnet)
	delete(labels, v1alpha1.LabelKind)
	maps.DeleteFunc(labels, func(k, _ string) bool { return strings.HasPrefix(k, v1alpha1.LabelOwner) })
	if len(labels)+len(o.Annotations)+len(o.Finalizers)+len(o.OwnerReferences) == 0 {
		return nil
	}
	return kept{labels, o.Annotations, o.Finalizers, o.OwnerReferences}
}

// read reads an object. The block of one that can't be read says so by its version; the error says why.
func read(o *v1alpha1.AddressBlock) (*ipam.Block, error) {
	b, err := decode(o)
	if err == nil {
		return b, nil
	}
	sealed := &ipam.Block{Name: o.Name, Subnet: cmp.Or(o.Spec.Subnet, o.Labels[v1alpha1.LabelSubnet]), SubnetUID: o.Spec.SubnetUID,
		Version: ipam.Unreadable, ResourceVersion: o.ResourceVersion, UID: string(o.UID)}
	// The name tells which addresses it is about, whatever is wrong inside.
	if i := strings.LastIndexByte(o.Name, '-'); i >= 0 {
		if raw, err := hex.DecodeString(o.Name[i+1:]); err == nil {
			if first, ok := netip.AddrFromSlice(raw); ok && first == blockFirst(first) {
				sealed.First, sealed.Subnet = first, o.Name[:i]
			}
		}
	}
	return sealed, err
}

func encodeLease(l *ipam.Lease) v1alpha1.Lease {
	w := v1alpha1.Lease{MAC: l.MAC.String(), Claim: string(l.Claim), Generation: l.Generation, Owner: l.Owner.String(), OwnerUID: l.OwnerUID, Provider: l.Provider,
		Requested: l.Requested, PodUID: l.PodUID, PodName: l.PodName, Unknown: l.Unknown}
	if l.Under != nil {
		w.Under = l.Under.String()
	}
	if l.Address.IsValid() {
		w.Address = l.Address.String()
		if l.Address.Is4() && l.MAC == ipam.DerivedMAC(l.Address) {
			w.MAC = ""
		}
	}
	return w
}

// decode reads an object. What it returns shares nothing with o that is ever changed.
func decode(o *v1alpha1.AddressBlock) (*ipam.Block, error) {
	s := &o.Spec
	b := &ipam.Block{Name: o.Name, Subnet: s.Subnet, SubnetUID: s.SubnetUID, Version: s.Version, Revision: s.Revision,
		ResourceVersion: o.ResourceVersion, UID: string(o.UID), Unknown: maps.Clone(s.Unknown), Kept: keptOf(&o.ObjectMeta)}
	bad := func(field string, err error) (*ipam.Block, error) {
		return nil, &MalformedError{Block: o.Name, Field: field, Err: err}
	}
	if s.Subnet == "" {
		return bad("spec.subnet", errors.New("is empty"))
	}
	switch kind := o.Labels[v1alpha1.LabelKind]; {
	case s.First != "":
		first, err := parseAddr(s.First)
		if err != nil {
			return bad("spec.first", err)
		}
		if first != blockFirst(first) {
			return bad("spec.first", fmt.Errorf("%s is not the first of %d addresses", first, ipam.BlockSize))
		}
		b.First = first
	case kind == v1alpha1.KindAddresses:
		return bad("spec.first", errors.New("is empty in a block of addresses"))
	}
	for i := range s.Leases {
		l, err := decodeLease(b, s.Leases[i])
		if err != nil {
			return bad(fmt.Sprintf("spec.leases[%d]", i), err)
		}
		b.Leases = append(b.Leases, l)
	}
	slices.SortFunc(b.Leases, compareLeases)
	for i := 1; i < len(b.Leases); i++ {
		if compareLeases(b.Leases[i-1], b.Leases[i]) == 0 {
			return bad("spec.leases", fmt.Errorf("%s is leased twice", ipam.Held{Lease: *b.Leases[i]}.Ref()))
		}
	}
	if i, err := decodeFreed(b, s.Freed); err != nil {
		return bad(fmt.Sprintf("spec.freed[%d]", i), err)
	}
	return b, nil
}

func decodeLease(b *ipam.Block, text string) (*ipam.Lease, error) {
	w, err := v1alpha1.ParseLease(text)
	if err != nil {
		return nil, err
	}
	bad := func(key string, err error) (*ipam.Lease, error) { return nil, &v1alpha1.WordError{Key: key, Err: err} }
	l := &ipam.Lease{Generation: w.Generation, OwnerUID: w.OwnerUID, Provider: w.Provider, Requested: w.Requested, PodUID: w.PodUID, PodName: w.PodName,
		Unknown: w.Unknown}
	var ok bool
	if l.Claim, ok = ipam.ParseClaim(w.Claim); !ok {
		return bad("c", fmt.Errorf("%q is not a claim of 32 hexadecimal digits", w.Claim))
	}
	if l.Owner, err = ipam.ParseOwner(w.Owner); err != nil {
		return bad("o", err)
	}
	if w.Under != "" {
		under, err := ipam.ParseOwner(w.Under)
		if err != nil {
			return bad("v", err)
		}
		l.Under = &under
	}
	if w.MAC != "" {
		if l.MAC, err = ipam.ParseMAC(w.MAC); err != nil {
			return bad("mac", err)
		}
	}
	if b.MACs() {
		switch {
		case w.Address != "":
			return bad("ip", fmt.Errorf("%q stands in a bucket of MACs", w.Address))
		case w.MAC == "":
			return bad("mac", errors.New("is empty in a bucket of MACs"))
		}
		return l, nil
	}
	if l.Address, err = addressIn(b, w.Address); err != nil {
		return bad("ip", err)
	}
	if w.MAC == "" && l.Address.Is4() {
		l.MAC = ipam.DerivedMAC(l.Address)
	}
	return l, nil
}

// decodeFreed reads what is remembered of free addresses, or says which can't be read. Of an address that is leased
// nothing needs to be remembered.
func decodeFreed(b *ipam.Block, freed []string) (int, error) {
	if b.MACs() {
		return 0, nil
	}
	leased := make(map[netip.Addr]bool, len(b.Leases))
	for _, l := range b.Leases {
		leased[l.Address] = true
	}
	for i, text := range freed {
		w, err := v1alpha1.ParseFreed(text)
		if err != nil {
			return i, err
		}
		f := ipam.Freed{At: w.At, Unknown: w.Unknown}
		if f.Address, err = addressIn(b, w.Address); err != nil {
			return i, &v1alpha1.WordError{Key: "ip", Err: err}
		}
		if w.Owner != "" {
			if f.Owner, err = ipam.ParseOwner(w.Owner); err != nil {
				return i, &v1alpha1.WordError{Key: "o", Err: err}
			}
		}
		if !leased[f.Address] {
			leased[f.Address] = true // once is enough
			b.Freed = append(b.Freed, f)
		}
	}
	slices.SortFunc(b.Freed, func(x, y ipam.Freed) int { return x.Address.Compare(y.Address) })
	return 0, nil
}

func compareLeases(a, b *ipam.Lease) int {
	if c := a.Address.Compare(b.Address); c != 0 || a.Address.IsValid() {
		return c
	}
	return strings.Compare(string(a.MAC[:]), string(b.MAC[:]))
}

func addressIn(b *ipam.Block, s string) (netip.Addr, error) {
	a, err := parseAddr(s)
	if err != nil {
		return a, err
	}
	if blockFirst(a) != b.First {
		return a, fmt.Errorf("%s does not belong in the block of %s", a, b.First)
	}
	return a, nil
}

func parseAddr(s string) (netip.Addr, error) {
	a, err := netip.ParseAddr(s)
	if err != nil {
		return a, err
	}
	if a.Zone() != "" || a.Is4In6() {
		return a, fmt.Errorf("%s has a zone, or is an IPv4 address written as IPv6", a)
	}
	return a, nil
}

// blockFirst gives the first address of the block that a belongs to.
func blockFirst(a netip.Addr) netip.Addr {
	b := a.AsSlice()
	b[len(b)-1] &^= ipam.BlockSize - 1
	first, _ := netip.AddrFromSlice(b)
	return first
}
