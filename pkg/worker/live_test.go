package worker

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-net/berth/pkg/network"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// What a pod that runs asks for by annotations is set, changed and taken back on its rows, and its address stays. ADDRESS
// and MAC stand for its own.
func TestAnnotationsOfARunningPod(t *testing.T) {
	port := func(column func(nb.LogicalSwitchPort) []string) func(*world) []string {
		return func(w *world) []string {
			p, _ := w.nb.Port("a.app")
			return column(p)
		}
	}
	groups := func(w *world) []string {
		return slices.DeleteFunc(w.nb.GroupsOf("a.app"), func(g string) bool { return !strings.HasPrefix(g, "ovn.sg.") })
	}
	security := port(func(p nb.LogicalSwitchPort) []string { return p.PortSecurity })
	nats := func(w *world) []string { return w.find("nat", "type", "external_ip", "logical_ip") }
	routes := func(w *world) []string { return w.policies("ip4.src == 10.16") }
	type step struct {
		set  map[string]string // of the default network, by suffix
		want []string
	}
	for name, c := range map[string]struct {
		of    func(*world) []string
		steps []step
	}{
		"security groups": {groups, []step{
			{map[string]string{"security_groups": "web"}, []string{denyGroup, webGroup}},
			{map[string]string{"security_groups": "web,db"}, []string{"ovn.sg.db", denyGroup, webGroup}},
			{map[string]string{"security_groups": "db"}, []string{"ovn.sg.db", denyGroup}},
			{nil, nil}}},
		"port security": {security, []step{
			{map[string]string{"port_security": "true"}, []string{"MAC ADDRESS"}},
			{map[string]string{"port_security": "true", "port_vips": "10.16.0.200"}, []string{"MAC ADDRESS 10.16.0.200"}},
			{map[string]string{"port_security": "false", "port_vips": "10.16.0.200"}, nil},
			{map[string]string{"port_security": "true"}, []string{"MAC ADDRESS"}},
			{nil, nil}}},
		"further addresses": {port(func(p nb.LogicalSwitchPort) []string { return strings.Fields(p.ExternalIDs[nb.KeyVips]) }), []step{
			{map[string]string{"port_vips": "10.16.0.200"}, []string{"10.16.0.200"}},
			{map[string]string{"port_vips": "10.16.0.201,10.16.0.200"}, []string{"10.16.0.201,10.16.0.200"}},
			{nil, nil}}},
		"layer 2": {port(func(p nb.LogicalSwitchPort) []string { return p.Addresses }), []step{
			{map[string]string{"layer2_forward": "true"}, []string{"MAC ADDRESS", "unknown"}},
			{nil, []string{"MAC ADDRESS"}}}},
		"EIP": {nats, []step{
			{map[string]string{"eip": "192.0.2.1"}, []string{"dnat_and_snat 192.0.2.1 ADDRESS"}},
			{map[string]string{"eip": "192.0.2.2"}, []string{"dnat_and_snat 192.0.2.2 ADDRESS"}},
			{map[string]string{"eip": "192.0.2.2", "snat": "192.0.2.3"}, []string{"dnat_and_snat 192.0.2.2 ADDRESS", "snat 192.0.2.3 ADDRESS"}},
			{map[string]string{"snat": "192.0.2.3"}, []string{"snat 192.0.2.3 ADDRESS"}},
			{nil, nil}}},
		"its way out": {routes, []step{
			{map[string]string{"eip": "192.0.2.1"}, []string{"29250 ip4.src == ADDRESS reroute 192.0.2.254"}},
			{nil, nil}}},
		"north gateway": {routes, []step{
			{map[string]string{"north_gateway": "10.16.0.60"}, []string{"29250 ip4.src == ADDRESS reroute 10.16.0.60"}},
			{map[string]string{"north_gateway": "10.16.0.61"}, []string{"29250 ip4.src == ADDRESS reroute 10.16.0.61"}},
			{nil, nil}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, worldOptions{change: func(o *Options) { o.Routing.EnableEIPSNAT = true }})
			w.externalConfig(map[string]string{"external-gw-addr": "192.0.2.254/24"})
			for _, g := range []string{"web", "db"} {
				w.must(w.client.Create(w.ctx, securityGroup(g)))
				w.seen(securityGroup(g))
			}
			w.admit(podNamed("a", onNode))
			before := w.wired("a")
			w.runsOn("a", before.Annotations[addressKey])
			own := strings.NewReplacer("ADDRESS", before.Annotations[addressKey], "MAC", before.Annotations[network.Key(network.DefaultProvider, network.SuffixMAC)])
			for i, s := range c.steps {
				var want []string
				for _, line := range s.want {
					want = append(want, own.Replace(line))
				}
				w.change("a", func(p *corev1.Pod) {
					p.Annotations = maps.Clone(before.Annotations)
					for suffix, value := range s.set {
						p.Annotations[network.Key(network.DefaultProvider, suffix)] = value
					}
				})
				w.until(fmt.Sprintf("step %d", i), func() error {
					if d := cmp.Diff(want, c.of(w)); d != "" && len(want)+len(c.of(w)) > 0 {
						return fmt.Errorf("(-want +got):\n%s", d)
					}
					return nil
				})
				w.kept(before)
			}
			w.finish("a")
		})
	}
}
