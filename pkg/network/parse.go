package network

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"go4.org/netipx"

	"github.com/berth-net/berth/pkg/ipam"
)

// ParseAddresses reads a list like "10.0.0.1,fd00::1": blanks and empty elements don't count, an address may carry a
// mask length, which is dropped, and there is at most one of each family. The result is canonical, IPv4 first.
func ParseAddresses(text string) ([]netip.Addr, error) {
	var out []netip.Addr
	for _, f := range tokens(text) {
		a, err := parseAddress(f)
		if err != nil {
			return nil, err
		}
		out = append(out, a)
	}
	if len(out) > 2 || len(out) == 2 && out[0].Is4() == out[1].Is4() {
		return nil, fmt.Errorf("%q has more than one address of a family: keep one IPv4 and one IPv6 address at most", text)
	}
	if len(out) == 2 && out[1].Is4() {
		out[0], out[1] = out[1], out[0]
	}
	return out, nil
}

func parseAddress(f string) (netip.Addr, error) {
	a, err := netip.ParseAddr(f)
	if err != nil {
		p, perr := netip.ParsePrefix(f)
		if perr != nil {
			return netip.Addr{}, fmt.Errorf("%q is not an IP address: write it like 10.16.0.5 or fd00::5", f)
		}
		a = p.Addr()
	}
	if a.Zone() != "" {
		return netip.Addr{}, fmt.Errorf("%q has a zone: leave %%%s away", f, a.Zone())
	}
	return a.Unmap(), nil
}

// ParseFamily reads "ipv4" or "ipv6".
func ParseFamily(text string) (ipam.Family, error) {
	switch text {
	case "ipv4":
		return ipam.IPv4, nil
	case "ipv6":
		return ipam.IPv6, nil
	}
	return 0, fmt.Errorf("%q is not an address family: write ipv4 or ipv6", text)
}

// ParseRanges reads addresses, ranges a..b and CIDRs as numbers, whatever their spelling.
func ParseRanges(items []string) (*netipx.IPSet, error) {
	var b netipx.IPSetBuilder
	for _, item := range items {
		if item = strings.TrimSpace(item); item == "" {
			continue
		}
		if p, err := netip.ParsePrefix(item); err == nil && !p.Addr().Is4In6() {
			b.AddPrefix(p.Masked())
			continue
		}
		from, to, ranged := strings.Cut(item, "..")
		if !ranged {
			to = from
		}
		lo, errLo := netip.ParseAddr(strings.TrimSpace(from))
		hi, errHi := netip.ParseAddr(strings.TrimSpace(to))
		if errLo != nil || errHi != nil {
			return nil, fmt.Errorf("%q is neither an address nor a range: write 10.16.0.5, 10.16.0.5..10.16.0.9 or 10.16.0.0/28", item)
		}
		r := netipx.IPRangeFrom(lo.WithZone("").Unmap(), hi.WithZone("").Unmap())
		if !r.IsValid() {
			return nil, fmt.Errorf("%q is not a range: its first address must not be above its last, and of the same family", item)
		}
		b.AddRange(r)
	}
	return b.IPSet()
}

// ParsePool reads the value of ip_pool: one word that is no address names an IPPool; all else is a list. Semicolons
// separate its entries, each an address or a pair of both families; without a semicolon commas do, unless the list is
// just such a pair.
func ParsePool(text string) (choices [][]netip.Addr, name string, err error) {
	text = strings.TrimSpace(text)
	if !strings.ContainsAny(text, ",;") {
		if _, err := netip.ParseAddr(text); err != nil && !strings.Contains(text, "/") {
			return nil, text, nil
		}
	}
	var entries []string
	if strings.Contains(text, ";") {
		entries = strings.Split(text, ";")
	} else if entries = tokens(text); len(entries) == 2 {
		if pair, err := ParseAddresses(text); err == nil {
			return [][]netip.Addr{pair}, "", nil
		}
	}
	seen := map[netip.Addr]bool{}
	for _, e := range entries {
		choice, err := ParseAddresses(e)
		if err != nil {
			return nil, "", err
		}
		if len(choice) == 0 {
			continue
		}
		for _, a := range choice {
			if seen[a] {
				return nil, "", fmt.Errorf("%s is listed twice: keep it once", a)
			}
			seen[a] = true
		}
		choices = append(choices, choice)
	}
	if len(choices) == 0 {
		return nil, "", errors.New("the list is empty: name an IPPool, or list addresses")
	}
	return choices, "", nil
}

// tokens splits at commas and leaves blanks and empty elements away.
func tokens(text string) []string {
	var out []string
	for _, f := range strings.Split(text, ",") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}

func join[T fmt.Stringer](items []T) string {
	texts := make([]string, len(items))
	for i, s := range items {
		texts[i] = s.String()
	}
	return strings.Join(texts, ",")
}
