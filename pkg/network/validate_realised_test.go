package network

import (
	"testing"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
)

// IPv6 works with no MTU below 1280.
func TestMTUOfASubnet(t *testing.T) {
	mtu := func(n uint32) func(*kubeovnv1.Subnet) { return func(s *kubeovnv1.Subnet) { s.Spec.Mtu = n } }
	small := verdict{Errors: []string{"spec.mtu: IPv6 needs at least 1280"}}
	for name, c := range map[string]struct {
		old, now *kubeovnv1.Subnet
		want     verdict
	}{
		"IPv6":                 {nil, subnet("s", "fd00:20::/64", mtu(1279)), small},
		"both families":        {nil, subnet("s", "10.20.0.0/24,fd00:20::/64", mtu(1)), small},
		"just enough":          {nil, subnet("s", "fd00:20::/64", mtu(1280)), verdict{}},
		"IPv4":                 {nil, subnet("s", "10.20.0.0/24", mtu(576)), verdict{}},
		"by default":           {nil, subnet("s", "fd00:20::/64"), verdict{}},
		"smaller now":          {subnet("s", "fd00:20::/64"), subnet("s", "fd00:20::/64", mtu(1000)), small},
		"IPv6 comes":           {subnet("s", "10.20.0.0/24", mtu(1000)), subnet("s", "10.20.0.0/24,fd00:20::/64", mtu(1000)), small},
		"small before as well": {subnet("s", "fd00:20::/64", mtu(1000)), subnet("s", "fd00:20::/64", mtu(1000), bound("apps")), verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings()
			if c.old != nil {
				w.Catalog.Subnets["s"] = NewSubnet(c.old, Around{})
			}
			warnings, errs := ValidateSubnet(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}

// Without a controller of Kube-OVN nobody makes an IPPool's address set: who asks for one is told.
func TestAddressSetOfAPool(t *testing.T) {
	asks := func(p *kubeovnv1.IPPool) *kubeovnv1.IPPool {
		p.Spec.EnableAddressSet = true
		return p
	}
	in := func(ips ...string) *kubeovnv1.IPPool { return pool(5, "p", "dual", "", ips...) }
	told := verdict{Warnings: []string{"spec.enableAddressSet: nobody makes the address set"}}
	for name, c := range map[string]struct {
		old, now *kubeovnv1.IPPool
		alone    bool
		want     verdict
	}{
		"new":                {nil, asks(in("10.17.0.10")), true, told},
		"from now on":        {in("10.17.0.10"), asks(in("10.17.0.10")), true, told},
		"as before":          {asks(in("10.17.0.10")), asks(in("10.17.0.11")), true, verdict{}},
		"not asked for":      {nil, in("10.17.0.10"), true, verdict{}},
		"beside Kube-OVN":    {nil, asks(in("10.17.0.10")), false, verdict{}},
		"no longer":          {asks(in("10.17.0.10")), in("10.17.0.10"), true, verdict{}},
		"and wrong, as well": {nil, asks(in("x")), true, verdict{Warnings: told.Warnings, Errors: []string{"spec.ips[0]: neither"}}},
	} {
		t.Run(name, func(t *testing.T) {
			w := surroundings()
			w.Config.Alone = c.alone
			warnings, errs := ValidatePool(c.now, c.old, w)
			c.want.check(t, warnings, errs)
		})
	}
}
