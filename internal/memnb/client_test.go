package memnb_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-net/berth/internal/memnb"
	"github.com/berth-net/berth/pkg/ovn"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// These tests run pkg/ovn's own client and writer against both servers: whatever the writer relies on must hold in
// memory as it does in a real database.

func TestPortIsMadeChangedMovedAndRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		c, other := connect(t, endpoint), connect(t, endpoint)
		w := writer(t, c)
		apply(t, w, switches("s1", "s2"))
		moved := podChange("web-0", "s2", ovn.NodeGroup("n2"))
		moved.Ensure.Ports[0].Row.Options = map[string]string{"requested-chassis": "n2"}
		changed := podChange("web-0", "s1", ovn.NodeGroup("n2"))
		changed.Ensure.Ports[0].Row.Addresses = []string{"0a:58:0a:10:00:03 10.16.0.3", "unknown"}
		changed.Ensure.Ports[0].Row.PortSecurity = []string{"0a:58:0a:10:00:03 10.16.0.3"}
		changed.Ensure.Ports[0].Row.ExternalIDs[nb.KeyClaim] = "c1"
		steps := []struct {
			name   string
			change ovn.Change
			groups []string
		}{
			{"made", podChange("web-0", "s1", ovn.NodeGroup("n1")), []string{"node.n1"}},
			{"other node, other addresses", changed, []string{"node.n2"}},
			{"back", podChange("web-0", "s1", ovn.NodeGroup("n1")), []string{"node.n1"}},
			{"other switch", moved, []string{"node.n2"}},
		}
		for _, step := range steps {
			if got := cost(t, w, step.change); got != 1 {
				t.Errorf("%s: %d transactions, want 1", step.name, got)
			}
			if got := cost(t, w, step.change); got != 0 {
				t.Errorf("%s again: %d transactions, want 0", step.name, got)
			}
			want := step.change.Ensure.Ports[0].Row
			for who, reader := range map[string]*ovn.Client{"writer": c, "other": other} {
				converge(t, fmt.Sprintf("%s, seen by %s", step.name, who), func() string {
					got, _ := reader.Port(want.Name)
					return cmp.Diff(want, plain(got)) + cmp.Diff(step.groups, reader.GroupsOf(want.Name))
				})
			}
		}
		apply(t, w, ovn.Change{RemovePorts: []string{portName("web-0")}})
		converge(t, "removed", func() string {
			return cmp.Diff(0, len(other.Ports())) + cmp.Diff([]int{0, 0}, members(other))
		})
	})
}

// plain leaves out the UUID, and tells empty from missing no more.
func plain(p nb.LogicalSwitchPort) nb.LogicalSwitchPort {
	p.UUID = ""
	slices.Sort(p.Addresses)
	if len(p.Options) == 0 {
		p.Options = nil
	}
	if len(p.PortSecurity) == 0 {
		p.PortSecurity = nil
	}
	return p
}

func members(c *ovn.Client) []int {
	var out []int
	for _, g := range c.Groups() {
		out = append(out, len(g.Ports))
	}
	return out
}

// converge waits until a mirror shows no difference any more.
func converge(t *testing.T, what string, diff func() string) {
	t.Helper()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	timeout := time.After(20 * time.Second)
	for {
		d := diff()
		if d == "" {
			return
		}
		select {
		case <-ticker.C:
		case <-timeout:
			t.Fatalf("%s (-want +got):\n%s", what, d)
		}
	}
}

func TestPortsGoWithTheirSwitch(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		c := connect(t, endpoint)
		w := writer(t, c)
		apply(t, w, switches("s1", "s2"))
		for i := range 6 {
			apply(t, w, podChange(fmt.Sprintf("web-%d", i), fmt.Sprintf("s%d", i%2+1), ovn.NodeGroup("n1")))
		}
		apply(t, w, ovn.Change{RemoveSwitches: []string{"s1"}})
		// The next change is seen after all that the first one has caused.
		apply(t, w, podChange("late", "s2"))
		if got := len(c.Ports()); got != 4 {
			t.Errorf("%d ports, want 4", got)
		}
		if diff := cmp.Diff([]int{3}, members(c)); diff != "" {
			t.Errorf("members (-want +got):\n%s", diff)
		}
	})
}

func TestTopologyIsMadeAndRemoved(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		c := connect(t, endpoint)
		w := writer(t, c)
		ids := vendor()
		ids[nb.KeyRouter] = "r"
		ch := switches("s1")
		ch.Ensure.Routers = []nb.LogicalRouter{{Name: "r", ExternalIDs: vendor(), Options: map[string]string{"k": "v"}}}
		ch.Ensure.RouterPorts = []nb.RouterPort{{Router: "r", Row: nb.LogicalRouterPort{
			Name: "r-s1", MAC: "02:00:00:00:00:01", Networks: []string{"10.3.0.1/24", "fd03::1/64"}, ExternalIDs: ids}}}
		for i, want := range []int64{1, 0} {
			if got := cost(t, w, ch); got != want {
				t.Errorf("apply %d took %d transactions, want %d", i, got, want)
			}
		}
		got, _ := c.RouterPort("r-s1")
		got.UUID = ""
		slices.Sort(got.Networks)
		if diff := cmp.Diff(ch.Ensure.RouterPorts[0].Row, got); diff != "" {
			t.Errorf("router port (-want +got):\n%s", diff)
		}
		apply(t, w, ovn.Change{RemoveRouterPorts: []string{"r-s1"}, RemoveRouters: []string{"r"}, RemoveSwitches: []string{"s1"}})
		if n := len(c.Routers()) + len(c.RouterPorts()) + len(c.Switches()); n != 0 {
			t.Errorf("%d rows are left", n)
		}
	})
}

func TestOldLeaderIsFenced(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		old := writer(t, connect(t, endpoint))
		apply(t, old, switches("s1"))
		apply(t, old, podChange("web-0", "s1"))
		second := connect(t, endpoint)
		young := writer(t, second)
		for _, ch := range []ovn.Change{podChange("web-1", "s1"), {RemovePorts: []string{portName("web-0")}}} {
			if err := old.Apply(t.Context(), ch); !errors.Is(err, ovn.ErrFenced) {
				t.Errorf("old writer: %v, want ErrFenced", err)
			}
		}
		apply(t, young, podChange("web-2", "s1"))
		var names []string
		for _, p := range second.Ports() {
			names = append(names, p.Name)
		}
		if diff := cmp.Diff([]string{portName("web-0"), portName("web-2")}, names); diff != "" {
			t.Errorf("ports (-want +got):\n%s", diff)
		}
	})
}

func TestEpochIsRaisedByOneAtATime(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		var mu sync.Mutex
		var got, want []int64
		var wg sync.WaitGroup
		for range 4 {
			c := connect(t, endpoint)
			wg.Go(func() {
				for range 5 {
					n, err := c.RaiseEpoch(t.Context())
					if err != nil {
						t.Error(err)
					}
					mu.Lock()
					got = append(got, n)
					mu.Unlock()
				}
			})
		}
		wg.Wait()
		slices.Sort(got)
		for n := range int64(20) {
			want = append(want, n+1)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

// TestMirrorsAgreeUnderLoad has clients that start while others write: none may miss a change.
func TestMirrorsAgreeUnderLoad(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		const pods, readers = 40, 8
		c := connect(t, endpoint)
		w := writer(t, c)
		apply(t, w, switches("s1", "s2"))
		var wg sync.WaitGroup
		for i := range pods {
			wg.Go(func() {
				name := fmt.Sprintf("p%d", i)
				for _, ch := range []ovn.Change{
					podChange(name, "s1", ovn.NodeGroup("n1"), ovn.SubnetNodeGroup("s1", "n1")),
					podChange(name, "s2", ovn.NodeGroup("n2")),
				} {
					if err := w.Apply(t.Context(), ch); err != nil {
						t.Error(err)
					}
				}
				if i%2 == 0 {
					return
				}
				if err := w.Apply(t.Context(), ovn.Change{RemovePorts: []string{portName(name)}}); err != nil {
					t.Error(err)
				}
			})
		}
		late := make([]*ovn.Client, readers)
		for i := range late {
			late[i] = connect(t, endpoint)
		}
		wg.Wait()
		last := connect(t, endpoint)
		if got := len(last.Ports()); got != pods/2 {
			t.Errorf("%d ports, want %d", got, pods/2)
		}
		for i, r := range append(late, c) {
			converge(t, fmt.Sprintf("reader %d", i), func() string {
				return cmp.Diff(last.Ports(), r.Ports(), sortSets()) + cmp.Diff(last.Groups(), r.Groups(), sortSets())
			})
		}
	})
}

func sortSets() cmp.Option {
	return cmp.Transformer("sorted", func(s []string) map[string]bool {
		out := map[string]bool{}
		for _, v := range s {
			out[v] = true
		}
		return out
	})
}

// TestLeaderIsLookedFor: with several endpoints the client first reads which server leads.
func TestLeaderIsLookedFor(t *testing.T) {
	onBoth(t, func(t *testing.T, endpoint string) {
		dial(t, endpoint)
		w := writer(t, connect(t, endpoint, endpoint))
		apply(t, w, switches("s1"))
	})
}

func TestCloseEndsConnections(t *testing.T) {
	s := memory(t)
	c := connect(t, s.Endpoint())
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	converge(t, "the client learns that the server is gone", func() string {
		return cmp.Diff(true, errors.Is(c.Ready(), ovn.ErrNotReady))
	})
}

func TestSocketInUse(t *testing.T) {
	s := memory(t)
	_, err := memnb.Start(t.Context(), memnb.Options{Socket: s.Endpoint()[len("unix:"):]})
	if err == nil {
		t.Error("two servers on one socket")
	}
}
