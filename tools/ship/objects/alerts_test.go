package objects

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-net/berth/tools/ship/render"
)

const monitoring = "manifests/components/monitoring/"

// alertGroups are the groups of the shipped PrometheusRule.
func alertGroups(t *testing.T) []any {
	t.Helper()
	objects, err := render.Overlay(repo, "beside", "monitoring")
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range objects {
		if o.Kind() == "PrometheusRule" {
			return o["spec"].(map[string]any)["groups"].([]any)
		}
	}
	t.Fatal("there are no alerts")
	return nil
}

// eachAlert calls with every rule of the groups.
func eachAlert(groups []any, do func(rule map[string]any)) {
	for _, g := range groups {
		for _, r := range g.(map[string]any)["rules"].([]any) {
			do(r.(map[string]any))
		}
	}
}

func writeRules(t *testing.T, dir string, groups []any) string {
	t.Helper()
	body, err := yaml.Marshal(map[string]any{"groups": groups})
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rules.yaml")
	if err := os.WriteFile(path, body, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func promtool(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "promtool", args...).CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v (hack/tools.sh prometheus installs it)\n%s", strings.Join(args, " "), err, out)
	}
}

// Prometheus takes the rules, and the cases of rules_test.yaml hold. These look at labels: the texts are for people.
func TestAlerts(t *testing.T) {
	dir, groups := t.TempDir(), alertGroups(t)
	promtool(t, "check", "rules", writeRules(t, dir, groups))
	eachAlert(groups, func(rule map[string]any) { delete(rule, "annotations") })
	writeRules(t, dir, groups)
	cases, err := readFile(monitoring + "rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "rules_test.yaml")
	if err := os.WriteFile(path, []byte(cases), 0o600); err != nil {
		t.Fatal(err)
	}
	promtool(t, "test", "rules", path)
}

// Every alert has a case in which it fires, and is looked at on the cluster that is well. It says what is wrong, how bad
// that is, and where to read on.
func TestAlertsAreTested(t *testing.T) {
	cases, err := readFile(monitoring + "rules_test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	eachAlert(alertGroups(t), func(rule map[string]any) {
		name, _ := rule["alert"].(string)
		names = append(names, name)
		if !strings.Contains(cases, "alertname: "+name+"\n    exp_alerts:\n    - exp_labels:") {
			t.Errorf("%s never fires in a test", name)
		}
		if !strings.Contains(cases, "alertname: "+name+"\n    exp_alerts: []\n") {
			t.Errorf("%s is not tested on a cluster that is well", name)
		}
		annotations, _ := rule["annotations"].(map[string]any)
		for _, k := range []string{"summary", "description", "runbook_url"} {
			if s, _ := annotations[k].(string); s == "" {
				t.Errorf("%s has no %s", name, k)
			}
		}
		severity, _ := rule["labels"].(map[string]any)["severity"].(string)
		if severity != "critical" && severity != "warning" {
			t.Errorf("%s: severity %q", name, severity)
		}
	})
	slices.Sort(names)
	if len(names) < 10 || len(slices.Compact(slices.Clone(names))) != len(names) {
		t.Errorf("alerts %v", names)
	}
}
