package network

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func vipAt(subnet, v4, v6 string, change ...func(*kubeovnv1.Vip)) *kubeovnv1.Vip {
	v := &kubeovnv1.Vip{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Spec: kubeovnv1.VipSpec{Subnet: subnet, V4IP: v4, V6IP: v6}}
	for _, c := range change {
		c(v)
	}
	return v
}

func TestValidateVip(t *testing.T) {
	borrowed := held("dual", "10.17.0.50", "web")
	under := vipOwner("v")
	borrowed.Under = &under
	own := owned(held("dual", "10.17.0.50", ""), vipOwner("v"))
	mac := func(m string) func(*kubeovnv1.Vip) { return func(v *kubeovnv1.Vip) { v.Spec.MacAddress = m } }
	for name, c := range map[string]struct {
		old, now *kubeovnv1.Vip
		leases   []ipam.Held
		want     verdict
	}{
		"any address":                 {nil, vipAt("dual", "", ""), nil, verdict{}},
		"of both families":            {nil, vipAt("dual", "10.17.0.50", "fd00:17::50", mac("0a:00:00:00:00:01")), nil, verdict{}},
		"default subnet":              {nil, vipAt("", "", ""), nil, verdict{}},
		"no such subnet":              {nil, vipAt("gone", "10.17.0.50", ""), nil, verdict{Errors: []string{"spec.subnet: no such subnet"}}},
		"no such attached subnet":     {nil, vipAt("dual", "", "", func(v *kubeovnv1.Vip) { v.Spec.AttachSubnets = []string{"dual", "gone"} }), nil, verdict{Errors: []string{"spec.attachSubnets[1]: no such subnet"}}},
		"no address":                  {nil, vipAt("dual", "ten", ""), nil, verdict{Errors: []string{"spec.v4ip: not an IP address"}}},
		"families swapped":            {nil, vipAt("dual", "fd00:17::50", "10.17.0.50"), nil, verdict{Errors: []string{"spec.v4ip: not an address of IPv4", "spec.v6ip: not an address of IPv6"}}},
		"outside":                     {nil, vipAt("dual", "10.18.0.50", ""), nil, verdict{Errors: []string{"spec.v4ip: 10.17.0.0/16"}}},
		"B12 the gateway, other text": {nil, vipAt("dual", "", "fd00:17:0:0::0001"), nil, verdict{Errors: []string{"spec.v6ip: gateway"}}},
		"a broken subnet":             {nil, vipAt("broken", "10.99.0.5", ""), nil, verdict{}},
		"bad MAC":                     {nil, vipAt("dual", "", "", mac("zz")), nil, verdict{Errors: []string{"spec.macAddress: zz"}}},
		"a pod's address":             {nil, vipAt("dual", "10.17.0.50", ""), []ipam.Held{held("dual", "10.17.0.50", "web")}, verdict{Errors: []string{"spec.v4ip: held by pod apps/web"}}},
		"another Vip's address":       {nil, vipAt("dual", "10.17.0.77", ""), nil, verdict{Errors: []string{"spec.v4ip: Vip w"}}},
		"its own address":             {nil, vipAt("dual", "10.17.0.50", ""), []ipam.Held{own}, verdict{}},
		"moves":                       {vipAt("dual", "10.17.0.50", ""), vipAt("dual", "10.17.0.51", ""), []ipam.Held{own}, verdict{}},
		"moves under a pod":           {vipAt("dual", "10.17.0.50", ""), vipAt("dual", "10.17.0.51", ""), []ipam.Held{borrowed}, verdict{Errors: []string{"spec: pod apps/web"}}},
		"selector changes under a pod": {vipAt("dual", "10.17.0.50", ""), vipAt("dual", "10.17.0.50", "", func(v *kubeovnv1.Vip) { v.Spec.Selector = []string{"a:b"} }),
			[]ipam.Held{borrowed}, verdict{}},
		"wrong before, other change": {vipAt("gone", "x", ""), vipAt("gone", "x", "", func(v *kubeovnv1.Vip) { v.Spec.Selector = []string{"a:b"} }), nil, verdict{}},
		"B54 status alone, wrong":    {vipAt("gone", "x", ""), vipAt("gone", "x", "", func(v *kubeovnv1.Vip) { v.Status.V4IP = "10.17.0.50" }), nil, verdict{}},
		"B54 being deleted":          {vipAt("dual", "10.17.0.50", ""), dying(vipAt("gone", "x", "")), []ipam.Held{borrowed}, verdict{}},
		"delete":                     {vipAt("dual", "10.17.0.50", ""), nil, []ipam.Held{own, held("dual", "10.17.0.60", "other")}, verdict{}},
		"delete under a pod":         {vipAt("dual", "10.17.0.50", ""), nil, []ipam.Held{borrowed}, verdict{Errors: []string{"metadata.name: 10.17.0.50 (pod apps/web)"}}},
		"delete one being deleted":   {dying(vipAt("dual", "10.17.0.50", "")), nil, []ipam.Held{borrowed}, verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings(c.leases...)
			w.Catalog.Subnets["dual"] = NewSubnet(w.Catalog.Subnets["dual"].Object, Around{Reserved: map[netip.Addr]ipam.Owner{
				netip.MustParseAddr("10.17.0.50"): vipOwner("v"), netip.MustParseAddr("10.17.0.77"): vipOwner("w")}})
			warnings, errs := ValidateVip(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}

func TestValidateNamespace(t *testing.T) {
	in := func(value string) *Namespace { ns := labelled("apps", LabelInject, value); return &ns }
	plain := &Namespace{Name: "apps"}
	two := []ipam.Held{held("dual", "10.17.0.5", "web"), owned(held("dual", "10.17.0.6", ""), ipam.Owner{Group: "apps", Kind: "StatefulSet", Namespace: "apps", Name: "db-0"}),
		owned(held("dual", "10.17.0.7", ""), ipam.PodOwner("other"))}
	for name, c := range map[string]struct {
		old, now *Namespace
		bind     bool
		leases   []ipam.Held
		want     verdict
	}{
		"new":                         {nil, plain, true, nil, verdict{}},
		"opts in":                     {plain, in("enabled"), true, two, verdict{}},
		"opts in later":               {nil, in("late"), false, nil, verdict{}},
		"misspelt":                    {plain, in("true"), false, nil, verdict{Warnings: []string{"means nothing"}}},
		"opts out, nothing left":      {in("enabled"), plain, false, nil, verdict{}},
		"opts out under leases":       {in("enabled"), plain, false, two, verdict{Warnings: []string{"2 addresses are still held in this namespace (1 by"}}},
		"misspelt under leases":       {in("late"), in("Enabled"), false, two, verdict{Warnings: []string{"means nothing", "2 addresses"}}},
		"opts out, bound to a fence":  {in("enabled"), in("disabled"), true, nil, verdict{Errors: []string{"metadata.labels[berth.dev/inject]: subnet fence"}}},
		"from enabled to late":        {in("enabled"), in("late"), true, two, verdict{}},
		"other labels":                {in("enabled"), in("enabled"), true, two, verdict{}},
		"was never opted in":          {plain, in("disabled"), true, two, verdict{}},
		"B54 deletion is never stood": {in("enabled"), nil, true, two, verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings(c.leases...)
			if c.bind {
				w.Catalog.Subnets["fence"] = NewSubnet(subnet("fence", "10.40.0.0/24", fenced(""), bound("apps")), Around{})
			}
			warnings, errs := ValidateNamespace(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}
