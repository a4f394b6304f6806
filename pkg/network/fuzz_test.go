package network

import (
	"encoding/json"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go4.org/netipx"

	"github.com/berth-net/berth/pkg/ipam"
)

// fuzzKeys are keys that matter: a line of a fuzzed map may name one by its number.
func fuzzKeys() []string {
	keys := []string{ClaimKey, RequestedKey, OrdinalRuleKey, NetworksKey, DefaultNetworkKey,
		"n1.default.kubernetes.io/ip_address.a", "n1.default.kubernetes.io/mac_address.b"}
	for _, provider := range []string{"ovn", "n1.default.ovn", "n1.default.ovn.a", "n2.default.ovn", "mv.default", "n9.default.ovn"} {
		for _, suffix := range []string{SuffixAddress, SuffixMAC, SuffixSubnet, SuffixNICType, SuffixCIDR, SuffixGateway, SuffixFamily, SuffixPool,
			SuffixVip, SuffixAllocated, SuffixRouted, SuffixSecurityGroups, SuffixPortVips, SuffixAaps, "routes", "loss", "mirror", "eip"} {
			keys = append(keys, Key(provider, suffix))
		}
	}
	return keys
}

// fuzzMap reads lines like "key=value". What comes from an API server is UTF-8.
func fuzzMap(text string) map[string]string {
	keys, out := fuzzKeys(), map[string]string{}
	for line := range strings.Lines(strings.ToValidUTF8(text, "?")) {
		k, v, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "=")
		if n, err := strconv.Atoi(k); err == nil && n >= 0 {
			k = keys[n%len(keys)]
		}
		out[k] = v
	}
	return out
}

// fuzzWorld makes a pod of the annotations, of a kind and with attachments that the bits choose.
func fuzzWorld(have map[string]string, bits uint8) world {
	p := Pod{Namespace: "default", Name: "web-1", Annotations: have}
	switch bits & 3 {
	case 1:
		p = controlled(p, "apps/v1", "StatefulSet", "web")
	case 2:
		p = controlled(p, "kubevirt.io/v1", "VirtualMachineInstance", "vm")
	case 3:
		p.Name, p.GenerateName = "", "web-"
	}
	selections := [][]Selection{nil, {nad("n1"), nad("mv"), nad("foreign")}, {nad("n1", onInterface("a")), nad("n1", onInterface("b")), nad("n2")},
		{nad("n1"), nad("n1"), nad("n2", asking("02:00:00:00:00:09", "10.31.0.9"))}}[bits>>2&3]
	w := attached(p, selections...)
	w.cfg.NonPrimary = bits&16 != 0
	if bits&32 != 0 {
		s := nad("mv")
		w.pod.DefaultNetwork = &s
	}
	reserved := lent(p).cat
	w.cat.Vips, w.cat.Reservations, w.cat.SecurityGroups = reserved.Vips, reserved.Reservations, map[string]bool{"web": true}
	for _, name := range []string{"ovn-default", "dual"} {
		w.cat.Subnets[name] = reserved.Subnets[name]
	}
	w.cat = withPools(w.cat, pool(1, "p", "red", "", "10.18.0.8/29"), pool(2, "own", "red", "default", "10.18.0.32/29"))
	return w
}

// answered are the annotations with which a pod leaves admission, as a later call meets them.
func answered(have, ours map[string]string) map[string]string {
	if claim, ok := have[ClaimKey]; ok {
		if _, ok := ipam.ParseClaim(claim); !ok {
			have, _ = Strip(have)
		}
	}
	out := maps.Clone(have)
	maps.DeleteFunc(out, func(k, _ string) bool {
		provider, _, _ := SplitKey(k)
		return k == RequestedKey || Progress(k) || Output(k) && provider == DefaultProvider
	})
	if out == nil {
		out = map[string]string{}
	}
	maps.Copy(out, ours)
	return out
}

// FuzzPlan: no annotations make a plan panic; a plan without errors is a request that a ledger can serve; and planned
// again beside its answer a pod asks for the same.
func FuzzPlan(f *testing.F) {
	for _, s := range []string{"", "7=10.16.0.9,\n8=zz", "7= 10.16.0.9 , \n8=02-00-00-00-00-01\n9=ovn-default", `1={"ovn":{"ip_address":"10.16.0.9"}}`, "9=dual\n13=ipv6\n7=fd00:17::9",
		"14=10.16.0.5;10.16.0.6", "14=p", "15=v", "0=preview\n7=10.16.0.9", "0=" + claimA + "\n7=10.16.0.9\n11=10.16.0.0/16", "25=10.30.0.9\n26=02:00:00:00:00:02", "5=10.30.0.9\n6=zz",
		`1={"n1.default.ovn":null,"ovn":{"logical_switch":"red"}}`, "7=fe80::1%a\n2=kube-ovn\n21=[{", "9=\n13=\n14=,\n15= "} {
		for _, bits := range []uint8{0, 1, 2, 3, 4, 8, 12, 16, 32, 9} {
			f.Add(s, bits)
		}
	}
	f.Fuzz(func(t *testing.T, text string, bits uint8) {
		w := fuzzWorld(fuzzMap(text), bits)
		before := maps.Clone(w.pod.Annotations)
		Carried(w.pod.Annotations)
		Skip(w.pod)
		Asks(w.pod)
		NeedsOrdinalStart(w.pod)
		planned, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
		if d := cmp.Diff(before, w.pod.Annotations); d != "" {
			t.Fatal("the pod was changed: ", d)
		}
		if len(errs) > 0 {
			return
		}
		wellFormed(t, planned)
		w.pod.Annotations = answered(w.pod.Annotations, Annotations(planned, answerTo(planned), w.cat, w.cfg))
		again, errs := Plan(w.pod, w.ns, w.cat, w.cfg)
		if len(errs) > 0 {
			t.Fatalf("planned again: %v", errs)
		}
		if d := cmp.Diff(lines(planned), lines(again)); d != "" {
			t.Fatalf("planned again beside %v: %s", w.pod.Annotations, d)
		}
	})
}

func lines(p Planned) []string {
	out := []string{p.Owner.String(), p.Requested}
	for _, i := range p.Interfaces {
		out = append(out, told(i))
	}
	return out
}

// wellFormed holds what a ledger takes for granted of a request.
func wellFormed(t *testing.T, p Planned) {
	t.Helper()
	r := p.Request(claimA, false)
	if r.Owner.Namespace != "default" || r.Claim != claimA || len(r.Interfaces) != len(p.Interfaces) {
		t.Fatalf("%+v", r)
	}
	seen := map[string]bool{}
	for _, i := range r.Interfaces {
		if i.Provider == "" || seen[i.Provider] || len(i.Candidates) == 0 || len(i.Families) > 1 {
			t.Fatalf("%+v", i)
		}
		seen[i.Provider] = true
		for _, c := range i.Candidates {
			if c.Subnet == nil {
				t.Fatalf("a candidate of %s has no addresses", i.Provider)
			}
		}
		for _, choice := range i.Choices {
			if again, err := ParseAddresses(join(choice)); err != nil || !slices.Equal(again, choice) || len(choice) == 0 {
				t.Fatalf("choice %v of %s: %v", choice, i.Provider, err)
			}
			if !slices.ContainsFunc(i.Candidates, func(c ipam.Source) bool { return check(c.Subnet, choice, i.Reservation) == nil }) {
				t.Fatalf("choice %v of %s is in no candidate", choice, i.Provider)
			}
		}
	}
	if p.Requested == "" {
		return
	}
	read, err := parseRequested(p.Requested)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := json.Marshal(read); err != nil || string(text) != p.Requested {
		t.Fatalf("%s is written again as %s (%v)", p.Requested, text, err)
	}
}

// FuzzParseAddresses: what is read is canonical, IPv4 first, at most one of each family.
func FuzzParseAddresses(f *testing.F) {
	for _, s := range []string{"", "10.0.0.1", "fd00::1,10.0.0.1", "::ffff:10.0.0.1", "fe80::1%eth0", "10.0.0.1/24, ", "10.0.0.1,10.0.0.2", "FD00:0::00EA/64"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		as, err := ParseAddresses(s)
		if err != nil {
			return
		}
		if len(as) > 2 || len(as) == 2 && (!as[0].Is4() || as[1].Is4()) {
			t.Fatalf("%q gave %v", s, as)
		}
		for _, a := range as {
			if a.Zone() != "" || a.Is4In6() || !a.IsValid() {
				t.Fatalf("%q gave %v", s, a)
			}
		}
		if again, err := ParseAddresses(join(as)); err != nil || !slices.Equal(as, again) {
			t.Fatalf("%q: %v, then %v (%v)", s, as, again, err)
		}
	})
}

// FuzzParsePool: a value is a pool's name, or a list without doubles, or refused; and a list is the same when it is
// written again.
func FuzzParsePool(f *testing.F) {
	for _, s := range []string{"p", "", ";", "10.0.0.1", "10.0.0.1,fd00::1", "10.0.0.1,10.0.0.2", "10.0.0.1,fd00::1;10.0.0.2,fd00::2", "a,b", "10.0.0.1;;", "10.0.0.0/24", "fe80::1%a", "fd00::1,10.0.0.1,fd00::2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		choices, name, err := ParsePool(s)
		if err != nil {
			if name != "" || choices != nil {
				t.Fatalf("%q gave %v, %q and %v", s, choices, name, err)
			}
			return
		}
		if name != "" && (choices != nil || strings.ContainsAny(name, ",;") || strings.TrimSpace(name) != name) {
			t.Fatalf("%q gave %q and %v", s, name, choices)
		}
		if name == "" && len(choices) == 0 && strings.TrimSpace(s) != "" {
			t.Fatalf("%q gave nothing", s)
		}
		if len(choices) == 0 {
			return
		}
		var texts []string
		seen := map[string]bool{}
		for _, c := range choices {
			for _, a := range c {
				if seen[a.String()] {
					t.Fatalf("%q has %s twice", s, a)
				}
				seen[a.String()] = true
			}
			texts = append(texts, join(c))
		}
		again, _, err := ParsePool(strings.Join(texts, ";"))
		if d := cmp.Diff(texts, joined(again)); d != "" || err != nil {
			t.Fatalf("%q: %s (%v)", s, d, err)
		}
	})
}

func joined[T ~[]E, E interface{ String() string }](lists []T) []string {
	var out []string
	for _, l := range lists {
		out = append(out, join(l))
	}
	return out
}

// FuzzParseRanges: a list is the union of its items, whatever their order.
func FuzzParseRanges(f *testing.F) {
	for _, s := range []string{"10.0.0.1..10.0.0.9,fd00::1", "..", "10.0.0.0/24,,10.0.0.3", "::ffff:10.0.0.1..10.0.0.3", "fd00::1%a", "10.0.0.9..10.0.0.1", "::ffff:0:0/96"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		items := strings.Split(s, ",")
		set, err := ParseRanges(items)
		if (set == nil) != (err != nil) {
			t.Fatal(set, err)
		}
		var b netipx.IPSetBuilder
		for _, item := range items {
			one, oneErr := ParseRanges([]string{item})
			if oneErr != nil {
				if err == nil {
					t.Fatalf("%q is refused alone only: %v", item, oneErr)
				}
				return
			}
			b.AddSet(one)
		}
		if union, berr := b.IPSet(); err != nil || berr != nil || !union.Equal(set) {
			t.Fatalf("%q: %v, want %v (%v)", s, set, union, err)
		}
		slices.Reverse(items)
		if turned, err := ParseRanges(items); err != nil || !turned.Equal(set) {
			t.Fatalf("%q backwards: %v (%v)", s, turned, err)
		}
	})
}

// FuzzSplitKey: a key that is taken apart can be put together again.
func FuzzSplitKey(f *testing.F) {
	for _, s := range fuzzKeys() {
		f.Add(s)
	}
	f.Add(".kubernetes.io/")
	f.Fuzz(func(t *testing.T, key string) {
		provider, suffix, ok := SplitKey(key)
		if ok && (provider == "" || suffix == "" || Key(provider, suffix) != key) {
			t.Fatalf("%q, %q", provider, suffix)
		}
		if Progress(key) && !Output(key) || Output(key) && !ok && key != ClaimKey {
			t.Fatal(key)
		}
	})
}
