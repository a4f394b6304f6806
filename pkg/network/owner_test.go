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
