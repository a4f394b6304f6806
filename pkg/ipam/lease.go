package ipam

import (
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Lease records that an address belongs to an owner. Leases are immutable: a change makes another.
type Lease struct {
	// Address; the zero value in a lease of a MAC alone.
	Address netip.Addr
	// MAC of the interface.
	MAC MAC
	// Claim of the pod's set of leases.
	Claim Claim
	// Generation is raised by every take, bind and reuse.
	Generation int64
	// Owner who may come back to it.
	Owner Owner
	// Provider is the pod's network that the lease is for: the prefix of its annotations.
	Provider string
	// Requested tells that the address, or the MAC, was asked for.
	Requested bool
	// Under is the owner of the reservation that the address is lent from: when the lease is freed, it goes back there.
	// nil: it becomes free. Few leases have one, and every write copies some.
	Under *Owner
	// PodUID is the UID of the pod that it is bound to; empty: pending.
	PodUID string
	// PodName is that pod's name, for people.
	PodName string
	// OwnerUID is the UID of the controller that the last bound pod of a sticky owner had; empty: it is not known. An owner
	// that was made anew under the name is told from the former by it.
	OwnerUID string
	// Unknown holds words of a newer version by their keys.
	Unknown map[string]string
}

// LentFrom tells that the address is lent from the reservation.
func (l Lease) LentFrom(reservation Owner) bool { return l.Under != nil && *l.Under == reservation }

// holder says who has the lease, for people.
func (l Lease) holder() string {
	switch {
	case l.Owner.Sticky():
		return l.Owner.people()
	case l.PodName != "":
		return fmt.Sprintf("pod %s/%s", l.Owner.Namespace, l.PodName)
	}
	return fmt.Sprintf("a pod of namespace %s that is being created", l.Owner.Namespace)
}

// Held is a lease and the block that it stands in.
type Held struct {
	// Block is the block's name; Subnet the subnet's (the L2 domain's, for a MAC).
	Block, Subnet string
	Lease
}

// Ref names the lease as it was seen: a bind or free that was decided on it is void when it has changed since.
func (h Held) Ref() Ref {
	return Ref{Block: h.Block, Address: h.Address, MAC: h.MAC, Claim: h.Claim, Generation: h.Generation}
}

// Ref names one lease at one generation. MAC counts only where Address is the zero value.
type Ref struct {
	Block      string
	Address    netip.Addr
	MAC        MAC
	Claim      Claim
	Generation int64
}

// String is the address, or the MAC.
func (r Ref) String() string {
	if r.Address.IsValid() {
		return r.Address.String()
	}
	return "MAC " + r.MAC.String()
}

// Freed remembers the last use of a free address. At is Unix time in seconds; it orders reuse and nothing else.
type Freed struct {
	Address netip.Addr
	At      int64
	Owner   Owner
	Unknown map[string]string
}

// Request asks for the leases of one pod.
type Request struct {
	// Claim under which leases are taken, unless the owner or the pod has one already.
	Claim Claim
	// Existing tells that Claim may hold leases (reinvocation, late allocation): those are kept, and only what is new
	// is added.
	Existing bool
	// Shared tells that somebody else may be taking under Claim at the same time and undo what it took: what is found is
	// taken anew.
	Shared bool
	// Owner of the leases.
	Owner Owner
	// Interfaces of the pod.
	Interfaces []InterfaceRequest
	// Moment is when the pod's creation began, by the API server's clock; the zero value: it is not known. Only a Stock looks
	// at it.
	Moment time.Time
	// patient is how long the first write waits for others: nobody waits for this take.
	patient time.Duration
}

// InterfaceRequest asks for one interface.
type InterfaceRequest struct {
	// Provider is the pod's network.
	Provider string
	// Candidates to take from, in order: the first that can serve does.
	Candidates []Source
	// Families wanted; empty means all that the subnet has.
	Families []Family
	// Choices are what is asked for: each at most one address per family, and the first that can be had is given, from a
	// candidate that has it. A family without one gets an address unasked. Empty: any will do.
	Choices [][]netip.Addr
	// Reservation may be used up by this request; the zero value: none.
	Reservation Owner
	// MAC that is asked for.
	MAC MAC
	// NoMAC leaves the interface without one: somebody else makes it.
	NoMAC bool
}

// Takes tells whether the interface could be given an address of a subnet.
func (i InterfaceRequest) Takes(subnet string, a netip.Addr) bool {
	f := FamilyOf(a)
	if len(i.Families) > 0 && !slices.Contains(i.Families, f) {
		return false
	}
	chosen := false // some choice leaves the family open
	for _, choice := range i.Choices {
		if slices.Contains(choice, a) {
			return slices.ContainsFunc(i.Candidates, func(c Source) bool { return c.Subnet.name == subnet })
		}
		chosen = chosen || slices.ContainsFunc(choice, func(b netip.Addr) bool { return FamilyOf(b) == f })
	}
	return !chosen && slices.ContainsFunc(i.Candidates, func(c Source) bool {
		r := c.Subnet.region(c.Pool)
		return c.Subnet.name == subnet && r != nil && r.of(f).Contains(a)
	})
}

// Source is where addresses are taken from: a pool of a subnet, or for the empty name those that belong to none.
type Source struct {
	Subnet *Subnet
	Pool   string
}

// Allocation is what Take gave.
type Allocation struct {
	// Claim that the leases are held under: the request's, or that of leases which the owner had.
	Claim Claim
	// Interfaces in the order of the request.
	Interfaces []Assignment
}

// Assignment is what one interface got.
type Assignment struct {
	Provider string
	Subnet   *Subnet
	// Leases of addresses, IPv4 first.
	Leases []Held
	MAC    MAC
}

// Addresses of the assignment, IPv4 first.
func (a Assignment) Addresses() []netip.Addr {
	as := make([]netip.Addr, len(a.Leases))
	for i, l := range a.Leases {
		as[i] = l.Address
	}
	return as
}
