package report

import (
	"cmp"
	"net/netip"
	"slices"
	"strconv"

	"github.com/berth-net/berth/pkg/ipam"
)

// The states of a lease.
const (
	// Bound: a pod has it.
	Bound = "bound"
	// Pending: no pod is bound to it.
	Pending = "pending"
	// Reserved: somebody has it who is no pod.
	Reserved = "reserved"
)

// Lease is one lease.
type Lease struct {
	Subnet    string `json:"subnet"`
	Address   string `json:"address,omitempty"`
	MAC       string `json:"mac,omitempty"`
	State     string `json:"state"`
	Owner     string `json:"owner"`
	Namespace string `json:"namespace,omitempty"`
	Pod       string `json:"pod,omitempty"`
	PodUID    string `json:"podUID,omitempty"`
	// Provider is the network of the pod that the lease is for.
	Provider  string `json:"provider,omitempty"`
	Requested bool   `json:"requested"`
	// Under names the reservation that the address goes back to.
	Under      string `json:"under,omitempty"`
	Claim      string `json:"claim"`
	Generation int64  `json:"generation"`
	Block      string `json:"block"`
}

// LeaseOf is the row of a lease.
func LeaseOf(h ipam.Held) Lease {
	l := Lease{Subnet: h.Subnet, MAC: h.MAC.String(), State: StateOf(h.Lease), Owner: h.Owner.String(), Namespace: h.Owner.Namespace, Pod: h.PodName,
		PodUID: h.PodUID, Provider: h.Provider, Requested: h.Requested, Claim: string(h.Claim), Generation: h.Generation, Block: h.Block}
	if h.Address.IsValid() {
		l.Address = h.Address.String()
	}
	if h.Under != nil {
		l.Under = h.Under.String()
	}
	return l
}

// StateOf is the state of a lease.
func StateOf(l ipam.Lease) string {
	switch {
	case l.Owner.Reserves():
		return Reserved
	case l.PodUID == "":
		return Pending
	}
	return Bound
}

// LeaseFilter chooses leases. The zero value takes all.
type LeaseFilter struct {
	Subnet, Namespace string
	// Pending takes those only that no pod is bound to.
	Pending bool
}

// Leases is a list of leases.
type Leases struct {
	Head
	Items []Lease `json:"items"`
}

// LeasesOf lists leases by subnet, address and MAC.
func LeasesOf(held []ipam.Held, f LeaseFilter) *Leases {
	out := &Leases{Head: head("LeaseList"), Items: []Lease{}}
	for _, h := range held {
		if f.Subnet != "" && h.Subnet != f.Subnet || f.Namespace != "" && h.Owner.Namespace != f.Namespace ||
			f.Pending && StateOf(h.Lease) != Pending {
			continue
		}
		out.Items = append(out.Items, LeaseOf(h))
	}
	slices.SortStableFunc(out.Items, compareLeases)
	return out
}

func compareLeases(a, b Lease) int {
	x, _ := netip.ParseAddr(a.Address) // a lease of a MAC has none, and stands first
	y, _ := netip.ParseAddr(b.Address)
	return cmp.Or(cmp.Compare(a.Subnet, b.Subnet), x.Compare(y), cmp.Compare(a.MAC, b.MAC))
}

func (l *Leases) table(w *writer) { leaseTable(w, l.Items) }

func leaseTable(w *writer, items []Lease) {
	if len(items) == 0 {
		w.text("No leases.")
		return
	}
	cells := []string{"SUBNET", "ADDRESS", "MAC", "STATE", "OWNER", "POD"}
	if w.wide {
		cells = append(cells, "NETWORK", "ASKED FOR", "UNDER", "CLAIM", "GENERATION", "BLOCK")
	}
	w.row(cells...)
	for _, l := range items {
		cells := []string{l.Subnet, l.Address, l.MAC, l.State, l.Owner, l.Pod}
		if w.wide {
			cells = append(cells, l.Provider, yes(l.Requested), l.Under, l.Claim, strconv.FormatInt(l.Generation, 10), l.Block)
		}
		w.row(cells...)
	}
}
