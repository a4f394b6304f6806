package ovn

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/berth-net/berth/pkg/ovn/nb"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
)

// fakeStore is a database with one switch s1 that knows how to insert ports, and nothing else.
type fakeStore struct {
	*fakeView
	changes *broadcast
	metrics *metrics
	latency time.Duration
	// refuse says what the database has against a transaction.
	refuse func(names []string) error

	sent [][]string
}

// fakeView is a view of rows by name.
type fakeView struct {
	mu       sync.Mutex
	ports    map[string]nb.LogicalSwitchPort
	switches map[string][]nb.LogicalSwitch
	groups   map[string]nb.PortGroup
}

func newFakeStore(t *testing.T) *fakeStore {
	t.Helper()
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	sw := vendorSwitch("s1")
	sw.UUID = fakeUUID(1)
	return &fakeStore{
		fakeView: &fakeView{
			ports: map[string]nb.LogicalSwitchPort{}, groups: map[string]nb.PortGroup{},
			switches: map[string][]nb.LogicalSwitch{"s1": {sw}},
		},
		changes: newBroadcast(), metrics: m,
	}
}

func fakeUUID(n int) string { return fmt.Sprintf("00000000-0000-0000-0000-%012d", n) }

func (s *fakeStore) current() (snapshot, error)                  { return s, nil }
func (s *fakeStore) await(ctx context.Context) (snapshot, error) { return s, ctx.Err() }
func (s *fakeStore) changed() <-chan struct{}                    { return s.changes.wait() }
func (s *fakeStore) meter() *metrics                             { return s.metrics }

func (s *fakeStore) transact(ctx context.Context, ops []ovsdb.Operation) ([]ovsdb.OperationResult, error) {
	select {
	case <-time.After(s.latency):
	case <-ctx.Done():
		return nil, errUnknown
	}
	var names []string
	for _, op := range ops {
		if op.Op == ovsdb.OperationInsert && op.Table == tablePort {
			names = append(names, op.Row[colName].(string))
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sent = append(s.sent, names)
	if s.refuse != nil {
		if err := s.refuse(names); err != nil {
			return nil, err
		}
	}
	for _, name := range names {
		s.ports[name] = nb.LogicalSwitchPort{
			UUID: fakeUUID(100 + len(s.ports)), Name: name, Addresses: podChange("x", "s1").Ensure.Ports[0].Row.Addresses,
			ExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeySwitch: "s1", nb.KeyPod: "default/" + name[:len(name)-len(".default")]},
		}
	}
	s.changes.notify()
	return nil, nil
}

func (v *fakeView) global() (nb.Global, bool) { return nb.Global{UUID: fakeUUID(0)}, true }

func (v *fakeView) port(name string) (nb.LogicalSwitchPort, bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	p, ok := v.ports[name]
	return p, ok
}

func (v *fakeView) routerPort(string) (nb.LogicalRouterPort, bool) {
	return nb.LogicalRouterPort{}, false
}

func (v *fakeView) group(name string) (nb.PortGroup, bool) { g, ok := v.groups[name]; return g, ok }

func (v *fakeView) switchesNamed(name string) []nb.LogicalSwitch { return v.switches[name] }

func (v *fakeView) routersNamed(string) []nb.LogicalRouter { return nil }

func (v *fakeView) eachGroup(f func(*nb.PortGroup)) {
	for _, g := range v.groups {
		f(&g)
	}
}

func (v *fakeView) routing() routing                          { return routing{} }
func (v *fakeView) topologyPorts() []nb.LogicalSwitchPort     { return nil }
func (v *fakeView) virtualPorts() []nb.LogicalSwitchPort      { return nil }
func (v *fakeView) vipPorts() []nb.LogicalSwitchPort          { return nil }
func (v *fakeView) hanging(string) hanging                    { return hanging{} }
func (v *fakeView) dhcpOn(string) []nb.DHCPOptions            { return nil }
func (v *fakeView) policiesMatching(string) []nb.RouterPolicy { return nil }
func (v *fakeView) natsAt(string) []nb.NAT                    { return nil }
func (v *fakeView) routesTo(string) []nb.StaticRoute          { return nil }
func (v *fakeView) eachPort(func(*nb.LogicalSwitchPort))      {}
func (v *fakeView) acl(string) (nb.ACL, bool)                 { return nb.ACL{}, false }
func (v *fakeView) chassis(string) (nb.GatewayChassis, bool)  { return nb.GatewayChassis{}, false }
func (v *fakeView) addressSet(string) (nb.AddressSet, bool)   { return nb.AddressSet{}, false }
