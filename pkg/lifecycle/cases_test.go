package lifecycle

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// A pod doesn't name the subnet of a NIC that another CNI plugs in. Its lease does, and when that is lost, its record.
func TestB30LostLeaseOfAnotherCNI(t *testing.T) {
	at := netip.MustParseAddr("10.32.0.9")
	pods := []Claimant{claimant("u", one, runs, holds(Holding{Provider: "mv.ns", Addresses: []netip.Addr{at}}))}
	held := ipam.Held{Subnet: "mv", Lease: ipam.Lease{Address: at, Claim: one, Provider: "mv.ns", Owner: ipam.PodOwner("ns"), PodUID: "u"}}
	record := Record{Name: "p-u.ns.mv.ns", Namespace: "ns", Pod: "p-u", PodUID: "u", Claim: one, Subnet: "mv", Addresses: []netip.Addr{at}}
	for name, c := range map[string]struct {
		in       Loss
		restored []string
		lost     []string
	}{
		"it is there":             {Loss{Pods: pods, Leases: []ipam.Held{held}, Records: []Record{record}}, nil, nil},
		"it is lost":              {Loss{Pods: pods, Records: []Record{record}}, []string{"mv 10.32.0.9 u"}, []string{"mv"}},
		"nothing tells its place": {Loss{Pods: pods}, nil, nil},
		"another pod's record":    {Loss{Pods: pods, Records: []Record{{Name: record.Name, PodUID: "v", Claim: one, Subnet: "mv", Addresses: record.Addresses}}}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			got := Rebuild(c.in)
			var restored []string
			for _, x := range got.Restore {
				restored = append(restored, strings.Join([]string{x.Subnet, x.Lease.Address.String(), x.Lease.PodUID}, " "))
			}
			if d := cmp.Diff(c.restored, restored) + cmp.Diff(c.lost, got.Lost(), cmpopts.EquateEmpty()); d != "" {
				t.Errorf("restored, lost (-want +got):\n%s", d)
			}
		})
	}
}

// The finalizer's name has a domain, so that no API server warns of it, and what is being deleted is never given it.
func TestB84Finalizer(t *testing.T) {
	if errs := validation.IsDomainPrefixedPath(field.NewPath("finalizer"), network.Finalizer); len(errs) > 0 {
		t.Errorf("%q: %v", network.Finalizer, errs.ToAggregate())
	}
	for name, p := range map[string]*corev1.Pod{
		"terminating":     pod(deleted(20*time.Second, 30), states(mains, running())),
		"past its end":    pod(deleted(-20*time.Second, 30), states(mains, running())),
		"confirmed":       pod(deleted(0, 0)),
		"never scheduled": pod(deleted(20*time.Second, 30), unscheduled),
		"ended":           pod(deleted(20*time.Second, 30), phase(corev1.PodFailed)),
	} {
		for _, keeps := range []Answer{Unknown, Yes, No} {
			v := Decide(Facts{Pod: p, OwnerKeeps: keeps, Leased: true, Now: now()})
			if v.Action == RestoreFinalizer || v.Action == Serve {
				t.Errorf("%s: %s, which puts the finalizer on it", name, v.Action)
			}
		}
	}
}
