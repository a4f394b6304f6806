package ipam

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Refusal is an error that is the asker's to mend: what was asked for can't be given. Every other error of this
// package is a fault of the system.
type Refusal interface {
	error
	// Reason is a stable word for metrics and logs.
	Reason() string
	// Unavailable tells that the same request may succeed later.
	Unavailable() bool
}

// AsRefusal finds a Refusal in err's chain.
func AsRefusal(err error) (Refusal, bool) {
	var r Refusal
	ok := errors.As(err, &r)
	return r, ok
}

// NotInSubnetError says that an address that was asked for is outside the subnet's usable range.
type NotInSubnetError struct {
	Subnet   string
	Address  netip.Addr
	Prefixes []netip.Prefix
}

func (e *NotInSubnetError) Error() string {
	ps := make([]string, len(e.Prefixes))
	for i, p := range e.Prefixes {
		ps[i] = p.String()
	}
	return fmt.Sprintf("address %s can't be had in subnet %s: ask for a host address of %s (not its network or broadcast address)",
		e.Address, e.Subnet, strings.Join(ps, ", "))
}

// Reason is OutOfRange.
func (e *NotInSubnetError) Reason() string { return "OutOfRange" }

// Unavailable is false.
func (e *NotInSubnetError) Unavailable() bool { return false }

// GatewayError says that the subnet's gateway was asked for.
type GatewayError struct {
	Subnet  string
	Address netip.Addr
}

func (e *GatewayError) Error() string {
	return fmt.Sprintf("address %s is the gateway of subnet %s: ask for another", e.Address, e.Subnet)
}

// Reason is Gateway.
func (e *GatewayError) Reason() string { return "Gateway" }

// Unavailable is false.
func (e *GatewayError) Unavailable() bool { return false }

// ReservedError says that an address that was asked for is reserved for somebody who is no pod.
type ReservedError struct {
	Subnet  string
	Address netip.Addr
	For     Owner
}

func (e *ReservedError) Error() string {
	return fmt.Sprintf("address %s of subnet %s is reserved for %s: ask for another", e.Address, e.Subnet, e.For.people())
}

// Reason is Reserved.
func (e *ReservedError) Reason() string { return "Reserved" }

// Unavailable is true.
func (e *ReservedError) Unavailable() bool { return true }

// HeldError says that an address that was asked for has a holder.
type HeldError struct {
	Subnet  string
	Address netip.Addr
	Holder  Lease
}

func (e *HeldError) Error() string {
	return fmt.Sprintf("address %s of subnet %s is held by %s: ask for another, or delete the holder first", e.Address, e.Subnet, e.Holder.holder())
}

// Reason is AddressHeld.
func (e *HeldError) Reason() string { return "AddressHeld" }

// Unavailable is true.
func (e *HeldError) Unavailable() bool { return true }

// FormerSubnetError says that an address that was asked for stands in a block with leases of a former subnet of the name:
// a block is one subnet's at a time.
type FormerSubnetError struct {
	Subnet, Block string
	// Holder has one of the leases.
	Holder Lease
}

func (e *FormerSubnetError) Error() string {
	return fmt.Sprintf("addresses of block %s of subnet %s are still leased from a former subnet of this name, %s by %s: ask for an address elsewhere, or delete the holders first",
		e.Block, e.Subnet, e.Holder.Address, e.Holder.holder())
}

// Reason is FormerSubnet.
func (e *FormerSubnetError) Reason() string { return "FormerSubnet" }

// Unavailable is true.
func (e *FormerSubnetError) Unavailable() bool { return true }

// MACHeldError says that a MAC that was asked for has a holder in the L2 domain.
type MACHeldError struct {
	Domain string
	MAC    MAC
	Holder Lease
}

func (e *MACHeldError) Error() string {
	return fmt.Sprintf("MAC %s is held in %s by %s: ask for another, or delete the holder first", e.MAC, e.Domain, e.Holder.holder())
}

// Reason is MACHeld.
func (e *MACHeldError) Reason() string { return "MACHeld" }

// Unavailable is true.
func (e *MACHeldError) Unavailable() bool { return true }

// MACReservedError says that a MAC was asked for whose form is kept for MACs derived from addresses.
type MACReservedError struct{ MAC MAC }

func (e *MACReservedError) Error() string {
	return fmt.Sprintf("MAC %s can't be asked for: 0a:58 is kept for MACs derived from IPv4 addresses; ask for it together with its own address, or for another", e.MAC)
}

// Reason is MACReserved.
func (e *MACReservedError) Reason() string { return "MACReserved" }

// Unavailable is false.
func (e *MACReservedError) Unavailable() bool { return false }

// ExhaustedError says that no address is free. It is only given after a live read of the blocks concerned.
type ExhaustedError struct {
	Subnet string
	// Pool is the pool of the subnet that was asked; empty: what belongs to none.
	Pool    string
	Family  Family
	Figures Figures
}

func (e *ExhaustedError) Error() string {
	where, mend := "subnet "+e.Subnet, "free some, or widen the subnet"
	if e.Pool != "" {
		where, mend = fmt.Sprintf("pool %s of subnet %s", e.Pool, e.Subnet), "free some, or add some to the pool"
	}
	return fmt.Sprintf("no %s address is free in %s (%s in all: %d leased, %s excluded, %s free, %d resting): %s",
		e.Family, where, e.Figures.Size, e.Figures.Leased, e.Figures.Excluded, e.Figures.Free, e.Figures.Resting, mend)
}

// Reason is Exhausted.
func (e *ExhaustedError) Reason() string { return "Exhausted" }

// Unavailable is true.
func (e *ExhaustedError) Unavailable() bool { return true }

// ListHeldError says that every address of a list that was asked for has a holder. It is only given after a live read
// of the blocks concerned.
type ListHeldError struct {
	Subnet string
	Length int
	// First says why the first of them could not be had.
	First error
}

func (e *ListHeldError) Error() string {
	return fmt.Sprintf("none of the %d addresses that are listed for subnet %s can be had: add some to the list, or free some (%v)",
		e.Length, e.Subnet, e.First)
}

// Unwrap is why the first of them could not be had.
func (e *ListHeldError) Unwrap() error { return e.First }

// Reason is ListHeld.
func (e *ListHeldError) Reason() string { return "ListHeld" }

// Unavailable is true.
func (e *ListHeldError) Unavailable() bool { return true }

// PoolError says that a pool was named that the subnet has not, or that has no address of the family.
type PoolError struct {
	Subnet, Pool string
	Family       Family
}

func (e *PoolError) Error() string {
	return fmt.Sprintf("pool %s has no %s address in subnet %s: add some to it, or ask for the other family alone", e.Pool, e.Family, e.Subnet)
}

// Reason is NoSuchPool.
func (e *PoolError) Reason() string { return "NoSuchPool" }

// Unavailable is false.
func (e *PoolError) Unavailable() bool { return false }

// FamilyError says that a family was asked for that the subnet has not.
type FamilyError struct {
	Subnet string
	Family Family
}

func (e *FamilyError) Error() string {
	return fmt.Sprintf("subnet %s has no %s addresses: ask for another family or subnet", e.Subnet, e.Family)
}

// Reason is NoSuchFamily.
func (e *FamilyError) Reason() string { return "NoSuchFamily" }

// Unavailable is false.
func (e *FamilyError) Unavailable() bool { return false }

// StaleError says that a lease is not, or no longer, as the caller saw it. What was decided on that is void.
type StaleError struct {
	Ref Ref
	Now *Lease // nil: there is none
}

func (e *StaleError) Error() string {
	if e.Now == nil {
		return fmt.Sprintf("lease of %s is gone", e.Ref)
	}
	return fmt.Sprintf("lease of %s is now held under claim %s, generation %d", e.Ref, e.Now.Claim, e.Now.Generation)
}

// FormatError says that a block was written in a form that this version must not write.
type FormatError struct {
	Block   string
	Version int
}

func (e *FormatError) Error() string {
	if e.Version == Unreadable {
		return fmt.Sprintf("block %s can't be read: restore it from a backup, or delete it to have it rebuilt", e.Block)
	}
	return fmt.Sprintf("block %s has format version %d, newer than this program writes: upgrade it", e.Block, e.Version)
}

// errFull tells that a block has nothing to give, so that the next is tried.
var errFull = errors.New("block is full")
