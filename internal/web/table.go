package web

import (
	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
)

// pageRows is how many rows of a table are told at once.
const pageRows = 200

// Row is one address, or a stretch of them that nobody has and that are all alike.
type Row struct {
	First string `json:"first"`
	Last  string `json:"last,omitempty"`
	Count int    `json:"count"`
	// State in words.
	State string `json:"state"`
	// Lease of the address, where there is one.
	Lease *report.Lease `json:"lease,omitempty"`
}

// Rows are a page of the table of a map.
type Rows struct {
	Items []Row `json:"items"`
	// From is the number of the first, Total that of all.
	From  int `json:"from"`
	Total int `json:"total"`
}

// rowsOf gives a map of addresses as a table. A map of parts is a table already: it has none.
func rowsOf(v view, subnet, family, within string, from int) (*Rows, error) {
	set, _, p, err := v.place(subnet, family, within)
	if err != nil {
		return nil, err
	}
	s := shapeOf(p)
	out := &Rows{Items: []Row{}, From: max(from, 0)}
	if s.step > 0 {
		return out, nil
	}
	leases := map[int]*ipam.Lease{}
	blocks := map[int]string{}
	for _, b := range v.blocks {
		s.leases(set, []*ipam.Block{b}, func(l *ipam.Lease) {
			leases[s.cell(l.Address)], blocks[s.cell(l.Address)] = l, b.Name
		})
	}
	cells := s.letters(set, v)
	for i := 0; i < len(cells); {
		end := i + 1
		for leases[i] == nil && end < len(cells) && cells[end] == cells[i] && leases[end] == nil {
			end++
		}
		if n := out.Total; n >= out.From && n < out.From+pageRows {
			row := Row{First: s.prefix(i).Addr().String(), Count: end - i, State: stateName(cells[i])}
			if end-i > 1 {
				row.Last = s.prefix(end - 1).Addr().String()
			}
			if l := leases[i]; l != nil {
				r := report.LeaseOf(ipam.Held{Block: blocks[i], Subnet: subnet, Lease: *l})
				row.Lease = &r
			}
			out.Items = append(out.Items, row)
		}
		out.Total++
		i = end
	}
	return out, nil
}

// stateName is a letter in words.
func stateName(letter byte) string {
	switch letter {
	case cellFree:
		return "free"
	case cellLeased:
		return "leased"
	case cellAsked:
		return "leased, asked for"
	case cellPending:
		return "pending"
	case cellReserved:
		return "reserved"
	case cellResting:
		return "resting"
	case cellExcluded:
		return "excluded"
	case cellKept:
		return "kept"
	case cellGateway:
		return "gateway"
	}
	return "unusable"
}
