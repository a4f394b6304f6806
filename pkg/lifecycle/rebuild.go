package lifecycle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Claimant is a living pod, and what it says of its leases.
type Claimant struct {
	Namespace, Name, UID string
	// Identity is the name of its ports and records.
	Identity string
	Created  time.Time
	Claim    ipam.Claim
	Owner    ipam.Owner
	OwnerUID string
	// Running tells that its network is in use.
	Running bool
	// Leaving tells that it is being deleted, or has ended: only what is still wired is its own.
	Leaving bool
	// Holdings are its networks.
	Holdings []Holding
}

// Holding is one network of a pod.
type Holding struct {
	Provider, Subnet string
	Addresses        []netip.Addr
	MAC              ipam.MAC
	// Requested tells that the addresses were asked for, RequestedMAC that the MAC was.
	Requested, RequestedMAC bool
}

// Loss is all that leases can be rebuilt from.
type Loss struct {
	Pods    []Claimant
	Ports   []nb.LogicalSwitchPort
	Records []Record
	// Leases that there are.
	Leases []ipam.Held
}

// Rebuilt is what a ledger lacks.
type Rebuilt struct {
	Restore   []Restored
	Replace   []Replaced
	Conflicts []Finding
}

// Restored is a lease that is missing.
type Restored struct {
	Subnet string
	Lease  ipam.Lease
	// Vouched tells that a port or a record proves that it was there, and not the pod alone, on which anybody may write.
	Vouched bool
}

// Replaced is a lease that was given while another's of the same address was lost.
type Replaced struct {
	Old     ipam.Held
	New     ipam.Lease
	Vouched bool
}

// Lost are the subnets of which leases are proved to be lost.
func (r Rebuilt) Lost() []string {
	var out []string
	for _, x := range r.Restore {
		if x.Vouched {
			out = append(out, x.Subnet)
		}
	}
	for _, x := range r.Replace {
		if x.Vouched {
			out = append(out, x.Old.Subnet)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// In keeps what is about the named subnets.
func (r Rebuilt) In(subnets []string) Rebuilt {
	var out Rebuilt
	for _, x := range r.Restore {
		if slices.Contains(subnets, x.Subnet) {
			out.Restore = append(out.Restore, x)
		}
	}
	for _, x := range r.Replace {
		if slices.Contains(subnets, x.Old.Subnet) {
			out.Replace = append(out.Replace, x)
		}
	}
	for _, x := range r.Conflicts {
		if slices.Contains(subnets, x.Lease.Subnet) {
			out.Conflicts = append(out.Conflicts, x)
		}
	}
	return out
}

// How much speaks for a pod's right to an address.
const (
	carriesIt  = iota + 1 // its annotations say so
	runsOnIt              // and its network is in use
	vouchedFor            // and a port or a record of this very pod says so
)

type spot struct {
	subnet string
	addr   netip.Addr
}

// contender is a pod with one of its addresses.
type contender struct {
	*Claimant
	holding  *Holding
	addr     netip.Addr
	strength int
}

// networkAt is one network of a claim's pod, by one of its addresses.
type networkAt struct {
	carried
	provider string
}

type rebuilder struct {
	Loss
	places  map[networkAt]string // the subnets that leases tell
	records map[string]Record
	vouched map[carried]string // UIDs of the pods that ports and records speak for
	at      map[spot]ipam.Held
	macs    map[string]bool // claim and MAC of leases of MACs alone
	rivals  map[spot][]contender
	out     Rebuilt
}

// Rebuild tells what a ledger lacks of what pods, ports and records show, in a fixed order. Of several pods with one
// address that has it which a port or a record speaks for, else one that runs, else the oldest. A lease that another got
// meanwhile gives way to one that is spoken for, unless its pod's network is in use.
func Rebuild(in Loss) Rebuilt {
	r := &rebuilder{Loss: in, places: map[networkAt]string{}, records: map[string]Record{}, vouched: map[carried]string{},
		at: map[spot]ipam.Held{}, macs: map[string]bool{}, rivals: map[spot][]contender{}}
	for _, l := range in.Leases {
		if l.Address.IsValid() {
			r.at[spot{l.Subnet, l.Address}] = l
			r.places[networkAt{carried{l.Claim, l.Address}, l.Provider}] = l.Subnet
		} else {
			r.macs[macKey(l.Claim, l.MAC)] = true
		}
	}
	r.witnesses()
	r.contend()
	spots := make([]spot, 0, len(r.rivals))
	for s := range r.rivals {
		spots = append(spots, s)
	}
	slices.SortFunc(spots, func(a, b spot) int { return cmp.Or(cmp.Compare(a.subnet, b.subnet), a.addr.Compare(b.addr)) })
	for _, s := range spots {
		r.settle(s, r.rivals[s])
	}
	return r.out
}

func macKey(c ipam.Claim, m ipam.MAC) string { return string(c) + m.String() }

// witnesses reads what ports and records say.
func (r *rebuilder) witnesses() {
	for _, p := range r.Ports {
		claim, uid := ipam.Claim(p.ExternalIDs[nb.KeyClaim]), p.ExternalIDs[nb.KeyPodUID]
		for _, a := range PortAddresses(p) {
			if claim != "" && uid != "" {
				r.vouched[carried{claim, a}] = uid
			}
		}
	}
	for _, x := range r.Records {
		r.records[x.Name] = x
		for _, a := range x.Addresses {
			if at := (carried{x.Claim, a}); x.Claim != "" && x.PodUID != "" && r.vouched[at] == "" {
				r.vouched[at] = x.PodUID
			}
		}
	}
}

// contend gathers who says which address is its own.
func (r *rebuilder) contend() {
	bare := map[string]*Claimant{} // pods that lost what they carried
	for i := range r.Pods {
		p := &r.Pods[i]
		if p.Claim == "" {
			bare[p.UID] = p
		}
		for _, h := range p.Holdings {
			if h.Subnet == "" {
				h.Subnet = r.place(p, h)
			}
			for _, a := range h.Addresses {
				if h.Subnet != "" {
					r.add(p, &h, a)
				}
			}
			if len(h.Addresses) == 0 && p.Claim != "" && !p.Leaving { // a network of MACs alone
				r.settleMAC(contender{Claimant: p, holding: &h, strength: carriesIt})
			}
		}
	}
	for _, p := range r.Ports {
		if pod := bare[p.ExternalIDs[nb.KeyPodUID]]; pod != nil {
			r.testify(pod, p.Name, p.ExternalIDs[nb.KeySwitch], ipam.Claim(p.ExternalIDs[nb.KeyClaim]), portMAC(p), PortAddresses(p))
			delete(bare, pod.UID)
		}
	}
	for _, x := range r.Records {
		if pod := bare[x.PodUID]; pod != nil {
			r.testify(pod, x.Name, x.Subnet, x.Claim, x.MAC, x.Addresses)
			delete(bare, pod.UID)
		}
	}
}

// place is the subnet of a network that another CNI plugs in: the pod doesn't name it, but its lease or its record does.
func (r *rebuilder) place(p *Claimant, h Holding) string {
	for _, a := range h.Addresses {
		if subnet := r.places[networkAt{carried{p.Claim, a}, h.Provider}]; subnet != "" {
			return subnet
		}
	}
	if x := r.records[network.PortName(p.Identity, p.Namespace, h.Provider)]; x.PodUID == p.UID && x.Claim == p.Claim {
		return x.Subnet
	}
	return ""
}

func (r *rebuilder) add(p *Claimant, h *Holding, a netip.Addr) {
	c := contender{Claimant: p, holding: h, addr: a, strength: carriesIt}
	switch {
	case r.vouched[carried{p.Claim, a}] == p.UID:
		c.strength = vouchedFor
	case p.Claim == "" || p.Leaving:
		return
	case p.Running:
		c.strength = runsOnIt
	}
	at := spot{h.Subnet, a}
	r.rivals[at] = append(r.rivals[at], c)
}

// testify has a port or a record speak for a pod that doesn't say itself what it has.
func (r *rebuilder) testify(pod *Claimant, name, subnet string, claim ipam.Claim, mac ipam.MAC, addrs []netip.Addr) {
	if claim == "" || subnet == "" {
		return
	}
	own := *pod
	own.Claim = claim
	h := Holding{Provider: network.DefaultProvider, Subnet: subnet, Addresses: addrs, MAC: mac}
	if provider, ok := strings.CutPrefix(name, network.PortName(pod.Identity, pod.Namespace, network.DefaultProvider)+"."); ok {
		h.Provider = provider
	}
	for _, a := range addrs {
		r.add(&own, &h, a)
	}
}

func portMAC(p nb.LogicalSwitchPort) ipam.MAC {
	for _, text := range p.Addresses {
		for word := range strings.FieldsSeq(text) {
			if m, err := ipam.ParseMAC(word); err == nil {
				return m
			}
		}
	}
	return ipam.MAC{}
}

// settle decides whose an address is.
func (r *rebuilder) settle(at spot, cs []contender) {
	slices.SortFunc(cs, func(a, b contender) int {
		return cmp.Or(cmp.Compare(b.strength, a.strength), a.Created.Compare(b.Created), cmp.Compare(a.UID, b.UID))
	})
	best := cs[0]
	l, leased := r.at[at]
	holder := 0 // how much speaks for who has the lease
	for _, c := range cs {
		if leased && c.Claim == l.Claim {
			holder = max(holder, c.strength)
		}
	}
	winner := best.Claim
	switch {
	case !leased:
		r.out.Restore = append(r.out.Restore, Restored{Subnet: at.subnet, Lease: best.lease(), Vouched: best.proves()})
	case l.Claim == best.Claim:
	case best.strength == vouchedFor && holder < runsOnIt && !l.Owner.Reserves():
		r.out.Replace = append(r.out.Replace, Replaced{Old: l, New: best.lease(), Vouched: best.proves()})
	default:
		winner = l.Claim
	}
	if best.Claim == winner {
		r.settleMAC(best)
	}
	told := map[ipam.Claim]bool{winner: true}
	for _, c := range cs {
		if told[c.Claim] {
			continue
		}
		told[c.Claim] = true
		r.out.Conflicts = append(r.out.Conflicts, Finding{Kind: LeaseMissing, Subject: at.addr.String(), Namespace: c.Namespace, Pod: c.Name,
			PodUID: c.UID, Lease: ipam.Held{Subnet: at.subnet, Lease: c.lease()}, Detail: fmt.Sprintf("%s of subnet %s is another's", at.addr, at.subnet)})
	}
}

// settleMAC restores the lease of a MAC that isn't derived from the interface's IPv4 address.
func (r *rebuilder) settleMAC(c contender) {
	m := c.holding.MAC
	if m == (ipam.MAC{}) || m == c.derived() || r.macs[macKey(c.Claim, m)] {
		return
	}
	r.macs[macKey(c.Claim, m)] = true
	x := c.lease()
	x.Address, x.MAC, x.Requested = netip.Addr{}, m, c.holding.RequestedMAC
	r.out.Restore = append(r.out.Restore, Restored{Subnet: c.holding.Subnet, Lease: x, Vouched: c.proves()})
}

// proves tells that the contender's lease was there. Those of a pod that leaves may have been freed a moment ago.
func (c contender) proves() bool { return c.strength == vouchedFor && !c.Leaving }

// derived is the MAC that follows from the interface's IPv4 address.
func (c contender) derived() ipam.MAC {
	for _, a := range c.holding.Addresses {
		if a.Is4() {
			return ipam.DerivedMAC(a)
		}
	}
	return ipam.MAC{}
}

func (c contender) lease() ipam.Lease {
	x := ipam.Lease{Address: c.addr, MAC: c.holding.MAC, Claim: c.Claim, Owner: c.Owner, Provider: c.holding.Provider, Requested: c.holding.Requested}
	switch d := c.derived(); {
	case c.addr.Is4() && x.MAC == (ipam.MAC{}):
		x.MAC = d
	case c.addr.Is6() && d != (ipam.MAC{}) && x.MAC == d: // the other family's lease says it
		x.MAC = ipam.MAC{}
	}
	if c.strength > carriesIt {
		x.PodUID, x.PodName = c.UID, c.Name
		x.OwnerUID = c.OwnerUID
	}
	return x
}
