package ovn

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/ovn-kubernetes/libovsdb/ovsdb"
	"pgregory.net/rapid"

	"github.com/berth-net/berth/pkg/ovn/nb"
)

// bench is a database with a writer, the topology, and rows of others.
type bench struct {
	c *Client
	w *Writer
	// empty is what it has without pods.
	empty []string
}

func newBench(t *testing.T, r *rapid.T) *bench {
	s := startServer(t, installedSchema)
	b := &bench{c: s.connect()}
	b.w = s.writer(b.c)
	b.apply(r, world())
	b.others(t, r)
	b.empty = dump(b.c)
	return b
}

// benches are kept from one run to the next when they were left empty.
type benches []*bench

func (p *benches) take(t *testing.T, r *rapid.T) *bench {
	if n := len(*p); n > 0 {
		b := (*p)[n-1]
		*p = (*p)[:n-1]
		return b
	}
	return newBench(t, r)
}

// putBack takes the groups of nodes away, which outlive pods, and holds what is left against the beginning.
func (p *benches) putBack(r *rapid.T, b *bench) {
	var ch Change
	for _, g := range b.c.Groups() {
		if followsNode(g.ExternalIDs) {
			ch.RemoveGroups = append(ch.RemoveGroups, g.Name)
		}
	}
	b.apply(r, ch)
	if diff := cmp.Diff(b.empty, dump(b.c)); diff != "" {
		r.Fatalf("rows after all pods have gone (-before +after):\n%s", diff)
	}
	*p = append(*p, b)
}

// others writes rows that are none of ours, or shared: NetworkPolicies, SecurityGroups, translations and policies.
func (b *bench) others(t *testing.T, r *rapid.T) {
	vendor := map[string]string{nb.Vendor: nb.VendorKubeOVN}
	router := b.c.Routers()[0].UUID
	ops := []ovsdb.Operation{
		insertRow(tableNAT, "n1", map[string]any{colType: "snat", colExternalIP: "172.16.0.8", colLogicalIP: "10.9.0.0/24"}),
		insertRow(tableNAT, "n2", map[string]any{colType: "dnat_and_snat", colExternalIP: "172.16.0.77", colLogicalIP: "10.0.0.2", colExternalIDs: vendor}),
		insertRow(tablePolicy, "p1", map[string]any{colPriority: 29250, colMatch: "ip4.src == 10.9.0.9", colAction: "drop"}),
		insertRow(tablePolicy, "p2", map[string]any{colPriority: 30000, colMatch: "ip4.src == 10.0.0.2", colAction: "allow", colExternalIDs: vendor}),
		insertRow(tableDHCP, "", map[string]any{colCIDR: "10.0.0.0/24", colExternalIDs: map[string]string{nb.KeySwitch: "s1", nb.KeyPort: "p1.d"}}),
		insertRow(tableGroup, "", map[string]any{colName: "np.d", colExternalIDs: map[string]string{nb.Vendor: nb.VendorKubeOVN, nb.KeyNP: "d/np"}}),
	}
	for _, sg := range []string{"web", "a-b", nb.DenyAll} {
		ops = append(ops, insertRow(tableGroup, "", map[string]any{colName: nb.SecurityGroupName(sg), colExternalIDs: map[string]string{
			nb.Vendor: nb.VendorKubeOVN, nb.KeyType: nb.TypeSecurityGroup, nb.KeySecurityGroup: sg}}))
	}
	ops = append(ops, alter(tableRouter, router, nil, []ovsdb.Mutation{
		*ovsdb.NewMutation(colNAT, ovsdb.MutateOperationInsert, refSet([]string{"n1", "n2"})),
		*ovsdb.NewMutation(colPolicies, ovsdb.MutateOperationInsert, refSet([]string{"p1", "p2"})),
	})...)
	snap, err := b.c.await(t.Context())
	if err == nil {
		_, err = snap.transact(t.Context(), ops)
	}
	if err != nil {
		r.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); ; {
		changed := b.c.changed()
		if len(b.c.Groups()) == 4 && len(rowsOf[*policyRow](b.c, tablePolicy)) == 2 {
			return
		}
		select {
		case <-changed:
		case <-time.After(time.Until(deadline)):
			r.Fatal("the rows of others don't show")
		}
	}
}

func (b *bench) apply(r *rapid.T, ch Change) {
	if err := b.w.Apply(r.Context(), ch); err != nil {
		r.Fatal(err)
	}
}

// pods are the pods of the model. The last two would have one port.
func pods() []string { return []string{"p1", "p2", "a.b", "a@b"} }

// living is a pod of the model: its last input that was accepted.
type living struct {
	in      PodInput
	leaving bool
	// gaveUp tells that another pod has taken its EIP over.
	gaveUp bool
}

type podModel struct {
	b     *bench
	alive map[string]*living
}

func drawInput(r *rapid.T, name string) PodInput {
	host := 2 + slices.Index(pods(), name)
	pick := func(what string, choices ...string) string { return rapid.SampledFrom(choices).Draw(r, what) }
	in := worldPod(name, host, func(in *PodInput, i *InterfaceInput) {
		if name == "a@b" {
			in.Name, in.Namespace, i.Provider = "a", "b", "d"
		}
		in.UID = pick("uid", "u1", "u2")
		in.Node.Name = pick("node", "n1", "a-b", "a.b")
		if sw := pick("switch", "s1", "s1", "s2", "s3"); sw != "s1" {
			i.Subnet = SubnetInput{Name: sw, Vpc: map[string]string{"s2": "v1"}[sw], Vlan: map[string]string{"s3": "v"}[sw]}
		}
		set := func(what string, choices ...string) []string {
			return rapid.SliceOfNDistinct(rapid.SampledFrom(choices), 0, len(choices), rapid.ID[string]).Draw(r, what)
		}
		if rapid.Bool().Draw(r, "eip") {
			i.EIPs = addrs("172.16.0.9")
		}
		i.SNATs = addrs(set("snat", "172.16.0.8", "172.16.0.10", "fd16::8")...)
		i.NorthGateways = addrs(set("north", "10.0.0.254", "fd00::fe")...)
		i.SecurityGroups = set("groups", "web", " a-b", "a.b")
		i.Vips = addrs(set("vips", "10.0.0.100", "10.0.0.50")...)
		if slices.Contains(i.Vips, addrs("10.0.0.50")[0]) && i.Subnet.Name == "s1" {
			i.Virtuals = []Virtual{{"vip1", addrs("10.0.0.50")[0]}}
		}
		i.PortSecurity, i.Activation, i.Layer2Forward = rapid.Bool().Draw(r, "security"), rapid.Bool().Draw(r, "activation"), rapid.Bool().Draw(r, "layer2")
		i.Subnet.EnableDHCP = rapid.Bool().Draw(r, "dhcp")
		i.DHCPv4 = pick("dhcp options", "", "mtu=9000", "lease_time=60")
		in.Config.External.Distributed = rapid.Bool().Draw(r, "distributed")
	})
	return in
}

// set gives a pod new rows. An EIP of a living pod isn't asked for; one that leaves gives it up.
func (m *podModel) set(r *rapid.T, name string) {
	if l := m.alive[name]; l != nil && l.leaving {
		return
	}
	in := drawInput(r, name)
	i := &in.Interfaces[0]
	var from []*living
	for _, other := range slices.Sorted(maps.Keys(m.alive)) {
		l := m.alive[other]
		if other == name || len(i.EIPs) == 0 || len(l.in.Interfaces[0].EIPs) == 0 {
			continue
		}
		if !l.leaving {
			i.EIPs = nil
			continue
		}
		i.EIPsFrom, from = append(i.EIPsFrom, l.in.Namespace+"/"+l.in.Name), append(from, l)
	}
	ctx, cancel := context.WithTimeout(r.Context(), 2*time.Second)
	defer cancel()
	err := m.b.w.Apply(ctx, Change{Key: name, Ensure: m.rows(r, in)})
	var clash *ClashError
	if errors.As(err, &clash) && (clash.Table == tableGroup || clash.Table == tablePort) {
		return // two nodes of one group, or two pods of one port: nothing is written
	}
	if err != nil {
		r.Fatalf("%v; still to do: %+v", err, stillToDo(m.b.c, Change{Key: name, Ensure: m.rows(r, in)}))
	}
	if len(m.b.c.EIPHolders("172.16.0.9")) > 0 && m.b.c.EIPHolders("172.16.0.9")[0] == in.Namespace+"/"+in.Name {
		for _, l := range from {
			l.gaveUp = true
		}
	}
	m.alive[name] = &living{in: in}
}

// stillToDo tells what a change that never held wants to write.
func stillToDo(c *Client, ch Change) []ovsdb.Operation {
	s, err := c.live()
	if err != nil {
		return nil
	}
	return compose(s, 1, []Change{ch}).ops
}

func (m *podModel) rows(r *rapid.T, in PodInput) nb.Rows {
	rows, err := PodRows(in)
	if err != nil {
		r.Fatal(err)
	}
	return rows
}

func (m *podModel) remove(r *rapid.T, name string) {
	l := m.alive[name]
	if l == nil {
		return
	}
	m.b.apply(r, Change{Key: name, RemovePorts: []string{m.rows(r, l.in).Ports[0].Row.Name}})
	delete(m.alive, name)
}

// rebuild writes the final state into an empty database: the groups that are there, then those that leave, then the
// others, who take over from them.
func (m *podModel) rebuild(r *rapid.T, b *bench) []string {
	fresh := &podModel{b: b, alive: maps.Clone(m.alive)}
	var groups Change
	for _, g := range m.b.c.Groups() {
		if followsNode(g.ExternalIDs) {
			groups.Ensure.Groups = append(groups.Ensure.Groups, nb.Group{Name: g.Name, ExternalIDs: g.ExternalIDs})
		}
	}
	fresh.b.apply(r, groups)
	for _, leaving := range []bool{true, false} {
		for _, name := range slices.Sorted(maps.Keys(m.alive)) {
			if l := m.alive[name]; l.leaving == leaving {
				rows := m.rows(r, l.in)
				if l.gaveUp {
					rows.Ports[0].Routing.NATs = slices.DeleteFunc(rows.Ports[0].Routing.NATs, func(n nb.Translation) bool { return n.Row.Type == nb.NATBoth })
				}
				fresh.b.apply(r, Change{Key: name, Ensure: rows})
			}
		}
	}
	rows := dump(fresh.b.c)
	fresh.clear(r)
	return rows
}

func (m *podModel) clear(r *rapid.T) {
	for _, name := range pods() {
		m.remove(r, name)
	}
}

// Whatever the way, the rows are those of the last inputs; rows of others are as they were, and a second pass writes
// nothing.
func TestRowsDependOnTheLastInputsAlone(t *testing.T) {
	t.Parallel()
	var spare benches
	rapid.Check(t, func(r *rapid.T) {
		m := &podModel{b: spare.take(t, r), alive: map[string]*living{}}
		for range rapid.IntRange(1, 12).Draw(r, "steps") {
			name := rapid.SampledFrom(pods()).Draw(r, "pod")
			switch rapid.SampledFrom([]string{"set", "set", "set", "leave", "remove"}).Draw(r, "do") {
			case "set":
				m.set(r, name)
			case "leave":
				if l := m.alive[name]; l != nil {
					l.leaving = true
				}
			case "remove":
				m.remove(r, name)
			}
		}
		anew := spare.take(t, r)
		if diff := cmp.Diff(m.rebuild(r, anew), dump(m.b.c)); diff != "" {
			r.Fatalf("rows (-built anew +after all changes):\n%s", diff)
		}
		spare.putBack(r, anew)
		before := m.b.w.Transactions()
		for name, l := range m.alive {
			if !l.leaving {
				m.b.apply(r, Change{Key: name, Ensure: m.rows(r, l.in)})
			}
		}
		m.b.apply(r, world())
		if got := m.b.w.Transactions() - before; got != 0 {
			r.Fatalf("second pass took %d transactions, want 0", got)
		}
		m.clear(r)
		spare.putBack(r, m.b)
	})
}
