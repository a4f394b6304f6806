package network

import (
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
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

func TestNewSubnet(t *testing.T) {
	cases := map[string]struct {
		obj           *kubeovnv1.Subnet
		cidr, gateway string
		free, size    string // IPv4
		err           string
	}{
		"missing gateway":  {obj: subnet("a", "10.0.0.0/24"), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"host bits":        {obj: subnet("a", "10.0.0.7/24"), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"v6 first":         {obj: subnet("a", "fd00::/64,10.0.0.0/24"), cidr: "10.0.0.0/24,fd00::/64", gateway: "10.0.0.1,fd00::1", free: "253", size: "253"},
		"one gateway":      {obj: subnet("a", "10.0.0.0/24,fd00::/64", gw("FD00:0::FF")), cidr: "10.0.0.0/24,fd00::/64", gateway: "10.0.0.1,fd00::ff", free: "253", size: "253"},
		"excluded":         {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.10..10.0.0.19", " 10.0.0.20 ", "")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "242", size: "253"},
		"mapped spelling":  {obj: subnet("a", "10.0.0.0/24", exclude("::ffff:10.0.0.10..10.0.0.19")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "243", size: "253"},
		"fenced":           {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.0..10.0.0.255"), fenced("")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "253", size: "253"},
		"fence, own":       {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.0..10.0.0.255"), fenced("10.0.0.9")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "252", size: "253"},
		"not fenced yet":   {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9"), fenced("")), cidr: "10.0.0.0/24", gateway: "10.0.0.1", free: "252", size: "253"},
		"slash 31":         {obj: subnet("a", "10.0.0.0/31"), cidr: "10.0.0.0/31", gateway: "10.0.0.0", free: "1", size: "1"},
		"slash 32":         {obj: subnet("a", "10.0.0.1/32"), err: "one address only"},
		"no cidr":          {obj: subnet("a", ""), err: "spec.cidrBlock is empty"},
		"bad cidr":         {obj: subnet("a", "10.0.0.0"), err: `"10.0.0.0" is not a CIDR`},
		"two of a family":  {obj: subnet("a", "10.0.0.0/24,10.0.1.0/24"), err: "more than one CIDR of a family"},
		"gateway outside":  {obj: subnet("a", "10.0.0.0/24", gw("10.0.1.1")), err: "10.0.1.1 is outside 10.0.0.0/24"},
		"gateway garbage":  {obj: subnet("a", "10.0.0.0/24", gw("x")), err: `spec.gateway: "x" is not an IP address`},
		"backward exclude": {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9..10.0.0.1")), err: "is not a range"},
		"mixed exclude":    {obj: subnet("a", "10.0.0.0/24", exclude("10.0.0.9..fd00::1")), err: "is not a range"},
		"garbage exclude":  {obj: subnet("a", "10.0.0.0/24", exclude("a..b")), err: "neither an address nor a range"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := NewSubnet(c.obj, Around{})
			if c.err != "" {
				if s.Err == nil || s.Set != nil || !strings.Contains(s.Err.Error(), c.err) {
					t.Fatalf("error %v, want %q", s.Err, c.err)
				}
				return
			}
			if s.Err != nil {
				t.Fatal(s.Err)
			}
			fig := figures(t, s)
			got := []string{s.CIDR, s.Gateway, fig.Free.String(), fig.Size.String()}
			if d := cmp.Diff([]string{c.cidr, c.gateway, c.free, c.size}, got); d != "" {
				t.Error(d)
			}
		})
	}
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

func TestPlan(t *testing.T) {
	red, blue := Namespace{Name: "red"}, Namespace{Name: "x", Labels: map[string]string{"team": "blue"}}
	cases := map[string]struct {
		pod  Pod
		ns   Namespace
		vpc  *kubeovnv1.Vpc
		want outcome
	}{
		"default":                {annotated(), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}}},
		"bound":                  {annotated(), red, nil, outcome{Subnets: []string{"red"}, Warnings: 2}},
		"selected":               {annotated(), blue, nil, outcome{Subnets: []string{"blue"}}},
		"namespace's order":      {annotated(), Namespace{Name: "red", Annotations: map[string]string{ls: "dual, red"}}, nil, outcome{Subnets: []string{"dual", "red"}, Warnings: 2}},
		"custom VPC first":       {annotated(), red, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VpcSpec{Namespaces: []string{"red"}, DefaultSubnet: "dual"}}, outcome{Subnets: []string{"dual", "red"}, Warnings: 2}},
		"default VPC's":          {annotated(), Namespace{}, &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: "ovn-cluster"}, Status: kubeovnv1.VpcStatus{DefaultLogicalSwitch: "dual"}}, outcome{Subnets: []string{"dual"}}},
		"named":                  {annotated(ls, " red "), Namespace{}, nil, outcome{Subnets: []string{"red"}, Requested: `{"ovn":{"logical_switch":"red"}}`}},
		"unknown":                {annotated(ls, "nope"), Namespace{}, nil, outcome{Errors: []string{`logical_switch]: Invalid value: "nope"`}}},
		"join":                   {annotated(ls, "join"), Namespace{}, nil, outcome{Errors: []string{"the nodes' own"}}},
		"broken":                 {annotated(ls, "broken"), Namespace{}, nil, outcome{Errors: []string{"10.20.0.0/33"}}},
		"VPC gone":               {annotated(ls, "lost"), Namespace{}, nil, outcome{Errors: []string{`VPC "gone"`}}},
		"static, second subnet":  {annotated(ip, "10.18.0.9"), Namespace{Name: "red", Annotations: map[string]string{ls: "dual,red"}}, nil, outcome{Subnets: []string{"red"}, Addresses: "10.18.0.9", Requested: `{"ovn":{"ip_address":"10.18.0.9"}}`, Warnings: 2}},
		"outside":                {annotated(ip, "10.99.0.9"), Namespace{}, nil, outcome{Errors: []string{"ovn.kubernetes.io/ip_address"}}},
		"gateway":                {annotated(ip, "10.16.0.1"), Namespace{}, nil, outcome{Errors: []string{"is the gateway of subnet ovn-default"}}},
		"family":                 {annotated(fam, "ipv6", ls, "dual"), Namespace{}, nil, outcome{Subnets: []string{"dual"}, Families: []ipam.Family{ipam.IPv6}, Requested: `{"ovn":{"logical_switch":"dual"}}`}},
		"family missing":         {annotated(fam, "ipv6"), Namespace{}, nil, outcome{Errors: []string{"ip_family"}}},
		"family and address":     {annotated(fam, "ipv6", ip, "10.17.0.9", ls, "dual"), Namespace{}, nil, outcome{Errors: []string{"of the other family"}}},
		"pool":                   {annotated("ovn.kubernetes.io/ip_pool", "10.16.0.9,10.16.0.10"), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9;10.16.0.10"}},
		"ours":                   {annotated(ClaimKey, claimA, ip, "10.16.0.9", ls, "ovn-default", "ovn.kubernetes.io/cidr", "10.16.0.0/16"), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}}},
		"ours, asked":            {annotated(ClaimKey, claimA, ip, "10.16.0.9", RequestedKey, `{"ovn":{"ip_address":"10.16.0.9"}}`), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9", Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"preview":                {annotated(ClaimKey, ClaimPreview, ip, "10.99.0.9"), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}, Warnings: 1}},
		"requested, other value": {annotated(RequestedKey, `{"ovn":{"ip_address":"10.16.0.9"}}`, ip, "10.16.0.10"), Namespace{}, nil, outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9", Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`, Warnings: 1}},
		"requested, garbage":     {annotated(RequestedKey, `{`), Namespace{}, nil, outcome{Errors: []string{"berth.dev/requested"}}},
		"all at once":            {annotated(ip, "foo", mac, "zz", ls, "nope", fam, "v4"), Namespace{}, nil, outcome{Errors: []string{`"foo"`, `"zz"`, `"v4"`, `"nope"`}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			cat := usual()
			if c.vpc != nil {
				cat.Vpcs[c.vpc.Name] = c.vpc
			}
			comparePlan(t, c.pod, c.ns, cat, c.want)
		})
	}
}

func TestB28MalformedAnnotations(t *testing.T) {
	cases := map[string]struct {
		pod  Pod
		want outcome
	}{
		"trailing comma": {annotated(ip, "10.16.0.9,"), outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9", Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"blanks":         {annotated(ip, " 10.16.0.9 , "), outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9", Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"mask":           {annotated(ip, "10.16.0.9/24"), outcome{Subnets: []string{"ovn-default"}, Addresses: "10.16.0.9", Requested: `{"ovn":{"ip_address":"10.16.0.9"}}`}},
		"comma":          {annotated(ip, ","), outcome{Subnets: []string{"ovn-default"}}},
		"empty subnet":   {annotated(ls, ""), outcome{Subnets: []string{"ovn-default"}}},
		"word":           {annotated(ip, "foo"), outcome{Errors: []string{`ovn.kubernetes.io/ip_address]: Invalid value: "foo"`}}},
		"MAC":            {annotated(mac, "zz"), outcome{Errors: []string{`ovn.kubernetes.io/mac_address]: Invalid value: "zz"`}}},
		"spelling":       {annotated(mac, "02-AB-00-00-00-01"), outcome{Subnets: []string{"ovn-default"}, MAC: "02:ab:00:00:00:01", Requested: `{"ovn":{"mac_address":"02:ab:00:00:00:01"}}`}},
		"zone":           {annotated(ip, "fe80::1%eth0"), outcome{Errors: []string{"zone"}}},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) { comparePlan(t, c.pod, Namespace{}, usual(), c.want) })
	}
}

func TestB11TwoAddressesOfOneFamily(t *testing.T) {
	for name, text := range map[string]string{"v4": "10.16.0.9,10.16.0.10", "v6": "2001:db8::1,2001:db8::2", "three": "10.16.0.9,fd00::1,fd00::2"} {
		t.Run(name, func(t *testing.T) {
			comparePlan(t, annotated(ip, text), Namespace{}, usual(), outcome{Errors: []string{"more than one address of a family"}})
		})
	}
}

func TestB41OwnerWithoutName(t *testing.T) {
	yes := true
	set := func(api, kind, name string) []metav1.OwnerReference {
		return []metav1.OwnerReference{{APIVersion: api, Kind: kind, Name: name, Controller: &yes}}
	}
	cases := map[string]struct {
		pod  Pod
		want ipam.Owner
	}{
		"generated":       {Pod{Namespace: "a", GenerateName: "web-", OwnerReferences: set("apps/v1", "ReplicaSet", "web")}, ipam.PodOwner("a")},
		"set":             {Pod{Namespace: "a", Name: "db-3", OwnerReferences: set("apps/v1", "StatefulSet", "db")}, ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "a", Name: "db-3"}},
		"OpenKruise":      {Pod{Namespace: "a", Name: "db-0", OwnerReferences: set("apps.kruise.io/v1beta1", "StatefulSet", "db")}, ipam.Owner{Group: "apps.kruise.io", Kind: "StatefulSet", Namespace: "a", Name: "db-0"}},
		"foreign group":   {Pod{Namespace: "a", Name: "db-0", OwnerReferences: set("x.io/v1", "StatefulSet", "db")}, ipam.PodOwner("a")},
		"no ordinal":      {Pod{Namespace: "a", Name: "db-x", OwnerReferences: set("apps/v1", "StatefulSet", "db")}, ipam.PodOwner("a")},
		"leading zero":    {Pod{Namespace: "a", Name: "db-01", OwnerReferences: set("apps/v1", "StatefulSet", "db")}, ipam.PodOwner("a")},
		"another's name":  {Pod{Namespace: "a", Name: "db-a-0", OwnerReferences: set("apps/v1", "StatefulSet", "db")}, ipam.PodOwner("a")},
		"not controlling": {Pod{Namespace: "a", Name: "db-0", OwnerReferences: []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "db"}}}, ipam.PodOwner("a")},
	}
	for name, c := range cases {
		if got := OwnerOf(c.pod, Config{}); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

func TestB53Skip(t *testing.T) {
	cases := map[string]struct {
		pod  Pod
		skip bool
	}{
		"plain":    {annotated(), false},
		"host":     {Pod{HostNetwork: true}, true},
		"disabled": {Pod{Labels: map[string]string{LabelInject: InjectDisabled}}, true},
		"mirror":   {annotated("kubernetes.io/config.mirror", ""), true},
		"gateway":  {annotated("ovn.kubernetes.io/vpc_nat_gw", "g"), true},
	}
	for name, c := range cases {
		if reason, skip := Skip(c.pod, Namespace{}); skip != c.skip || skip != (reason != "") {
			t.Errorf("%s: %q %v", name, reason, skip)
		}
	}
	if got := Asks(annotated(ip, "10.0.0.1", ls, " ")); !slices.Equal(got, []string{ip}) {
		t.Errorf("asks %v", got)
	}
}

func TestPodOf(t *testing.T) {
	p := PodOf(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", GenerateName: "b-"},
		Spec: corev1.PodSpec{NodeName: "n", SchedulingGates: []corev1.PodSchedulingGate{{Name: "g"}}}})
	if d := cmp.Diff(Pod{Namespace: "a", GenerateName: "b-", NodeName: "n", SchedulingGates: []string{"g"}}, p); d != "" {
		t.Error(d)
	}
	if p.String() != "a/b-*" {
		t.Error(p.String())
	}
}

func TestAnnotations(t *testing.T) {
	cat := catalog(subnet("s", "10.0.0.0/24,fd00::/64", func(s *kubeovnv1.Subnet) { s.Spec.Vlan = "v"; s.Spec.LogicalGateway = true }))
	cat.ProviderNetworks = map[string]*kubeovnv1.ProviderNetwork{"net": {}}
	cat.Vlans["v"] = &kubeovnv1.Vlan{Spec: kubeovnv1.VlanSpec{ID: 7, Provider: "net"}}
	planned, errs := Plan(annotated(ls, "s", "ovn.kubernetes.io/pod_nic_type", "internal-port"), Namespace{}, cat, config())
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	r := planned.Request(claimA, true)
	if r.Claim != claimA || !r.Existing || len(r.Interfaces) != 1 || r.Interfaces[0].Candidates[0].Subnet != cat.Subnets["s"].Set {
		t.Errorf("request %+v", r)
	}
	lease := func(a string) ipam.Held { return ipam.Held{Lease: ipam.Lease{Address: netip.MustParseAddr(a)}} }
	got := Annotations(planned, &ipam.Allocation{Claim: claimA, Interfaces: []ipam.Assignment{{Provider: "ovn", Subnet: cat.Subnets["s"].Set,
		Leases: []ipam.Held{lease("10.0.0.5"), lease("fd00::5")}, MAC: ipam.MAC{0x0a, 0x58, 10, 0, 0, 5}}}}, cat, config())
	want := map[string]string{ClaimKey: claimA, RequestedKey: `{"ovn":{"logical_switch":"s","pod_nic_type":"internal-port"}}`,
		ip: "10.0.0.5,fd00::5", mac: "0a:58:0a:00:00:05", ls: "s", "ovn.kubernetes.io/cidr": "10.0.0.0/24,fd00::/64",
		"ovn.kubernetes.io/gateway": "10.0.0.1,fd00::1", "ovn.kubernetes.io/pod_nic_type": "internal-port",
		"ovn.kubernetes.io/logical_router": "ovn-cluster", "ovn.kubernetes.io/vlan_id": "7", "ovn.kubernetes.io/provider_network": "net"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	carried := Carried(got)
	if len(carried) != 1 || carried[0].Subnet != "s" || join(carried[0].Addresses) != got[ip] || carried[0].MAC.String() != got[mac] {
		t.Errorf("carried %+v", carried)
	}
	got["app"] = "x"
	kept, dropped := Strip(got)
	if d := cmp.Diff([]string{"app", RequestedKey}, slices.Sorted(maps.Keys(kept))); d != "" || len(dropped) != 10 {
		t.Error(d, dropped)
	}
}

func TestCarried(t *testing.T) {
	got := Carried(map[string]string{ip: "x, fd00::1,10.0.0.1,10.0.0.2", mac: "zz", "net1.default.ovn.kubernetes.io/ip_address": "10.1.0.1",
		"a.b.kubernetes.io/mac_address": "02:00:00:00:00:01", "kubernetes.io/ip_address": "10.0.0.9", "e.kubernetes.io/ip_address": ""})
	var texts []string
	for _, c := range got {
		texts = append(texts, c.Provider+" "+join(c.Addresses)+" "+c.MAC.String())
	}
	want := []string{"ovn 10.0.0.1,fd00::1 ", "a.b  02:00:00:00:00:01", "net1.default.ovn 10.1.0.1 "}
	if d := cmp.Diff(want, texts); d != "" {
		t.Error(d)
	}
	if _, ok := ClaimOf(map[string]string{ClaimKey: ClaimPreview}); ok {
		t.Error("a preview was taken for a claim")
	}
}

// FuzzPlan: no annotation makes a plan panic, and what a plan asks for is what it asks for when it is planned again.
func FuzzPlan(f *testing.F) {
	for _, s := range [][5]string{{"10.16.0.9,", "zz", "", "", ""}, {" 10.16.0.9 , ", "02:00:00:00:00:01", "dual", "ipv4", ""}, {"", "", "", "", `{"ovn":{"ip_address":"10.16.0.9"}}`}, {"fe80::1%a", "", ",", "", "null"}} {
		f.Add(s[0], s[1], s[2], s[3], s[4])
	}
	cat := usual()
	f.Fuzz(func(t *testing.T, a, m, s, fa, req string) {
		p := annotated(ip, a, mac, m, ls, s, fam, fa)
		if req != "" {
			p.Annotations[RequestedKey] = req
		}
		Carried(p.Annotations)
		first, errs := planOf(p, Namespace{Name: "red"}, cat)
		if len(errs) > 0 {
			return
		}
		if again, err := ParseAddresses(first.Addresses); err != nil || join(again) != first.Addresses {
			t.Fatalf("%q is not canonical: %v", first.Addresses, err)
		}
		p.Annotations[ClaimKey] = claimA
		delete(p.Annotations, RequestedKey)
		if first.Requested != "" {
			p.Annotations[RequestedKey] = first.Requested
		}
		second, errs := planOf(p, Namespace{Name: "red"}, cat)
		first.Warnings, second.Warnings = 0, 0
		if d := cmp.Diff(first, second); d != "" || len(errs) > 0 {
			t.Fatal(d, errs)
		}
	})
}

func FuzzParseRanges(f *testing.F) {
	f.Add("10.0.0.1..10.0.0.9,fd00::1")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		if set, err := ParseRanges(strings.Split(s, ",")); (set == nil) != (err != nil) {
			t.Fatal(set, err)
		}
	})
}
