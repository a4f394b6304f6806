package web

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/pkg/ipam"
)

// Bounds of a search.
const (
	maxFound = 50
	maxAsked = 253
)

// Found answers a search.
type Found struct {
	Asked string `json:"asked"`
	// Who is set when an address or a MAC was asked for.
	Who *report.Who `json:"who,omitempty"`
	// Leases of the pods and owners that fit, and how many there are.
	Leases []report.Lease `json:"leases"`
	Total  int            `json:"total"`
	// Waiting are the waiting pods that fit.
	Waiting []Waiter `json:"waiting"`
}

// find looks for an address, a MAC, or a part of a pod's or an owner's namespace/name.
func find(v view, l *ipam.Ledger, waiting *Waiting, asked string) *Found {
	asked = strings.TrimSpace(asked)
	out := &Found{Asked: asked, Leases: []report.Lease{}, Waiting: []Waiter{}}
	if asked == "" || len(asked) > maxAsked {
		return out
	}
	if a, err := netip.ParseAddr(asked); err == nil {
		out.Who = report.WhoHasAddress(a, v.catalog, l, v.blocks)
		return out
	}
	if m, err := ipam.ParseMAC(asked); err == nil {
		out.Who = report.WhoHasMAC(m, v.catalog, l)
		return out
	}
	text := strings.ToLower(asked)
	for _, b := range v.blocks {
		for _, x := range b.Leases {
			if !fits(x, text) {
				continue
			}
			if out.Total++; len(out.Leases) < maxFound {
				out.Leases = append(out.Leases, report.LeaseOf(ipam.Held{Block: b.Name, Subnet: b.Subnet, Lease: *x}))
			}
		}
	}
	for _, w := range waiting.Items {
		if strings.Contains(strings.ToLower(w.Namespace+"/"+w.Name), text) {
			out.Waiting = append(out.Waiting, w)
		}
	}
	return out
}

// fits tells whether a lease is of somebody whose name has the text.
func fits(l *ipam.Lease, text string) bool {
	return slices.ContainsFunc([]string{l.PodName, l.Owner.Name}, func(name string) bool {
		return name != "" && strings.Contains(strings.ToLower(l.Owner.Namespace+"/"+name), text)
	})
}
