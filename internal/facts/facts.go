// Package facts turns stored objects into what lifecycle.Compare compares, and asks sticky owners whether they keep
// their leases, for the worker's sweep and the operator's command alike.
//
// Invariant: the same objects give the same facts to everybody, so that two programs never judge one cluster
// differently; what can't be known is Unknown and never No.
package facts

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

// Marks of an IP record.
const (
	// LabelClaim is on the records that this project makes: the claim of the pod's leases.
	LabelClaim = network.ClaimKey
	// AnnotationPodUID is the UID of the pod that a record is for.
	AnnotationPodUID = "berth.dev/pod-uid"
	// LabelReserved is "false" on what the pod path made.
	LabelReserved = "ovn.kubernetes.io/ip_reserved"
	// LabelSubnet names the record's subnet.
	LabelSubnet = "ovn.kubernetes.io/subnet"
)

// Pod is what Compare needs to know of a pod.
func Pod(p *corev1.Pod) lifecycle.Pod {
	out := lifecycle.Pod{Namespace: p.Namespace, Name: p.Name, UID: string(p.UID), Over: lifecycle.Ended(p),
		Deleting: p.DeletionTimestamp != nil, Finalized: slices.Contains(p.Finalizers, network.Finalizer)}
	// While it has the finalizer, its end is the reconciler's work.
	out.Over = out.Over && !out.Finalized
	claim, ok := network.ClaimOf(p.Annotations)
	if !ok {
		return out
	}
	out.Claim = claim
	for _, c := range network.Carried(p.Annotations) {
		if p.Annotations[network.Key(c.Provider, network.SuffixCIDR)] != "" {
			out.Addresses = append(out.Addresses, c.Addresses...)
		}
		if p.Annotations[network.Key(c.Provider, network.SuffixRouted)] == "true" {
			out.Routed = append(out.Routed, c.Provider)
		}
	}
	return out
}

// Record is what Compare needs to know of an IP record that this project made.
func Record(ip *kubeovnv1.IP) lifecycle.Record {
	r := lifecycle.Record{Name: ip.Name, Namespace: ip.Spec.Namespace, Pod: ip.Spec.PodName,
		PodUID: ip.Annotations[AnnotationPodUID], Claim: ipam.Claim(ip.Labels[LabelClaim]), Subnet: ip.Spec.Subnet}
	for _, text := range []string{ip.Spec.V4IPAddress, ip.Spec.V6IPAddress} {
		if a, err := netip.ParseAddr(text); err == nil {
			r.Addresses = append(r.Addresses, a.Unmap())
		}
	}
	if m, err := ipam.ParseMAC(ip.Spec.MacAddress); err == nil {
		r.MAC = m
	}
	return r
}

// Reservation tells that somebody made the IP object to keep its address: no pod's path did, and it outlives pods.
func Reservation(ip *kubeovnv1.IP) bool {
	return ip.Labels[LabelClaim] == "" && ip.Labels[LabelReserved] != "false"
}
