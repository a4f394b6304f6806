package network

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func subnet(name, cidr string, change ...func(*kubeovnv1.Subnet)) *kubeovnv1.Subnet {
	s := &kubeovnv1.Subnet{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid"}, Spec: kubeovnv1.SubnetSpec{CIDRBlock: cidr}}
	for _, c := range change {
		c(s)
	}
	return s
}

func bound(namespaces ...string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.Namespaces = namespaces }
}

func gw(g string) func(*kubeovnv1.Subnet) { return func(s *kubeovnv1.Subnet) { s.Spec.Gateway = g } }

func exclude(e ...string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.ExcludeIps = e }
}

func fenced(own string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) {
		s.Labels = map[string]string{LabelManaged: "true"}
		if own != "" {
			s.Annotations = map[string]string{ExcludeKey: own}
		}
	}
}

func catalog(objs ...*kubeovnv1.Subnet) Catalog {
	c := Catalog{Subnets: map[string]Subnet{}, Vpcs: map[string]*kubeovnv1.Vpc{}, Vlans: map[string]*kubeovnv1.Vlan{}}
	for _, o := range objs {
		c.Subnets[o.Name] = NewSubnet(o, Around{})
	}
	return c
}

func config() Config {
	return Config{DefaultSubnet: "ovn-default", ClusterRouter: "ovn-cluster", NodeSwitch: "join", PodNICType: "veth-pair"}
}

func usual() Catalog {
	return catalog(subnet("ovn-default", "10.16.0.0/16"), subnet("join", "100.64.0.0/16"),
		subnet("dual", "10.17.0.0/16,fd00:17::/64"), subnet("red", "10.18.0.0/24", bound("red")),
		subnet("blue", "10.19.0.0/24", func(s *kubeovnv1.Subnet) {
			s.Spec.NamespaceSelectors = []metav1.LabelSelector{{MatchLabels: map[string]string{"team": "blue"}}}
		}), subnet("broken", "10.20.0.0/33", bound("red")),
		subnet("lost", "10.21.0.0/24", bound("red"), func(s *kubeovnv1.Subnet) { s.Spec.Vpc = "gone" }))
}

func withLabels(pairs ...string) Pod {
	p := annotated(pairs...)
	p.Labels, p.Annotations = p.Annotations, nil
	return p
}

func annotated(pairs ...string) Pod {
	p := Pod{Namespace: "default", Name: "web", Annotations: map[string]string{}}
	for i := 0; i < len(pairs); i += 2 {
		p.Annotations[pairs[i]] = pairs[i+1]
	}
	return p
}

const (
	ip, mac, ls, fam = "ovn.kubernetes.io/ip_address", "ovn.kubernetes.io/mac_address", "ovn.kubernetes.io/logical_switch", "ovn.kubernetes.io/ip_family"
	claimA           = "0123456789abcdef0123456789abcdef"
)

// outcome is what a plan says, as text.
type outcome struct {
	Subnets   []string
	Addresses string
	MAC       string
	Families  []ipam.Family
	Requested string
	Warnings  int
	Errors    []string // parts, one for each error
}

func planOf(p Pod, ns Namespace, cat Catalog) (outcome, []string) {
	planned, errs := Plan(p, ns, cat, config())
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
	}
	o := outcome{Requested: planned.Requested, Warnings: len(planned.Dropped)}
	if len(errs) > 0 {
		return o, texts
	}
	i := planned.Interfaces[0]
	var choices []string
	for _, c := range i.Choices {
		choices = append(choices, join(c))
	}
	o.Addresses, o.MAC, o.Families = strings.Join(choices, ";"), i.MAC.String(), i.Families
	for _, s := range i.Candidates {
		o.Subnets = append(o.Subnets, s.Object.Name)
	}
	return o, nil
}

func comparePlan(t *testing.T, p Pod, ns Namespace, cat Catalog, want outcome) {
	t.Helper()
	got, errs := planOf(p, ns, cat)
	parts := want.Errors
	want.Errors = nil
	if len(errs) != len(parts) {
		t.Fatalf("errors %q, want %q", errs, parts)
	}
	for i, part := range parts {
		if !strings.Contains(errs[i], part) {
			t.Errorf("error %q, want %q in it", errs[i], part)
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// world is all that a plan is made of.
type world struct {
	pod Pod
	ns  Namespace
	cat Catalog
	cfg Config
}

// usually is a pod in the usual catalog.
func usually(p Pod) world {
	return world{pod: p, ns: Namespace{Name: p.Namespace}, cat: usual(), cfg: config()}
}

// result is what a plan says. Of warnings and errors it has parts, one for each.
type result struct {
	Networks  []string
	Requested string
	Warnings  []string
	Errors    []string
}

// told writes an interface in one line.
func told(i Interface) string {
	var from, asked []string
	for _, c := range i.Candidates {
		name := c.Object.Name
		if c.Pool != "" {
			name += "/" + c.Pool
		}
		from = append(from, name)
	}
	for _, c := range i.Choices {
		asked = append(asked, join(c))
	}
	line := i.Provider + " from " + strings.Join(from, " ")
	for _, part := range []struct {
		says bool
		text string
	}{
		{len(asked) > 0, "asks " + strings.Join(asked, ";")}, {i.MAC != ipam.MAC{}, "mac " + i.MAC.String()},
		{len(i.Families) > 0, "only " + join(i.Families)}, {i.Reservation != ipam.Owner{}, "for " + i.Reservation.String()},
		{i.NICType != "", "nic " + i.NICType}, {i.VM != "", "vm " + i.VM}, {i.IPAMOnly, "address alone"},
	} {
		if part.says {
			line += ", " + part.text
		}
	}
	return line
}

func (w world) check(t *testing.T, want result) {
	t.Helper()
	planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
	var texts []string
	for _, e := range errs {
		texts = append(texts, e.Error())
	}
	has(t, "error", texts, want.Errors)
	has(t, "warning", planned.Dropped, want.Warnings)
	if len(errs) > 0 {
		return
	}
	var got []string
	for _, i := range planned.Interfaces {
		got = append(got, told(i))
	}
	if d := cmp.Diff(want.Networks, got); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(want.Requested, planned.Requested); d != "" {
		t.Errorf("requested: %s", d)
	}
}

// has wants each part in the text of the same place, and no other texts.
func has(t *testing.T, what string, texts, parts []string) {
	t.Helper()
	if len(texts) != len(parts) {
		t.Fatalf("%ss %q, want %q", what, texts, parts)
	}
	for i, part := range parts {
		if !strings.Contains(texts[i], part) {
			t.Errorf("%s %q, want %q in it", what, texts[i], part)
		}
	}
}

// with adds annotations to a copy of the pod.
func (p Pod) with(pairs ...string) Pod {
	p.Annotations = maps.Clone(p.Annotations)
	maps.Copy(p.Annotations, annotated(pairs...).Annotations)
	return p
}

func serving(provider string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Spec.Provider = provider }
}

func annotate(key, value string) func(*kubeovnv1.Subnet) {
	return func(s *kubeovnv1.Subnet) { s.Annotations = map[string]string{key: value} }
}

func dying[T any, P interface {
	*T
	metav1.Object
}](p P) P {
	now := metav1.Unix(1, 0)
	p.SetDeletionTimestamp(&now)
	return p
}

// pool of a subnet; the n-th is younger than those before.
func pool(n int64, name, subnet, namespace string, ips ...string) *kubeovnv1.IPPool {
	p := &kubeovnv1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(n, 0)}, Spec: kubeovnv1.IPPoolSpec{Subnet: subnet, IPs: ips}}
	if namespace != "" {
		p.Spec.Namespaces = []string{namespace}
	}
	return p
}

// withPools puts pools into their subnets.
func withPools(cat Catalog, pools ...*kubeovnv1.IPPool) Catalog {
	cat.Pools = map[string]*kubeovnv1.IPPool{}
	of := map[string][]*kubeovnv1.IPPool{}
	for _, p := range pools {
		cat.Pools[p.Name] = p
		of[p.Spec.Subnet] = append(of[p.Spec.Subnet], p)
	}
	for name, ps := range of {
		if s, ok := cat.Subnets[name]; ok {
			cat.Subnets[name] = NewSubnet(s.Object, Around{Pools: ps})
		}
	}
	return cat
}

// controlled gives a pod a controller.
func controlled(p Pod, api, kind, name string) Pod {
	yes := true
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: api, Kind: kind, Name: name, Controller: &yes}}
	return p
}

// member is a StatefulSet's pod.
func member(set, pod string, pairs ...string) Pod {
	p := annotated(pairs...)
	p.Name = pod
	return controlled(p, "apps/v1", "StatefulSet", set)
}

// answerTo gives each network the first of its choices, and the first host addresses that its subnet has.
func answerTo(p Planned) *ipam.Allocation {
	a := &ipam.Allocation{Claim: claimA}
	for _, i := range p.Interfaces {
		s := i.Candidates[0].Set
		as := ipam.Assignment{Provider: i.Provider, Subnet: s, MAC: i.MAC}
		families := i.Families
		if len(families) == 0 {
			families = s.Families()
		}
		for _, f := range families {
			prefix, _ := s.Prefix(f)
			address := prefix.Addr().Next().Next()
			if len(i.Choices) > 0 {
				for _, c := range i.Choices[0] {
					if ipam.FamilyOf(c) == f {
						address = c
					}
				}
			}
			as.Leases = append(as.Leases, ipam.Held{Lease: ipam.Lease{Address: address}})
			if as.MAC == (ipam.MAC{}) && f == ipam.IPv4 && !i.IPAMOnly {
				as.MAC = ipam.DerivedMAC(address)
			}
		}
		if as.MAC == (ipam.MAC{}) && !i.IPAMOnly {
			as.MAC = ipam.MAC{0x0e, 0, 0, 0, 0, 1}
		}
		a.Interfaces = append(a.Interfaces, as)
	}
	return a
}
