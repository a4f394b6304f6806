package report

import (
	"errors"
	"maps"
	"math/big"
	"net/netip"
	"slices"
	"strconv"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// Figures counts addresses of one family. Size = Free + Leased + Excluded, and Leased = Bound + Pending + Reserved.
// Size, Free and Excluded may need more than 64 bits.
type Figures struct {
	// Size is how many addresses may be leased at all: no network, broadcast or gateway.
	Size *big.Int `json:"size"`
	// Leased is how many are.
	Leased int `json:"leased"`
	// Bound of them are pods', Pending are bound to no pod, Reserved are somebody's who is no pod.
	Bound    int `json:"bound"`
	Pending  int `json:"pending"`
	Reserved int `json:"reserved"`
	// Excluded are never handed out unasked, and nobody has them.
	Excluded *big.Int `json:"excluded"`
	// Free is what is left; Resting of these were freed a short while ago.
	Free    *big.Int `json:"free"`
	Resting int      `json:"resting"`
}

// Subnet is one family of a subnet.
type Subnet struct {
	Name     string `json:"name"`
	Family   string `json:"family,omitempty"`
	CIDR     string `json:"cidr,omitempty"`
	Provider string `json:"provider"`
	Vpc      string `json:"vpc,omitempty"`
	// Managed tells that the subnet is fenced off from kube-ovn-controller.
	Managed bool `json:"managed"`
	// Problem says why nothing can be had from it. There are no figures then.
	Problem string `json:"problem,omitempty"`
	*Figures
	// Pools of the subnet; the one without name is what belongs to none of them.
	Pools []Pool `json:"pools,omitempty"`
}

// Pool is one IPPool's part of a subnet.
type Pool struct {
	Name string `json:"name"`
	Figures
}

// Subnets is a list of subnets.
type Subnets struct {
	Head
	Items []Subnet `json:"items"`
}

// SubnetsOf counts the addresses of subnets by name and family.
func SubnetsOf(cat network.Catalog, l *ipam.Ledger) *Subnets {
	out := &Subnets{Head: head("SubnetList"), Items: []Subnet{}}
	held := map[string][]ipam.Held{}
	for _, h := range l.Leases() {
		held[h.Subnet] = append(held[h.Subnet], h)
	}
	for _, name := range slices.Sorted(maps.Keys(cat.Subnets)) {
		s := cat.Subnets[name]
		base := Subnet{Name: name, Provider: s.Provider(), Vpc: s.Object.Spec.Vpc, Managed: s.Object.Labels[network.LabelManaged] == "true"}
		if s.Set == nil || len(s.Set.Families()) == 0 {
			base.CIDR = s.Object.Spec.CIDRBlock
			if s.Err != nil {
				base.Problem = s.Err.Error()
			}
			out.Items = append(out.Items, base)
			continue
		}
		for _, f := range s.Set.Families() {
			out.Items = append(out.Items, familyOf(base, s, f, l, held[name]))
		}
	}
	return out
}

// familyOf counts one family of a subnet.
func familyOf(row Subnet, s network.Subnet, f ipam.Family, l *ipam.Ledger, held []ipam.Held) Subnet {
	p, _ := s.Set.Prefix(f)
	row.Family, row.CIDR = f.String(), p.String()
	figures := figuresOf(l.Figures(s.Set, f), held, func(h ipam.Held) bool {
		return h.Address.IsValid() && ipam.FamilyOf(h.Address) == f && usable(s.Set, h.Address)
	})
	row.Figures = &figures
	var pools []string
	for _, name := range s.Pools {
		if s.Set.HasPool(name, f) {
			pools = append(pools, name)
		}
	}
	if len(pools) == 0 {
		return row
	}
	for _, name := range append(pools, "") {
		figures := figuresOf(l.PoolFigures(ipam.Source{Subnet: s.Set, Pool: name}, f), held, func(h ipam.Held) bool {
			return h.Address.IsValid() && ipam.FamilyOf(h.Address) == f && s.Set.InPool(name, h.Address)
		})
		row.Pools = append(row.Pools, Pool{Name: name, Figures: figures})
	}
	return row
}

// figuresOf adds to the ledger's figures who has the leases. Leases outside of the sets count nowhere: the CIDR or the
// gateway was changed under them.
func figuresOf(f ipam.Figures, held []ipam.Held, in func(ipam.Held) bool) Figures {
	out := Figures{Size: f.Size, Leased: f.Leased, Resting: f.Resting, Excluded: f.Excluded, Free: f.Free}
	for _, h := range held {
		if !in(h) {
			continue
		}
		switch StateOf(h.Lease) {
		case Pending:
			out.Pending++
		case Reserved:
			out.Reserved++
		}
	}
	out.Bound = out.Leased - out.Pending - out.Reserved
	return out
}

// usable tells whether an address may be leased at all.
func usable(s *ipam.Subnet, a netip.Addr) bool {
	err := s.Check(a, ipam.Owner{})
	var reserved *ipam.ReservedError
	return err == nil || errors.As(err, &reserved)
}

func (s *Subnets) table(w *writer) {
	if len(s.Items) == 0 {
		w.text("No subnets.")
		return
	}
	cells := []string{"SUBNET", "FAMILY", "CIDR", "SIZE", "LEASED", "BOUND", "PENDING", "RESTING", "RESERVED", "EXCLUDED", "FREE"}
	if w.wide {
		cells = append(cells, "PROVIDER", "VPC", "FENCED", "PROBLEM")
	}
	w.row(cells...)
	for _, x := range s.Items {
		cells := append([]string{x.Name, x.Family, x.CIDR}, x.cells()...)
		if w.wide {
			cells = append(cells, x.Provider, x.Vpc, yes(x.Managed), x.Problem)
		}
		w.row(cells...)
		if !w.wide {
			continue
		}
		for _, p := range x.Pools {
			name := "  pool " + p.Name
			if p.Name == "" {
				name = "  no pool"
			}
			w.row(append([]string{name, x.Family, ""}, append(p.cells(), "", "", "", "")...)...)
		}
	}
	s.problems(w)
}

// problems tells those that a narrow table has no column for.
func (s *Subnets) problems(w *writer) {
	if w.wide {
		return
	}
	w.end()
	for _, x := range s.Items {
		if x.Problem != "" {
			w.text("%s", x.Problem)
		}
	}
}

func (f *Figures) cells() []string {
	if f == nil {
		return make([]string, 8)
	}
	n := strconv.Itoa
	return []string{f.Size.String(), n(f.Leased), n(f.Bound), n(f.Pending), n(f.Resting), n(f.Reserved), f.Excluded.String(), f.Free.String()}
}
