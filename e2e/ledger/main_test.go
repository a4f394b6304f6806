//go:build e2e

// Package ledger tests the ledger of addresses against a real kube-apiserver and etcd: the store's contract, fields that
// this version does not know, and several processes that take and free at once and are killed while they do.
//
// Invariant: what a test concludes rests on what was stored and on what the takers wrote down before they went on, never
// on the memory of the code under test.
package ledger

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/utils/clock"

	"go4.org/netipx"

	"github.com/berth-net/berth/e2e/cluster"
	"github.com/berth-net/berth/e2e/suite"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/ipam/blockstore"
)

func TestMain(m *testing.M) {
	if job := os.Getenv(jobVariable); job != "" {
		os.Exit(childMain(job))
	}
	code := m.Run()
	stopCluster()
	os.Exit(code)
}

// harness is the control plane that all tests of this package share, one after the other.
type harness struct {
	*cluster.Cluster
	dynamic dynamic.Interface
}

var shared struct {
	sync.Once
	h   *harness
	err error
}

// start gives the control plane with an empty ledger.
func start(t testing.TB) *harness {
	t.Helper()
	shared.Do(func() { shared.h, shared.err = startCluster() })
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	shared.h.clear(t)
	return shared.h
}

func startCluster() (*harness, error) {
	dir, err := os.MkdirTemp("", "bl") // short, for sockets
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c, err := cluster.Start(ctx, cluster.Options{Dir: dir, ControlPlaneOnly: true, Progress: os.Stderr})
	if err != nil {
		return nil, err
	}
	d, err := dynamic.NewForConfig(c.Config())
	return &harness{Cluster: c, dynamic: d}, err
}

func stopCluster() {
	if shared.h == nil || suite.Keep() {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := shared.h.Down(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func resource(group, version, plural string) schema.GroupVersionResource {
	return schema.GroupVersionResource{Group: group, Version: version, Resource: plural}
}

func blocks() schema.GroupVersionResource { return resource("berth.dev", "v1alpha1", "addressblocks") }

// clear deletes all blocks.
func (h *harness) clear(t testing.TB) {
	t.Helper()
	if err := h.dynamic.Resource(blocks()).DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (h *harness) store(t testing.TB) *blockstore.Store {
	t.Helper()
	s, err := blockstore.New(h.Config())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// watched makes a ledger over a store and feeds it by the store's watch until the test ends.
func watched(t testing.TB, s ipam.Store, feed *blockstore.Store, replica string) *ipam.Ledger {
	t.Helper()
	l, err := ipam.New(ipam.Options{Store: s, Replica: replica, Clock: clock.RealClock{}, Random: rand.Reader})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- feed.Watch(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("the watch ended with %v", err)
		}
	})
	if err := synced(ctx, feed); err != nil {
		t.Fatal(err)
	}
	return l
}

// synced waits for a store's watch.
func synced(ctx context.Context, s *blockstore.Store) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !s.Synced() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// subnetSpec is a subnet as the tests describe it, and as a job hands it to a process.
type subnetSpec struct {
	Name, UID string
	Prefixes  []netip.Prefix
	Gateways  []netip.Addr
	// Excluded are single addresses.
	Excluded []netip.Addr
}

func (s subnetSpec) build() (*ipam.Subnet, error) {
	var b netipx.IPSetBuilder
	for _, a := range s.Excluded {
		b.Add(a)
	}
	exclude, err := b.IPSet()
	if err != nil {
		return nil, err
	}
	return ipam.NewSubnet(ipam.SubnetSpec{Name: s.Name, UID: s.UID, Prefixes: s.Prefixes, Gateways: s.Gateways, Exclude: exclude})
}

// usable tells whether an address may be leased at all, worked out apart from the code under test.
func (s subnetSpec) usable(a netip.Addr) bool {
	for _, g := range s.Gateways {
		if a == g {
			return false
		}
	}
	for _, p := range s.Prefixes {
		if p.Contains(a) {
			return a != p.Addr() && (a.Is6() || p.Contains(a.Next()))
		}
	}
	return false
}

func (s subnetSpec) excluded(a netip.Addr) bool {
	for _, x := range s.Excluded {
		if a == x {
			return true
		}
	}
	return false
}

// smallSubnet has a handful of addresses, bigSubnet plenty; both have both families.
func smallSubnet() subnetSpec {
	return subnetSpec{Name: "small", UID: "uid-small",
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.90.0.0/28"), netip.MustParsePrefix("fd00:90::/120")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.90.0.1"), netip.MustParseAddr("fd00:90::1")},
		Excluded: []netip.Addr{netip.MustParseAddr("10.90.0.2"), netip.MustParseAddr("10.90.0.3"), netip.MustParseAddr("fd00:90::2")}}
}

func bigSubnet() subnetSpec {
	return subnetSpec{Name: "big", UID: "uid-big",
		Prefixes: []netip.Prefix{netip.MustParsePrefix("10.91.0.0/16"), netip.MustParsePrefix("fd00:91::/112")},
		Gateways: []netip.Addr{netip.MustParseAddr("10.91.0.1"), netip.MustParseAddr("fd00:91::1")}}
}

// from asks for one interface with addresses of a subnet.
func from(s *ipam.Subnet, families ...ipam.Family) ipam.InterfaceRequest {
	return ipam.InterfaceRequest{Provider: "ovn", Candidates: []ipam.Source{{Subnet: s}}, Families: families}
}

// config is the access of a process of its own: it does not hold itself back.
func config(c *rest.Config) *rest.Config {
	c = rest.CopyConfig(c)
	c.QPS = -1
	return c
}
