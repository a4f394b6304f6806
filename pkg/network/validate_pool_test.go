package network

import (
	"testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ipam"
)

func TestValidatePool(t *testing.T) {
	in := func(ips ...string) *kubeovnv1.IPPool { return pool(5, "p", "dual", "", ips...) }
	ten, elsewhere := held("dual", "10.17.0.10", "p1"), held("ovn-default", "10.17.0.10", "other")
	for name, c := range map[string]struct {
		old, now *kubeovnv1.IPPool
		leases   []ipam.Held
		want     verdict
	}{
		"new":                         {nil, in("10.17.0.10..10.17.0.12", "10.17.1.0/24", "fd00:17::5"), nil, verdict{}},
		"new over held ones":          {nil, in("10.17.0.10..10.17.0.12"), []ipam.Held{ten, elsewhere}, verdict{Warnings: []string{"1 address is held: 10.17.0.10 (pod apps/p1)"}}},
		"no subnet named":             {nil, pool(5, "p", "", "", "10.17.0.10"), nil, verdict{Errors: []string{"spec.subnet: name the subnet"}}},
		"no such subnet":              {nil, pool(5, "p", "gone", "", "10.17.0.10"), nil, verdict{Errors: []string{"spec.subnet: no such subnet"}}},
		"a subnet that is broken":     {nil, pool(5, "p", "broken", "", "10.99.0.10"), nil, verdict{}},
		"empty":                       {nil, in(), nil, verdict{Errors: []string{"spec.ips: list addresses"}}},
		"blank":                       {nil, in(""), nil, verdict{Errors: []string{"spec.ips: list addresses"}}},
		"unreadable":                  {nil, in("10.17.0.10", "10.17.0.x"), nil, verdict{Errors: []string{"spec.ips[1]: neither an address nor a range"}}},
		"outside":                     {nil, in("10.17.0.10", "10.18.0.10"), nil, verdict{Errors: []string{"spec.ips[1]: not inside 10.17.0.0/16,fd00:17::/64"}}},
		"half outside":                {nil, in("10.17.255.250..10.18.0.3"), nil, verdict{Errors: []string{"spec.ips[0]: not inside"}}},
		"another's addresses":         {nil, in("10.17.0.10", "10.17.5.0/30"), nil, verdict{Errors: []string{"spec.ips[1]: IPPool first"}}},
		"another's in another subnet": {nil, in("10.17.6.3"), nil, verdict{}},
		"B06 shrink under a pod":      {in("10.17.0.10..10.17.0.12"), in("10.17.0.11..10.17.0.12"), []ipam.Held{ten, held("dual", "10.17.0.12", "p2")}, verdict{Errors: []string{"spec.ips: 1 address is held: 10.17.0.10 (pod apps/p1)"}}},
		"B06 shrink beside a pod":     {in("10.17.0.10..10.17.0.12"), in("10.17.0.10"), []ipam.Held{ten, elsewhere}, verdict{}},
		"B06 grow":                    {in("10.17.0.10"), in("10.17.0.10..10.17.0.12"), []ipam.Held{ten}, verdict{}},
		"another subnet under a pod":  {in("10.17.0.10"), pool(5, "p", "ovn-default", "", "10.16.0.10"), []ipam.Held{ten}, verdict{Errors: []string{"spec.subnet: in subnet dual 1 address"}}},
		"another subnet":              {in("10.17.0.10"), pool(5, "p", "ovn-default", "", "10.16.0.10"), nil, verdict{}},
		"wrong before, other change":  {in("10.18.0.10"), pool(5, "p", "dual", "apps", "10.18.0.10"), nil, verdict{}},
		"wrong before, mended":        {in("x"), in("10.17.0.10"), nil, verdict{}},
		"wrong before, worse now":     {in("10.18.0.10"), in("10.18.0.10", "10.19.0.10"), nil, verdict{Errors: []string{"spec.ips[1]: not inside"}}},
		"B54 being deleted":           {in("10.17.0.10"), dying(in("x")), []ipam.Held{ten}, verdict{}},
		"B06 delete under a pod":      {in("10.17.0.10..10.17.0.12"), nil, []ipam.Held{ten}, verdict{Errors: []string{"metadata.name: 10.17.0.10 (pod apps/p1)"}}},
		"B06 delete":                  {in("10.17.0.10..10.17.0.12"), nil, []ipam.Held{elsewhere, held("dual", "10.17.0.13", "p9")}, verdict{}},
		"delete one being deleted":    {dying(in("10.17.0.10")), nil, []ipam.Held{ten}, verdict{}},
		"delete one unreadable":       {in("x"), nil, []ipam.Held{ten}, verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings(c.leases...)
			w.Catalog = withPools(w.Catalog, pool(1, "first", "dual", "", "10.17.5.0/24"), pool(2, "far", "ovn-default", "", "10.17.6.0/24"))
			if c.old != nil {
				w.Catalog.Pools["p"] = c.old
			}
			warnings, errs := ValidatePool(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}
