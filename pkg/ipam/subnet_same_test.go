package ipam

import (
	"net/netip"
	"testing"

	"go4.org/netipx"
)

func TestSameSubnet(t *testing.T) {
	set := func(text string) *netipx.IPSet {
		var b netipx.IPSetBuilder
		b.AddRange(netipx.MustParseIPRange(text))
		s, err := b.IPSet()
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	build := func(edit func(*SubnetSpec)) *Subnet {
		spec := SubnetSpec{Name: "s", UID: "u", Domain: "d", Prefixes: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24"), netip.MustParsePrefix("fd00::/120")},
			Gateways: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Exclude: set("10.0.0.2-10.0.0.9"),
			Pools:    []Pool{{Name: "p", Set: set("10.0.0.20-10.0.0.29")}},
			Reserved: map[netip.Addr]Owner{netip.MustParseAddr("10.0.0.30"): {Kind: KindVip, Name: "v"}}}
		edit(&spec)
		s, err := NewSubnet(spec)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	was := build(func(*SubnetSpec) {})
	for name, c := range map[string]struct {
		edit func(*SubnetSpec)
		same bool
	}{
		"nothing":       {func(*SubnetSpec) {}, true},
		"name":          {func(s *SubnetSpec) { s.Name = "t" }, false},
		"made anew":     {func(s *SubnetSpec) { s.UID = "v" }, false},
		"VLAN":          {func(s *SubnetSpec) { s.Domain = "e" }, false},
		"closed":        {func(s *SubnetSpec) { s.Closed = "lost" }, false},
		"CIDR":          {func(s *SubnetSpec) { s.Prefixes[0] = netip.MustParsePrefix("10.0.0.0/25") }, false},
		"family":        {func(s *SubnetSpec) { s.Prefixes = s.Prefixes[:1] }, false},
		"gateway":       {func(s *SubnetSpec) { s.Gateways[0] = netip.MustParseAddr("10.0.0.254") }, false},
		"exclusions":    {func(s *SubnetSpec) { s.Exclude = set("10.0.0.2-10.0.0.8") }, false},
		"pool":          {func(s *SubnetSpec) { s.Pools[0].Set = set("10.0.0.20-10.0.0.28") }, false},
		"pool's name":   {func(s *SubnetSpec) { s.Pools[0].Name = "q" }, false},
		"no pool":       {func(s *SubnetSpec) { s.Pools = nil }, false},
		"reserved":      {func(s *SubnetSpec) { s.Reserved[netip.MustParseAddr("10.0.0.31")] = Owner{Kind: KindVip, Name: "v"} }, false},
		"reserved whom": {func(s *SubnetSpec) { s.Reserved[netip.MustParseAddr("10.0.0.30")] = Owner{Kind: KindVip, Name: "w"} }, false},
		"beyond":        {func(s *SubnetSpec) { s.Exclude = set("10.0.0.0-10.0.0.9") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			if now := build(c.edit); was.same(now) != c.same || now.same(was) != c.same {
				t.Errorf("the same: %t, want %t", !c.same, c.same)
			}
		})
	}
}
