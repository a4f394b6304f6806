package lifecycle

import (
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// OwnerFacts is what is known of the object of a sticky owner.
type OwnerFacts struct {
	// Found tells whether the object exists. Unknown when that could not be read, or was not understood.
	Found Answer
	// UID of the object; empty where it tells nothing, for the pods' controller is another object.
	UID string
	// Deleting tells that it is being deleted.
	Deleting bool
	// Ordinals are those that it wants pods of; nil where pods have none.
	Ordinals *Ordinals
	// Networks are the networks that its spec names; nil where that doesn't matter.
	Networks *Networks
}

// Ordinals are the numbers of the pods that a StatefulSet wants.
type Ordinals struct {
	Start, Replicas int64
	// Reserved ones are passed over, as OpenKruise has it.
	Reserved []int64
}

// Want tells whether the set wants the pod of that number.
func (o Ordinals) Want(n int64) bool {
	if n < o.Start || slices.Contains(o.Reserved, n) {
		return false
	}
	before := n - o.Start
	seen := map[int64]bool{}
	for _, r := range o.Reserved {
		if r >= o.Start && r < n && !seen[r] {
			seen[r] = true
			before--
		}
	}
	return before < o.Replicas
}

// Networks are the networks that an owner's pods are to have.
type Networks struct {
	// Subnets are those that the network of a provider may be in; a provider without an entry may be in any.
	Subnets map[string][]string
	// Providers are the attachments; nil: nothing is known of them. The default network is always there.
	Providers []string
	// Vague tells that not all providers could be read.
	Vague bool
}

// has tells whether the owner still wants the lease's network. Every pod has the default one; the several interfaces of one attachment have its
// provider and more after a dot.
func (n *Networks) has(l ipam.Held) Answer {
	if want, ok := n.Subnets[l.Provider]; ok && l.Address.IsValid() && !slices.Contains(want, l.Subnet) {
		return No
	}
	if n.Providers == nil || l.Provider == network.DefaultProvider || slices.ContainsFunc(n.Providers, func(p string) bool {
		return l.Provider == p || strings.HasPrefix(l.Provider, p+".")
	}) {
		return Yes
	}
	if n.Vague {
		return Unknown
	}
	return No
}

// Keeps tells whether a sticky owner still wants a lease, by what is known of its object. Existence follows the
// controller that the lease's last pod had, and the owner's name: an object of another UID that has adopted no pod of
// the lease has only its name in common with the owner. number is the ordinal of the lease's pod, where pods have one.
func Keeps(l ipam.Held, o OwnerFacts, number int64) Answer {
	switch {
	case o.Found != Yes:
		return o.Found
	case o.Deleting:
		return No
	case l.OwnerUID != "" && o.UID != "" && l.OwnerUID != o.UID:
		return No
	case o.Ordinals != nil && !o.Ordinals.Want(number):
		return No
	case o.Networks != nil:
		return o.Networks.has(l)
	}
	return Yes
}
