package manifests_test

import (
	"bytes"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"

	finalizerworker "github.com/berth-net/berth/cmd/finalizer-worker/app"
	webhook "github.com/berth-net/berth/cmd/webhook/app"
)

// The arguments in the install files are flags of the programs.
func TestArguments(t *testing.T) {
	for _, overlay := range []string{"alone", "alone-cert-manager", "beside", "beside-cert-manager"} {
		text := read(t, "manifests/dist/"+overlay+"/install.yaml")
		seen := map[string]bool{}
		for _, doc := range bytes.Split([]byte(text), []byte("\n---\n")) {
			var d appsv1.Deployment
			if err := yaml.Unmarshal(doc, &d); err != nil {
				t.Fatal(err)
			}
			if d.Kind != "Deployment" {
				continue
			}
			c := d.Spec.Template.Spec.Containers[0]
			command := map[string]func() *cobra.Command{"/webhook": webhook.NewCommand, "/finalizer-worker": finalizerworker.NewCommand}[c.Command[0]]
			if command == nil || len(c.Command) != 1 {
				t.Fatalf("%s: %s runs %v", overlay, d.Name, c.Command)
			}
			if err := command().ParseFlags(c.Args); err != nil {
				t.Errorf("%s: %s: %v", overlay, d.Name, err)
			}
			seen[d.Name] = true
		}
		if len(seen) != 2 {
			t.Errorf("%s: programs %v", overlay, seen)
		}
	}
}

// Every alert has a section in the runbook under the address that it carries, and every section an alert.
func TestRunbook(t *testing.T) {
	rules := read(t, "manifests/components/monitoring/rules.yaml")
	var alerts []string
	for _, m := range regexp.MustCompile(`(?m)^    - alert: (\w+)$`).FindAllStringSubmatch(rules, -1) {
		alerts = append(alerts, m[1])
		if !strings.Contains(rules, "runbook_url: https://github.com/berth-net/berth/blob/main/docs/runbook.md#"+strings.ToLower(m[1])+"\n") {
			t.Errorf("%s does not lead to the runbook", m[1])
		}
	}
	runbook := read(t, "docs/runbook.md")
	var sections []string
	for _, m := range regexp.MustCompile(`(?m)^### (Berth\w+)$`).FindAllStringSubmatch(runbook, -1) {
		sections = append(sections, m[1])
	}
	slices.Sort(alerts)
	slices.Sort(sections)
	if len(alerts) < 10 {
		t.Errorf("only %d alerts are found", len(alerts))
	}
	if d := cmp.Diff(alerts, sections); d != "" {
		t.Errorf("alerts and sections of the runbook differ:\n%s", d)
	}
	for _, s := range strings.Split(runbook, "\n### ")[1:] {
		name, body, _ := strings.Cut(s, "\n")
		if len(body) < 100 || !strings.Contains(body, "1. ") {
			t.Errorf("%s: the section says no steps", name)
		}
	}
}

// Nobody who removes Berth is left with pods in Terminating: the document has the steps in the order in which they work,
// and the runbook the way without our command line.
func TestB83RemovingIsDescribed(t *testing.T) {
	_, removing, _ := strings.Cut(read(t, "docs/install.md"), "## Removing")
	at := 0
	for _, step := range []string{"kubectl delete mutatingwebhookconfiguration", "scale deployment berth-worker --replicas=0",
		"kubectl berth uninstall --strip-finalizers --yes", "kubectl delete -f"} {
		n := strings.Index(removing[at:], step)
		if n < 0 {
			t.Fatalf("%q is missing, or too early", step)
		}
		at += n
	}
	if !strings.Contains(read(t, "docs/runbook.md"), `{"op":"remove","path":"/metadata/finalizers"}`) {
		t.Error("the runbook has no command for one pod")
	}
}
