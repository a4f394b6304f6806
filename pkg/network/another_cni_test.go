package network

import "testing"

// A network that another CNI plugs in is one by its subnet, also where the pod itself names that: its addresses stay the
// pod's until the CNI has unplugged it.
func TestAnotherCNIsNetworkNamesItsSubnet(t *testing.T) {
	const key = mv + ".kubernetes.io/logical_switch"
	gone := edited{Unplug: []string{mv}, Free: []string{mv + " 10.32.0.2"}, Drop: []string{mv}}
	cases := map[string]struct {
		running
		want edited
	}{
		"in use, nobody tells": {having(t, nad("mv")).with(key, "mv").names(), edited{InUse: []string{mv}}},
		"in use":               {having(t, nad("mv")).with(key, "mv", StatusKey, statusWith).names(), edited{InUse: []string{mv}}},
		"unplugged by its CNI": {having(t, nad("mv")).with(key, "mv", StatusKey, statusWithout).names(), gone},
		"its subnet is gone": {having(t, nad("mv")).then(func(r *running) { delete(r.cat.Subnets, "mv") }).names(),
			edited{InUse: []string{mv}}},
		"a port has its subnet, and goes at once": {having(t, nad("n1")).names(),
			edited{Unplug: []string{n1}, Free: []string{n1 + " 10.30.0.2"}, Drop: []string{n1}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
}

// What is asked of an interface that another CNI makes is told to be ignored; what the attachment itself is asked for goes
// to that CNI as well.
func TestAnotherCNIMakesTheInterface(t *testing.T) {
	const macKey, nicKey = mv + ".kubernetes.io/mac_address", mv + ".kubernetes.io/pod_nic_type"
	cases := map[string]struct {
		world
		want result
	}{
		"asked": {attached(annotated(macKey, "02:00:00:00:00:01", nicKey, "internal-port"), nad("mv")), result{
			Networks:  []string{"ovn from ovn-default", mv + " from mv, mac 02:00:00:00:00:01, nic internal-port, address alone"},
			Requested: `{"mv.default":{"mac_address":"02:00:00:00:00:01","pod_nic_type":"internal-port"}}`,
			Warnings:  []string{macKey + `="02:00:00:00:00:01" was ignored`, nicKey + `="internal-port" was ignored`}}},
		"asked of the attachment": {attached(annotated(), nad("mv", asking("02:00:00:00:00:02"))), result{
			Networks: []string{"ovn from ovn-default", mv + " from mv, mac 02:00:00:00:00:02, address alone"}}},
		"asked of a port": {attached(annotated(n1MAC, "02:00:00:00:00:01"), nad("n1")), result{
			Networks:  []string{"ovn from ovn-default", n1 + " from s1, mac 02:00:00:00:00:01"},
			Requested: `{"n1.default.ovn":{"mac_address":"02:00:00:00:00:01"}}`}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { c.check(t, c.want) })
	}
	w := attached(annotated(macKey, "02:00:00:00:00:01"), nad("mv"))
	planned, _ := Plan(w.pod, w.ns, w.cat, w.cfg)
	if r := planned.Request(claimA, false).Interfaces[1]; !r.NoMAC {
		t.Errorf("a MAC is to be leased: %+v", r)
	}
}
