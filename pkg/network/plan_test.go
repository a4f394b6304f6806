package network

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
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
