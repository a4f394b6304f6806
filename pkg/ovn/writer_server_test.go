package ovn

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/google/go-cmp/cmp"
)

func TestB104NoDifferenceNoTransaction(t *testing.T) {
	_, c, w := setup(t)
	router := nb.LogicalRouter{Name: "r", ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN},
		Options: map[string]string{"mac_binding_age_threshold": "300"}}
	lrp := nb.RouterPort{Router: "r", Row: nb.LogicalRouterPort{Name: "r-s1", MAC: "02:00:00:00:00:01",
		Networks: []string{"10.16.0.1/16"}, ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyRouter: "r"}}}
	ch := podChange("web-0", "s1", NodeGroup("n1"), SubnetNodeGroup("s1", "n1"))
	ch.Ensure.Routers = []nb.LogicalRouter{router}
	ch.Ensure.RouterPorts = []nb.RouterPort{lrp}
	ch.Ensure.Switches = []nb.LogicalSwitch{vendorSwitch("s3")}
	if got := cost(t, w, ch); got != 1 {
		t.Errorf("first apply took %d transactions, want 1", got)
	}
	for range 3 {
		if got := cost(t, w, ch); got != 0 {
			t.Errorf("repeated apply took %d transactions, want 0", got)
		}
	}
	if diff := cmp.Diff([]string{"node.n1", "s1.n1"}, c.GroupsOf("web-0.default")); diff != "" {
		t.Error(diff)
	}
	lrp.Row.MAC = "02:00:00:00:00:02"
	ch.Ensure.RouterPorts = []nb.RouterPort{lrp}
	if got := cost(t, w, ch); got != 0 {
		t.Errorf("another MAC took %d transactions, want 0: the MAC of a router port is kept", got)
	}
}

func TestReadYourWrites(t *testing.T) {
	_, c, w := setup(t)
	for i := range 20 {
		name := fmt.Sprintf("p%d", i)
		apply(t, w, podChange(name, "s1"))
		if got := c.PodPorts("default", name); len(got) != 1 || got[0].Name != name+".default" {
			t.Fatalf("after Apply, PodPorts(%s) = %v", name, got)
		}
		apply(t, w, Change{RemovePorts: []string{name + ".default"}})
		if _, ok := c.Port(name + ".default"); ok {
			t.Fatalf("after removal, port %s is still there", name)
		}
	}
}

func TestManyAppliesFewTransactions(t *testing.T) {
	s, c, w := setup(t)
	before := w.Transactions()
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			ch := podChange(fmt.Sprintf("p%d", i), "s1", NodeGroup(fmt.Sprintf("n%d", i%3)), SubnetNodeGroup("s1", "n1"))
			if err := w.Apply(t.Context(), ch); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if got := w.Transactions() - before; got > 20 {
		t.Errorf("200 changes took %d transactions, want at most 20", got)
	}
	if got := len(c.Ports()); got != 200 {
		t.Errorf("%d ports, want 200", got)
	}
	if got := len(strings.Fields(s.nbctl("--bare", "--columns=ports", "list", "Logical_Switch", "s1"))); got != 200 {
		t.Errorf("%d ports on the switch, want 200", got)
	}
	var names []string
	for _, g := range c.Groups() {
		names = append(names, g.Name)
	}
	if diff := cmp.Diff([]string{"node.n0", "node.n1", "node.n2", "s1.n1"}, names); diff != "" {
		t.Errorf("groups (-want +got):\n%s", diff)
	}
}

func TestGuiltyChangeFailsAlone(t *testing.T) {
	_, c, w := setup(t)
	router := Change{Key: "router", Ensure: nb.Rows{
		Routers: []nb.LogicalRouter{{Name: "r"}},
		RouterPorts: []nb.RouterPort{{Router: "r", Row: nb.LogicalRouterPort{
			Name: "r-s1", MAC: "02:00:00:00:00:01", Networks: []string{"10.16.0.1/16"}}}},
	}}
	apply(t, w, router)
	var missing *MissingRowError
	var refused *TransactionError
	var invalid *InvalidRowError
	cases := map[string]struct {
		guilty Change
		want   any
	}{
		"switch that doesn't exist": {podChange("bad", "nowhere"), &missing},
		"group that doesn't exist": {Change{Ensure: nb.Rows{Ports: []nb.Port{
			{Switch: "s1", Row: nb.LogicalSwitchPort{Name: "bad"}, Groups: []string{"nowhere"}}}}}, &missing},
		"refused by the database": {Change{Ensure: nb.Rows{RouterPorts: []nb.RouterPort{
			{Router: "r", Row: nb.LogicalRouterPort{Name: "r-s1"}}}}}, &refused},
		"null byte": {podChange("bad\x00", "s1"), &invalid},
		"no name":   {Change{Ensure: nb.Rows{Switches: []nb.LogicalSwitch{{}}}}, &invalid},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			var wg sync.WaitGroup
			for i := range 40 {
				wg.Go(func() {
					if err := w.Apply(t.Context(), podChange(fmt.Sprintf("%.3s-%d", name, i), "s1", NodeGroup("n1"))); err != nil {
						t.Error(err)
					}
				})
				if i == 20 {
					wg.Go(func() {
						if err := w.Apply(t.Context(), tc.guilty); !errors.As(err, tc.want) {
							t.Errorf("guilty change: %v, want %T", err, tc.want)
						}
					})
				}
			}
			wg.Wait()
			for i := range 40 {
				if _, ok := c.Port(fmt.Sprintf("%.3s-%d.default", name, i)); !ok {
					t.Errorf("port %d is missing", i)
				}
			}
		})
	}
}

func TestFencedWriterWritesNothing(t *testing.T) {
	s, _, old := setup(t)
	ch := podChange("web-0", "s1")
	apply(t, old, ch)
	s.nbctl("set", "NB_Global", ".", "external_ids:other=1")
	apply(t, old, podChange("web-1", "s1"))

	second := s.connect()
	young := s.writer(second)
	ch.Ensure.Ports[0].Row.Addresses = []string{"0a:58:0a:10:00:63 10.16.0.99"}
	changes := []Change{ch, podChange("web-2", "s1"), {RemovePorts: []string{"web-1.default"}}}
	for _, ch := range changes {
		if err := old.Apply(t.Context(), ch); !errors.Is(err, ErrFenced) {
			t.Errorf("old writer: %v, want ErrFenced", err)
		}
	}
	if got, want := s.nbctl("lsp-get-addresses", "web-0.default"), "0a:58:0a:10:00:02 10.16.0.2"; got != want {
		t.Errorf("addresses %q, want %q", got, want)
	}
	for _, ch := range changes {
		apply(t, young, ch)
	}
	if got := s.nbctl("get", "NB_Global", ".", "external_ids:other"); got != `"1"` {
		t.Errorf("other key of NB_Global is %s", got)
	}
}

func TestRaiseEpochIsExclusive(t *testing.T) {
	t.Parallel()
	s := startServer(t, installedSchema)
	var mu sync.Mutex
	var got []int64
	var wg sync.WaitGroup
	for range 4 {
		c := s.connect()
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
	var want []int64
	for n := range int64(20) {
		want = append(want, n+1)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestWriterStopped(t *testing.T) {
	t.Parallel()
	s := startServer(t, installedSchema)
	c := s.connect()
	w := NewWriter(c, WriterOptions{Epoch: 1})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := w.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if err := w.Apply(t.Context(), podChange("web-0", "s1")); !errors.Is(err, ErrStopped) {
		t.Errorf("Apply after Run: %v, want ErrStopped", err)
	}
	if err := w.Run(ctx); err == nil {
		t.Error("Run twice succeeded")
	}
}

// Options of the whole database are set by difference, and only those that are asked for.
func TestGlobalOptions(t *testing.T) {
	s, _, w := setup(t)
	s.nbctl("set", "NB_Global", ".", "options:use_ct_inv_match=true", "options:others=kept")
	ch := Change{Key: "topology", Ensure: nb.Rows{Options: map[string]string{"use_ct_inv_match": "false", "ls_dnat_mod_dl_dst": "true"}}}
	apply(t, w, ch)
	for key, want := range map[string]string{"use_ct_inv_match": `"false"`, "ls_dnat_mod_dl_dst": `"true"`, "others": "kept"} {
		if got := s.nbctl("get", "NB_Global", ".", "options:"+key); got != want {
			t.Errorf("%s is %s, want %s", key, got, want)
		}
	}
	before := w.Transactions()
	apply(t, w, ch)
	if n := w.Transactions() - before; n != 0 {
		t.Errorf("%d transactions without a difference", n)
	}
	s.nbctl("remove", "NB_Global", ".", "options", "use_ct_inv_match")
	apply(t, w, ch)
	if got := s.nbctl("get", "NB_Global", ".", "options:use_ct_inv_match"); got != `"false"` {
		t.Errorf("after somebody removed it, it is %s", got)
	}
}
