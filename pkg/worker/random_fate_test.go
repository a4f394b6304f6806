package worker

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// States of nodes, beside that of a node that is well.
const (
	notReadyNode = "not ready"
	outNode      = "out of service"
	goneNode     = "gone"
)

// fate is one pod from its creation on, as the API server shows it, and what it may not be robbed of.
type fate struct {
	key client.ObjectKey
	uid types.UID
	// there tells that it is stored. All else is as it was last.
	there bool
	pod   *corev1.Pod
	// admitted tells that it has had its leases from the beginning, and that no other pod has a claim to them.
	admitted bool
	// bound tells that a lease was bound to it.
	bound bool
	// rights are the claims of addresses that it needs.
	rights map[netip.Addr]ipam.Claim
	// over tells that there was a moment at which its addresses might be taken.
	over bool
	// under is the worker that led when it went.
	under *hand
}

// keep is what a sticky owner comes back to.
type keep struct {
	claim ipam.Claim
	addr  netip.Addr
	uid   string
}

// setOwner is the StatefulSet.
type setOwner struct {
	uid      types.UID
	replicas int32
}

// doubt is for what makes its claim doubtful: unless its leases are bound to it by now, it may be given others.
func (f *fate) doubt() {
	if !f.bound {
		f.admitted = false
		clear(f.rights)
	}
}

// unfencedPod tells that the pod has an address that no port's removal takes from it.
func (f *fate) unfencedPod() bool { return f.pod.Annotations["mv.app.kubernetes.io/ip_address"] != "" }

// fenced tells that an address is taken from the pod with its port, whatever its containers do once it is gone.
func (f *fate) fenced(a netip.Addr) bool {
	return f.pod.Annotations["mv.app.kubernetes.io/ip_address"] != a.String()
}

func (f *fate) machine() bool {
	return len(f.pod.OwnerReferences) > 0 && f.pod.OwnerReferences[0].Kind == "VirtualMachineInstance"
}

func (f *fate) final() bool {
	return f.pod.Status.Phase == corev1.PodSucceeded || f.pod.Status.Phase == corev1.PodFailed
}

func (f *fate) routed() bool { return f.pod.Annotations["ovn.kubernetes.io/routed"] == "true" }

// containers tells what is reported of them: whether one runs, whether one was started, and whether all have stopped.
func (f *fate) containers() (runs, started, stopped bool) {
	st := f.pod.Status
	all := slices.Concat(st.InitContainerStatuses, st.ContainerStatuses, st.EphemeralContainerStatuses)
	stopped = len(st.ContainerStatuses) > 0
	for _, c := range all {
		runs = runs || c.State.Running != nil
		started = started || c.State.Running != nil || c.State.Terminated != nil
	}
	for _, c := range st.ContainerStatuses {
		stopped = stopped && c.State.Terminated != nil
	}
	return runs, started, stopped && !runs
}

// mayEnd tells that by the state of things now its addresses may be taken.
func (s *sim) mayEnd(f *fate) bool {
	runs, started, stopped := f.containers()
	node := s.nodes[f.pod.Spec.NodeName]
	deleted := f.pod.DeletionTimestamp != nil
	ends := !f.there || deleted || f.final()
	lost := f.pod.Spec.NodeName != "" && (node == goneNode || node == outNode)
	switch {
	case !ends:
		return false
	case lost:
		return true
	case f.unfencedPod() && f.pod.Spec.NodeName != "" && !stopped && (runs || !f.final()):
		// It went unseen, or before it was looked at, and its kubelet is there.
		return !f.there && (f.under != s.hand || !f.bound) && node == ""
	case !f.there, f.final(), *f.pod.DeletionGracePeriodSeconds == 0:
		return true
	case f.pod.Spec.NodeName == "", len(f.pod.Status.ContainerStatuses) > 0 && !started:
		return true
	}
	return node == notReadyNode && s.time.Now().After(f.pod.DeletionTimestamp.Time)
}

func (s *sim) pods() []*corev1.Pod {
	var list corev1.PodList
	s.ok(s.client.List(s.ctx, &list))
	var out []*corev1.Pod
	for i := range list.Items {
		out = append(out, &list.Items[i])
	}
	return out
}

// note takes in what is stored now.
func (s *sim) note() {
	there := map[types.UID]bool{}
	for _, p := range s.pods() {
		there[p.UID] = true
		f := s.fates[p.UID]
		if f == nil {
			f = &fate{key: client.ObjectKeyFromObject(p), uid: p.UID, rights: map[netip.Addr]ipam.Claim{}}
			s.fates[p.UID] = f
		}
		f.pod, f.there = p, true
	}
	for _, f := range s.fates {
		if f.there && !there[f.uid] {
			f.there, f.under = false, s.hand
			if f.unfencedPod() {
				maps.DeleteFunc(f.rights, func(a netip.Addr, _ ipam.Claim) bool { return f.fenced(a) })
			}
		}
		f.over = f.over || s.mayEnd(f)
	}
	for _, l := range s.podLeases() {
		f := s.fates[types.UID(l.PodUID)]
		if f == nil || !l.Address.IsValid() {
			continue
		}
		if f.bound = true; !f.over && (f.there || !f.unfencedPod() || !f.fenced(l.Address)) {
			f.rights[l.Address] = l.Claim
		}
		if f.there && l.Owner.Sticky() {
			s.kept[l.Owner.Kind+" "+l.Owner.Name] = keep{claim: l.Claim, addr: l.Address, uid: l.OwnerUID}
		}
	}
	for name, k := range s.kept {
		if !s.wants(name, k) {
			delete(s.kept, name)
		}
	}
}

// wants tells that the owner of what is kept is there and wants it.
func (s *sim) wants(name string, k keep) bool {
	if name == network.KindVM+" vm" {
		return s.machine
	}
	for i := range s.replicas() {
		if name == fmt.Sprintf("StatefulSet web-%d", i) {
			return k.uid == "" || k.uid == string(s.set.uid)
		}
	}
	return false
}

func (s *sim) replicas() int32 {
	if s.set == nil {
		return 0
	}
	return s.set.replicas
}

// check tells what is wrong now. Further rules may be checked with it.
func (s *sim) check(more func() error) {
	s.rt.Helper()
	s.note()
	rules := []func() error{s.robbed, s.unwired, s.shared, s.forsaken}
	if more != nil {
		rules = append(rules, more)
	}
	all := func() error {
		var errs []error
		for _, rule := range rules {
			errs = append(errs, rule())
		}
		return errors.Join(errs...)
	}
	// The mirror of the northbound database may be behind by a moment.
	err := all()
	for end := time.Now().Add(time.Second); err != nil && time.Now().Before(end); err = all() {
		time.Sleep(5 * time.Millisecond)
	}
	if err != nil {
		s.rt.Fatalf("%v\nthe worker's last failure: %v", err, s.last)
	}
}

// robbed finds pods whose lease is gone, or another's.
func (s *sim) robbed() error {
	for _, f := range s.fates {
		for a, claim := range f.rights {
			if f.over {
				continue
			}
			if !slices.ContainsFunc(s.ledger.ByClaim(claim), func(l ipam.Held) bool {
				return l.Address == a && (f.machine() || l.PodUID == string(f.uid) || f.admitted && !f.bound)
			}) {
				return fmt.Errorf("pod %s (%s) needs %s, which is leased as %v", f.key.Name, f.uid, a, s.ledger.ByClaim(claim))
			}
		}
	}
	return nil
}

// unwired finds pods that are told that their network is ready, and have no port.
func (s *sim) unwired() error {
	for _, f := range s.fates {
		if f.over || !f.routed() || f.machine() || len(f.rights) == 0 || !f.there && f.unfencedPod() {
			continue
		}
		if p, ok := s.nb.Port(f.key.Name + ".app"); !ok || p.ExternalIDs[nb.KeyPodUID] != string(f.uid) {
			return fmt.Errorf("pod %s (%s) runs, and has the port %v", f.key.Name, f.uid, p)
		}
	}
	return nil
}

// shared finds addresses that two pods use, or two ports have.
func (s *sim) shared() error {
	type at struct{ sw, addr string }
	ports := map[at]string{}
	for _, p := range s.nb.Ports() {
		if p.Type != "" || p.ExternalIDs[nb.KeyPod] == "" {
			continue
		}
		for _, a := range lifecycle.PortAddresses(p) {
			k := at{p.ExternalIDs[nb.KeySwitch], a.String()}
			if ports[k] != "" {
				return fmt.Errorf("ports %s and %s have %s", ports[k], p.Name, a)
			}
			ports[k] = p.Name
		}
	}
	users := map[netip.Addr]*fate{}
	for _, f := range s.fates {
		if f.over || !f.routed() {
			continue
		}
		for _, c := range network.Carried(f.pod.Annotations) {
			for _, a := range c.Addresses {
				if other := users[a]; other != nil && !(f.machine() && other.machine()) {
					return fmt.Errorf("pods %s and %s use %s", other.key.Name, f.key.Name, a)
				}
				users[a] = f
			}
		}
	}
	return nil
}

// forsaken finds what a sticky owner wants and can't come back to.
func (s *sim) forsaken() error {
	for name, k := range s.kept {
		if !slices.ContainsFunc(s.ledger.ByClaim(k.claim), func(l ipam.Held) bool { return l.Address == k.addr }) {
			return fmt.Errorf("%s wants %s, which is no longer leased under %s", name, k.addr, k.claim)
		}
	}
	return nil
}

// atRest is what must hold when the worker has done all that it can.
func (s *sim) atRest() error {
	for _, p := range s.nb.Ports() {
		if p.Type != "" || p.ExternalIDs[nb.KeyPod] == "" {
			continue
		}
		if f := s.fates[types.UID(p.ExternalIDs[nb.KeyPodUID])]; f == nil || !f.there || s.mayEnd(f) {
			return fmt.Errorf("port %s is of a pod that may have none: %v", p.Name, f)
		}
	}
	free := tinySize
	for _, l := range s.podLeases() {
		if l.Subnet == "tiny" && l.Address.IsValid() {
			free--
		}
	}
	for _, f := range s.fates {
		if !f.there || f.pod.DeletionTimestamp != nil || f.final() {
			continue
		}
		_, started, _ := f.containers()
		finalized := slices.Contains(f.pod.Finalizers, network.Finalizer)
		switch {
		case len(f.rights) > 0 && !finalized:
			return fmt.Errorf("pod %s has leases and no finalizer", f.key.Name)
		case f.admitted && f.pod.Spec.NodeName != "" && !f.routed():
			return fmt.Errorf("pod %s is not served: %v", f.key.Name, f.pod.Annotations)
		case free > 0 && s.labelled && !started && f.pod.Annotations["ovn.kubernetes.io/cidr"] == "":
			return fmt.Errorf("pod %s has no address, and %d are free", f.key.Name, free)
		}
	}
	return nil
}

// tinySize is how many addresses there are.
const tinySize = 5
