package v1

import (
	"math/big"
	"testing"
)

// A copy shares no digits with its original, however the generated code begins it.
func TestCopyOfACountIsItsOwn(t *testing.T) {
	s := &Subnet{Status: SubnetStatus{V6AvailableIPs: NewBigInt(new(big.Int).Lsh(big.NewInt(1), 100))}}
	digits := s.Status.V6AvailableIPs.Bits()
	c := s.DeepCopy()
	if c.Status.V6AvailableIPs.Cmp(&s.Status.V6AvailableIPs.Int) != 0 {
		t.Fatalf("%v was copied as %v", &s.Status.V6AvailableIPs, &c.Status.V6AvailableIPs)
	}
	if copied := c.Status.V6AvailableIPs.Bits(); &copied[0] == &digits[0] {
		t.Error("the copy writes to the original's digits")
	}
}
