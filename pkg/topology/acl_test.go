package topology

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/ovn/nb"
)

// aclLines writes ACLs as people do.
func aclLines(rows []nb.ACL) []string {
	var out []string
	for _, r := range rows {
		out = append(out, fmt.Sprintf("%s %d %s: %s", r.Direction, r.Priority, r.Match, r.Action))
	}
	return out
}

// findingTexts are what the findings say.
func findingTexts(findings []Finding) []string {
	var out []string
	for _, f := range findings {
		out = append(out, f.Name+": "+f.Err.Error())
	}
	return out
}

// contains tells of each wanted text whether the text at its place has it.
func contains(t *testing.T, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Fatalf("%q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%q lacks %q", got[i], want[i])
		}
	}
}

func joinSubnet(cidr string) *kubeovnv1.Subnet {
	return subnet("join", kubeovnv1.SubnetSpec{CIDRBlock: cidr})
}

func aclOf(direction string, priority int, match, action string) kubeovnv1.ACL {
	return kubeovnv1.ACL{Direction: direction, Priority: priority, Match: match, Action: action}
}

// aclCase is a Subnet, and the ACLs and findings that follow from it.
type aclCase struct {
	spec  kubeovnv1.SubnetSpec
	join  string
	want  []string
	found []string
}

func aclCases() map[string]aclCase {
	return map[string]aclCase{
		"open": {spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", AllowSubnets: []string{"10.17.0.0/16"}}},
		"private": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Private: true}, join: "100.64.0.0/16,fd00:100:64::/112",
			want: []string{
				"to-lport 3000 ip4.src == 100.64.0.0/16: allow-related",
				"to-lport 1001 ip4.src == 10.16.0.0/16 && ip4.dst == 10.16.0.0/16: allow-related",
				"to-lport 1000 ip: drop",
			},
		},
		"private, both families, others allowed": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "FD00::/64,10.16.3.4/16", Private: true,
				AllowSubnets: []string{" 10.17.0.9/16 ", "", "fd01::/64", "10.18.0.1"}},
			join: "100.64.0.0/16,fd00:100:64::/112",
			want: []string{
				"to-lport 3000 ip4.src == 100.64.0.0/16: allow-related",
				"to-lport 3000 ip6.src == fd00:100:64::/112: allow-related",
				"to-lport 2004 (ip4.src == 10.16.0.0/16 && ip4.dst == 10.17.0.0/16) || (ip4.src == 10.17.0.0/16 && ip4.dst == 10.16.0.0/16): allow-related",
				"to-lport 2004 (ip4.src == 10.16.0.0/16 && ip4.dst == 10.18.0.1) || (ip4.src == 10.18.0.1 && ip4.dst == 10.16.0.0/16): allow-related",
				"to-lport 2004 (ip6.src == fd00::/64 && ip6.dst == fd01::/64) || (ip6.src == fd01::/64 && ip6.dst == fd00::/64): allow-related",
				"to-lport 1001 ip4.src == 10.16.0.0/16 && ip4.dst == 10.16.0.0/16: allow-related",
				"to-lport 1001 ip6.src == fd00::/64 && ip6.dst == fd00::/64: allow-related",
				"to-lport 1000 ip: drop",
			},
		},
		"private, nothing joins the nodes": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Private: true, AllowSubnets: []string{"10.17.0.0"[:7]}},
			want: []string{
				"to-lport 1001 ip4.src == 10.16.0.0/16 && ip4.dst == 10.16.0.0/16: allow-related",
				"to-lport 1000 ip: drop",
			},
			found: []string{"spec.allowSubnets[0]"},
		},
		"private without addresses": {
			spec: kubeovnv1.SubnetSpec{Vlan: "v", Private: true}, join: "100.64.0.0/16",
			want: []string{"to-lport 1000 ip: drop"},
		},
	}
}

// ownACLCases are Subnets with ACLs of their own.
func ownACLCases() map[string]aclCase {
	return map[string]aclCase{
		"ACLs of its own": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", AllowEWTraffic: true, ACLs: []kubeovnv1.ACL{
				aclOf("to-lport", 1111, " ip4.src == 10.0.0.9", "allow-related"), aclOf("from-lport", 0, "ip6", "reject"),
			}},
			want: []string{
				"from-lport 1900 ip4.src == 10.16.0.0/16 && ip4.dst == 10.16.0.0/16: allow",
				"from-lport 0 ip6: reject",
				"to-lport 1900 ip4.src == 10.16.0.0/16 && ip4.dst == 10.16.0.0/16: allow",
				"to-lport 1111 ip4.src == 10.0.0.9: allow-related",
			},
		},
		"the stricter of two": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", ACLs: []kubeovnv1.ACL{
				aclOf("to-lport", 5, "ip", "allow"), aclOf("to-lport", 5, "ip", "drop"), aclOf("to-lport", 5, "ip", "drop"),
				aclOf("to-lport", 6, "ip", "drop"), aclOf("to-lport", 6, "ip", "allow-related"),
			}},
			want:  []string{"to-lport 6 ip: drop", "to-lport 5 ip: drop"},
			found: []string{"spec.acls[1]: Duplicate", "spec.acls[4]: Duplicate"},
		},
		"ACLs that there can't be": {
			spec: kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", ACLs: []kubeovnv1.ACL{
				aclOf("", 1, "ip", "drop"), aclOf("to-lport", 32768, "ip", "drop"), aclOf("to-lport", -1, "ip", "drop"),
				aclOf("to-lport", 1, " ", "drop"), aclOf("to-lport", 1, "ip", "pass"), aclOf("to-lport", 1, "ip\x00", "drop"),
				aclOf("to-lport", 32767, "ip", "allow-stateless"),
			}},
			want: []string{"to-lport 32767 ip: allow-stateless"},
			found: []string{"spec.acls[0].direction", "spec.acls[1].priority", "spec.acls[2].priority", "spec.acls[3].match",
				"spec.acls[4].action", "spec.acls[5].match"},
		},
	}
}

func TestSubnetACLs(t *testing.T) {
	cases := aclCases()
	maps.Copy(cases, ownACLCases())
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			in := Input{Config: testConfig(), Subnets: []*kubeovnv1.Subnet{subnet("s", tc.spec)}}
			if tc.join != "" {
				in.Subnets = append(in.Subnets, joinSubnet(tc.join))
			}
			b := &builder{in: in}
			b.addACLs(in.Subnets[0])
			if diff := cmp.Diff(tc.want, aclLines(b.rows.ACLs[0].Rows)); diff != "" {
				t.Errorf("ACLs (-want +got):\n%s", diff)
			}
			contains(t, findingTexts(b.findings), tc.found)
			for _, r := range b.rows.ACLs[0].Rows {
				if r.ExternalIDs[nb.Vendor] != nb.VendorKubeOVN || r.ExternalIDs[nb.KeyParent] != "s" || r.ExternalIDs[nb.KeyACL] == "" {
					t.Errorf("marks %v", r.ExternalIDs)
				}
			}
		})
	}
}

// What a private subnet drops is logged, under its name where that fits.
func TestPrivateSubnetLogs(t *testing.T) {
	for name, want := range map[string]bool{"short": true, strings.Repeat("x", 64): false} {
		b := &builder{in: Input{Config: testConfig()}}
		b.addACLs(subnet(name, kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16", Private: true}))
		rows := b.rows.ACLs[0].Rows
		drop := rows[len(rows)-1]
		if !drop.Log || drop.Severity == nil || (drop.Name != nil) != want || want && *drop.Name != name {
			t.Errorf("%s: %+v", name, drop)
		}
	}
}

// A switch of every OVN subnet has its ACLs looked after, so that they end with the field; a broken Subnet keeps those
// that it has.
func TestWhoseACLsAreLookedAfter(t *testing.T) {
	rows, _ := Rows(Input{Config: testConfig(), Subnets: []*kubeovnv1.Subnet{
		subnet("z", overlay("10.0.0.0/16")), subnet("broken", overlay("10.0.0.0/99")), subnet("a", overlay("10.1.0.0/16")),
		subnet("macvlan", kubeovnv1.SubnetSpec{CIDRBlock: "10.2.0.0/16", Provider: "macvlan.default", Private: true}),
	}})
	if diff := cmp.Diff([]nb.ACLs{{Switch: "a"}, {Switch: "z"}}, rows.ACLs); diff != "" {
		t.Errorf("ACLs (-want +got):\n%s", diff)
	}
}

// No two ACLs of one parent match the same at one priority: OVN would take any of them.
func TestACLsAreUnambiguous(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := kubeovnv1.SubnetSpec{CIDRBlock: "10.16.0.0/16,fd00::/64", Private: rapid.Bool().Draw(t, "private"), AllowEWTraffic: rapid.Bool().Draw(t, "ew"),
			AllowSubnets: rapid.SliceOf(rapid.SampledFrom([]string{"10.17.0.0/16", "10.17.9.0/16", "fd00::/64", "x"})).Draw(t, "allowed")}
		for range rapid.IntRange(0, 5).Draw(t, "acls") {
			spec.ACLs = append(spec.ACLs, aclOf(rapid.SampledFrom([]string{"to-lport", "from-lport"}).Draw(t, "direction"),
				rapid.SampledFrom([]int{1, 1000}).Draw(t, "priority"), "ip", rapid.SampledFrom([]string{"drop", "allow"}).Draw(t, "action")))
		}
		b := &builder{in: Input{Config: testConfig()}}
		b.addACLs(subnet("s", spec))
		seen := map[string]bool{}
		for _, r := range b.rows.ACLs[0].Rows {
			k := fmt.Sprint(r.Direction, r.Priority, r.Match)
			if seen[k] {
				t.Fatalf("two of %s", k)
			}
			seen[k] = true
		}
	})
}
