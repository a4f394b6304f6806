package network

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// A namespace of a custom VPC has the VPC's default subnet before all others; kube-system stays in the default VPC.
func TestSubnetsOfANamespaceByItsVpc(t *testing.T) {
	vpc := func(name, spec, status string, namespaces ...string) *kubeovnv1.Vpc {
		return &kubeovnv1.Vpc{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: kubeovnv1.VpcSpec{Namespaces: namespaces, DefaultSubnet: spec},
			Status: kubeovnv1.VpcStatus{DefaultLogicalSwitch: status}}
	}
	cases := map[string]struct {
		namespace, listed string
		vpcs              []*kubeovnv1.Vpc
		want              string
	}{
		"its own":                          {"apps", "", []*kubeovnv1.Vpc{vpc("v", "own", "", "apps")}, "own"},
		"its own, by the status":           {"apps", "", []*kubeovnv1.Vpc{vpc("v", "", "own", "apps")}, "own"},
		"what the spec says":               {"apps", "", []*kubeovnv1.Vpc{vpc("v", "own", "other", "apps")}, "own"},
		"before those that are listed":     {"apps", "other", []*kubeovnv1.Vpc{vpc("v", "own", "", "apps")}, "own other"},
		"before those that it is bound to": {"red", "", []*kubeovnv1.Vpc{vpc("v", "own", "", "red")}, "own red"},
		"another namespace's":              {"apps", "", []*kubeovnv1.Vpc{vpc("v", "own", "", "red")}, "ovn-default"},
		"kube-system":                      {"kube-system", "", []*kubeovnv1.Vpc{vpc("v", "own", "", "kube-system")}, "ovn-default"},
		"one without a default":            {"apps", "", []*kubeovnv1.Vpc{vpc("v", "", "", "apps")}, "ovn-default"},
		"the default VPC's comes last":     {"red", "", []*kubeovnv1.Vpc{vpc("ovn-cluster", "other", "", "red")}, "red"},
		"the default VPC's":                {"apps", "", []*kubeovnv1.Vpc{vpc("ovn-cluster", "other", "")}, "other"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			w := in(c.namespace, annotated(), subnet("own", "10.1.0.0/24"), subnet("other", "10.2.0.0/24"), subnet("red", "10.3.0.0/24", bound("red")),
				subnet("ovn-default", "10.16.0.0/16"))
			for _, v := range c.vpcs {
				w.cat.Vpcs[v.Name] = v
			}
			if c.listed != "" {
				w.ns.Annotations = map[string]string{ls: c.listed}
			}
			w.check(t, result{Networks: []string{"ovn from " + c.want}})
		})
	}
}
