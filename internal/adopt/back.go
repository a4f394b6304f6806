package adopt

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/internal/facts"
	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
	"github.com/berth-net/berth/pkg/network"
)

// KubeOVNFinalizer is that of kube-ovn-controller.
const KubeOVNFinalizer = "kubeovn.io/kube-ovn-controller"

// BackInput is all that the plan of a handback is made of.
type BackInput struct {
	Catalog network.Catalog
	Config  network.Config
	Pods    []corev1.Pod
	Records []kubeovnv1.IP
	Leases  []ipam.Held
	// Namespaces are the labels of namespaces, by name.
	Namespaces map[string]map[string]string
	// Subnet that is handed back; empty: all.
	Subnet string
}

// BackPod is a pod that loses our marks.
type BackPod struct {
	Pod *corev1.Pod
	// Annotations that go. None of them tells of the pod's network.
	Annotations []string
}

// BackRecord is an IP record in Kube-OVN's form. Have is nil where there is none yet.
type BackRecord struct{ Have, Want *kubeovnv1.IP }

// Back is what is to be done, in this order. Leases go last, so that no address is free while anything says otherwise.
type Back struct {
	Problems []Problem
	Subnets  []string
	Pods     []BackPod
	Records  []BackRecord
	Fences   []FenceStep
	Leases   []ipam.Held
}

// Handback plans how addresses are given back to kube-ovn-controller.
func Handback(in BackInput) Back {
	b := &backer{BackInput: in, alive: map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(in.Catalog.Subnets)) {
		if in.Subnet == "" || in.Subnet == name {
			b.out.Subnets = append(b.out.Subnets, name)
		}
	}
	b.leases()
	for i := range in.Pods {
		b.pod(&in.Pods[i])
	}
	for i := range in.Records {
		b.record(&in.Records[i])
	}
	b.absent()
	for _, name := range b.out.Subnets {
		if step := Unfence(in.Catalog.Subnets[name]); step != nil {
			b.out.Fences = append(b.out.Fences, *step)
		}
	}
	slices.SortFunc(b.out.Problems, func(x, y Problem) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Namespace, y.Namespace), cmp.Compare(x.Name, y.Name), cmp.Compare(x.Text, y.Text))
	})
	slices.SortFunc(b.out.Records, func(x, y BackRecord) int { return cmp.Compare(x.Want.Name, y.Want.Name) })
	return b.out
}

type backer struct {
	BackInput
	out Back
	// alive are the UIDs of pods.
	alive map[string]bool
}

func (b *backer) meant(subnet string) bool { return b.Subnet == "" || subnet == b.Subnet }

// leases finds those of the subnets, and of MACs under the same claims.
func (b *backer) leases() {
	claims := map[ipam.Claim]bool{}
	for _, h := range b.Leases {
		if h.Address.IsValid() && b.meant(h.Subnet) {
			claims[h.Claim] = true
			b.out.Leases = append(b.out.Leases, h)
		}
	}
	for _, h := range b.Leases {
		if !h.Address.IsValid() && (b.Subnet == "" || claims[h.Claim] || h.Owner.Kind == ipam.KindSubnet && h.Owner.Name == b.Subnet) {
			b.out.Leases = append(b.out.Leases, h)
		}
	}
}

func (b *backer) pod(p *corev1.Pod) {
	b.alive[string(p.UID)] = true
	pod := PodOf(p, b.Catalog, b.Config)
	subnets := pod.Subnets()
	gated := slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == network.AddressGate })
	step := BackPod{Pod: p}
	for _, k := range []string{network.ClaimKey, network.RequestedKey, network.PluggedKey} {
		if _, has := p.Annotations[k]; has {
			step.Annotations = append(step.Annotations, k)
		}
	}
	// The rule of its ordinals may be the user's, whose StatefulSet then has it, too.
	if _, has := p.Annotations[network.OrdinalRuleKey]; has && !written(p)[network.OrdinalRuleKey] {
		step.Annotations = append(step.Annotations, network.OrdinalRuleKey)
	}
	if len(step.Annotations) == 0 && !gated && !slices.Contains(p.Finalizers, network.Finalizer) ||
		b.Subnet != "" && !slices.Contains(subnets, b.Subnet) {
		return
	}
	problem := func(format string, args ...any) {
		b.out.Problems = append(b.out.Problems, Problem{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, Text: fmt.Sprintf(format, args...)})
	}
	for _, s := range subnets {
		if !b.meant(s) {
			problem("it is in subnet %s, too: hand all back at once (--all), or delete the pod", s)
		}
	}
	if p.DeletionTimestamp != nil {
		problem("it is being deleted, and the worker is yet to take its ports back: start the worker, and wait until the pod is gone")
	}
	switch b.Namespaces[p.Namespace][network.LabelInject] {
	case network.InjectEnabled, network.InjectLate:
		text := fmt.Sprintf("its new pods would still get their addresses here: first kubectl label namespace %s %s-", p.Namespace, network.LabelInject)
		if !slices.ContainsFunc(b.out.Problems, func(x Problem) bool { return x.Kind == "Namespace" && x.Name == p.Namespace }) {
			b.out.Problems = append(b.out.Problems, Problem{Kind: "Namespace", Name: p.Namespace, Text: text})
		}
	}
	b.out.Pods = append(b.out.Pods, step)
}

// record brings one of our records into Kube-OVN's form.
func (b *backer) record(ip *kubeovnv1.IP) {
	_, ours := ip.Labels[facts.LabelClaim]
	if !ours || !b.meant(ip.Spec.Subnet) || ip.DeletionTimestamp != nil {
		return
	}
	want := ip.DeepCopy()
	delete(want.Labels, facts.LabelClaim)
	delete(want.Annotations, facts.AnnotationPodUID)
	want.Labels[facts.LabelReserved] = "false"
	if !slices.Contains(want.Finalizers, KubeOVNFinalizer) {
		want.Finalizers = append(want.Finalizers, KubeOVNFinalizer)
	}
	b.out.Records = append(b.out.Records, BackRecord{Have: ip, Want: want})
}

// absent makes records of the leases whose owners have no pod now: by nothing else does kube-ovn-controller know of them.
func (b *backer) absent() {
	there := map[string]*kubeovnv1.IP{}
	for i := range b.Records {
		there[b.Records[i].Name] = &b.Records[i]
	}
	made := map[string]*kubeovnv1.IP{}
	macs := map[string]ipam.MAC{}
	for _, h := range b.out.Leases {
		key := string(h.Claim) + " " + h.Provider
		if h.MAC != (ipam.MAC{}) && macs[key] == (ipam.MAC{}) {
			macs[key] = h.MAC
		}
	}
	for _, h := range b.out.Leases {
		kind := h.Owner.Kind
		if !h.Address.IsValid() || b.alive[h.PodUID] || kind != kindStatefulSet && kind != network.KindVM {
			continue
		}
		name := network.PortName(h.Owner.Name, h.Owner.Namespace, h.Provider)
		if have := there[name]; have != nil {
			if have.DeletionTimestamp != nil && made[name] == nil {
				made[name] = have
				b.out.Problems = append(b.out.Problems, Problem{Kind: "IP", Namespace: h.Owner.Namespace, Name: name,
					Text: fmt.Sprintf("it is being deleted, and %s still keeps its address by it: wait until it is gone", h.Owner)})
			}
			continue
		}
		ip := made[name]
		if ip == nil {
			ip = &kubeovnv1.IP{ObjectMeta: metav1.ObjectMeta{Name: name, Finalizers: []string{KubeOVNFinalizer},
				Labels: map[string]string{facts.LabelSubnet: h.Subnet, h.Subnet: "", facts.LabelReserved: "false", "ovn.kubernetes.io/node-name": ""}},
				Spec: kubeovnv1.IPSpec{PodName: h.Owner.Name, Namespace: h.Owner.Namespace, Subnet: h.Subnet, PodType: kind,
					AttachSubnets: []string{}, AttachIPs: []string{}, AttachMacs: []string{}}}
			if m := macs[string(h.Claim)+" "+h.Provider]; m != (ipam.MAC{}) {
				ip.Spec.MacAddress = m.String()
			}
			made[name] = ip
			b.out.Records = append(b.out.Records, BackRecord{Want: ip})
		}
		if h.Address.Is4() {
			ip.Spec.V4IPAddress = h.Address.String()
		} else {
			ip.Spec.V6IPAddress = h.Address.String()
		}
		as := make([]netip.Addr, 0, 2)
		for _, text := range []string{ip.Spec.V4IPAddress, ip.Spec.V6IPAddress} {
			if a, err := netip.ParseAddr(text); err == nil {
				as = append(as, a)
			}
		}
		ip.Spec.IPAddress = addressesText(as)
	}
}
