// Package storetest holds what every ipam.Store must do, as a test.
//
// Invariant: the suite uses nothing but the interface, so that what passes it can stand in for another in any test.
package storetest

import (
	"context"
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-net/berth/pkg/ipam"
)

// Watched is a store with a watch.
type Watched interface {
	ipam.Store
	Watch(ctx context.Context, o ipam.Observer) error
}

// Run tests the stores that open returns; each must be empty.
func Run(t *testing.T, open func(t *testing.T) Watched) {
	for name, f := range map[string]func(*testing.T, Watched){
		"create, read back": roundTrip, "compare and swap": compareAndSwap, "delete": deletes, "list": lists, "list of an owner": listsOwner, "watch": watches,
		"racing writers": races,
	} {
		t.Run(name, func(t *testing.T) { f(t, open(t)) })
	}
}

// Blocks returns one block of each kind, with every field in use.
func Blocks() []*ipam.Block {
	claim, other := ipam.Claim(strings.Repeat("0f", 16)), ipam.Claim(strings.Repeat("a1", 16))
	v4, v4b, v6 := netip.MustParseAddr("10.0.0.65"), netip.MustParseAddr("10.0.0.66"), netip.MustParseAddr("fd00::41")
	own := ipam.MAC{0x02, 1, 2, 3, 4, 5}
	web0 := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "demo", Name: "web-0"}
	unknown := map[string]json.RawMessage{"later": json.RawMessage(`{"a":1}`)}
	words := map[string]string{"later": "50% of a b=c"}
	return []*ipam.Block{
		{Name: "s-0a000040", Subnet: "s", SubnetUID: "uid-s", First: netip.MustParseAddr("10.0.0.64"), Version: 1, Revision: 9,
			Unknown: unknown,
			Leases: []*ipam.Lease{
				{Address: v4, MAC: ipam.DerivedMAC(v4), Claim: claim, Generation: 8, Owner: ipam.PodOwner("demo"), Provider: "ovn", PodUID: "u", PodName: "p"},
				{Address: v4b, MAC: own, Claim: other, Generation: 9, Owner: web0, OwnerUID: "uid-web", Provider: "net.demo.ovn", Requested: true, Unknown: words},
			},
			Freed: []ipam.Freed{{Address: netip.MustParseAddr("10.0.0.70"), At: 1700000000, Owner: web0, Unknown: words},
				{Address: netip.MustParseAddr("10.0.0.71"), At: 1700000001}}},
		{Name: "s-fd000000000000000000000000000040", Subnet: "s", SubnetUID: "uid-s", First: netip.MustParseAddr("fd00::40"), Version: 1, Revision: 1,
			Leases: []*ipam.Lease{{Address: v6, MAC: ipam.HashedMAC(v6, 0), Claim: claim, Generation: 1, Owner: ipam.PodOwner("demo"), Provider: "ovn"}}},
		{Name: "s-mac-7f", Subnet: "s", Version: 1, Revision: 1,
			Leases: []*ipam.Lease{{MAC: own, Claim: other, Generation: 1, Owner: web0, Provider: "ovn", Requested: true}}},
		{Name: "other-0a010000", Subnet: "other", SubnetUID: "uid-o", First: netip.MustParseAddr("10.1.0.0"), Version: 1},
	}
}

// Diff compares blocks, without what the store sets.
func Diff(want, got any) string {
	return cmp.Diff(want, got, cmpopts.IgnoreFields(ipam.Block{}, "ResourceVersion", "UID", "Kept"), cmpopts.IgnoreUnexported(ipam.Block{}), cmpopts.EquateEmpty(),
		cmp.Comparer(func(a, b netip.Addr) bool { return a == b }))
}

func mustWrite(t *testing.T, s ipam.Store, b *ipam.Block) *ipam.Block {
	t.Helper()
	got, err := s.Write(t.Context(), b)
	if err != nil {
		t.Fatalf("writing %s: %v", b.Name, err)
	}
	return got
}

func is(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: got %v, want %v", what, err, want)
	}
}

func roundTrip(t *testing.T, s Watched) {
	for _, b := range Blocks() {
		if _, err := s.Get(t.Context(), b.Name); !errors.Is(err, ipam.ErrNotFound) {
			t.Errorf("%s before it was written: %v", b.Name, err)
		}
		stored := mustWrite(t, s, b)
		if stored.ResourceVersion == "" || stored.UID == "" {
			t.Errorf("%s has no resourceVersion or UID", b.Name)
		}
		got, err := s.Get(t.Context(), b.Name)
		if err != nil {
			t.Fatal(err)
		}
		if d := Diff(b, stored) + Diff(b, got); d != "" {
			t.Errorf("%s came back otherwise:\n%s", b.Name, d)
		}
		if got.ResourceVersion != stored.ResourceVersion || got.UID != stored.UID {
			t.Errorf("%s: answer and read differ in version or UID", b.Name)
		}
	}
}

func compareAndSwap(t *testing.T, s Watched) {
	b := Blocks()[0]
	first := mustWrite(t, s, b)
	_, err := s.Write(t.Context(), b)
	is(t, "create again", err, ipam.ErrConflict)
	next := *first
	next.Revision++
	second := mustWrite(t, s, &next)
	if second.ResourceVersion == first.ResourceVersion || second.Revision != next.Revision {
		t.Errorf("replaced: %+v", second)
	}
	_, err = s.Write(t.Context(), &next)
	is(t, "replace at an old version", err, ipam.ErrConflict)
	gone := *second
	gone.Name = "s-0a000080"
	gone.First, gone.Leases, gone.Freed = netip.MustParseAddr("10.0.0.128"), nil, nil
	_, err = s.Write(t.Context(), &gone)
	is(t, "replace what is not there", err, ipam.ErrConflict)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = s.Write(ctx, second); err == nil || errors.Is(err, ipam.ErrConflict) || errors.Is(err, ipam.ErrRefused) {
		t.Errorf("with an ended context: %v, want an unknown outcome", err)
	}
}

func deletes(t *testing.T, s Watched) {
	b := Blocks()[0]
	first := mustWrite(t, s, b)
	changed := *first
	changed.Revision++
	second := mustWrite(t, s, &changed)
	is(t, "delete at an old version", s.Delete(t.Context(), first), ipam.ErrConflict)
	stranger := *second
	stranger.UID = "another"
	is(t, "delete another incarnation", s.Delete(t.Context(), &stranger), ipam.ErrConflict)
	if err := s.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	is(t, "delete again", s.Delete(t.Context(), second), ipam.ErrConflict)
	_, err := s.Get(t.Context(), b.Name)
	is(t, "read", err, ipam.ErrNotFound)
	if again := mustWrite(t, s, b); again.UID == second.UID {
		t.Error("the UID of a deleted block came back")
	}
}

func lists(t *testing.T, s Watched) {
	for _, b := range Blocks() {
		mustWrite(t, s, b)
	}
	for name, c := range map[string]struct {
		subnets []string
		want    int
	}{"all": {nil, 4}, "one": {[]string{"s"}, 3}, "two": {[]string{"s", "other", "s"}, 4}, "none": {[]string{"absent"}, 0}} {
		got, err := s.List(t.Context(), c.subnets...)
		if err != nil || len(got) != c.want {
			t.Errorf("%s: %d blocks (%v), want %d", name, len(got), err, c.want)
		}
	}
}

func listsOwner(t *testing.T, s Watched) {
	blocks := Blocks()
	for i, b := range blocks {
		blocks[i] = mustWrite(t, s, b)
	}
	owner := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "demo", Name: "web-0"}
	find := func(step string, want []string, subnets ...string) {
		t.Helper()
		bs, err := s.ListOwner(t.Context(), owner, subnets...)
		if err != nil {
			t.Fatalf("%s: %v", step, err)
		}
		var got []string
		for _, b := range bs {
			got = append(got, b.Name)
		}
		slices.Sort(got)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s:\n%s", step, d)
		}
	}
	find("of all", []string{"s-0a000040", "s-mac-7f"})
	find("of its subnet", []string{"s-0a000040", "s-mac-7f"}, "s")
	find("of another", nil, "other")
	next := *blocks[0]
	next.Leases = next.Leases[:1]
	mustWrite(t, s, &next)
	find("after one is freed", []string{"s-mac-7f"}, "s")
}

func races(t *testing.T, s Watched) {
	base := mustWrite(t, s, Blocks()[0])
	var wg sync.WaitGroup
	var mu sync.Mutex
	won := 0
	for range 8 {
		wg.Go(func() {
			next := *base
			next.Revision++
			_, err := s.Write(t.Context(), &next)
			mu.Lock()
			defer mu.Unlock()
			if err == nil {
				won++
			} else if !errors.Is(err, ipam.ErrConflict) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if won != 1 {
		t.Errorf("%d of 8 writers at one version won", won)
	}
}

// view is an observer that remembers the latest.
type view struct {
	mu       sync.Mutex
	blocks   map[string]*ipam.Block
	replaced bool
}

func (v *view) Observe(b *ipam.Block) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.blocks[b.Name] = b
}

func (v *view) Forget(name, _ string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.blocks, name)
}

func (v *view) Replace(bs []*ipam.Block, _ string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.replaced, v.blocks = true, map[string]*ipam.Block{}
	for _, b := range bs {
		v.blocks[b.Name] = b
	}
}

// until waits for the view to be as wanted.
func (v *view) until(t *testing.T, what string, ok func(map[string]*ipam.Block) bool) {
	t.Helper()
	for range 1000 {
		v.mu.Lock()
		done := v.replaced && ok(v.blocks)
		v.mu.Unlock()
		if done {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("the watch never showed: %s", what)
}

func watches(t *testing.T, s Watched) {
	bs := Blocks()
	first := mustWrite(t, s, bs[0])
	ctx, cancel := context.WithCancel(t.Context())
	v := &view{blocks: map[string]*ipam.Block{}}
	ended := make(chan error, 1)
	go func() { ended <- s.Watch(ctx, v) }()
	v.until(t, "what was there", func(m map[string]*ipam.Block) bool { return len(m) == 1 && Diff(bs[0], m[bs[0].Name]) == "" })
	mustWrite(t, s, bs[1])
	v.until(t, "a new block", func(m map[string]*ipam.Block) bool { return len(m) == 2 })
	next := *first
	next.Revision++
	second := mustWrite(t, s, &next)
	v.until(t, "a change", func(m map[string]*ipam.Block) bool {
		return m[bs[0].Name] != nil && m[bs[0].Name].ResourceVersion == second.ResourceVersion
	})
	if err := s.Delete(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	v.until(t, "a deletion", func(m map[string]*ipam.Block) bool { return len(m) == 1 && m[bs[0].Name] == nil })
	cancel()
	if err := <-ended; err != nil {
		t.Errorf("the watch ended with %v", err)
	}
}
