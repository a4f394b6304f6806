package network

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
)

// StatusKey is the annotation in which Multus tells what is plugged into a pod.
const StatusKey = "k8s.v1.cni.cncf.io/network-status"

// Having is what a pod that has its addresses has of them.
type Having struct {
	// Leases under its claim.
	Leases []ipam.Held
	// Running tells that its network is in use.
	Running bool
}

// Edit is what becomes of the networks of a pod that has its addresses when it names other attachments. All that it has
// and still names stays as it is, and so does its default network.
type Edit struct {
	// Plug is what is new. Owner, Requested and Networks are of the whole pod.
	Plug Planned
	// Unplug are the providers of networks that it has and no longer names.
	Unplug []string
	// InUse are those of them that another CNI has plugged in and not yet unplugged: nothing else keeps the pod off their
	// addresses, so they are the pod's until then.
	InUse []string
	// Free are leases of networks that it neither names nor, but for Unplug, has.
	Free []ipam.Held
	// Drop are the annotations of Unplug.
	Drop []string
}

// namedNetworks is the value of NetworksKey.
func namedNetworks(annotations map[string]string) string {
	return strings.TrimSpace(annotations[NetworksKey])
}

// given are the providers of the networks whose annotations are an answer.
func given(annotations map[string]string) map[string]bool {
	out := map[string]bool{}
	for key := range annotations {
		if provider, _, ok := SplitKey(key); ok && !out[provider] && Given(annotations, provider) {
			out[provider] = true
		}
	}
	return out
}

// Settled tells whether a pod that has its addresses still names the attachments that they were made for. What the
// attachments are by now doesn't matter: only an edit of the pod changes its networks.
func Settled(annotations map[string]string) bool {
	now := namedNetworks(annotations)
	if made, ok := annotations[PluggedKey]; ok || now != "" {
		return ok && made == now
	}
	has := given(annotations)
	if annotations[DefaultNetworkKey] == "" {
		delete(has, DefaultProvider)
		return len(has) == 0
	}
	return len(has) <= 1
}

// Replan works out what an edit of the attachments of a pod comes to. Only what is new is checked: what has become wrong of
// the rest since it was given is no reason to refuse the edit. What is wrong is told at once, and nothing may be changed
// then.
func Replan(p Pod, have Having, ns Namespace, cat Catalog, cfg Config) (Edit, field.ErrorList) {
	e := Edit{Plug: Planned{Owner: OwnerOf(p, cfg), Networks: namedNetworks(p.Annotations)}}
	pl := &planner{pod: p, ns: ns, cat: cat, cfg: cfg, out: &e.Plug, given: given(p.Annotations)}
	pl.readRequested()
	nets := pl.networks()
	if len(pl.errs) > 0 {
		return e, pl.errs
	}
	var fresh []*net
	named, requested := map[string]bool{}, map[string]map[string]string{}
	for _, n := range nets {
		named[n.provider] = true
		if asked := requestedOf(n.own); len(asked) > 0 {
			requested[n.provider] = asked
		}
		switch {
		case pl.given[n.provider]:
			pl.keeps(n)
		case n.primary:
			pl.errs = append(pl.errs, field.Forbidden(annotationPath(DefaultNetworkKey),
				"the default network of a pod that has its address can't become another: make the pod anew"))
		default:
			fresh = append(fresh, n)
		}
	}
	pl.planFresh(fresh)
	if len(pl.errs) > 0 {
		return e, pl.errs
	}
	e.Plug.Requested = requestedValue(requested)
	e.leave(pl, have, named)
	return e, nil
}

// planFresh works out the networks that are new, by their own annotations alone.
func (pl *planner) planFresh(fresh []*net) {
	mine := map[string]bool{}
	for _, n := range fresh {
		mine[n.provider] = true
	}
	pl.values(func(key, provider string, err error) {
		if err != nil && mine[provider] {
			pl.errs = append(pl.errs, field.Invalid(annotationPath(key), pl.pod.Annotations[key], err.Error()))
		}
	})
	for _, n := range fresh {
		pl.out.Interfaces = append(pl.out.Interfaces, pl.plan(n))
	}
	pl.checkPorts(fresh)
}

// keeps warns when a network that is plugged in is asked for with another address or MAC than it has.
func (pl *planner) keeps(n *net) {
	for _, c := range Carried(pl.pod.Annotations) {
		if c.Provider != n.provider {
			continue
		}
		ips, err := ParseAddresses(strings.Join(n.selection.IPs, ","))
		mac, macErr := ipam.ParseMAC(n.selection.MAC)
		other := err == nil && slices.ContainsFunc(ips, c.lacks) || n.selection.MAC != "" && macErr == nil && mac != c.MAC
		if other {
			pl.warn("network %s keeps %s, which it was plugged in with: unplug it first, to have what is asked for now", n.provider, join(c.Addresses))
		}
	}
}

// leave works out what goes.
func (e *Edit) leave(pl *planner, have Having, named map[string]bool) {
	p, stays := pl.pod, maps.Clone(named)
	for _, c := range Carried(p.Annotations) {
		if !pl.given[c.Provider] || named[c.Provider] {
			continue
		}
		if have.Running && pl.cat.alone(c) && pluggedIn(p.Annotations, c) {
			e.InUse = append(e.InUse, c.Provider)
			stays[c.Provider] = true
			continue
		}
		e.Unplug = append(e.Unplug, c.Provider)
	}
	for key := range p.Annotations {
		// A key with an interface in it is that interface's wish, and not an answer.
		if provider, suffix, ok := SplitKey(key); ok && slices.Contains(e.Unplug, provider) && !strings.Contains(suffix, ".") {
			e.Drop = append(e.Drop, key)
		}
	}
	slices.Sort(e.Drop)
	for _, l := range have.Leases {
		if ours := l.PodUID == "" || l.PodUID == p.UID; ours && l.Owner == e.Plug.Owner && !stays[l.Provider] {
			e.Free = append(e.Free, l)
		}
	}
}

// pluggedIn tells whether another CNI's interface may still be in the pod: only a status that has none of its addresses
// says that it is not.
func pluggedIn(annotations map[string]string, c CarriedInterface) bool {
	var status []struct {
		IPs []string `json:"ips"`
	}
	if json.Unmarshal([]byte(annotations[StatusKey]), &status) != nil {
		return true
	}
	for _, s := range status {
		for _, text := range s.IPs {
			if a, err := parseAddress(text); err != nil || !c.lacks(a) {
				return true
			}
		}
	}
	return false
}
