package web

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// ErrUnknown is of what is asked about and isn't there.
var ErrUnknown = errors.New("there is no such thing")

// The letters of a map of addresses.
const (
	cellFree     = '.'
	cellLeased   = 'l' // a pod has it
	cellAsked    = 'a' // a pod has it, and asked for it
	cellPending  = 'p' // leased, and no pod is bound to it
	cellReserved = 'v' // leased by somebody who is no pod
	cellResting  = 'r' // free, and freed a short while ago
	cellExcluded = 'x' // never handed out unasked
	cellKept     = 'k' // excluded, for somebody who has no lease of it yet
	cellGateway  = 'g'
	cellUnusable = '-' // network and broadcast address
)

// Map is a network of a subnet. Up to 16384 addresses are told one by one, in Cells. More are told in Parts of Step
// addresses; Sparse: only the parts in which there is something.
type Map struct {
	Subnet string `json:"subnet"`
	Family string `json:"family"`
	CIDR   string `json:"cidr"`
	// Within is the network that is shown.
	Within string `json:"within"`
	Step   uint64 `json:"step"`
	Cells  string `json:"cells,omitempty"`
	Parts  []Part `json:"parts,omitempty"`
	Sparse bool   `json:"sparse,omitempty"`
}

// view is what a map is made of.
type view struct {
	catalog network.Catalog
	blocks  []*ipam.Block
	now     time.Time
	// rest is how long freed addresses rest.
	rest time.Duration
}

// around is the network in which an address is shown as one: the whole one where that may be, else 2^10 addresses.
func around(a netip.Addr, cidr netip.Prefix) netip.Prefix {
	if shapeOf(cidr).step == 0 {
		return cidr
	}
	return prefixOf(a, 10)
}

// place finds a network of a subnet; the empty text means the whole one, an address what is around it.
func (v view) place(subnet, family, within string) (*ipam.Subnet, netip.Prefix, netip.Prefix, error) {
	none := netip.Prefix{}
	s, ok := v.catalog.Subnets[subnet]
	if !ok || s.Set == nil {
		return nil, none, none, fmt.Errorf("subnet %q with addresses: %w", subnet, ErrUnknown)
	}
	for _, f := range s.Set.Families() {
		if f.String() != family {
			continue
		}
		cidr, _ := s.Set.Prefix(f)
		if within == "" {
			return s.Set, cidr, cidr, nil
		}
		if a, err := netip.ParseAddr(within); err == nil && cidr.Contains(a) {
			return s.Set, cidr, around(a, cidr), nil
		}
		p, err := netip.ParsePrefix(within)
		if err != nil || p != p.Masked() || p.Bits() < cidr.Bits() || !cidr.Contains(p.Addr()) {
			return nil, none, none, fmt.Errorf("network %q within %s of subnet %s: %w", within, cidr, subnet, ErrUnknown)
		}
		return s.Set, cidr, p, nil
	}
	return nil, none, none, fmt.Errorf("%q addresses of subnet %s: %w", family, subnet, ErrUnknown)
}

// mapOf shows a network of a subnet.
func mapOf(v view, subnet, family, within string) (*Map, error) {
	set, cidr, p, err := v.place(subnet, family, within)
	if err != nil {
		return nil, err
	}
	s := shapeOf(p)
	out := &Map{Subnet: subnet, Family: family, CIDR: cidr.String(), Within: p.String(), Step: 1 << s.step, Sparse: s.sparse}
	switch {
	case s.step == 0:
		out.Cells = string(s.letters(set, v))
	case s.sparse:
		var step int
		out.Parts, step = s.sparseParts(set, v)
		out.Step = 1 << min(step, 63)
	default:
		out.Parts = s.denseParts(set, v)
	}
	return out, nil
}

// letters gives the letter of each address.
func (s shape) letters(set *ipam.Subnet, v view) []byte {
	cells := []byte(strings.Repeat(string(cellUnusable), s.cells()))
	usable, held := set.Sets()
	s.spans(usable, func(i int, _ uint64) { cells[i] = cellFree })
	s.spans(held, func(i int, _ uint64) { cells[i] = cellExcluded })
	for i, c := range cells { // gateways and reservations are known by name only
		if c == cellFree {
			continue
		}
		var gateway *ipam.GatewayError
		var reserved *ipam.ReservedError
		switch err := set.Check(s.prefix(i).Addr(), ipam.Owner{}); {
		case errors.As(err, &gateway):
			cells[i] = cellGateway
		case errors.As(err, &reserved):
			cells[i] = cellKept
		}
	}
	s.resting(set, v, func(a netip.Addr) { cells[s.cell(a)] = cellResting })
	s.leases(set, v.blocks, func(l *ipam.Lease) { cells[s.cell(l.Address)] = letterOf(l) })
	return cells
}

func letterOf(l *ipam.Lease) byte {
	switch state := report.StateOf(*l); {
	case state == report.Reserved:
		return cellReserved
	case state == report.Pending:
		return cellPending
	case l.Requested:
		return cellAsked
	}
	return cellLeased
}

// count adds a lease.
func (p *Part) count(l *ipam.Lease) {
	switch letterOf(l) {
	case cellReserved:
		p.Reserved++
	case cellPending:
		p.Pending++
	case cellAsked:
		p.Asked++
		p.Bound++
	default:
		p.Bound++
	}
}

// denseParts gives all parts.
func (s shape) denseParts(set *ipam.Subnet, v view) []Part {
	parts := make([]Part, s.cells())
	for i := range parts {
		parts[i].Prefix = s.prefix(i).String()
	}
	usable, held := set.Sets()
	s.spans(usable, func(i int, n uint64) { parts[i].Size += n })
	s.spans(held, func(i int, n uint64) { parts[i].Excluded += n })
	s.leases(set, v.blocks, func(l *ipam.Lease) {
		p := &parts[s.cell(l.Address)]
		if p.count(l); held.Contains(l.Address) {
			p.Excluded--
		}
	})
	s.resting(set, v, func(a netip.Addr) { parts[s.cell(a)].Resting++ })
	for i := range parts {
		p := &parts[i]
		p.Free = p.Size - p.Excluded - uint64(p.Bound+p.Pending+p.Reserved)
	}
	return parts
}

// sparseParts gives the parts in which there is a lease or a resting address, in order. When they are too many, they are
// made larger; step tells what they came to.
func (s shape) sparseParts(set *ipam.Subnet, v view) (out []Part, step int) {
	parts := map[netip.Prefix]*Part{}
	at := func(a netip.Addr) *Part {
		p := prefixOf(a, s.step)
		if parts[p] == nil {
			parts[p] = &Part{}
		}
		return parts[p]
	}
	s.leases(set, v.blocks, func(l *ipam.Lease) { at(l.Address).count(l) })
	s.resting(set, v, func(a netip.Addr) { at(a).Resting++ })
	for step = s.step; len(parts) > 1<<maxPartBits; {
		step++
		parts = doubled(parts, step)
	}
	for _, p := range slices.SortedFunc(maps.Keys(parts), func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) }) {
		parts[p].Prefix = p.String()
		out = append(out, *parts[p])
	}
	return out, step
}

// doubled joins neighbours to parts of 2^step addresses.
func doubled(parts map[netip.Prefix]*Part, step int) map[netip.Prefix]*Part {
	out := make(map[netip.Prefix]*Part, len(parts))
	for p, x := range parts {
		q := prefixOf(p.Addr(), step)
		y := out[q]
		if y == nil {
			y = &Part{}
			out[q] = y
		}
		y.Bound, y.Asked, y.Pending, y.Reserved, y.Resting = y.Bound+x.Bound, y.Asked+x.Asked, y.Pending+x.Pending, y.Reserved+x.Reserved, y.Resting+x.Resting
	}
	return out
}

func prefixOf(a netip.Addr, step int) netip.Prefix {
	return netip.PrefixFrom(a, a.BitLen()-step).Masked()
}
