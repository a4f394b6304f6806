package network

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-net/berth/pkg/ipam"
)

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
		"NAT":      {annotated("ovn.kubernetes.io/vpc_nat_gw", "g"), true},
		"NAT too":  {withLabels("ovn.kubernetes.io/vpc-nat-gw", "true"), true},
		"egress":   {withLabels("app", "vpc-egress-gateway", "ovn.kubernetes.io/vpc-egress-gateway", "g"), true},
		"service":  {withLabels("app", "lb-svc-web", "namespace", "default", "service", "web"), true},
		"imposter": {withLabels("app", "lb-svc-web", "namespace", "other", "service", "web"), false},
		"app":      {withLabels("app", "lb-svc-"), false},
	}
	for name, c := range cases {
		if reason, skip := Skip(c.pod); skip != c.skip || skip != (reason != "") {
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

// Kinds are told apart by their API group, also those that the configuration names.
func TestB113OwnersByGroup(t *testing.T) {
	cfg := Config{Owners: []OwnerKind{{Group: "example.com", Kind: "Cell"}, {Group: "", Kind: "ReplicationController"}, {Group: "example.com", Kind: "StatefulSet"}}}
	pod := func(api, kind, name, pod string) Pod {
		return controlled(Pod{Namespace: "a", Name: pod}, api, kind, name)
	}
	cases := map[string]struct {
		pod  Pod
		cfg  Config
		want ipam.Owner
	}{
		"built-in set":            {pod("apps/v1", "StatefulSet", "web", "web-0"), cfg, ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "a", Name: "web-0"}},
		"another version":         {pod("apps/v1beta2", "StatefulSet", "web", "web-0"), cfg, ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "a", Name: "web-0"}},
		"OpenKruise's":            {pod("apps.kruise.io/v1beta1", "StatefulSet", "web", "web-0"), cfg, ipam.Owner{Group: "apps.kruise.io", Kind: "StatefulSet", Namespace: "a", Name: "web-0"}},
		"configured":              {pod("example.com/v1", "Cell", "c", "c-xyz"), cfg, ipam.Owner{Group: "example.com", Kind: "Cell", Namespace: "a", Name: "c:c-xyz"}},
		"configured, core group":  {pod("v1", "ReplicationController", "c", "c-xyz"), cfg, ipam.Owner{Kind: "ReplicationController", Namespace: "a", Name: "c:c-xyz"}},
		"configured set":          {pod("example.com/v1", "StatefulSet", "web", "web-0"), cfg, ipam.Owner{Group: "example.com", Kind: "StatefulSet", Namespace: "a", Name: "web:web-0"}},
		"configured, no name yet": {pod("example.com/v1", "Cell", "c", ""), cfg, ipam.PodOwner("a")},
		"not configured":          {pod("example.com/v1", "Cell", "c", "c-xyz"), Config{}, ipam.PodOwner("a")},
		"kind of another group":   {pod("example.org/v1", "Cell", "c", "c-xyz"), cfg, ipam.PodOwner("a")},
		"set of the core group":   {pod("v1", "StatefulSet", "web", "web-0"), cfg, ipam.PodOwner("a")},
		"group that begins alike": {pod("apps.kruise.io.evil/v1", "StatefulSet", "web", "web-0"), cfg, ipam.PodOwner("a")},
		"machine of another":      {pod("example.com/v1", "VirtualMachineInstance", "vm", "virt-launcher-vm-x"), cfg, ipam.PodOwner("a")},
		"no version":              {pod("a/b/c", "StatefulSet", "web", "web-0"), cfg, ipam.PodOwner("a")},
		"nobody":                  {Pod{Namespace: "a", Name: "web-0"}, cfg, ipam.PodOwner("a")},
	}
	for name, c := range cases {
		if d := cmp.Diff(c.want, OwnerOf(c.pod, c.cfg)); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
}

// The launchers of one machine share owner, port and record, also while they run side by side.
func TestB59LaunchersOfOneMachine(t *testing.T) {
	launcher := func(pod, machine string, pairs ...string) Pod {
		p := annotated(pairs...)
		p.Name = pod
		return controlled(p, "kubevirt.io/v1", "VirtualMachineInstance", machine)
	}
	source, target := launcher("virt-launcher-vm1-aaaaa", "vm1"), launcher("virt-launcher-vm1-bbbbb", "vm1", "kubevirt.io/migrationJobName", "m")
	want := ipam.Owner{Group: "kubevirt.io", Kind: "VirtualMachine", Namespace: "default", Name: "vm1"}
	for _, p := range []Pod{source, target} {
		w := attached(p, nad("n1"), nad("mv"))
		w.check(t, result{Networks: []string{"ovn from ovn-default, vm vm1", "n1.default.ovn from s1, vm vm1", "mv.default from mv, address alone"}})
		planned, _ := Plan(w.pod, w.ns, w.cat, w.cfg)
		if planned.Owner != want || PortName(Identity(p, planned.Owner), p.Namespace, "n1.default.ovn") != "vm1.default.n1.default.ovn" {
			t.Errorf("%s: %v %s", p, planned.Owner, Identity(p, planned.Owner))
		}
	}
	if other := OwnerOf(launcher("virt-launcher-vm1-aaaaa", "vm2"), Config{}); other == want || !other.Sticky() {
		t.Errorf("another machine's launcher is %v", other)
	}
	forgotten := usually(source)
	forgotten.cfg.ForgetVMs = true
	forgotten.check(t, result{Networks: []string{"ovn from ovn-default"}})
	if o := OwnerOf(source, forgotten.cfg); o != ipam.PodOwner("default") {
		t.Errorf("a machine that is to be forgotten is %v", o)
	}
}
