package network

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// FuzzPlan: no annotation makes a plan panic, and what a plan asks for is what it asks for when it is planned again.
func FuzzPlan(f *testing.F) {
	for _, s := range [][5]string{{"10.16.0.9,", "zz", "", "", ""}, {" 10.16.0.9 , ", "02:00:00:00:00:01", "dual", "ipv4", ""}, {"", "", "", "", `{"ovn":{"ip_address":"10.16.0.9"}}`}, {"fe80::1%a", "", ",", "", "null"}} {
		f.Add(s[0], s[1], s[2], s[3], s[4])
	}
	cat := usual()
	f.Fuzz(func(t *testing.T, a, m, s, fa, req string) {
		p := annotated(ip, a, mac, m, ls, s, fam, fa)
		if req != "" {
			p.Annotations[RequestedKey] = req
		}
		Carried(p.Annotations)
		first, errs := planOf(p, Namespace{Name: "red"}, cat)
		if len(errs) > 0 {
			return
		}
		if again, err := ParseAddresses(first.Addresses); err != nil || join(again) != first.Addresses {
			t.Fatalf("%q is not canonical: %v", first.Addresses, err)
		}
		p.Annotations[ClaimKey] = claimA
		delete(p.Annotations, RequestedKey)
		if first.Requested != "" {
			p.Annotations[RequestedKey] = first.Requested
		}
		second, errs := planOf(p, Namespace{Name: "red"}, cat)
		first.Warnings, second.Warnings = 0, 0
		if d := cmp.Diff(first, second); d != "" || len(errs) > 0 {
			t.Fatal(d, errs)
		}
	})
}

func FuzzParseRanges(f *testing.F) {
	f.Add("10.0.0.1..10.0.0.9,fd00::1")
	f.Add("..")
	f.Fuzz(func(t *testing.T, s string) {
		if set, err := ParseRanges(strings.Split(s, ",")); (set == nil) != (err != nil) {
			t.Fatal(set, err)
		}
	})
}
