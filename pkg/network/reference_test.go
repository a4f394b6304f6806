package network

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The reference page names every key that the code knows, and no other.
func TestReferenceOfAnnotations(t *testing.T) {
	page, err := os.ReadFile("../../docs/annotations.md")
	if err != nil {
		t.Fatal(err)
	}
	known := []string{NetworksKey, DefaultNetworkKey, ClaimKey, RequestedKey, PluggedKey, LabelInject, LabelManaged, ExcludeKey, ClosedKey, RestrictedKey,
		WhenUnavailableKey, OrdinalRuleKey, Finalizer, AddressGate, "ovn.kubernetes.io/ip_reserved", "berth.dev/Address",
		ReadyLabel("<provider network>"), "<name>.<namespace>" + domain + SuffixAddress + ".<interface>",
		"<name>.<namespace>" + domain + SuffixMAC + ".<interface>", Key(DefaultProvider, SuffixSubnet)}
	suffixes := []string{SuffixAddress, SuffixMAC, SuffixCIDR, SuffixGateway, SuffixSubnet, SuffixNICType, SuffixRouter, SuffixVlanID,
		SuffixProviderNetwork, SuffixVM, SuffixAllocated, SuffixRouted, SuffixFamily, SuffixPool, "activation_strategy"}
	for s := range (&planner{}).checks() {
		suffixes = append(suffixes, s)
	}
	for _, s := range suffixes {
		known = append(known, Key("<p>", s))
	}
	for _, s := range []string{SuffixVip, SuffixAaps, "eip", "snat", "north_gateway"} {
		known = append(known, Key(DefaultProvider, s))
	}
	written := map[string]bool{}
	for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(string(page), -1) {
		if text, _, _ := strings.Cut(m[1], ": "); strings.Contains(text, "/") && strings.Contains(text, ".") && !strings.Contains(text, "[{") && !strings.Contains(text, "@") {
			written[text] = true
		}
	}
	for _, k := range known {
		if !written[k] {
			t.Errorf("%s is not on the page", k)
		}
		delete(written, k)
	}
	for k := range written {
		if !slices.Contains(known, k) {
			t.Errorf("%s is on the page, and the code doesn't know it", k)
		}
	}
}
