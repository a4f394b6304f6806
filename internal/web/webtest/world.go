// Package webtest makes a world for the page: subnets, 10,000 leases, pods that wait, all in memory.
//
// Invariant: the same seed makes the same world, and what is taken or freed goes through a real ledger.
package webtest

import (
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"github.com/berth-net/berth/internal/catalog"
	"github.com/berth-net/berth/internal/report"
	"github.com/berth-net/berth/internal/web"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/memstore"
	"github.com/berth-net/berth/pkg/network"
)

// Token is what the world's gate lets in.
const Token = "a-token-for-tests"

// Shop is the subnet of 10.16.0.0/18 in which 10,000 addresses are leased.
const Shop = "shop"

// World is what the page looks at.
type World struct {
	Ledger  *ipam.Ledger
	Catalog network.Catalog
	// Pods wait for an address.
	Pods []*corev1.Pod
	// Lead is who leads.
	Lead report.Leader

	mu     sync.Mutex // for Catalog, where a page looks while a test changes it
	store  *memstore.Store
	clock  clock.WithTicker
	random io.Reader
	draw   *rand.Rand
}

// New makes a world.
func New(ctx context.Context, c clock.WithTicker) (*World, error) {
	seed := rand.NewChaCha8([32]byte{1})
	w := &World{store: memstore.New(), clock: c, random: seed, draw: rand.New(rand.NewPCG(1, 2)), Lead: report.Leader{Holder: "berth-worker-0", Alive: true}}
	var err error
	w.Ledger, err = ipam.New(ipam.Options{Store: w.store, Replica: "worker", Clock: c, Random: seed})
	if err != nil {
		return nil, err
	}
	w.Catalog = network.Catalog{Subnets: map[string]network.Subnet{}, Vpcs: map[string]*kubeovnv1.Vpc{"ovn-cluster": {ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}}}}
	vip := netip.MustParseAddr("10.16.40.9")
	w.subnet(Shop, "10.16.0.0/18", []string{"10.16.60.0..10.16.60.127", "10.16.3.10..10.16.3.40"}, map[netip.Addr]ipam.Owner{vip: {Group: "kubeovn.io", Kind: ipam.KindVip, Name: "front"}})
	w.subnet("campus", "10.64.0.0/14", []string{"10.67.0.0..10.67.255.255", "10.64.0.10..10.64.0.40"}, nil)
	w.subnet("dual", "10.20.0.0/24,fd00:20::/64", nil, nil)
	w.subnet("tiny", "10.17.0.0/29", nil, nil)
	w.Catalog.Subnets["broken"] = network.NewSubnet(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: "broken"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.18.0.0/99"}}, network.Around{})
	for _, f := range []struct {
		subnet, first string
		blocks, per   int
	}{{Shop, "10.16.0.0", 196, 51}, {"campus", "10.64.0.0", 300, 20}, {"dual", "10.20.0.0", 2, 40}, {"dual", "fd00:20::", 3, 30}, {"tiny", "10.17.0.0", 1, 64}} {
		if err := w.fill(ctx, f.subnet, netip.MustParseAddr(f.first), f.blocks, f.per); err != nil {
			return nil, err
		}
	}
	for i := range 3 {
		w.Pods = append(w.Pods, w.waiter(i))
	}
	return w, nil
}

func (w *World) subnet(name, cidr string, exclude []string, reserved map[netip.Addr]ipam.Owner) {
	w.Catalog.Subnets[name] = network.NewSubnet(&kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)},
		Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, ExcludeIps: exclude, Vpc: "ovn-cluster"}}, network.Around{Reserved: reserved})
}

func (w *World) waiter(i int) *corev1.Pod {
	controller := true
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: fmt.Sprintf("waiting-%d", i), UID: types.UID(fmt.Sprintf("waiting-%d", i)),
		CreationTimestamp: metav1.NewTime(w.clock.Now().Add(time.Duration(i-10) * time.Minute).Truncate(time.Second)),
		Annotations:       map[string]string{network.ClaimKey: string(w.claim()), network.RequestedKey: `{"ovn":{"logical_switch":"tiny"}}`}, Finalizers: []string{network.Finalizer},
		OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "waiting", Controller: &controller}}},
		Spec:   corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: network.AddressGate}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending}}
	if i == 0 {
		p.Annotations[network.RequestedKey] = `{"ovn":{"ip_address":"10.17.0.5","logical_switch":"tiny"}}`
	}
	return p
}

// fill writes blocks with leases of all kinds.
func (w *World) fill(ctx context.Context, subnet string, first netip.Addr, blocks, per int) error {
	s := w.Catalog.Subnets[subnet]
	for range blocks {
		b := &ipam.Block{Name: ipam.BlockName(subnet, first), Subnet: subnet, SubnetUID: string(s.Object.UID), First: first, Version: ipam.FormatVersion, Revision: 1}
		a := first
		for range ipam.BlockSize {
			switch {
			case s.Set.Check(a, ipam.Owner{}) != nil:
			case len(b.Leases) < per && w.draw.IntN(64) < per+4:
				b.Leases = append(b.Leases, w.lease(a))
			case w.draw.IntN(16) == 0:
				b.Freed = append(b.Freed, ipam.Freed{Address: a, At: w.clock.Now().Unix() - int64(w.draw.IntN(120))})
			}
			a = a.Next()
		}
		stored, err := w.store.Write(ctx, b)
		if err != nil {
			return err
		}
		w.Ledger.Observe(stored)
		first = a
	}
	return nil
}

func (w *World) lease(a netip.Addr) *ipam.Lease {
	spaces := []string{"shop", "bank", "mail"}
	n := w.draw.IntN(len(spaces))
	l := &ipam.Lease{Address: a, Claim: w.claim(), Generation: 1, Owner: ipam.PodOwner(spaces[n]), Provider: "ovn", PodUID: "uid-" + a.String(),
		PodName: fmt.Sprintf("web-%s", hex.EncodeToString(a.AsSlice()[len(a.AsSlice())-2:]))}
	if a.Is4() {
		l.MAC = ipam.DerivedMAC(a)
	}
	switch kind := w.draw.IntN(100); {
	case kind < 3:
		l.PodUID, l.PodName = "", ""
	case kind < 5:
		l.Owner, l.PodUID, l.PodName = ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindVip, Name: "vip-" + l.PodName}, "", ""
	case kind < 12:
		l.Requested = true
	case kind < 20:
		l.Owner = ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: spaces[n], Name: "db-" + fmt.Sprint(kind)}
	}
	return l
}

func (w *World) claim() ipam.Claim {
	var raw [16]byte
	_, _ = io.ReadFull(w.random, raw[:]) // this source never fails
	return ipam.Claim(hex.EncodeToString(raw[:]))
}

// Take leases an address of a subnet to a pod, as the webhook and the worker do.
func (w *World) Take(ctx context.Context, subnet, namespace, pod string) (ipam.Held, error) {
	a, err := w.Ledger.Take(ctx, ipam.Request{Claim: w.claim(), Owner: ipam.PodOwner(namespace),
		Interfaces: []ipam.InterfaceRequest{{Provider: "ovn", Candidates: []ipam.Source{{Subnet: w.Catalog.Subnets[subnet].Set}}}}})
	if err != nil {
		return ipam.Held{}, err
	}
	h := a.Interfaces[0].Leases[0]
	bound, err := w.Ledger.Bind(ctx, "uid-"+pod, pod, h.Ref())
	if err != nil {
		return ipam.Held{}, err
	}
	return bound[0], nil
}

// Gate lets in whoever has Token.
type Gate struct{}

// Admit looks at the header.
func (Gate) Admit(r *http.Request) error {
	switch r.Header.Get("Authorization") {
	case "Bearer " + Token:
		return nil
	case "Bearer denied":
		return web.ErrDenied
	}
	return web.ErrStranger
}

// Keep has no subnets left but the named ones.
func (w *World) Keep(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	kept := map[string]network.Subnet{}
	for _, n := range names {
		kept[n] = w.Catalog.Subnets[n]
	}
	w.Catalog.Subnets = kept
}

func (w *World) topology() network.Catalog {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.Catalog
}

// Options of a page over the world.
func (w *World) Options() web.Options {
	return web.Options{
		Self: "berth-worker-1", Ledger: w.Ledger, Synced: func() error { return nil }, Gate: Gate{}, Clock: w.clock,
		Network:  network.Config{DefaultSubnet: Shop, ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"},
		Topology: func(context.Context) (network.Catalog, error) { return w.topology(), nil },
		View: func(_ context.Context, p network.Pod) (catalog.View, error) {
			ns := network.Namespace{Name: p.Namespace, Labels: map[string]string{network.LabelInject: network.InjectEnabled}}
			return catalog.View{Pod: p, Namespace: ns, Catalog: w.topology()}, nil
		},
		Waiting: func(context.Context) ([]*corev1.Pod, error) { return append([]*corev1.Pod{}, w.Pods...), nil },
		Leader:  func(context.Context) (report.Leader, error) { return w.Lead, nil },
	}
}
