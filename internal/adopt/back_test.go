package adopt

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

const theirs = ipam.Claim("000000000000000000000000000000aa")

func marked(p *corev1.Pod) {
	p.Annotations[network.ClaimKey] = string(theirs)
	p.Finalizers = []string{network.Finalizer}
}

// ruled gives a pod the rule of its ordinals, as written by somebody.
func ruled(by string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Annotations[network.OrdinalRuleKey] = network.OrdinalRuleKubeOVN
		wroteBy(by, network.OrdinalRuleKey)(p)
	}
}

func ours(ip *kubeovnv1.IP) {
	ip.Labels[facts.LabelClaim] = string(theirs)
	ip.Annotations = map[string]string{facts.AnnotationPodUID: "uid-of-a"}
}

// TestHandback holds what is given back, and what is in the way.
func TestHandback(t *testing.T) {
	second := func(p *corev1.Pod) {
		for suffix, v := range map[string]string{"ip_address": "10.17.0.5", "cidr": "10.17.0.0/24", "logical_switch": "second"} {
			p.Annotations["second.shop.ovn.kubernetes.io/"+suffix] = v
		}
	}
	gated := func(p *corev1.Pod) {
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: network.AddressGate}}
	}
	sticky := ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "shop", Name: "db-1"}
	mac := ipam.Held{Subnet: "net", Lease: ipam.Lease{MAC: ipam.MAC{2, 0, 0, 0, 0, 9}, Claim: theirs, Owner: sticky, Provider: "ovn"}}
	for name, c := range map[string]struct {
		in                            BackInput
		problems, pods, records, free []string
	}{
		"all of a pod": {BackInput{Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked)}, Records: []kubeovnv1.IP{recordAt("a", "10.16.0.5", ours)},
			Leases: []ipam.Held{leaseAt("10.16.0.5", theirs, ipam.PodOwner("shop"), "uid-of-a")}}, nil, []string{"a"}, []string{"a.shop 10.16.0.5 "}, []string{"10.16.0.5"}},
		"nothing of ours":  {BackInput{Pods: []corev1.Pod{podAt("a", "10.16.0.5")}, Records: []kubeovnv1.IP{recordAt("a", "10.16.0.5")}}, nil, nil, nil, nil},
		"a pod that waits": {BackInput{Pods: []corev1.Pod{{ObjectMeta: podAt("w", "10.16.0.5").ObjectMeta, Spec: podAt("w", "10.16.0.5", gated).Spec}}}, nil, []string{"w"}, nil, nil},
		"an absent member": {BackInput{Leases: []ipam.Held{leaseAt("10.16.0.5", theirs, sticky, ""), mac}}, nil, nil,
			[]string{"db-1.shop 10.16.0.5 02:00:00:00:00:09 new"}, []string{"10.16.0.5", "MAC 02:00:00:00:00:09"}},
		"one subnet of two": {BackInput{Subnet: "net", Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked, second)}},
			[]string{"a: it is in subnet second, too"}, []string{"a"}, nil, nil},
		"another subnet": {BackInput{Subnet: "second", Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked)}, Records: []kubeovnv1.IP{recordAt("a", "10.16.0.5", ours)},
			Leases: []ipam.Held{leaseAt("10.16.0.5", theirs, ipam.PodOwner("shop"), "uid-of-a"), mac}}, nil, nil, nil, nil},
		"is served": {BackInput{Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked), podAt("b", "10.16.0.6", marked)}, Namespaces: map[string]map[string]string{"shop": {network.LabelInject: "late"}}},
			[]string{"shop: its new pods would still"}, []string{"a", "b"}, nil, nil},
		"being deleted": {BackInput{Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked, going)}}, []string{"a: it is being deleted"}, []string{"a"}, nil, nil},
		"the rule of its ordinals": {BackInput{Pods: []corev1.Pod{podAt("a", "10.16.0.5", marked, ruled("kubectl-berth")), podAt("b", "10.16.0.6", marked, ruled("kube-controller-manager")),
			podAt("c", "10.16.0.7", ruled("kubectl-berth")), podAt("d", "10.16.0.8", ruled("kubectl-annotate"))}}, nil,
			[]string{"a and its rule", "b", "c and its rule"}, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			c.in.Catalog = world(nil)
			back := Handback(c.in)
			var problems, pods, records, free []string
			for i, p := range back.Problems {
				text := p.Name + ": " + p.Text
				if i < len(c.problems) && strings.HasPrefix(text, c.problems[i]) {
					text = c.problems[i]
				}
				problems = append(problems, text)
			}
			for _, p := range back.Pods {
				text := p.Pod.Name
				if slices.Contains(p.Annotations, network.OrdinalRuleKey) {
					text += " and its rule"
				}
				pods = append(pods, text)
				for _, k := range p.Annotations {
					if _, _, of := network.SplitKey(k); of {
						t.Errorf("annotation %s is to go", k)
					}
				}
			}
			for _, r := range back.Records {
				text := fmt.Sprintf("%s %s ", r.Want.Name, r.Want.Spec.IPAddress)
				if r.Have == nil {
					text += r.Want.Spec.MacAddress + " new"
				}
				records = append(records, text)
				if r.Want.Labels[facts.LabelReserved] != "false" || r.Want.Labels[facts.LabelClaim] != "" || !slices.Contains(r.Want.Finalizers, KubeOVNFinalizer) {
					t.Errorf("record %s has labels %v", r.Want.Name, r.Want.Labels)
				}
			}
			for _, h := range back.Leases {
				free = append(free, h.Ref().String())
			}
			for what, d := range map[string]string{"problems": cmp.Diff(c.problems, problems), "pods": cmp.Diff(c.pods, pods), "records": cmp.Diff(c.records, records),
				"leases": cmp.Diff(c.free, free)} {
				if d != "" {
					t.Errorf("%s (-want +got):\n%s", what, d)
				}
			}
		})
	}
}

// Whatever a subnet excludes: a fence leaves Kube-OVN nothing, changes nothing for us, is put up once, and comes off without
// a trace.
func TestFenceAndBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(24, 31).Draw(t, "bits")
		obj := subnetWith("net", fmt.Sprintf("10.16.0.0/%d,fd00::/%d", bits, rapid.IntRange(64, 127).Draw(t, "bits6")), "ovn")
		exclude := []string{"10.16.0.0", "fd00::"} // the gateways of the narrowest
		if bits < 31 {
			exclude[0] = "10.16.0.1"
		}
		if rapid.Bool().Draw(t, "more") && bits < 28 {
			exclude = append(exclude, fmt.Sprintf("10.16.0.%d..10.16.0.%d", rapid.IntRange(2, 9).Draw(t, "from"), rapid.IntRange(9, 14).Draw(t, "to")))
		}
		obj.Spec.ExcludeIps = exclude
		before := network.NewSubnet(obj, network.Around{})
		step := Fence(before)
		if step == nil {
			t.Fatal("no fence is planned")
		}
		apply(obj, *step)
		after := network.NewSubnet(obj, network.Around{})
		if again := Fence(after); again != nil {
			t.Errorf("a second fence is planned: %+v", again)
		}
		if after.Set == nil {
			t.Fatal(after.Err)
		}
		if !covers(obj.Spec.ExcludeIps, whole(after.Set)) {
			t.Errorf("Kube-OVN is left something: %v", obj.Spec.ExcludeIps)
		}
		for i := range 20 {
			a := netip.AddrFrom4([4]byte{10, 16, 0, byte(i)})
			if before.Set.InPool("", a) != after.Set.InPool("", a) {
				t.Errorf("the fence changes %s for us", a)
			}
		}
		undo := Unfence(after)
		if undo == nil {
			t.Fatal("the fence can't be taken down")
		}
		apply(obj, *undo)
		if !slices.Equal(obj.Spec.ExcludeIps, exclude) || obj.Annotations[network.ExcludeKey] != "" || Unfence(network.NewSubnet(obj, network.Around{})) != nil {
			t.Errorf("a trace is left: %v %v %v", obj.Spec.ExcludeIps, obj.Labels, obj.Annotations)
		}
	})
}

// apply is what a step makes of a subnet.
func apply(s *kubeovnv1.Subnet, step FenceStep) {
	s.Spec.ExcludeIps = step.Exclude
	s.Labels, s.Annotations = map[string]string{}, map[string]string{}
	if step.Managed {
		s.Labels[network.LabelManaged], s.Annotations[network.ExcludeKey] = "true", step.Own
	}
}
