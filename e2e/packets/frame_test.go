//go:build e2e

package packets

import (
	"encoding/binary"
	"net"
	"net/netip"
)

// frame is a UDP datagram in an Ethernet frame, with whatever addresses a test wants it to have.
type frame struct {
	fromMAC, toMAC net.HardwareAddr
	from, to       netip.Addr
	// word is the payload, between the mark and the semicolon.
	word string
}

const (
	etherIPv4 = 0x0800
	etherARP  = 0x0806
	etherIPv6 = 0x86dd
	protoUDP  = 17
	anyPort   = 7777

	protoICMPv6 = 58
)

// plain is a frame from one place to another on its switch, as it should be.
func plain(from, to *place, v4 bool, word string) frame {
	return frame{fromMAC: from.mac, toMAC: to.mac, from: from.of(v4), to: to.of(v4), word: word}
}

func (f frame) bytes() []byte {
	payload := []byte(mark + f.word + ";")
	udp := binary.BigEndian.AppendUint16(nil, anyPort)
	udp = binary.BigEndian.AppendUint16(udp, anyPort)
	udp = binary.BigEndian.AppendUint16(udp, uint16(8+len(payload)))
	udp = append(udp, 0, 0)
	udp = append(udp, payload...)
	pseudo := append(f.from.AsSlice(), f.to.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(udp)))
	pseudo = append(pseudo, 0, 0, 0, protoUDP)
	binary.BigEndian.PutUint16(udp[6:], checksum(append(pseudo, udp...)))
	return append(f.header(len(udp)), udp...)
}

// header is all before UDP's.
func (f frame) header(length int) []byte {
	b := append(append([]byte{}, f.toMAC...), f.fromMAC...)
	if f.from.Is6() {
		b = binary.BigEndian.AppendUint16(b, etherIPv6)
		b = append(b, 0x60, 0, 0, 0)
		b = binary.BigEndian.AppendUint16(b, uint16(length))
		b = append(b, protoUDP, 64)
		return append(append(b, f.from.AsSlice()...), f.to.AsSlice()...)
	}
	b = binary.BigEndian.AppendUint16(b, etherIPv4)
	ip := []byte{0x45, 0}
	ip = binary.BigEndian.AppendUint16(ip, uint16(20+length))
	ip = append(ip, 0, 0, 0, 0, 64, protoUDP, 0, 0)
	ip = append(append(ip, f.from.AsSlice()...), f.to.AsSlice()...)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip))
	return append(b, ip...)
}

// checksum is the Internet's.
func checksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// announcement says that an address is at this MAC now: a gratuitous ARP reply, or an unsolicited neighbor advertisement.
func announcement(mac net.HardwareAddr, a netip.Addr) []byte {
	if a.Is6() {
		return advertisement(mac, a)
	}
	broadcast := net.HardwareAddr{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	b := append(append([]byte{}, broadcast...), mac...)
	b = binary.BigEndian.AppendUint16(b, etherARP)
	b = append(b, 0, 1, 8, 0, 6, 4, 0, 2)
	b = append(append(b, mac...), a.AsSlice()...)
	return append(append(b, broadcast...), a.AsSlice()...)
}

// advertisement is a neighbor advertisement to all nodes, which overrides what they know.
func advertisement(mac net.HardwareAddr, a netip.Addr) []byte {
	all := netip.MustParseAddr("ff02::1")
	icmp := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, a.AsSlice()...)
	icmp = append(append(icmp, 2, 1), mac...)
	pseudo := append(a.AsSlice(), all.AsSlice()...)
	pseudo = binary.BigEndian.AppendUint32(pseudo, uint32(len(icmp)))
	binary.BigEndian.PutUint16(icmp[2:], checksum(append(append(pseudo, 0, 0, 0, protoICMPv6), icmp...)))
	b := append(net.HardwareAddr{0x33, 0x33, 0, 0, 0, 1}, mac...)
	b = binary.BigEndian.AppendUint16(b, etherIPv6)
	b = binary.BigEndian.AppendUint16(append(b, 0x60, 0, 0, 0), uint16(len(icmp)))
	b = append(b, protoICMPv6, 255)
	return append(append(append(b, a.AsSlice()...), all.AsSlice()...), icmp...)
}
