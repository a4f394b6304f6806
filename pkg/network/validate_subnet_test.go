package network

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func inVpc(v string) func(*kubeovnv1.Subnet)  { return func(s *kubeovnv1.Subnet) { s.Spec.Vpc = v } }
func inVlan(v string) func(*kubeovnv1.Subnet) { return func(s *kubeovnv1.Subnet) { s.Spec.Vlan = v } }

func selecting(key, value string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) {
		s.Spec.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{key: value}}}
	}
}

func TestValidateNewSubnet(t *testing.T) {
	for name, c := range map[string]struct {
		subnet *kubeovnv1.Subnet
		want   verdict
	}{
		"IPv4":                            {subnet("s", "10.20.0.0/24", gw("10.20.0.1"), exclude("10.20.0.1", "10.20.0.10..10.20.0.20", "10.20.0.64/28")), verdict{}},
		"dual":                            {subnet("s", "fd00:20::/64,10.20.0.0/24", gw("10.20.0.254")), verdict{}},
		"MACs alone":                      {subnet("s", "", inVlan("v1")), verdict{}},
		"a pair":                          {subnet("s", "10.20.0.0/31", gw("10.20.0.0")), verdict{}},
		"a network of its own":            {subnet("s", "10.16.0.0/16", inVpc("other")), verdict{}},
		"a VLAN of its own":               {subnet("s", "10.16.0.0/16", inVlan("v1")), verdict{}},
		"B12 gateway in another spelling": {subnet("s", "2001:db8::/64", gw("2001:0db8::0001")), verdict{}},
		"B12 gateway outside":             {subnet("s", "2001:db8::/64", gw("2001:db8:1::1")), verdict{Errors: []string{"spec.gateway: outside"}}},
		"B12 gateway is the network":      {subnet("s", "10.20.0.0/24", gw("10.20.0.0")), verdict{Errors: []string{"spec.gateway: network address"}}},
		"B12 gateway is the IPv6 network": {subnet("s", "fd00:20::/64", gw("fd00:20::")), verdict{Errors: []string{"spec.gateway: network address"}}},
		"B12 gateway is the broadcast":    {subnet("s", "10.20.0.0/24", gw("10.20.0.255")), verdict{Errors: []string{"spec.gateway: broadcast"}}},
		"B12 gateway of a family that is not there": {subnet("s", "10.20.0.0/24", gw("10.20.0.1,fd00::1")), verdict{Errors: []string{"spec.gateway: outside"}}},
		"B12 gateway is no address":                 {subnet("s", "10.20.0.0/24", gw("first")), verdict{Errors: []string{"spec.gateway: not an IP address"}}},
		"no CIDR":                                   {subnet("s", "10.20.0.0"), verdict{Errors: []string{"spec.cidrBlock: not a CIDR"}}},
		"no CIDR at all":                            {subnet("s", ""), verdict{Errors: []string{"spec.cidrBlock: empty"}}},
		"one address":                               {subnet("s", "10.20.0.1/32"), verdict{Errors: []string{"spec.cidrBlock: one address only"}}},
		"one family twice":                          {subnet("s", "10.20.0.0/24,10.21.0.0/24"), verdict{Errors: []string{"spec.cidrBlock: more than one CIDR of a family"}}},
		"loopback":                                  {subnet("s", "127.0.0.0/8"), verdict{Errors: []string{"spec.cidrBlock: can't be routed"}}},
		"multicast":                                 {subnet("s", "ff02::/64"), verdict{Errors: []string{"spec.cidrBlock: can't be routed"}}},
		"the API server":                            {subnet("s", "10.96.0.0/24"), verdict{Errors: []string{"spec.cidrBlock: API server"}}},
		"nodes":                                     {subnet("s", "192.168.0.0/24"), verdict{Errors: []string{"spec.cidrBlock: node n1"}}},
		"nodes, in a VLAN":                          {subnet("s", "192.168.0.0/24", inVlan("v1")), verdict{}},
		"nodes, another VPC":                        {subnet("s", "192.168.0.0/24", inVpc("other")), verdict{}},
		"overlap":                                   {subnet("s", "10.16.5.0/24"), verdict{Errors: []string{"spec.cidrBlock: subnet ovn-default"}}},
		"overlap by the VPC's name":                 {subnet("s", "10.16.5.0/24", inVpc("ovn-cluster")), verdict{Errors: []string{"spec.cidrBlock: subnet ovn-default"}}},
		"overlap of IPv6":                           {subnet("s", "10.20.0.0/24,fd00:17::/96"), verdict{Errors: []string{"spec.cidrBlock: fd00:17::/64 of subnet dual"}}},
		"overlap of attachments":                    {subnet("s", "10.30.0.0/25", serving("mv.default")), verdict{Errors: []string{"spec.cidrBlock: subnet macvlan"}}},
		"no overlap with another attachment":        {subnet("s", "10.30.0.0/25", serving("other.default")), verdict{}},
		"the VPC's name":                            {subnet("ovn-cluster", "10.20.0.0/24"), verdict{Errors: []string{"metadata.name: VPC"}}},
		"bad exclusion":                             {subnet("s", "10.20.0.0/24", exclude("10.20.0.1", "10.20.0.9..10.20.0.3")), verdict{Errors: []string{"spec.excludeIps[1]: not a range"}}},
		"all at once": {subnet("s", "10.16.0.0/24", gw("10.20.0.1"), exclude("x")), verdict{Errors: []string{"spec.gateway: outside",
			"spec.cidrBlock: overlaps", "spec.excludeIps[0]: neither"}}},
		"capitals":                    {subnet("s", "FD00:20::/64"), verdict{Warnings: []string{"capitals"}}},
		"fenced, bound to opted in":   {subnet("s", "10.20.0.0/24", fenced("10.20.0.9"), bound("apps")), verdict{}},
		"fenced, bound to others":     {subnet("s", "10.20.0.0/24", fenced(""), bound("apps", "old")), verdict{Errors: []string{"spec.namespaces: label namespace old"}}},
		"fenced, selects opted in":    {subnet("s", "10.20.0.0/24", fenced(""), selecting("team", "red")), verdict{}},
		"fenced, selects others":      {subnet("s", "10.20.0.0/24", fenced(""), selecting("team", "blue")), verdict{Errors: []string{"spec.namespaceSelectors: label namespace old"}}},
		"fenced, bound to nobody yet": {subnet("s", "10.20.0.0/24", fenced(""), bound("soon")), verdict{Warnings: []string{"no namespace soon"}}},
		"not fenced, bound to others": {subnet("s", "10.20.0.0/24", bound("old")), verdict{}},
		"fenced default":              {subnet("ovn-default", "10.16.0.0/16", fenced("")), verdict{Warnings: []string{"the default subnet is fenced"}}},
		"bad exclusions of a fence":   {subnet("s", "10.20.0.0/24", fenced("10.20.0.300")), verdict{Errors: []string{"metadata.annotations[berth.dev/exclude-ips]: neither"}}},
		"exclusions without a fence":  {subnet("s", "10.20.0.0/24", annotate(ExcludeKey, "10.20.0.3")), verdict{Warnings: []string{"ignored"}}},
	} {
		t.Run(name, func(t *testing.T) {
			warnings, errs := ValidateSubnet(c.subnet, nil, surroundings())
			c.want.check(t, warnings, errs)
		})
	}
}

func TestValidateChangedSubnet(t *testing.T) {
	pod := held("s", "10.20.0.130", "web")
	both := []ipam.Held{pod, held("s", "fd00:20::9", "six")}
	node := owned(held("s", "10.20.0.200", ""), ipam.Owner{Kind: ipam.KindNode, Name: "n1"})
	elsewhere := held("t", "10.20.0.130", "other")
	for name, c := range map[string]struct {
		old, now *kubeovnv1.Subnet
		leases   []ipam.Held
		want     verdict
	}{
		"B07 widen":                    {subnet("s", "10.20.0.0/25"), subnet("s", "10.20.0.0/24"), []ipam.Held{held("s", "10.20.0.9", "web")}, verdict{}},
		"B07 shrink, nobody there":     {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/25"), []ipam.Held{held("s", "10.20.0.9", "web"), elsewhere}, verdict{}},
		"B07 shrink under a pod":       {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/25"), []ipam.Held{pod}, verdict{Errors: []string{"spec.cidrBlock: 10.20.0.130 (pod apps/web)"}}},
		"B07 shrink under a node":      {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/25"), []ipam.Held{node}, verdict{}},
		"B07 move under a pod":         {subnet("s", "10.20.0.0/24"), subnet("s", "10.21.0.0/24"), []ipam.Held{pod}, verdict{Errors: []string{"spec.cidrBlock: 1 address", "spec.gateway: old route"}}},
		"B07 a lease outside already":  {subnet("s", "10.20.0.0/25"), subnet("s", "10.20.0.0/26"), []ipam.Held{pod}, verdict{}},
		"B32 IPv6 goes, one has it":    {subnet("s", "10.20.0.0/24,fd00:20::/64"), subnet("s", "10.20.0.0/24"), both, verdict{Errors: []string{"spec.cidrBlock: 1 address is held: fd00:20::9 (pod apps/six)"}}},
		"B32 IPv6 goes, nobody has it": {subnet("s", "10.20.0.0/24,fd00:20::/64"), subnet("s", "10.20.0.0/24"), []ipam.Held{pod}, verdict{}},
		"IPv6 comes":                   {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24,fd00:20::/64"), []ipam.Held{pod}, verdict{}},
		"B06 exclude a held address":   {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24", exclude("10.20.0.130")), []ipam.Held{pod}, verdict{}},
		"B12 gateway under pods":       {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24", gw("10.20.0.254")), []ipam.Held{pod}, verdict{Errors: []string{"spec.gateway: 10.20.0.254 instead of 10.20.0.1"}}},
		"B12 gateway onto a pod":       {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24", gw("10.20.0.130")), []ipam.Held{pod}, verdict{Errors: []string{"spec.gateway: 10.20.0.130 (pod apps/web)"}}},
		"B12 gateway of IPv6 alone":    {subnet("s", "10.20.0.0/24,fd00:20::/64"), subnet("s", "10.20.0.0/24,fd00:20::/64", gw("fd00:20::ff")), []ipam.Held{pod}, verdict{}},
		"gateway, nobody there":        {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24", gw("10.20.0.254")), nil, verdict{}},
		"what is filled in":            {subnet("s", "10.20.0.7/24"), subnet("s", "10.20.0.0/24", gw("10.20.0.1"), exclude("10.20.0.1"), inVpc("ovn-cluster"), serving("ovn")), []ipam.Held{pod}, verdict{}},
		"another VPC":                  {subnet("s", "10.20.0.0/24"), subnet("s", "10.20.0.0/24", inVpc("red")), nil, verdict{Errors: []string{"spec.vpc: stays in its VPC ovn-cluster"}}},
		"another VLAN under pods":      {subnet("s", "10.20.0.0/24", inVlan("a")), subnet("s", "10.20.0.0/24", inVlan("b")), []ipam.Held{pod}, verdict{Errors: []string{"spec.vlan: 1 address"}}},
		"another VLAN":                 {subnet("s", "10.20.0.0/24", inVlan("a")), subnet("s", "10.20.0.0/24", inVlan("b")), nil, verdict{}},
		"another provider under pods":  {subnet("s", "10.20.0.0/24", serving("a.b")), subnet("s", "10.20.0.0/24", serving("c.d")), []ipam.Held{pod}, verdict{Errors: []string{"spec.provider: 1 address"}}},
		"MACs alone get addresses":     {subnet("s", "", inVlan("a")), subnet("s", "10.20.0.0/24", inVlan("a")), nil, verdict{Errors: []string{"spec.cidrBlock: MACs alone"}}},
		"addresses go":                 {subnet("s", "10.20.0.0/24", inVlan("a")), subnet("s", "", inVlan("a")), nil, verdict{Errors: []string{"spec.cidrBlock: MACs alone"}}},
		"wrong before, other change":   {subnet("s", "10.16.0.0/24"), subnet("s", "10.16.0.0/24", func(s *kubeovnv1.Subnet) { s.Spec.Private = true }), []ipam.Held{pod}, verdict{}},
		"wrong before, worse now":      {subnet("s", "10.16.0.0/24"), subnet("s", "10.16.0.0/24", exclude("x")), nil, verdict{Errors: []string{"spec.excludeIps[0]: neither"}}},
		"unreadable before, mended":    {subnet("s", "10.20.0.0/33"), subnet("s", "10.20.0.0/24"), []ipam.Held{pod}, verdict{}},
		"unreadable before, as it was": {subnet("s", "10.20.0.0/33"), subnet("s", "10.20.0.0/33", bound("old")), nil, verdict{}},
		"the fence goes under pods":    {subnet("s", "10.20.0.0/24", fenced("")), subnet("s", "10.20.0.0/24"), []ipam.Held{pod}, verdict{Warnings: []string{"1 address is held"}}},
		"the fence goes":               {subnet("s", "10.20.0.0/24", fenced("")), subnet("s", "10.20.0.0/24"), nil, verdict{}},
		"a fence around others":        {subnet("s", "10.20.0.0/24", bound("old")), subnet("s", "10.20.0.0/24", bound("old"), fenced("")), nil, verdict{Errors: []string{"spec.namespaces: label namespace old"}}},
		"B54 being deleted, all wrong": {subnet("s", "10.20.0.0/24"), dying(subnet("s", "x", gw("y"))), []ipam.Held{pod}, verdict{}},
		"B54 a finalizer, all wrong": {subnet("s", "x", gw("y"), func(s *kubeovnv1.Subnet) { s.Finalizers = []string{"f"} }), subnet("s", "x", gw("y"),
			func(s *kubeovnv1.Subnet) { s.Status.ActivateGateway = "n1" }), []ipam.Held{pod}, verdict{}},
		"delete under a pod":                 {subnet("s", "10.20.0.0/24"), nil, []ipam.Held{pod, elsewhere}, verdict{Errors: []string{"metadata.name: 1 address is held: 10.20.0.130 (pod apps/web)"}}},
		"B32 delete under IPv6 alone":        {subnet("s", "10.20.0.0/24,fd00:20::/64"), nil, both[1:], verdict{Errors: []string{"metadata.name: fd00:20::9"}}},
		"delete under nodes and its own":     {subnet("s", "10.20.0.0/24"), nil, []ipam.Held{node, owned(held("s", "10.20.0.1", ""), ipam.Owner{Kind: ipam.KindSubnet, Name: "s"})}, verdict{}},
		"delete the subnet of the nodes":     {subnet("join", "100.64.0.0/16"), nil, []ipam.Held{owned(held("join", "100.64.0.2", ""), ipam.Owner{Kind: ipam.KindNode, Name: "n1"})}, verdict{Errors: []string{"metadata.name: Node n1"}}},
		"delete one that is being deleted":   {dying(subnet("s", "10.20.0.0/24")), nil, []ipam.Held{pod}, verdict{}},
		"delete, nobody there, wrong anyway": {subnet("s", "x"), nil, []ipam.Held{elsewhere}, verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings(c.leases...)
			w.Catalog.Subnets["s"] = NewSubnet(c.old, Around{}) // as it was, it is in the catalog
			warnings, errs := ValidateSubnet(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}
