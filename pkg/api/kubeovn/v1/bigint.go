package v1

import (
	"fmt"
	"math/big"
	"strings"
)

// BigInt is a count of addresses, which in an IPv6 subnet may exceed 64 bits. JSON has it as a number; a quoted one
// is read too, as Kube-OVN does since 2026-03.
//
// +kubebuilder:validation:Type=number
type BigInt struct {
	big.Int `json:"-"`
}

// NewBigInt returns n as a BigInt.
func NewBigInt(n *big.Int) BigInt {
	var b BigInt
	b.Set(n)
	return b
}

// DeepCopyInto copies the number into out. What out had is dropped and not written to: it may be the very digits of b.
func (b *BigInt) DeepCopyInto(out *BigInt) {
	*out = BigInt{}
	out.Set(&b.Int)
}

// MarshalJSON writes a JSON number.
func (b BigInt) MarshalJSON() ([]byte, error) { return []byte(b.String()), nil }

// UnmarshalJSON reads a number, a quoted number or null. Numbers that an API server gave in exponent form are exact
// integers still.
func (b *BigInt) UnmarshalJSON(p []byte) error {
	s := strings.Trim(string(p), `"`)
	if s == "" || s == "null" {
		b.SetInt64(0)
		return nil
	}
	if _, ok := b.SetString(s, 10); ok {
		return nil
	}
	f, _, err := big.ParseFloat(s, 10, 256, big.ToNearestEven)
	if err != nil || !f.IsInt() || f.MantExp(nil) > 140 {
		return fmt.Errorf("%q is no whole number of addresses", s)
	}
	f.Int(&b.Int)
	return nil
}
