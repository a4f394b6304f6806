package lifecycle

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// Kind says what doesn't fit.
type Kind string

// The kinds of findings.
const (
	// LeasePending: bound to no pod, and no pod carries it.
	LeasePending Kind = "lease-pending"
	// LeaseOrphaned: bound to a pod that is gone or has ended.
	LeaseOrphaned Kind = "lease-orphaned"
	// LeaseMissing: a pod carries a claim and an address that the ledger doesn't have.
	LeaseMissing Kind = "lease-missing"
	// LeaseShared: two living pods carry one lease.
	LeaseShared Kind = "lease-shared"
	// PortOrphaned: the pod of a port is gone.
	PortOrphaned Kind = "port-orphaned"
	// PortUnleased: the pod lives, but the port's address isn't leased under its claim.
	PortUnleased Kind = "port-unleased"
	// PortDuplicate: two ports on one switch have one address.
	PortDuplicate Kind = "port-duplicate"
	// PortMissing: a living pod was told that its network is ready, and no port has its address.
	PortMissing Kind = "port-missing"
	// RecordOrphaned: the pod of a record is gone.
	RecordOrphaned Kind = "record-orphaned"
	// FinalizerMissing: a living pod holds leases without the finalizer.
	FinalizerMissing Kind = "finalizer-missing"
)

// Kinds returns all kinds, for metrics.
func Kinds() []Kind {
	return []Kind{LeasePending, LeaseOrphaned, LeaseMissing, LeaseShared, PortOrphaned, PortUnleased, PortDuplicate, PortMissing,
		RecordOrphaned, FinalizerMissing}
}

// Pod is what Compare needs to know of a pod.
type Pod struct {
	Namespace, Name, UID string
	// Claim on the pod, empty for none.
	Claim ipam.Claim
	// Addresses on the pod. None beside a claim: it is about to be given them, and all leases of the claim are its.
	Addresses []netip.Addr
	// Routed are the networks of which the pod says that their ports are ready.
	Routed []string
	// Over tells that the pod has ended: it needs nothing any more.
	Over bool
	// Deleting tells that it is being deleted, so that nothing is put back.
	Deleting bool
	// Finalized tells that it carries the finalizer.
	Finalized bool
}

// Carries tells whether the pod has the lease on it, so that it is, or will be, bound.
func (p Pod) Carries(l ipam.Held) bool {
	return !p.Over && p.Claim == l.Claim && (!l.Address.IsValid() || len(p.Addresses) == 0 || slices.Contains(p.Addresses, l.Address))
}

// Record is what Compare needs to know of one of our IP records.
type Record struct {
	Name, Namespace, Pod, PodUID string
	Claim                        ipam.Claim
	Subnet                       string
	Addresses                    []netip.Addr
	MAC                          ipam.MAC
}

// State is all that is compared.
type State struct {
	Pods    []Pod
	Leases  []ipam.Held
	Ports   []nb.LogicalSwitchPort
	Records []Record
	// Complete tells that Ports are all that there are, so that those that are missing are told.
	Complete bool
	// Keeps tells whether a sticky owner still wants its lease; nil knows of none. It is only asked about leases without
	// a living pod.
	Keeps func(ipam.Held) Answer
}

// Finding is one thing that doesn't fit.
type Finding struct {
	Kind Kind
	// Subject names it: an address, a port, a record or a pod.
	Subject string
	// Lease is set for findings about a lease.
	Lease ipam.Held
	// Surplus tells that its sticky owner has another lease in its place, or a pod without it: it keeps this one no longer.
	Surplus bool
	// Namespace, Pod and PodUID name the pod that it is about, where one is known.
	Namespace, Pod, PodUID string
	// Detail for people.
	Detail string
}

// Key tells findings of one state from those of another.
func (f Finding) Key() string {
	return fmt.Sprintf("%s|%s|%s|%s|%d", f.Kind, f.Subject, f.PodUID, f.Lease.Claim, f.Lease.Generation)
}

// carried is a claim and one of the addresses under it.
type carried struct {
	claim ipam.Claim
	addr  netip.Addr
}

// Compare tells what doesn't fit, in a fixed order. What other programs own is not looked at: ports and records without
// a claim. Two ports with one address are told whoever owns them.
func Compare(s State) []Finding {
	c := &comparison{State: s, byUID: map[string]Pod{}, carriers: map[carried][]Pod{}, claims: map[ipam.Claim][]Pod{},
		leases: map[carried]bool{}, holders: map[string]bool{}}
	c.index()
	c.compareLeases()
	c.comparePods()
	c.comparePorts()
	c.findMissing()
	c.compareRecords()
	slices.SortStableFunc(c.findings, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
	})
	return c.findings
}

type comparison struct {
	State
	byUID    map[string]Pod
	carriers map[carried][]Pod
	claims   map[ipam.Claim][]Pod
	leases   map[carried]bool
	holders  map[string]bool
	owned    map[ipam.Owner][]ipam.Held // of sticky owners; nil: nobody has asked yet
	findings []Finding
}

func (c *comparison) index() {
	for _, p := range c.Pods {
		c.byUID[p.UID] = p
		if p.Claim == "" || p.Over {
			continue
		}
		c.claims[p.Claim] = append(c.claims[p.Claim], p)
		for _, a := range p.Addresses {
			k := carried{p.Claim, a}
			c.carriers[k] = append(c.carriers[k], p)
		}
	}
	for _, l := range c.Leases {
		c.leases[carried{l.Claim, l.Address}] = true
		if l.PodUID != "" {
			c.holders[l.PodUID] = true
		}
	}
}

func (c *comparison) add(f Finding) { c.findings = append(c.findings, f) }

// compareLeases finds leases without a living pod.
func (c *comparison) compareLeases() {
	for _, l := range c.Leases {
		if l.Owner.Reserves() || c.boundToLiving(l) || c.isCarried(l) {
			continue
		}
		surplus := l.Owner.Sticky() && c.surplus(l)
		if l.Owner.Sticky() && !surplus && c.keeps(l) != No {
			continue
		}
		f := Finding{Kind: LeasePending, Subject: l.Ref().String(), Lease: l, Surplus: surplus, Namespace: l.Owner.Namespace,
			Detail: "no pod carries it"}
		if l.PodUID != "" {
			f.Kind, f.Pod, f.PodUID, f.Detail = LeaseOrphaned, l.PodName, l.PodUID, "its pod is gone"
		}
		if surplus {
			f.Detail += ", and its owner has others"
		}
		c.add(f)
	}
}

func (c *comparison) boundToLiving(l ipam.Held) bool {
	p, ok := c.byUID[l.PodUID]
	return l.PodUID != "" && ok && !p.Over
}

// surplus tells that the owner of a lease which no pod carries has another for the same network: one that is bound to a
// living pod, or of those that were never bound any that was, else the lowest. Two that were both bound are both kept until
// a pod shows which is wanted. A MAC goes with the claim that it was leased under. What the living pod of an owner has none
// of, it wants no more; of a virtual machine's networks its spec tells.
func (c *comparison) surplus(l ipam.Held) bool {
	return slices.ContainsFunc(c.ownedBy(l.Owner), func(o ipam.Held) bool {
		switch {
		case l.Owner.Kind != network.KindVM && c.boundToLiving(o):
			return true
		case o.Provider != l.Provider:
			return false
		case !l.Address.IsValid():
			return o.Claim != l.Claim && c.boundToLiving(o)
		case !o.Address.IsValid() || o.Address.Is4() != l.Address.Is4() || o.Subnet == l.Subnet && o.Address == l.Address:
			return false
		}
		lower := cmp.Or(cmp.Compare(o.Subnet, l.Subnet), o.Address.Compare(l.Address)) < 0
		return c.boundToLiving(o) || l.PodUID == "" && (o.PodUID != "" || lower)
	})
}

// ownedBy gives all leases of a sticky owner.
func (c *comparison) ownedBy(owner ipam.Owner) []ipam.Held {
	if c.owned == nil {
		c.owned = map[ipam.Owner][]ipam.Held{}
		for _, l := range c.Leases {
			if l.Owner.Sticky() && !l.Owner.Reserves() {
				c.owned[l.Owner] = append(c.owned[l.Owner], l)
			}
		}
	}
	return c.owned[owner]
}

// isCarried tells that a living pod has the lease on it.
func (c *comparison) isCarried(l ipam.Held) bool {
	return slices.ContainsFunc(c.claims[l.Claim], func(p Pod) bool { return p.Carries(l) })
}

func (c *comparison) keeps(l ipam.Held) Answer {
	if c.Keeps == nil {
		return Unknown
	}
	return c.Keeps(l)
}

func (c *comparison) comparePods() {
	shared := map[carried]bool{}
	for _, p := range c.Pods {
		if p.Over {
			continue
		}
		if c.holders[p.UID] && !p.Finalized && !p.Deleting {
			c.add(Finding{Kind: FinalizerMissing, Subject: p.Namespace + "/" + p.Name, Namespace: p.Namespace, Pod: p.Name,
				PodUID: p.UID, Detail: "put it back"})
		}
		if p.Claim == "" || p.Deleting {
			continue
		}
		for _, a := range p.Addresses {
			k := carried{p.Claim, a}
			if !c.leases[k] {
				c.add(Finding{Kind: LeaseMissing, Subject: a.String(), Namespace: p.Namespace, Pod: p.Name, PodUID: p.UID,
					Detail: "the ledger has no lease under the pod's claim"})
			}
			if len(c.carriers[k]) > 1 && !shared[k] && !c.launchers(k) {
				shared[k] = true
				c.add(Finding{Kind: LeaseShared, Subject: a.String(), Namespace: p.Namespace, Pod: p.Name, PodUID: p.UID,
					Detail: fmt.Sprintf("%d living pods carry it", len(c.carriers[k]))})
			}
		}
	}
}

// launchers tells that a lease belongs to a virtual machine, whose launchers share it while it migrates.
func (c *comparison) launchers(k carried) bool {
	return slices.ContainsFunc(c.Leases, func(l ipam.Held) bool {
		return l.Claim == k.claim && l.Address == k.addr && l.Owner.Kind == "VirtualMachine"
	})
}

func (c *comparison) comparePorts() {
	first := map[spot]string{}
	for _, port := range c.Ports {
		ids := port.ExternalIDs
		addrs := PortAddresses(port)
		for _, a := range addrs {
			at := spot{ids[nb.KeySwitch], a}
			if other, taken := first[at]; taken {
				c.add(Finding{Kind: PortDuplicate, Subject: port.Name, Namespace: podNamespace(ids[nb.KeyPod]),
					Pod: podName(ids[nb.KeyPod]), PodUID: ids[nb.KeyPodUID],
					Detail: fmt.Sprintf("%s is also on port %s of switch %s", a, other, at.subnet)})
				continue
			}
			first[at] = port.Name
		}
		if ids[nb.KeyClaim] != "" {
			c.comparePort(port, addrs)
		}
	}
}

func (c *comparison) comparePort(port nb.LogicalSwitchPort, addrs []netip.Addr) {
	ids := port.ExternalIDs
	f := Finding{Subject: port.Name, Namespace: podNamespace(ids[nb.KeyPod]), Pod: podName(ids[nb.KeyPod]), PodUID: ids[nb.KeyPodUID]}
	p, ok := c.byUID[ids[nb.KeyPodUID]]
	switch {
	case !ok || p.Over:
		f.Kind, f.Detail = PortOrphaned, "its pod is gone"
	case slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !c.leases[carried{ipam.Claim(ids[nb.KeyClaim]), a}] }):
		f.Kind, f.Detail = PortUnleased, "the ledger has no lease for it"
	default:
		return
	}
	c.add(f)
}

// findMissing finds pods that have lost a port.
func (c *comparison) findMissing() {
	if !c.Complete {
		return
	}
	there := map[carried]bool{}
	for _, port := range c.Ports {
		for _, a := range PortAddresses(port) {
			there[carried{ipam.Claim(port.ExternalIDs[nb.KeyClaim]), a}] = true
		}
	}
	for _, l := range c.Leases {
		p := c.byUID[l.PodUID]
		if l.PodUID == "" || !l.Address.IsValid() || p.Over || p.Deleting || !slices.Contains(p.Routed, l.Provider) || there[carried{l.Claim, l.Address}] {
			continue
		}
		c.add(Finding{Kind: PortMissing, Subject: l.Ref().String(), Lease: l, Namespace: p.Namespace, Pod: p.Name, PodUID: p.UID,
			Detail: "no port has it"})
	}
}

func (c *comparison) compareRecords() {
	for _, r := range c.Records {
		if p, ok := c.byUID[r.PodUID]; ok && !p.Over {
			continue
		}
		c.add(Finding{Kind: RecordOrphaned, Subject: r.Name, Namespace: r.Namespace, Pod: r.Pod, PodUID: r.PodUID, Detail: "its pod is gone"})
	}
}

// PortAddresses gives the IP addresses of a port.
func PortAddresses(port nb.LogicalSwitchPort) []netip.Addr {
	var addrs []netip.Addr
	for _, text := range port.Addresses {
		for word := range strings.FieldsSeq(text) {
			if a, err := netip.ParseAddr(word); err == nil {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs
}

func podNamespace(key string) string {
	namespace, _, _ := strings.Cut(key, "/")
	return namespace
}

func podName(key string) string {
	_, name, _ := strings.Cut(key, "/")
	return name
}
