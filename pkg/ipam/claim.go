package ipam

import (
	"encoding/hex"
	"fmt"
	"io"
)

// Claim is the random 128-bit id of one pod's set of leases, as 32 lower-case hexadecimal digits. It is drawn afresh
// for every attempt, and never derived from anything.
type Claim string

// NewClaim draws a claim from random, which must be cryptographically strong.
func NewClaim(random io.Reader) (Claim, error) {
	var b [16]byte
	if _, err := io.ReadFull(random, b[:]); err != nil {
		return "", fmt.Errorf("drawing a claim: %w", err)
	}
	return Claim(hex.EncodeToString(b[:])), nil
}

// ParseClaim returns s as a claim, or false when it has not a claim's form.
func ParseClaim(s string) (Claim, bool) {
	if len(s) != 32 {
		return "", false
	}
	for i := range len(s) {
		if c := s[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return "", false
		}
	}
	return Claim(s), true
}
