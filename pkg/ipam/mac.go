package ipam

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
)

// MAC is an Ethernet address, compared as bytes. The zero MAC means none.
type MAC [6]byte

// ParseMAC reads a 48-bit MAC in any of the usual spellings. Multicast and all-zero addresses are refused: no
// interface can have them.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != 6 {
		return MAC{}, fmt.Errorf("%q is not a MAC address: write six bytes, like 0a:1b:2c:3d:4e:5f", s)
	}
	m := MAC(hw)
	if m == (MAC{}) || m[0]&1 == 1 {
		return MAC{}, fmt.Errorf("%q can't be the MAC of an interface: it is all zero, multicast or broadcast", s)
	}
	return m, nil
}

// String is the MAC in lower case with colons; empty for the zero MAC.
func (m MAC) String() string {
	if m == (MAC{}) {
		return ""
	}
	return net.HardwareAddr(m[:]).String()
}

// DerivedMAC gives the MAC of an interface with an IPv4 address: 0a:58 and the address. It is unique by construction
// wherever the address is.
func DerivedMAC(a netip.Addr) MAC {
	b := a.As4()
	return MAC{0x0a, 0x58, b[0], b[1], b[2], b[3]}
}

// Derived tells whether m has the form that is kept for MACs derived from an address.
func (m MAC) Derived() bool { return m[0] == 0x0a && m[1] == 0x58 }

// HashedMAC gives the MAC of an interface that has only an IPv6 address: 0e and a 40-bit hash of the address and of
// the salt, which is raised when another interface of the L2 domain has the MAC already.
func HashedMAC(a netip.Addr, salt uint32) MAC {
	h := fnv.New64a()
	b := a.As16()
	h.Write(b[:])
	h.Write(binary.BigEndian.AppendUint32(nil, salt))
	s := mix(h.Sum64())
	return MAC{0x0e, byte(s >> 32), byte(s >> 24), byte(s >> 16), byte(s >> 8), byte(s)}
}

// bucket names the MAC bucket of an L2 domain that m belongs in.
func (m MAC) bucket(domain string) string {
	h := fnv.New64a()
	h.Write(m[:])
	return fmt.Sprintf("%s-mac-%02x", domain, byte(mix(h.Sum64())))
}

// mix spreads the bits of an FNV sum, whose low bits alone are weak.
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}
