package network

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/berth-net/berth/pkg/ipam"
)

// CarriedInterface is one network of a stored pod, as its annotations tell it. Values that can't be read are left away.
type CarriedInterface struct {
	Provider, Subnet string
	// Addresses, IPv4 first.
	Addresses []netip.Addr
	MAC       ipam.MAC
}

// Carried reads what a pod's annotations say of its networks: the default network first, the others by name. A
// provider counts when it has an address, a MAC or a subnet.
func Carried(annotations map[string]string) []CarriedInterface {
	byProvider := map[string]*CarriedInterface{}
	for key, value := range annotations {
		provider, suffix, ok := SplitKey(key)
		if !ok || suffix != SuffixAddress && suffix != SuffixMAC && suffix != SuffixSubnet {
			continue
		}
		c := byProvider[provider]
		if c == nil {
			c = &CarriedInterface{Provider: provider}
			byProvider[provider] = c
		}
		switch suffix {
		case SuffixAddress:
			c.Addresses = readable(value)
		case SuffixMAC:
			if m, err := ipam.ParseMAC(strings.TrimSpace(value)); err == nil {
				c.MAC = m
			}
		case SuffixSubnet:
			c.Subnet = strings.TrimSpace(value)
		}
	}
	var out []CarriedInterface
	for _, c := range byProvider {
		if len(c.Addresses) > 0 || c.MAC != (ipam.MAC{}) || c.Subnet != "" {
			out = append(out, *c)
		}
	}
	slices.SortFunc(out, func(a, b CarriedInterface) int {
		if d := order(a.Provider) - order(b.Provider); d != 0 {
			return d
		}
		return strings.Compare(a.Provider, b.Provider)
	})
	return out
}

func order(provider string) int {
	if provider == DefaultProvider {
		return 0
	}
	return 1
}

// readable gives the first address of each family in text, IPv4 first.
func readable(text string) []netip.Addr {
	var v4, v6, out []netip.Addr
	for _, f := range tokens(text) {
		a, err := parseAddress(f)
		switch {
		case err != nil:
		case a.Is4():
			v4 = append(v4, a)
		default:
			v6 = append(v6, a)
		}
	}
	for _, as := range [][]netip.Addr{v4, v6} {
		if len(as) > 0 {
			out = append(out, as[0])
		}
	}
	return out
}

// ClaimOf reads the claim of a pod. A preview's is none.
func ClaimOf(annotations map[string]string) (ipam.Claim, bool) {
	return ipam.ParseClaim(annotations[ClaimKey])
}

// lacks tells that the network hasn't the address.
func (c CarriedInterface) lacks(a netip.Addr) bool { return !slices.Contains(c.Addresses, a) }

// SubnetOf is the one subnet of the network's provider that has its addresses; empty: there is none, or several.
func (c Catalog) SubnetOf(n CarriedInterface) string {
	found := ""
	for name, s := range c.Subnets {
		several := s.Provider() != DefaultProvider && strings.HasPrefix(n.Provider, s.Provider()+".") // interfaces of one attachment
		if s.Set == nil || s.Provider() != n.Provider && !several || len(n.Addresses) == 0 {
			continue
		}
		holds := func(a netip.Addr) bool {
			p, ok := s.Set.Prefix(ipam.FamilyOf(a))
			return ok && p.Contains(a)
		}
		if !slices.ContainsFunc(n.Addresses, func(a netip.Addr) bool { return !holds(a) }) {
			if found != "" {
				return ""
			}
			found = name
		}
	}
	return found
}

// alone tells that a network of a pod has addresses alone, and another CNI plugs it in: by its subnet, and where that is
// gone by the annotation that only networks with a port are given.
func (c Catalog) alone(n CarriedInterface) bool {
	if s := c.Subnets[cmp.Or(n.Subnet, c.SubnetOf(n))]; s.Object != nil {
		return !isOVN(s.Object)
	}
	return n.Subnet == ""
}
