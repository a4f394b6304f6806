package web

import (
	"encoding/binary"
	"net/netip"

	"go4.org/netipx"

	"github.com/berth-net/berth/pkg/ipam"
)

// Bounds of a map.
const (
	// maxCellBits: a network of up to 2^14 addresses is shown by single addresses.
	maxCellBits = 14
	// maxPartBits: a larger one is cut into at most 2^12 equal parts.
	maxPartBits = 12
	// blockBits: no part is smaller than the ledger's block of 2^6 addresses.
	blockBits = 6
	// maxDenseBits: beyond 2^32 addresses only parts are shown in which there is something.
	maxDenseBits = 32
)

// Part is a part of a network, and what is in it. Free and Excluded are left away in a sparse map, where Size may be
// more than a number holds.
type Part struct {
	// Prefix of the part.
	Prefix string `json:"prefix"`
	// Size counts the addresses that may be leased at all; Size = Free + Excluded + Bound + Pending + Reserved.
	Size uint64 `json:"size,omitempty"`
	// Bound leases are pods', Asked of these were asked for; Pending ones have no pod, Reserved are somebody's who is no pod.
	Bound    int `json:"bound,omitempty"`
	Asked    int `json:"asked,omitempty"`
	Pending  int `json:"pending,omitempty"`
	Reserved int `json:"reserved,omitempty"`
	// Free addresses, Resting ones among them.
	Free    uint64 `json:"free,omitempty"`
	Resting int    `json:"resting,omitempty"`
	// Excluded are never handed out unasked, and nobody has them.
	Excluded uint64 `json:"excluded,omitempty"`
}

// shape is how a network is shown: in cells of 2^step addresses; sparse: only those in which there is something.
type shape struct {
	within netip.Prefix
	step   int
	sparse bool
}

// shapeOf decides how a network is shown.
func shapeOf(p netip.Prefix) shape {
	switch host := p.Addr().BitLen() - p.Bits(); {
	case host <= maxCellBits:
		return shape{within: p}
	case host <= maxDenseBits:
		return shape{within: p, step: max(blockBits, host-maxPartBits)}
	}
	return shape{within: p, step: blockBits, sparse: true}
}

// cells is the number of cells of a dense shape.
func (s shape) cells() int {
	return 1 << (s.within.Addr().BitLen() - s.within.Bits() - s.step)
}

// offset is the number of addresses before a in the network. It has at most 2^32, for the shape is dense.
func (s shape) offset(a netip.Addr) uint64 {
	low := func(x netip.Addr) uint64 {
		raw := x.As16()
		return binary.BigEndian.Uint64(raw[8:])
	}
	return low(a) - low(s.within.Addr())
}

// cell is the index of the cell of an address.
func (s shape) cell(a netip.Addr) int { return int(s.offset(a) >> s.step) }

// prefix is the network of the i-th cell.
func (s shape) prefix(i int) netip.Prefix {
	raw := s.within.Addr().As16()
	binary.BigEndian.PutUint64(raw[8:], binary.BigEndian.Uint64(raw[8:])+uint64(i)<<s.step)
	a := netip.AddrFrom16(raw)
	if s.within.Addr().Is4() {
		a = a.Unmap()
	}
	return netip.PrefixFrom(a, a.BitLen()-s.step)
}

// spans calls do with each stretch of a set that lies in one cell.
func (s shape) spans(set *netipx.IPSet, do func(cell int, n uint64)) {
	whole := netipx.RangeOfPrefix(s.within)
	for _, r := range set.Ranges() {
		if !r.Overlaps(whole) {
			continue
		}
		from, to := r.From(), r.To()
		if from.Less(whole.From()) {
			from = whole.From()
		}
		if whole.To().Less(to) {
			to = whole.To()
		}
		first, last := s.offset(from), s.offset(to)
		for first <= last {
			end := min(last, first|(1<<s.step-1))
			do(int(first>>s.step), end-first+1)
			first = end + 1
		}
	}
}

// leases calls do with each lease of a subnet in the network that counts.
func (s shape) leases(set *ipam.Subnet, blocks []*ipam.Block, do func(*ipam.Lease)) {
	usable, _ := set.Sets()
	for _, b := range blocks {
		if b.Subnet != set.Name() || b.MACs() || !s.touches(b) {
			continue
		}
		for _, l := range b.Leases {
			if s.within.Contains(l.Address) && usable.Contains(l.Address) {
				do(l)
			}
		}
	}
}

// touches tells whether a block may have addresses of the network.
func (s shape) touches(b *ipam.Block) bool {
	p, err := b.First.Prefix(b.First.BitLen() - blockBits)
	return err == nil && p.Overlaps(s.within)
}

// resting calls do with each free address that was freed a short while ago, as the ledger's figures count them.
func (s shape) resting(set *ipam.Subnet, v view, do func(netip.Addr)) {
	usable, held := set.Sets()
	for _, b := range v.blocks {
		if b.Subnet != set.Name() || b.MACs() || !s.touches(b) {
			continue
		}
		for _, f := range b.Freed {
			if v.now.Unix()-f.At < int64(v.rest.Seconds()) && s.within.Contains(f.Address) && usable.Contains(f.Address) && !held.Contains(f.Address) {
				do(f.Address)
			}
		}
	}
}
