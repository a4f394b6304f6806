package adopt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/lifecycle"
	"github.com/berth-net/berth/pkg/network"
)

const (
	cidr    = "10.16.0.0/24"
	gateway = "10.16.0.1"
)

// podAt is a pod as Kube-OVN makes it run.
func podAt(name, address string, change ...func(*corev1.Pod)) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID("uid-of-" + name), Annotations: map[string]string{
		"ovn.kubernetes.io/ip_address": address, "ovn.kubernetes.io/mac_address": macFor(name), "ovn.kubernetes.io/cidr": cidr, "ovn.kubernetes.io/gateway": gateway,
		"ovn.kubernetes.io/logical_switch": "net", "ovn.kubernetes.io/pod_nic_type": "veth-pair", "ovn.kubernetes.io/allocated": "true",
		"ovn.kubernetes.io/routed": "true"}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: address, PodIPs: []corev1.PodIP{{IP: address}}}}
	for _, c := range change {
		c(&p)
	}
	return p
}

func macFor(name string) string { return fmt.Sprintf("02:00:00:00:00:%02x", name[len(name)-1]) }

func note(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func without(key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { delete(p.Annotations, key) }
}

// wroteBy has the API server remember who wrote an annotation.
func wroteBy(manager, key string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.ManagedFields = append(p.ManagedFields, metav1.ManagedFieldsEntry{Manager: manager,
			FieldsV1: metav1.NewFieldsV1(fmt.Sprintf(`{"f:metadata":{"f:annotations":{".":{},"f:%s":{}}}}`, key))})
	}
}

func ownedBy(group, kind, name string) func(*corev1.Pod) {
	yes := true
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: group + "/v1", Kind: kind, Name: name, UID: "uid-of-owner", Controller: &yes}}
	}
}

func going(p *corev1.Pod) {
	now := metav1.Now()
	p.DeletionTimestamp = &now
}

func recordAt(pod, address string, change ...func(*kubeovnv1.IP)) kubeovnv1.IP {
	ip := kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: pod + ".shop", Labels: map[string]string{facts.LabelReserved: "false"}},
		Spec: kubeovnv1.IPSpec{PodName: pod, Namespace: "shop", Subnet: "net", V4IPAddress: address, IPAddress: address, MacAddress: macFor(pod)}}
	for _, c := range change {
		c(&ip)
	}
	return ip
}

func typed(kind string) func(*kubeovnv1.IP) { return func(ip *kubeovnv1.IP) { ip.Spec.PodType = kind } }

func subnetWith(name, cidr, provider string) *kubeovnv1.Subnet {
	return &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr, Provider: provider}}
}

// world is a cluster of one default subnet, two attached ones and the nodes'.
func world(reserved map[netip.Addr]ipam.Owner) network.Catalog {
	cat := network.Catalog{Subnets: map[string]network.Subnet{}, Reserved: map[string]map[netip.Addr]ipam.Owner{"net": reserved}}
	for _, s := range []*kubeovnv1.Subnet{subnetWith("net", cidr, "ovn"), subnetWith("join", "100.64.0.0/16", "ovn"), subnetWith("second", "10.17.0.0/24", "second.shop.ovn"),
		subnetWith("mv", "10.18.0.0/24", "mv.shop")} {
		around := network.Around{}
		if s.Name == "net" {
			around.Reserved = reserved
		}
		cat.Subnets[s.Name] = network.NewSubnet(s, around)
	}
	return cat
}

func leaseAt(address string, claim ipam.Claim, o ipam.Owner, uid string) ipam.Held {
	return ipam.Held{Subnet: "net", Block: "b", Lease: ipam.Lease{Address: netip.MustParseAddr(address), Claim: claim, Owner: o, PodUID: uid, Provider: "ovn", Generation: 1}}
}

// counted draws claims that tell their number.
func counted() func() (ipam.Claim, error) {
	n := 0
	return func() (ipam.Claim, error) {
		n++
		return ipam.Claim(fmt.Sprintf("%032x", n)), nil
	}
}

func input(pods []corev1.Pod, records []kubeovnv1.IP, leases ...ipam.Held) Input {
	reserved := map[netip.Addr]ipam.Owner{}
	for i := range records {
		for _, a := range facts.Record(&records[i]).Addresses {
			reserved[a] = ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindIP, Name: records[i].Name}
		}
	}
	return Input{Catalog: world(reserved), Config: network.Config{NodeSwitch: "join"}, Pods: pods, Records: records, Leases: leases, Draw: counted(),
		Keeps: func(h ipam.Held) lifecycle.Answer {
			return map[string]lifecycle.Answer{"apps/StatefulSet/shop/db-1": lifecycle.Yes, "apps.kruise.io/StatefulSet/shop/kdb-1": lifecycle.Yes,
				"apps/StatefulSet/shop/kdb-1": lifecycle.No, "apps/StatefulSet/shop/old-1": lifecycle.No, "apps.kruise.io/StatefulSet/shop/old-1": lifecycle.No,
				"kubevirt.io/VirtualMachine/shop/vm1": lifecycle.Yes}[h.Owner.String()]
		}}
}

// TestAdoptProblems holds what is in the way of taking an object over, and that nothing is planned for it then.
func TestAdoptProblems(t *testing.T) {
	other := ipam.PodOwner("elsewhere")
	for name, c := range map[string]struct {
		in   Input
		want []string
	}{
		"nothing":        {input([]corev1.Pod{podAt("a", "10.16.0.5")}, nil), nil},
		"outside":        {input([]corev1.Pod{podAt("a", "10.99.0.5")}, nil), []string{"a: address 10.99.0.5 can't be had"}},
		"the gateway":    {input([]corev1.Pod{podAt("a", "10.16.0.1")}, nil), []string{"a: address 10.16.0.1 is the gateway"}},
		"one address":    {input([]corev1.Pod{podAt("a", "10.16.0.5"), podAt("b", "10.16.0.5")}, nil), []string{"a: pod shop/b has 10.16.0.5", "b: pod shop/a has 10.16.0.5"}},
		"one MAC":        {input([]corev1.Pod{podAt("a", "10.16.0.5"), podAt("b", "10.16.0.6", note("ovn.kubernetes.io/mac_address", macFor("a")))}, nil), []string{"a: pod shop/b has MAC", "b: pod shop/a has MAC"}},
		"leased":         {input([]corev1.Pod{podAt("a", "10.16.0.5")}, nil, leaseAt("10.16.0.5", "x", other, "")), []string{"a: 10.16.0.5 is leased to Pod/elsewhere/"}},
		"MAC is leased":  {input([]corev1.Pod{podAt("a", "10.16.0.5")}, nil, ipam.Held{Subnet: "net", Lease: ipam.Lease{MAC: ipam.MAC{2, 0, 0, 0, 0, 'a'}, Claim: "x", Owner: other}}), []string{"a: MAC 02:00:00:00:00:61 is leased"}},
		"no CIDR":        {input([]corev1.Pod{podAt("a", "10.16.0.5", without("ovn.kubernetes.io/cidr"), without("ovn.kubernetes.io/pod_nic_type"))}, nil), []string{"a: what its annotations say of network ovn was asked for"}},
		"no MAC":         {input([]corev1.Pod{podAt("a", "10.16.0.5", without("ovn.kubernetes.io/mac_address"))}, nil), []string{"a: it has no annotation ovn.kubernetes.io/mac_address"}},
		"no address":     {input([]corev1.Pod{podAt("a", "10.16.0.5", without("ovn.kubernetes.io/ip_address"))}, nil), []string{"a: its annotations say none"}},
		"another runs":   {input([]corev1.Pod{podAt("a", "10.16.0.5", func(p *corev1.Pod) { p.Status.PodIPs[0].IP = "10.16.0.9" })}, nil), []string{"a: it runs on [10.16.0.9]"}},
		"no such subnet": {input([]corev1.Pod{podAt("a", "10.16.0.5", note("ovn.kubernetes.io/logical_switch", "gone"))}, nil), []string{`a: its subnet "gone" is not there`}},
		"nodes' subnet":  {input([]corev1.Pod{podAt("a", "100.64.0.5", note("ovn.kubernetes.io/logical_switch", "join"))}, nil), []string{"a: subnet join is not served"}},
		"not attached":   {input([]corev1.Pod{podAt("a", "10.16.0.5", note(network.NetworksKey, "second"))}, nil), []string{"a: it asks for a network of provider second.shop.ovn"}},
		"JSON":           {input([]corev1.Pod{podAt("a", "10.16.0.5", note(network.NetworksKey, `[{"name":"mv"}]`))}, nil), []string{"a: it asks for a network of provider mv.shop"}},
		"record differs": {input([]corev1.Pod{podAt("a", "10.16.0.5")}, []kubeovnv1.IP{recordAt("a", "10.16.0.6")}), []string{"a: its IP record a.shop says [10.16.0.6]"}},
		"absent, taken":  {input([]corev1.Pod{podAt("a", "10.16.0.5")}, []kubeovnv1.IP{recordAt("db-1", "10.16.0.5", typed("StatefulSet"))}), []string{"db-1.shop: pod shop/a has 10.16.0.5", "a: address 10.16.0.5"}},
		"lost lease":     {input([]corev1.Pod{podAt("a", "10.16.0.5", marked)}, nil), []string{"a: it has a claim, and no lease of 10.16.0.5: kubectl berth rebuild net"}},
		"a preview":      {input([]corev1.Pod{podAt("a", "10.16.0.5", note(network.ClaimKey, network.ClaimPreview))}, nil), []string{`a: its annotation berth.dev/claim="preview"`}},
		"absent, unsure": {input(nil, []kubeovnv1.IP{recordAt("who-1", "10.16.0.5", typed("StatefulSet"))}), []string{"who-1.shop: it can't be found out"}},
		"absent, leased": {input(nil, []kubeovnv1.IP{recordAt("db-1", "10.16.0.5", typed("StatefulSet"))}, leaseAt("10.16.0.5", "x", other, "")), []string{"db-1.shop: 10.16.0.5 is leased"}},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := Adopt(c.in)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, p := range plan.Problems {
				got = append(got, p.Name+": "+p.Text)
			}
			if len(got) != len(c.want) {
				t.Fatalf("problems %q, want %q", got, c.want)
			}
			for i := range got {
				if !strings.HasPrefix(got[i], c.want[i]) {
					t.Errorf("problem %q, want %q", got[i], c.want[i])
				}
			}
			for _, s := range plan.Pods {
				if slices.ContainsFunc(plan.Problems, func(p Problem) bool { return p.Name == s.Pod.Name }) {
					t.Errorf("pod %s is planned for, and has a problem", s.Pod.Name)
				}
			}
		})
	}
}

// TestAdopt holds what is leased and marked.
func TestAdopt(t *testing.T) {
	const one, claim = ipam.Claim("00000000000000000000000000000001"), ipam.Claim("000000000000000000000000000000aa")
	attached := func(p *corev1.Pod) {
		p.Annotations["mv.shop.kubernetes.io/ip_address"], p.Annotations["mv.shop.kubernetes.io/cidr"] = "10.18.0.5", "10.18.0.0/24"
		p.Annotations["mv.shop.kubernetes.io/allocated"] = "true"
	}
	vm := ownedBy("kubevirt.io", "VirtualMachineInstance", "vm1")
	for name, c := range map[string]struct {
		in Input
		// leases as "address or MAC, claim's end, owner, pod", pods and records as what they get.
		leases, marks, skipped []string
	}{
		"plain": {input([]corev1.Pod{podAt("a", "10.16.0.5")}, []kubeovnv1.IP{recordAt("a", "10.16.0.5")}),
			[]string{"10.16.0.5 1 Pod/shop/ a", "MAC 02:00:00:00:00:61 1 Pod/shop/ a"}, []string{"a claim=1 finalizer", "a.shop 1 uid-of-a"}, nil},
		"asked for": {input([]corev1.Pod{podAt("a", "10.16.0.5", wroteBy("kubectl-create", "ovn.kubernetes.io/ip_address"), wroteBy("kube-ovn-controller", "ovn.kubernetes.io/mac_address"))}, nil),
			[]string{"10.16.0.5 1 Pod/shop/ a requested", "MAC 02:00:00:00:00:61 1 Pod/shop/ a"}, []string{`a claim=1 requested={"ovn":{"ip_address":"10.16.0.5"}} finalizer`}, nil},
		"an IPAM-only network": {input([]corev1.Pod{podAt("a", "10.16.0.5", attached)}, nil),
			[]string{"10.16.0.5 1 Pod/shop/ a", "10.18.0.5 1 Pod/shop/ a", "MAC 02:00:00:00:00:61 1 Pod/shop/ a"}, []string{"a claim=1 finalizer"}, nil},
		"absent members": {input(nil, []kubeovnv1.IP{recordAt("db-1", "10.16.0.5", typed("StatefulSet")), recordAt("kdb-1", "10.16.0.6", typed("StatefulSet"), func(ip *kubeovnv1.IP) { ip.Spec.MacAddress = "" })}),
			[]string{"10.16.0.5 1 apps/StatefulSet/shop/db-1 ", "10.16.0.6 2 apps.kruise.io/StatefulSet/shop/kdb-1 ", "MAC 02:00:00:00:00:31 1 apps/StatefulSet/shop/db-1 "},
			[]string{"db-1.shop 1 ", "kdb-1.shop 2 "}, nil},
		"a machine that moves": {input([]corev1.Pod{podAt("a", "10.16.0.5", vm), podAt("b", "10.16.0.5", vm, note("ovn.kubernetes.io/mac_address", macFor("a")))}, nil),
			[]string{"10.16.0.5 1 kubevirt.io/VirtualMachine/shop/vm1 a", "MAC 02:00:00:00:00:61 1 kubevirt.io/VirtualMachine/shop/vm1 a"}, []string{"a claim=1 finalizer", "b claim=1 finalizer"}, nil},
		"nobody's record": {input(nil, []kubeovnv1.IP{recordAt("gone", "10.16.0.5"), recordAt("old-1", "10.16.0.6", typed("StatefulSet"))}),
			[]string{"10.16.0.5 1 kubeovn.io/IP//gone.shop  requested", "10.16.0.6 2 kubeovn.io/IP//old-1.shop  requested"}, nil, []string{"gone.shop", "old-1.shop"}},
		"an interrupted run": {input([]corev1.Pod{podAt("a", "10.16.0.5")}, nil, leaseAt("10.16.0.5", claim, ipam.PodOwner("shop"), "uid-of-a")),
			[]string{"MAC 02:00:00:00:00:61 aa Pod/shop/ a"}, []string{"a claim=aa finalizer"}, nil},
		"of a list": {input([]corev1.Pod{podAt("db-1", "10.16.0.5", ownedBy("apps", "StatefulSet", "db"), note("ovn.kubernetes.io/ip_pool", "10.16.0.4;10.16.0.5"))}, nil),
			[]string{"10.16.0.5 1 apps/StatefulSet/shop/db-1 db-1", "MAC 02:00:00:00:00:31 1 apps/StatefulSet/shop/db-1 db-1"}, []string{"db-1 claim=1 ordinal-rule=kube-ovn finalizer"}, nil},
		"being deleted": {input([]corev1.Pod{podAt("a", "10.16.0.5", going)}, nil), nil, nil, []string{"a"}},
		"no network":    {input([]corev1.Pod{podAt("a", "10.16.0.5", func(p *corev1.Pod) { p.Spec.HostNetwork = true })}, nil), nil, nil, nil},
		"a reservation gives way": {input([]corev1.Pod{podAt("a", "10.16.0.5")}, []kubeovnv1.IP{recordAt("a", "10.16.0.5")},
			leaseAt("10.16.0.5", claim, ipam.Owner{Group: "kubeovn.io", Kind: ipam.KindIP, Name: "a.shop"}, "")),
			[]string{"10.16.0.5 1 Pod/shop/ a replaces", "MAC 02:00:00:00:00:61 1 Pod/shop/ a"}, []string{"a claim=1 finalizer", "a.shop 1 uid-of-a"}, nil},
		"done": {input([]corev1.Pod{podAt("a", "10.16.0.5", note(network.ClaimKey, string(one)), func(p *corev1.Pod) { p.Finalizers = []string{network.Finalizer} })}, nil,
			leaseAt("10.16.0.5", one, ipam.PodOwner("shop"), "uid-of-a"), ipam.Held{Subnet: "net", Lease: ipam.Lease{MAC: ipam.MAC{2, 0, 0, 0, 0, 'a'}, Claim: one, Owner: ipam.PodOwner("shop")}}), nil, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			plan, err := Adopt(c.in)
			if err != nil || len(plan.Problems) > 0 {
				t.Fatal(err, plan.Problems)
			}
			leases, marks, skipped := told(plan)
			for what, d := range map[string]string{"leases": cmp.Diff(c.leases, leases), "marks": cmp.Diff(c.marks, marks), "skipped": cmp.Diff(c.skipped, skipped)} {
				if d != "" {
					t.Errorf("%s (-want +got):\n%s", what, d)
				}
			}
		})
	}
}

func told(plan Plan) (leases, marks, skipped []string) {
	line := func(x ipam.Lease, more string) {
		s := fmt.Sprintf("%s %s %s %s", ipam.Ref{Address: x.Address, MAC: x.MAC}, strings.TrimLeft(string(x.Claim), "0"), x.Owner, x.PodName)
		if x.Requested {
			s += " requested"
		}
		leases = append(leases, s+more)
	}
	for _, x := range plan.Leases.Restore {
		line(x.Lease, "")
	}
	for _, x := range plan.Leases.Replace {
		line(x.New, " replaces")
	}
	slices.Sort(leases)
	for _, s := range plan.Pods {
		text := s.Pod.Name
		for _, k := range []string{network.ClaimKey, network.RequestedKey, network.OrdinalRuleKey} {
			if v, ok := s.Annotations[k]; ok {
				text += " " + strings.TrimPrefix(k, "berth.dev/") + "=" + strings.TrimLeft(v, "0")
			}
		}
		if s.Finalize {
			text += " finalizer"
		}
		marks = append(marks, text)
	}
	for _, s := range plan.Records {
		marks = append(marks, fmt.Sprintf("%s %s %s", s.Record.Name, strings.TrimLeft(string(s.Claim), "0"), s.PodUID))
	}
	for _, s := range plan.Skipped {
		skipped = append(skipped, s.Name)
	}
	return leases, marks, skipped
}

// A subnet that others still use gets no fence.
func TestFenceNeedsAllPods(t *testing.T) {
	in := input([]corev1.Pod{podAt("a", "10.16.0.5"), podAt("b", "10.16.0.6", func(p *corev1.Pod) { p.Namespace = "bank" })}, nil)
	in.Scope.Namespace = "shop"
	plan, err := Adopt(in)
	if err != nil {
		t.Fatal(err)
	}
	if bad := plan.FenceProblems(in.Catalog); len(bad) != 1 || !strings.Contains(bad[0].Text, "bank/b") || len(plan.Pods) != 1 {
		t.Errorf("problems %v, pods %v", bad, plan.Pods)
	}
}
