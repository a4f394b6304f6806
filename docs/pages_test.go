package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	kubeovnv1 "github.com/berth-net/berth/pkg/api/kubeovn/v1"
	"github.com/berth-net/berth/pkg/topology"
)

func page(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

// The fields of scope.md are those that nobody realises alone.
func TestScope(t *testing.T) {
	yes := true
	subnet := kubeovnv1.Subnet{Spec: kubeovnv1.SubnetSpec{Provider: "ovn", NatOutgoingPolicyRules: make([]kubeovnv1.NatOutgoingPolicyRule, 1), EnableLb: &yes, EnableIPv6RA: yes,
		IPv6RAConfigs: "x", EnableMulticastSnoop: yes, EnableExternalLBAddress: yes, Private: yes, EnableDHCP: yes, NatOutgoing: yes, LogicalGateway: yes, EnableEcmp: yes}}
	vpc := kubeovnv1.Vpc{Spec: kubeovnv1.VpcSpec{ExtraExternalSubnets: []string{"x"}, EnableBfd: yes, BFDPort: &kubeovnv1.BFDPort{Enabled: yes}, EnableExternal: yes,
		StaticRoutes: []kubeovnv1.StaticRoute{{BFDID: "x", CIDR: "10.0.0.0/8"}}}}
	rules := []kubeovnv1.SecurityGroupRule{{Policy: "pass", Priority: 1}}
	group := kubeovnv1.SecurityGroup{Spec: kubeovnv1.SecurityGroupSpec{Tier: 1, IngressRules: rules, EgressRules: rules, AllowSameGroupTraffic: yes}}
	want := slices.Concat(topology.UnrealisedSubnet(&subnet, topology.Alone), topology.UnrealisedVpc(&vpc, topology.Alone),
		topology.UnrealisedSecurityGroup(&group, topology.Alone))
	for i := range want {
		want[i] = strings.ReplaceAll(want[i], "[0]", "[]")
	}
	var got []string
	for _, m := range regexp.MustCompile("`(spec[.][^`]+)`").FindAllStringSubmatch(page(t, "scope.md"), -1) {
		got = append(got, m[1])
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("-realised by nobody +on the page:\n%s", d)
	}
}

// The tests and rules that design.md leads to are there.
func TestDesign(t *testing.T) {
	var tests strings.Builder
	err := filepath.WalkDir("..", func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		raw, err := os.ReadFile(path)
		tests.Write(raw)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	names := regexp.MustCompile("`(Test[A-Za-z0-9]+)`").FindAllStringSubmatch(page(t, "design.md"), -1)
	if len(names) < 30 {
		t.Errorf("only %d tests are named", len(names))
	}
	for _, m := range names {
		if !strings.Contains(tests.String(), "func "+m[1]+"(t *testing.T)") {
			t.Errorf("there is no %s", m[1])
		}
	}
	rules := page(t, "../internal/protocol/rule_test.go")
	for _, cell := range regexp.MustCompile("rules? ((?:`[a-zA-Z]+`(?:, )?)+)").FindAllStringSubmatch(page(t, "design.md"), -1) {
		for _, m := range regexp.MustCompile("`([a-zA-Z]+)`").FindAllStringSubmatch(cell[1], -1) {
			if !regexp.MustCompile(`\b` + m[1] + `\b`).MatchString(rules) {
				t.Errorf("there is no rule %s", m[1])
			}
		}
	}
}
